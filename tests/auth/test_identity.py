"""What the sender of a request may do: roles, tags, names in a path, names in a body, and its caches."""

import pytest

from holtmq.auth.permissions import Access, Action, Permissions
from holtmq.auth.rights import Identity, Right, RightMissing, of_role
from holtmq.auth.roles import Role
from holtmq.auth.users import UserStore, Vhost

NOTHING = Permissions("", "", "")


def identity(
    *tags: str, role: Role | None = None, inside: Permissions = NOTHING, elsewhere: Permissions | None = None
) -> Identity:
    accesses = {"/": Access(inside), "other": Access(elsewhere)}
    return Identity(
        "anna",
        tags,
        lambda vhost: accesses.get(vhost, Access(None)),
        ("/", "other"),
        lambda queue: ("/", queue),
        0,
        role=role,
    )


def passes(who: Identity, right: Right, **path: str) -> bool:
    try:
        who.check(right, path)
    except RightMissing:
        return False
    return True


def test_what_was_allowed_for_one_action_is_not_for_another() -> None:
    for allowed in Action:
        permissions = Permissions(*("q" if action is allowed else "" for action in Action))
        who = identity(inside=permissions)
        assert who.may(allowed, "q")  # remembered from now on

        assert {action for action in Action if who.may(action, "q")} == {allowed}


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("needed", list(Role))
def test_a_role_must_be_the_needed_one_or_more(role: Role, needed: Role) -> None:
    assert passes(identity(role=role), Right(role=needed)) == (role >= needed)


@pytest.mark.parametrize(
    ("tags", "allowed"),
    [((), False), (("management",), False), (("monitoring",), True), (("administrator",), True)],
)
def test_one_tag_is_needed_even_if_one_alone_would_do(tags: tuple[str, ...], allowed: bool) -> None:
    assert passes(identity(*tags), Right(tags=("monitoring",))) == allowed


def test_monitoring_is_not_administration() -> None:
    assert not passes(identity("monitoring"), Right(tags=("administrator",)))


def test_of_either_action_one_is_enough_and_none_is_not() -> None:
    either = Right(actions=(Action.READ, Action.WRITE), is_either=True)
    both = Right(actions=(Action.READ, Action.WRITE))

    assert passes(identity(inside=Permissions("", "", "q")), either)
    assert not passes(identity(inside=Permissions("q", "", "")), either)
    assert not passes(identity(inside=Permissions("", "", "q")), both)


def test_a_name_in_the_path_is_checked_in_its_vhost() -> None:
    right = Right(actions=(Action.READ,), path_name="name")
    who = identity(inside=Permissions("", "", "^q$"), elsewhere=Permissions("", "", "^r$"))

    assert passes(who, right, name="q")
    assert not passes(who, right, name="r")
    assert passes(who, right, name="r", vhost="other")
    assert not passes(who, right, name="q", vhost="other")


def test_everything_is_everything_in_all_vhosts() -> None:
    total = Permissions(".*", ".*", ".*")
    assert identity(inside=total, elsewhere=total).reads_everything
    assert identity(inside=total, elsewhere=total).writes_everything
    assert not identity(inside=total, elsewhere=NOTHING).reads_everything
    assert not identity(inside=total, elsewhere=NOTHING).writes_everything


def test_a_role_acts_in_the_default_vhost_only_and_a_reader_writes_nothing() -> None:
    users = UserStore()
    users.put_vhost(Vhost("/"))
    users.put_vhost(Vhost("other"))
    admin = of_role(users, Role.ADMIN, None, lambda queue: ("/", queue), None)
    reader = of_role(users, Role.READ_ONLY, None, lambda queue: ("/", queue), None)

    assert admin.may_in("/", Action.CONFIGURE, "q")
    assert not admin.may_in("other", Action.READ, "q")
    assert [action for action in Action if reader.may_in("/", action, "q")] == [Action.READ]

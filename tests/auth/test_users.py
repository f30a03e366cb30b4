"""The store of users, vhosts and grants."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.auth.permissions import FULL_ACCESS, Action, Permissions
from holtmq.auth.rights import of_role
from holtmq.auth.roles import Role
from holtmq.auth.users import ADMINISTRATOR, Grant, Snapshot, User, UserStore, Vhost, defaults


@pytest.fixture
def store() -> UserStore:
    return UserStore(defaults("hash"))


def test_a_new_node_has_the_guest_with_every_right_in_the_default_vhost(store: UserStore) -> None:
    guest = store.user("guest")

    assert guest is not None
    assert ADMINISTRATOR in guest.tags
    assert guest.is_loopback_only
    assert all(store.may("guest", "/", action, "anything") for action in Action)
    assert not store.has_own_users


def test_another_user_may_come_from_anywhere_and_counts_as_set_up(store: UserStore) -> None:
    store.put_user(User("ann", "hash"))

    assert not User("ann", "hash").is_loopback_only
    assert store.has_own_users


def test_permissions_count_in_their_own_vhost_only(store: UserStore) -> None:
    store.put_vhost(Vhost("other"))
    store.put_user(User("ann", "hash"))
    store.set_permissions(Grant("ann", "other", Permissions("", "", "^q$")))

    assert store.may("ann", "other", Action.READ, "q")
    assert not store.may("ann", "/", Action.READ, "q")
    assert not store.may("guest", "other", Action.READ, "q")
    assert store.access("ann", "other").is_granted
    assert not store.access("ann", "/").is_granted


def test_a_session_sees_changes_of_its_permissions(store: UserStore) -> None:
    store.put_user(User("ann", "hash"))
    session = store.access("ann", "/")
    assert not session.may(Action.READ, "q")

    store.set_permissions(Grant("ann", "/", FULL_ACCESS))
    assert session.may(Action.READ, "q")

    assert store.clear_permissions("ann", "/")
    assert not session.may(Action.READ, "q")


@pytest.mark.parametrize("deletion", ["delete_user", "delete_vhost", "clear_permissions"])
def test_whatever_takes_permissions_away_ends_them_for_live_sessions_too(
    store: UserStore, deletion: str
) -> None:
    store.put_user(User("ann", "hash"))
    store.put_vhost(Vhost("v"))
    store.set_permissions(Grant("ann", "v", FULL_ACCESS))
    session = store.access("ann", "v")
    assert session.may(Action.READ, "q")

    match deletion:
        case "delete_user":
            assert store.delete_user("ann")
        case "delete_vhost":
            assert store.delete_vhost("v")
        case _:
            assert store.clear_permissions("ann", "v")

    assert not session.may(Action.READ, "q")
    assert store.grants(user="ann") == ()


def test_a_user_created_again_starts_without_the_old_permissions(store: UserStore) -> None:
    store.delete_user("guest")
    store.put_user(User("guest", "hash"))

    assert not store.may("guest", "/", Action.READ, "q")


def test_a_new_password_leaves_permissions_alone(store: UserStore) -> None:
    store.put_user(User("guest", "new hash"))

    assert store.may("guest", "/", Action.READ, "q")


def test_deleting_what_is_not_there_says_so(store: UserStore) -> None:
    assert not store.delete_user("nobody")
    assert not store.delete_vhost("nowhere")
    assert not store.clear_permissions("guest", "nowhere")


def test_made_up_names_leave_nothing_behind(store: UserStore) -> None:
    for number in range(100):
        store.may(f"user-{number}", "/", Action.READ, "q")
        store.may("guest", f"vhost-{number}", Action.READ, "q")

    assert len(store._access) <= 1


def test_grants_are_listed_by_user_and_by_vhost(store: UserStore) -> None:
    store.put_user(User("ann", "hash"))
    store.put_vhost(Vhost("v"))
    for vhost in ("v", "/"):
        store.set_permissions(Grant("ann", vhost, FULL_ACCESS))

    assert [grant.vhost for grant in store.grants(user="ann")] == ["/", "v"]
    assert [grant.user for grant in store.grants(vhost="/")] == ["ann", "guest"]
    assert len(store.grants()) == 3


def test_a_password_hash_does_not_appear_in_texts() -> None:
    assert "s3cret" not in repr(User("ann", "s3cret"))
    assert "s3cret" not in repr(Snapshot(users=(User("ann", "s3cret"),)))


names = st.sampled_from(["a", "b", "guest"])
vhosts = st.sampled_from(["/", "v"])
changes = st.one_of(
    st.tuples(st.just("put_user"), st.builds(User, names, st.text(max_size=3), st.just(()))),
    st.tuples(st.just("delete_user"), names),
    st.tuples(st.just("put_vhost"), st.builds(Vhost, vhosts)),
    st.tuples(st.just("delete_vhost"), vhosts),
    st.tuples(st.just("set_permissions"), st.builds(Grant, names, vhosts, st.just(FULL_ACCESS))),
    st.tuples(st.just("clear_permissions"), st.tuples(names, vhosts)),
)


@given(st.lists(changes, max_size=30), st.integers(0, 30))
def test_a_snapshot_taken_at_any_point_and_the_rest_give_the_same_state(
    history: list[tuple[str, object]], cut: int
) -> None:
    def apply(store: UserStore, change: tuple[str, object]) -> None:
        method, argument = change
        arguments = argument if isinstance(argument, tuple) else (argument,)
        getattr(store, method)(*arguments)

    whole, first = UserStore(), UserStore()
    for change in history:
        apply(whole, change)
        whole.access("a", "/").may(Action.READ, "q")
    for change in history[:cut]:
        apply(first, change)

    written = msgspec.json.encode(first.snapshot())
    second = UserStore(msgspec.json.decode(written, type=Snapshot))
    for change in history[cut:]:
        apply(second, change)

    assert second.snapshot() == whole.snapshot()
    for user in ("a", "b", "guest"):
        for vhost in ("/", "v"):
            assert second.may(user, vhost, Action.READ, "q") == whole.may(user, vhost, Action.READ, "q")


def test_permissions_given_again_reach_a_session_that_was_open_all_along() -> None:
    store = UserStore(defaults("hash"))
    access = store.access("guest", "/")

    store.clear_permissions("guest", "/")
    refused = access.may(Action.READ, "q")
    store.set_permissions(Grant("guest", "/", FULL_ACCESS))

    assert not refused
    assert access.may(Action.READ, "q")


def test_a_token_with_a_role_and_no_user_gets_into_the_default_vhost_alone(store: UserStore) -> None:
    store.put_vhost(Vhost("other"))

    token = of_role(store, Role.ADMIN, None, lambda queue: ("/", queue), None)

    assert all(token.may_in("/", action, "q") for action in Action)
    assert not any(token.may_in("other", action, "q") for action in Action)
    assert not token.may_enter("other")

"""Logins: who is let in, from where, and at what cost."""

import asyncio
import contextlib
import threading

import pytest

from holtmq.auth import passwords
from holtmq.auth.login import Authenticator, LoginRefused
from holtmq.auth.users import User, UserStore, defaults


class CountedArgon:
    """Stands in for argon2, which takes tens of milliseconds: counts the runs and notes their threads."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.threads: set[int] = set()

    def verify(self, password_hash: str, password: str) -> bool:
        self.threads.add(threading.get_ident())
        self.runs.append(password_hash)
        return password_hash == f"hash of {password}"


@pytest.fixture
def argon(monkeypatch: pytest.MonkeyPatch) -> CountedArgon:
    argon = CountedArgon()
    monkeypatch.setattr(passwords, "verify_password", argon.verify)
    return argon


@pytest.fixture
def users() -> UserStore:
    store = UserStore(defaults("hash of guest"))
    store.put_user(User("ann", "hash of secret"))
    store.put_user(User("cert", ""))
    return store


async def test_real_hashes_open_for_the_right_password_only() -> None:
    store = UserStore(defaults(passwords.hash_password("guest")))
    login = Authenticator(store)

    assert (await login.authenticate("guest", "guest", from_loopback=True)).name == "guest"
    with pytest.raises(LoginRefused, match="wrong password"):
        await login.authenticate("guest", "geust", from_loopback=True)


async def test_the_guest_is_let_in_from_loopback_only_even_when_already_verified(
    users: UserStore, argon: CountedArgon
) -> None:
    login = Authenticator(users)
    await login.authenticate("guest", "guest", from_loopback=True)

    with pytest.raises(LoginRefused, match="can only log in via localhost"):
        await login.authenticate("guest", "guest", from_loopback=False)
    with pytest.raises(LoginRefused, match="can only log in via localhost"):
        await Authenticator(users).authenticate("guest", "guest", from_loopback=False)
    assert (await login.authenticate("ann", "secret", from_loopback=False)).name == "ann"


async def test_a_second_login_does_not_pay_for_argon_again_and_never_on_the_loop(
    users: UserStore, argon: CountedArgon
) -> None:
    login = Authenticator(users)

    for _ in range(5):
        await login.authenticate("ann", "secret", from_loopback=False)

    assert len(argon.runs) == 1
    assert threading.get_ident() not in argon.threads
    known = login.from_memory("ann", "secret", from_loopback=False)
    assert known is not None
    assert known.name == "ann"
    assert login.from_memory("ann", "other", from_loopback=False) is None


async def test_a_wrong_password_is_never_remembered(users: UserStore, argon: CountedArgon) -> None:
    login = Authenticator(users)

    for _ in range(3):
        with pytest.raises(LoginRefused, match="wrong password"):
            await login.authenticate("ann", "guess", from_loopback=True)

    assert len(argon.runs) == 3


async def test_a_changed_password_counts_at_once(users: UserStore, argon: CountedArgon) -> None:
    login = Authenticator(users)
    await login.authenticate("ann", "secret", from_loopback=True)

    users.put_user(User("ann", "hash of changed"))

    with pytest.raises(LoginRefused):
        await login.authenticate("ann", "secret", from_loopback=True)
    await login.authenticate("ann", "changed", from_loopback=True)


async def test_an_unknown_user_costs_the_same_as_a_wrong_password(
    users: UserStore, argon: CountedArgon
) -> None:
    with pytest.raises(LoginRefused, match="no user 'nobody'"):
        await Authenticator(users).authenticate("nobody", "x", from_loopback=True)

    assert argon.runs == [passwords.UNKNOWN_USER_HASH]


async def test_a_user_without_a_password_comes_by_certificate_only(
    users: UserStore, argon: CountedArgon
) -> None:
    login = Authenticator(users)

    with pytest.raises(LoginRefused):
        await login.authenticate("cert", "", from_loopback=True)
    assert login.certified("cert", from_loopback=False).name == "cert"
    with pytest.raises(LoginRefused, match="no user"):
        login.certified("nobody", from_loopback=False)
    with pytest.raises(LoginRefused, match="localhost"):
        login.certified("guest", from_loopback=False)


async def test_a_storm_of_logins_runs_two_checks_at_a_time(
    users: UserStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_at_once = threading.Barrier(3)

    def slow(password_hash: str, password: str) -> bool:
        with contextlib.suppress(threading.BrokenBarrierError):
            three_at_once.wait(0.2)
            pytest.fail("a third check ran beside two others")
        return True

    monkeypatch.setattr(passwords, "verify_password", slow)
    login = Authenticator(users)

    await asyncio.gather(*(login.authenticate("ann", str(n), from_loopback=True) for n in range(6)))


@pytest.mark.parametrize("change", ["deleted", "given a new password"])
async def test_a_user_changed_while_being_checked_is_not_let_in(
    users: UserStore, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    started, go_on = threading.Event(), threading.Event()

    def slow(password_hash: str, password: str) -> bool:
        started.set()
        return go_on.wait(120)

    monkeypatch.setattr(passwords, "verify_password", slow)
    attempt = asyncio.create_task(Authenticator(users).authenticate("ann", "secret", from_loopback=True))
    await asyncio.to_thread(started.wait, 120)

    if change == "deleted":
        users.delete_user("ann")
    else:
        users.put_user(User("ann", "hash of changed"))
    go_on.set()

    with pytest.raises(LoginRefused):
        await attempt

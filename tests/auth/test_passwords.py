"""Password hashes and the memory of verified credentials."""

import argon2
import pytest

from holtmq.auth import passwords
from holtmq.auth.passwords import VerifiedCredentials


def test_a_hash_fits_its_password_and_no_other_and_holds_neither_password_nor_a_fixed_salt() -> None:
    first, second = passwords.hash_password("päss"), passwords.hash_password("päss")

    assert first.startswith("$argon2id$")
    assert first != second
    assert passwords.verify_password(first, "päss")
    assert not passwords.verify_password(first, "pass")
    assert not passwords.verify_password(first, "")


@pytest.mark.parametrize("damaged", ["", "plain", "$argon2id$v=19$m=19456,t=2,p=1$x$y"])
def test_a_damaged_hash_fits_nothing_and_wants_to_be_replaced(damaged: str) -> None:
    assert not passwords.verify_password(damaged, "")
    assert not passwords.verify_password(damaged, damaged)


def test_bytes_that_are_not_text_are_a_wrong_password_not_an_error() -> None:
    assert not passwords.verify_password(
        passwords.UNKNOWN_USER_HASH, b"\xff".decode("utf-8", "surrogateescape")
    )


def test_a_hash_of_other_cost_is_accepted_and_wants_to_be_replaced() -> None:
    cheap = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1).hash("x")

    assert passwords.verify_password(cheap, "x")
    assert passwords.needs_rehash(cheap)
    assert passwords.needs_rehash("nonsense")
    assert not passwords.needs_rehash(passwords.hash_password("x"))


def test_the_hash_for_unknown_users_costs_as_much_as_a_real_one() -> None:
    assert not passwords.needs_rehash(passwords.UNKNOWN_USER_HASH)


def test_only_exactly_what_was_verified_is_known() -> None:
    cache = VerifiedCredentials()

    cache.remember("ab", "c", "hash")

    assert cache.knows("ab", "c", "hash")
    assert not cache.knows("a", "bc", "hash")
    assert not cache.knows("ab", "c", "another hash")
    assert not cache.knows("ab", "d", "hash")


def test_the_memory_is_bounded_and_forgets_the_longest_unused() -> None:
    cache = VerifiedCredentials(capacity=2)
    cache.remember("a", "p", "h")
    cache.remember("b", "p", "h")

    assert cache.knows("a", "p", "h")
    cache.remember("c", "p", "h")

    assert len(cache) == 2
    assert not cache.knows("b", "p", "h")
    assert cache.knows("a", "p", "h")

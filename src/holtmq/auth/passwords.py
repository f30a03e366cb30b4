"""Password hashes (argon2id), and a memory of what was verified a moment ago.

Owns: the cost parameters and the cache of verified credentials.
Must not touch: users. Hashing and verifying block for tens of milliseconds: call them in a thread.
"""

import hashlib
import secrets
from collections import OrderedDict
from typing import Final

import argon2

# OWASP's recommendation for a server (19 MiB, two passes, one lane). argon2-cffi's own default takes
# 64 MiB for each check, which a storm of new connections would multiply by the number of threads.
_HASHER: Final = argon2.PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)

# Verified in place of a missing user's hash, so that an unknown name takes as long as a wrong password.
NOBODY_HASH: Final = (
    "$argon2id$v=19$m=19456,t=2,p=1$97MScQCAOmwuyPUseuc6EQ$fkc/H7XOmzDEEQ4YAPsrONMiW6QU02wZg7nqTQkr+Ro"
)


def hash_password(password: str) -> str:
    """A salted argon2id hash, with its parameters inside."""
    return _HASHER.hash(password)


def verify_password(password_hash: str, password: str) -> bool:
    """Whether the password is the one that was hashed; a damaged or empty hash fits none."""
    try:
        return _HASHER.verify(password_hash, password)
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False
    except UnicodeEncodeError:  # bytes that are not UTF-8, kept as lone surrogates: nobody's password
        return False


def needs_rehash(password_hash: str) -> bool:
    """Whether the hash was made with other parameters than today's."""
    try:
        return _HASHER.check_needs_rehash(password_hash)
    except argon2.exceptions.InvalidHashError:
        return True


class VerifiedCredentials:
    """The credentials that were right lately, so that a reconnect does not pay for argon2 again.

    Holds keyed digests, never passwords, and the newest ``capacity`` of them. The hash is part of what is
    digested: after a change of password the old one is not found, and nothing has to be told.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = capacity
        self._key = secrets.token_bytes(32)  # lives as long as the process: a core dump is all it protects
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def knows(self, name: str, password: str, password_hash: str) -> bool:
        """Whether exactly these were verified before."""
        digest = self._digest(name, password, password_hash)
        if digest not in self._known:
            return False
        self._known.move_to_end(digest)
        return True

    def remember(self, name: str, password: str, password_hash: str) -> None:
        """Note that these were verified."""
        self._known[self._digest(name, password, password_hash)] = None
        if len(self._known) > self._capacity:
            self._known.popitem(last=False)

    def _digest(self, *parts: str) -> bytes:
        state = hashlib.blake2b(key=self._key, digest_size=32)
        for part in parts:
            raw = part.encode("utf-8", "surrogatepass")
            # With its length, so that ("ab", "c") and ("a", "bc") differ.
            state.update(len(raw).to_bytes(4, "big") + raw)
        return state.digest()

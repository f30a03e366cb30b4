"""Password hashes (argon2id, and RabbitMQ's until the next login), and a memory of what was verified lately.

Owns: the cost parameters, the forms of a hash, and the cache of verified credentials.
Must not touch: users. Hashing and verifying block for tens of milliseconds: call them in a thread.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import argon2

# OWASP's recommendation for a server (19 MiB, two passes, one lane). argon2-cffi's own default takes
# 64 MiB for each check, which a storm of new connections would multiply by the number of threads.
_HASHER: Final = argon2.PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)

# RabbitMQ's: the digest of salt and password, behind the salt, in base64. Weaker than argon2, with which they
# are made anew as soon as the password is known.
_RABBITMQ: Final = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
    "rabbit_password_hashing_md5": "md5",
}
DEFAULT_IMPORTED: Final = "rabbit_password_hashing_sha256"  # of a RabbitMQ hash that does not say
_SALT_BYTES: Final = 4

# Verified in place of a missing user's hash, so that an unknown name takes as long as a wrong password.
NOBODY_HASH: Final = (
    "$argon2id$v=19$m=19456,t=2,p=1$97MScQCAOmwuyPUseuc6EQ$fkc/H7XOmzDEEQ4YAPsrONMiW6QU02wZg7nqTQkr+Ro"
)


def hash_password(password: str) -> str:
    """A salted argon2id hash, with its parameters inside."""
    return _HASHER.hash(password)


def imported_hash(algorithm: str, encoded: str) -> str:
    """A hash of RabbitMQ's as it is kept here; ValueError says what is wrong with it."""
    digest = _RABBITMQ.get(algorithm)
    if digest is None:
        raise ValueError(f"hashing algorithm '{algorithm}' is none of {', '.join(_RABBITMQ)}")
    try:
        raw = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise ValueError("the hash is not base64") from None
    if len(raw) != _SALT_BYTES + hashlib.new(digest, usedforsecurity=False).digest_size:
        raise ValueError(f"the hash is not of {algorithm}: {len(raw)} bytes")
    return f"${algorithm}${encoded}"


def exported_hash(password_hash: str) -> tuple[str, str] | None:
    """Algorithm and hash of a password that RabbitMQ can check; None for one of ours."""
    _, _, rest = password_hash.partition("$")
    algorithm, _, encoded = rest.partition("$")
    return (algorithm, encoded) if algorithm in _RABBITMQ else None


def _verify_imported(algorithm: str, encoded: str, password: str) -> bool:
    raw = base64.b64decode(encoded)
    salt, digest = raw[:_SALT_BYTES], raw[_SALT_BYTES:]
    made = hashlib.new(_RABBITMQ[algorithm], salt + password.encode(), usedforsecurity=False).digest()
    return hmac.compare_digest(made, digest)


def verify_password(password_hash: str, password: str) -> bool:
    """Whether the password is the one that was hashed; a damaged or empty hash fits none."""
    try:
        if (imported := exported_hash(password_hash)) is not None:
            return _verify_imported(*imported, password)
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
        # Told of a right password whose hash should be made anew: name, password, the hash of now.
        self.on_outdated: Callable[[str, str, str], None] | None = None
        self._key = secrets.token_bytes(32)  # lives as long as the process: a core dump is all it protects
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def __bool__(self) -> bool:
        return True  # also an empty one is the one to use

    def knows(self, name: str, password: str, password_hash: str) -> bool:
        """Whether exactly these were verified before."""
        digest = self._digest(name, password, password_hash)
        if digest not in self._known:
            return False
        self._known.move_to_end(digest)
        return True

    def remember(self, name: str, password: str, password_hash: str) -> None:
        """Note that these were verified."""
        if self.on_outdated is not None and needs_rehash(password_hash):
            self.on_outdated(name, password, password_hash)
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

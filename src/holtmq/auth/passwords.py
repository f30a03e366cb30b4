"""Password hashes (argon2id, and RabbitMQ's until the next login), and a cache of verified credentials.

Owns: the cost parameters, the hash formats, and the cache.
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

# OWASP's recommendation for a server (19 MiB, two passes, one lane). argon2-cffi's default takes 64 MiB per
# check, and many connections at once would multiply that by the number of threads.
_HASHER: Final = argon2.PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)

# RabbitMQ's format: base64 of the salt followed by the digest of salt and password. Weaker than argon2, so
# such a hash is replaced by an argon2 one at the next login.
_RABBITMQ: Final = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
    "rabbit_password_hashing_md5": "md5",
}
DEFAULT_IMPORTED: Final = "rabbit_password_hashing_sha256"  # for a RabbitMQ hash without an algorithm
_SALT_BYTES: Final = 4

# Checked when the user does not exist, so that an unknown name takes as long as a wrong password.
UNKNOWN_USER_HASH: Final = (
    "$argon2id$v=19$m=19456,t=2,p=1$97MScQCAOmwuyPUseuc6EQ$fkc/H7XOmzDEEQ4YAPsrONMiW6QU02wZg7nqTQkr+Ro"
)


def hash_password(password: str) -> str:
    """A salted argon2id hash, which includes its parameters."""
    return _HASHER.hash(password)


def imported_hash(algorithm: str, encoded: str) -> str:
    """Convert a RabbitMQ hash into the stored form; raises ValueError if it is malformed."""
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
    """Algorithm and hash if RabbitMQ can check this password; None for an argon2 hash."""
    _, _, rest = password_hash.partition("$")
    algorithm, _, encoded = rest.partition("$")
    return (algorithm, encoded) if algorithm in _RABBITMQ else None


def hash_for_rabbitmq(password: str) -> str:
    """A salted SHA-256 hash in RabbitMQ's form, as definitions carry it."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def _verify_imported(algorithm: str, encoded: str, password: str) -> bool:
    raw = base64.b64decode(encoded)
    salt, digest = raw[:_SALT_BYTES], raw[_SALT_BYTES:]
    made = hashlib.new(_RABBITMQ[algorithm], salt + password.encode(), usedforsecurity=False).digest()
    return hmac.compare_digest(made, digest)


def verify_password(password_hash: str, password: str) -> bool:
    """Whether the password matches the hash; a damaged or empty hash matches none."""
    try:
        if (imported := exported_hash(password_hash)) is not None:
            return _verify_imported(*imported, password)
        return _HASHER.verify(password_hash, password)
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False
    except UnicodeEncodeError:  # not UTF-8 (lone surrogates): matches no hash
        return False


def needs_rehash(password_hash: str) -> bool:
    """Whether the hash uses another algorithm or other parameters than the current ones."""
    try:
        return _HASHER.check_needs_rehash(password_hash)
    except argon2.exceptions.InvalidHashError:
        return True


class VerifiedCredentials:
    """A cache of verified credentials, so that a reconnect does not run argon2 again.

    Holds keyed digests, never passwords, of the ``capacity`` most recently used. The digest includes the
    stored hash, so a password change invalidates the old entry without a notification.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = capacity
        # Called after a login whose hash should be replaced: name, password, current hash.
        self.on_outdated: Callable[[str, str, str], None] | None = None
        self._key = secrets.token_bytes(32)  # new in each process; the digests never leave its memory
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def __bool__(self) -> bool:
        return True  # so that ``verified or ...`` keeps an empty cache

    def knows(self, name: str, password: str, password_hash: str) -> bool:
        """Whether exactly these credentials were verified before."""
        digest = self._digest(name, password, password_hash)
        if digest not in self._known:
            return False
        self._known.move_to_end(digest)
        return True

    def remember(self, name: str, password: str, password_hash: str) -> None:
        """Add verified credentials."""
        if self.on_outdated is not None and needs_rehash(password_hash):
            self.on_outdated(name, password, password_hash)
        self._known[self._digest(name, password, password_hash)] = None
        if len(self._known) > self._capacity:
            self._known.popitem(last=False)

    def _digest(self, *parts: str) -> bytes:
        state = hashlib.blake2b(key=self._key, digest_size=32)
        for part in parts:
            raw = part.encode("utf-8", "surrogatepass")
            # The length goes in too, so that ("ab", "c") and ("a", "bc") differ.
            state.update(len(raw).to_bytes(4, "big") + raw)
        return state.digest()

"""The public keys that verify token signatures.

Owns: reading PEM texts and key sets (JWKS), and the age of a fetched set.
Must not touch: tokens and their claims. Fetching blocks: the caller runs it in a thread.
"""

import logging
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

PublicKey = RSAPublicKey | Ed25519PublicKey | Ed448PublicKey

log = logging.getLogger(__name__)

_FETCH_TIMEOUT: Final = 5.0
_LARGEST_SET: Final = 1 << 20
_SOONEST_REFETCH: Final = 10.0  # tokens with invented key ids must not cause a fetch each


class BadKey(ValueError):
    """The text is not a usable public key."""


def read_public_key(pem: str) -> PublicKey:
    """The key in a PEM text. A literal ``\\n``, common in environment variables, counts as a line end."""
    try:
        key = load_pem_public_key(pem.replace("\\n", "\n").strip().encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadKey(f"auth.jwt_public_key is not a PEM public key: {error}") from None
    if not isinstance(key, PublicKey):
        raise BadKey("auth.jwt_public_key is neither an RSA nor an Ed25519 key")
    return key


def algorithm_of(key: PublicKey) -> str:
    """The only algorithm a key is used with, whatever a token's header says."""
    return "RS256" if isinstance(key, RSAPublicKey) else "EdDSA"


def fetch(url: str) -> bytes:
    """Download the document at an http(s) address; raises OSError."""
    with urllib.request.urlopen(url, timeout=_FETCH_TIMEOUT) as answer:
        body: bytes = answer.read(_LARGEST_SET + 1)
    if len(body) > _LARGEST_SET:
        raise OSError(f"the key set is larger than {_LARGEST_SET} bytes")
    return body


@dataclass(frozen=True, slots=True)
class _NamedKey:
    kid: str
    key: PublicKey


class _KeySet(msgspec.Struct):
    keys: list[dict[str, object]]


class FetchedKeys:
    """The newest key set of an issuer."""

    def __init__(self, url: str, refresh_seconds: float, fetch: Callable[[str], bytes] = fetch) -> None:
        self._url = url
        self._refresh_seconds = refresh_seconds
        self._fetch = fetch
        self._keys: tuple[_NamedKey, ...] = ()
        self._fetched_at: float | None = None
        self._tried_at: float | None = None

    def find(self, kid: str | None, algorithm: str) -> PublicKey | None:
        """The key with this id; without an id, the key for the algorithm if there is only one."""
        fitting = [named for named in self._keys if algorithm_of(named.key) == algorithm]
        if kid is not None:
            return next((named.key for named in fitting if named.kid == kid), None)
        return fitting[0].key if len(fitting) == 1 else None

    def is_due(self, now: float, *, missing: bool) -> bool:
        """Whether to fetch: the set is old, or a requested key is ``missing``. Limited in rate."""
        if self._tried_at is not None and now - self._tried_at < _SOONEST_REFETCH:
            return False
        return missing or self._fetched_at is None or now - self._fetched_at >= self._refresh_seconds

    def download(self) -> bytes | None:
        """Fetch the set; blocks. Returns None if that failed: the old keys stay in use."""
        try:
            return self._fetch(self._url)
        except (OSError, ValueError) as error:
            log.warning("token keys could not be fetched", extra={"url": self._url, "reason": str(error)})
            return None

    def note_attempt(self, now: float) -> None:
        """Record that a fetch begins; the next one is not due for some seconds."""
        self._tried_at = now

    def accept(self, document: bytes, now: float) -> bool:
        """Use the keys of a fetched set. Returns False and keeps the old ones if it is not a key set."""
        try:
            raw_keys = msgspec.json.decode(document, type=_KeySet).keys
        except msgspec.MsgspecError as error:
            log.warning("token keys are not a key set", extra={"url": self._url, "reason": str(error)})
            return False
        self._keys = tuple(named for raw in raw_keys if (named := _read_jwk(raw)) is not None)
        self._fetched_at = now
        return True


def _read_jwk(raw: dict[str, object]) -> _NamedKey | None:
    algorithm = {"RSA": "RS256", "OKP": "EdDSA"}.get(str(raw.get("kty")))
    if algorithm is None or raw.get("use", "sig") != "sig" or raw.get("alg", algorithm) != algorithm:
        return None  # issuers publish keys for other purposes and algorithms in the same set
    try:
        key: object = jwt.PyJWK(dict(raw), algorithm=algorithm).key
    except (jwt.PyJWTError, ValueError) as error:
        log.warning("a token key was skipped", extra={"kid": str(raw.get("kid")), "reason": str(error)})
        return None
    return _NamedKey(str(raw.get("kid", "")), key) if isinstance(key, PublicKey) else None

"""The public keys that verify token signatures.

Owns: reading PEM texts, the age of an issuer's key set (JWKS) and how often it is fetched. PyJWT's client
reads the set. Must not touch: tokens and their claims. Fetching blocks: the caller runs it in a thread.
"""

import json
import logging
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from typing import Final

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

PublicKey = RSAPublicKey | Ed25519PublicKey | Ed448PublicKey | EllipticCurvePublicKey

log = logging.getLogger(__name__)

PUBLIC_ALGORITHMS: Final = frozenset({"RS256", "ES256", "ES384", "EdDSA"})
_FETCH_TIMEOUT: Final = 5.0
_LARGEST_SET: Final = 1 << 20
_MOST_KEYS: Final = 100
# HTTPException: the answer is cut off or is no HTTP; RuntimeError: its JSON is nested too deeply, or names an
# algorithm that has no keys.
_FAILURES: Final = (OSError, HTTPException, ValueError, TypeError, RuntimeError, jwt.PyJWTError)
_SOONEST_REFETCH: Final = 10.0  # tokens with invented key ids must not cause a fetch each


class BadKey(ValueError):
    """The text is not a usable public key."""


def read_public_key(pem: str) -> PublicKey:
    """The key in a PEM text. A literal ``\\n``, common in environment variables, counts as a line end."""
    try:
        key = load_pem_public_key(pem.replace("\\n", "\n").strip().encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadKey(f"auth.jwt_public_key is not a PEM public key: {error}") from None
    if not isinstance(key, PublicKey) or not algorithm_of(key):
        raise BadKey("auth.jwt_public_key is neither an RSA, an EC (P-256, P-384) nor an Ed25519 key")
    return key


def check_secret(secret: str) -> None:
    """Raise BadKey for a shared secret that PyJWT would refuse with each token."""
    try:
        jwt.get_algorithm_by_name("HS256").prepare_key(secret)
    except jwt.InvalidKeyError:
        raise BadKey("auth.jwt_secret is a public key or a certificate, which everybody may know") from None


def algorithm_of(key: PublicKey) -> str:
    """The only algorithm a key is used with, whatever a token's header says; empty: none."""
    if isinstance(key, EllipticCurvePublicKey):
        curves = {SECP256R1.name: "ES256", SECP384R1.name: "ES384"}
        return curves.get(key.curve.name, "")
    return "RS256" if isinstance(key, RSAPublicKey) else "EdDSA"


def fetch(url: str) -> bytes:
    """Download the document at an http(s) address; raises OSError."""
    with urllib.request.urlopen(url, timeout=_FETCH_TIMEOUT) as answer:
        body: bytes = answer.read(_LARGEST_SET + 1)
    if len(body) > _LARGEST_SET:
        raise OSError(f"the key set is larger than {_LARGEST_SET} bytes")
    return body


class _Client(jwt.PyJWKClient):
    """PyJWT's client, with a bound on how much it reads."""

    def __init__(self, url: str, fetch: Callable[[str], bytes]) -> None:
        super().__init__(url, cache_jwk_set=False, timeout=_FETCH_TIMEOUT)
        self._fetch = fetch

    def fetch_data(self) -> object:
        return json.loads(self._fetch(self.uri))


@dataclass(frozen=True, slots=True)
class _NamedKey:
    kid: str
    key: PublicKey


class FetchedKeys:
    """The newest key set of an issuer."""

    def __init__(self, url: str, refresh_seconds: float, fetch: Callable[[str], bytes] = fetch) -> None:
        self._url = url
        self._refresh_seconds = refresh_seconds
        try:
            self._client = _Client(url, fetch)
        except ValueError as error:
            raise BadKey(f"auth.jwt_jwks_url is no address: {error}") from None
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

    def download(self) -> jwt.PyJWKSet | None:
        """Fetch the set; blocks. Returns None if that failed: the old keys stay in use."""
        try:
            return self._client.get_jwk_set(refresh=True)
        except _FAILURES as error:
            reason = str(error) or type(error).__name__
            log.warning("token keys could not be fetched", extra={"url": self._url, "reason": reason})
            return None

    def note_attempt(self, now: float) -> None:
        """Record that a fetch begins; the next one is not due for some seconds."""
        self._tried_at = now

    def accept(self, found: jwt.PyJWKSet, now: float) -> None:
        """Use the keys of a fetched set."""
        # Issuers publish keys for other purposes and algorithms in the same set.
        usable = [
            _NamedKey(one.key_id or "", one.key)
            for one in found.keys
            if one.public_key_use in (None, "sig")
            and isinstance(one.key, PublicKey)
            and one.algorithm_name == algorithm_of(one.key)
        ]
        if len(usable) > _MOST_KEYS:
            log.warning("only the first token keys are used", extra={"url": self._url, "most": _MOST_KEYS})
        self._keys = tuple(usable[:_MOST_KEYS])
        self._fetched_at = now

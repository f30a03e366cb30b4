"""Bearer tokens (JWT) of the HTTP API: who sent a request, in which role.

Owns: the checks and the texts of the refusals. Must not touch: HTTP, clocks; the caller passes the time.
Only ``authenticate`` fetches keys.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import jwt

from holtmq.auth.roles import Bearer, Role, TokenRefused
from holtmq.auth.scopes import OWN_PREFIX, read_aliases, read_scopes
from holtmq.auth.token_keys import (
    PUBLIC_ALGORITHMS,
    FetchedKeys,
    PublicKey,
    algorithm_of,
    check_secret,
    fetch,
    read_public_key,
)
from holtmq.config import Auth, JwtAlgorithm

log = logging.getLogger(__name__)

_MOST_REMEMBERED: Final = 4096
_LONGEST_TOKEN: Final = 16 * 1024
_MOST_WARNED: Final = 100
_LATEST_END: Final = (
    253_402_300_800.0  # the year 10000; what expires later, in milliseconds perhaps, never does
)
# PyJWT checks the signature only. The claims are checked here, against the caller's time and with the texts
# that the API contract requires.
_SIGNATURE_ONLY: Final[dict[str, bool | list[str]]] = {
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
    "require": [],
}


class _UnknownKey(TokenRefused):
    """No known key matches; a newly fetched key set may have it."""


@dataclass(frozen=True, slots=True)
class _Verified:
    bearer: Bearer
    not_before: float
    expires_at: float


class TokenVerifier:
    """Checks tokens by one node's settings. The caller checks ``auth.jwt_enabled``."""

    def __init__(self, settings: Auth, fetch: Callable[[str], bytes] = fetch) -> None:
        self._settings = settings
        self._public_key: PublicKey | None = None
        if settings.jwt_public_key:
            self._public_key = read_public_key(settings.jwt_public_key)
        self._fetched: FetchedKeys | None = None
        if settings.jwt_jwks_url:
            self._fetched = FetchedKeys(settings.jwt_jwks_url, settings.jwt_jwks_refresh, fetch)
        self._allowed = self._allowed_algorithms()
        if settings.jwt_secret and JwtAlgorithm.HS256 in self._allowed:
            check_secret(settings.jwt_secret)
        self._roles = {
            settings.jwt_role_read_only: Role.READ_ONLY,
            settings.jwt_role_read_write: Role.READ_WRITE,
            settings.jwt_role_admin: Role.ADMIN,
        }
        self._aliases = read_aliases(settings.oauth2_scope_aliases)
        self._prefixes = (f"{settings.oauth2_resource_server}.", OWN_PREFIX)
        self._verified: dict[str, _Verified] = {}
        self._fetching = asyncio.Lock()
        self._warned: set[str | None] = set()  # subjects whose tokens do not expire

    @property
    def fetches_keys(self) -> bool:
        """Whether keys are fetched and can be outdated; the caller must then use ``authenticate``."""
        return self._fetched is not None

    def is_open(self, path: str) -> bool:
        """Whether the path may be used without a token."""
        return any(
            path.startswith(open_path[:-1]) if open_path.endswith("/*") else path == open_path
            for open_path in self._settings.jwt_skip_paths
        )

    async def authenticate(self, authorization: str | None, now: float) -> Bearer:
        """As ``verify``, but fetches the issuer's keys if they are old or the token's key is missing."""
        keys = self._fetched
        if keys is not None and keys.is_due(now, missing=False):
            await self._refresh(keys, now, missing=False)
        try:
            return self.verify(authorization, now)
        except _UnknownKey:
            if keys is None or not await self._refresh(keys, now, missing=True):
                raise
            return self.verify(authorization, now)

    def verify(self, authorization: str | None, now: float) -> Bearer:
        """Verify an Authorization header with the keys already known; raises TokenRefused."""
        token = _token_in(authorization)
        known = self._verified.get(token)
        if known is None:
            known = self._check(token)
            if len(self._verified) >= _MOST_REMEMBERED:
                self._verified.clear()
            self._verified[token] = known
        skew = self._settings.jwt_clock_skew
        if now >= known.expires_at + skew:
            self._verified.pop(token, None)
            raise TokenRefused("Token has expired")
        if now < known.not_before - skew:
            raise TokenRefused("Token is not yet valid")
        return known.bearer

    async def _refresh(self, keys: FetchedKeys, now: float, *, missing: bool) -> bool:
        async with self._fetching:
            if not keys.is_due(now, missing=missing):  # another request has just fetched them
                return missing
            keys.note_attempt(now)
            found = await asyncio.to_thread(keys.download)
            if found is None:
                return False
            keys.accept(found, now)
            self._verified.clear()  # tokens of a withdrawn key must not stay cached
            return True

    def _check(self, token: str) -> _Verified:
        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError:
            raise TokenRefused("Invalid token format") from None
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self._allowed:
            raise TokenRefused("Unsupported token algorithm")
        kid = header.get("kid")
        key = self._key(algorithm, kid if isinstance(kid, str) else None)
        try:
            claims: dict[str, object] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                options=_SIGNATURE_ONLY,  # type: ignore[arg-type]
            )
        except jwt.InvalidSignatureError:
            raise TokenRefused("Invalid token signature") from None
        except jwt.InvalidTokenError:
            raise TokenRefused("Invalid token format") from None
        return self._read(claims)

    def _key(self, algorithm: str, kid: str | None) -> PublicKey | str:
        # Chosen by the algorithm, not by what is configured: with a public key as HMAC secret, every client
        # could sign tokens.
        if algorithm == JwtAlgorithm.HS256:
            return str(self._settings.jwt_secret)
        if self._fetched is not None and (found := self._fetched.find(kid, algorithm)) is not None:
            return found
        if self._public_key is not None and algorithm_of(self._public_key) == algorithm:
            return self._public_key
        raise _UnknownKey("Unknown token key")

    def _read(self, claims: Mapping[str, object]) -> _Verified:
        settings = self._settings
        if settings.jwt_issuer and claims.get("iss") != settings.jwt_issuer:
            raise TokenRefused("Invalid token issuer")
        if settings.jwt_audience and settings.jwt_audience not in _texts(claims.get("aud")):
            raise TokenRefused("Invalid token audience")
        names = (*_texts(claims.get("role")), *_texts(claims.get("roles")))
        roles = [self._roles[name] for name in names if name in self._roles]
        expires_at = _moment(claims, "exp", math.inf)
        if expires_at >= _LATEST_END:
            expires_at = math.inf
        named = next(
            (name for claim in settings.oauth2_name_claims for name in _texts(claims.get(claim)) if name),
            None,
        )
        given = [scope for claim in settings.oauth2_scope_claims for scope in _scopes_in(claims, claim)]
        if expires_at == math.inf:
            self._without_end(named)
        bearer = Bearer(
            named,
            max(roles) if roles else None,
            None if expires_at == math.inf else expires_at + settings.jwt_clock_skew,
            read_scopes(given, self._prefixes, self._aliases),
        )
        return _Verified(bearer, _moment(claims, "nbf", -math.inf), expires_at)

    def _without_end(self, subject: str | None) -> None:
        """A token that never expires cannot be revoked: refuse it if so configured, else warn once."""
        if self._settings.jwt_require_exp:
            raise TokenRefused("Token has no expiry (exp)")
        if subject not in self._warned and len(self._warned) < _MOST_WARNED:
            self._warned.add(subject)
            log.warning("a token without exp is valid for ever", extra={"subject": subject or ""})

    def _allowed_algorithms(self) -> frozenset[str]:
        settings = self._settings
        if settings.jwt_algorithm is not JwtAlgorithm.AUTO:
            return frozenset({settings.jwt_algorithm.value})
        allowed = {JwtAlgorithm.HS256.value} if settings.jwt_secret else set()
        if self._public_key is not None:
            allowed.add(algorithm_of(self._public_key))
        if self._fetched is not None:
            allowed |= PUBLIC_ALGORITHMS
        return frozenset(allowed)


def _token_in(authorization: str | None) -> str:
    words = (authorization or "").split()
    if len(words) == 2 and words[0].lower() == "bearer":
        words = words[1:]
    if len(words) != 1 or words[0].lower() == "bearer":
        raise TokenRefused("Authentication required")
    if len(words[0]) > _LONGEST_TOKEN:
        raise TokenRefused("Invalid token format")
    return words[0]


def _texts(claim: object) -> tuple[str, ...]:
    texts = [item for item in (claim if isinstance(claim, list) else [claim]) if isinstance(item, str)]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:  # a surrogate, which is written with an escape in JSON: no name can have it
        raise TokenRefused("Invalid token claims") from None
    return tuple(texts)


def _scopes_in(claims: Mapping[str, object], path: str) -> list[str]:
    """The scopes in a claim: a text with spaces, or a list; a dot in the path enters a table."""
    value: object = claims
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return [word for text in _texts(value) for word in text.split()]


def _moment(claims: Mapping[str, object], name: str, absent: float) -> float:
    moment = claims.get(name, absent)
    # Python's JSON accepts NaN, and every comparison with NaN is false: such a token would never expire.
    try:
        if isinstance(moment, bool) or not isinstance(moment, (int, float)) or math.isnan(moment):
            raise TokenRefused("Invalid token claims")
    except OverflowError:  # an integer beyond all floats
        raise TokenRefused("Invalid token claims") from None
    return moment

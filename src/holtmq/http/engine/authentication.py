"""Authenticates requests: from headers and peer address to an ``Identity``.

Owns: the order in which credentials are checked, and the texts of refusals. Must not touch: rights, routes,
sockets. What can be decided from memory is decided at once; argon2 and fetching keys are awaited.
"""

import base64
import binascii
import logging
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from holtmq.auth.attempts import AuthAttempts, Protocol
from holtmq.auth.bearers import identity_of, looks_like_token
from holtmq.auth.login import Authenticator, LoginRefused, is_loopback, refuse_from_outside
from holtmq.auth.login_queue import TooManyLogins
from holtmq.auth.rights import Identity, PlaceOf, of_role, of_user
from holtmq.auth.roles import Bearer, Role, TokenRefused
from holtmq.auth.users import DEFAULT_USER, User, UserStore
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.sessions import Sessions, token_in

if TYPE_CHECKING:  # loads the libraries that verify tokens
    from holtmq.auth.tokens import TokenVerifier

log = logging.getLogger(__name__)

NO_USER: Final = "none"
REQUIRED: Final = "Authentication required"
# Headers besides Authorization that decide who the sender is. Without them, and with unchanged credentials,
# the connection reuses its last identity.
TELLING: Final = frozenset({b"cookie", b"x-forwarded-for", b"forwarded"})
_MOST_REMEMBERED: Final = 1024
_RECHECK_SECONDS: Final = 10.0

Headers = Mapping[bytes, bytes]


class Peer(NamedTuple):
    """Where a request comes from."""

    address: str
    is_local: bool  # on this machine, and not a remote client behind a proxy on it


def peer_of(host: str) -> Peer:
    return Peer(host, is_loopback(host))


def behind_proxy(peer: Peer, headers: Headers) -> Peer:
    """The client behind a proxy on this machine: it is not local just because the proxy is."""
    forwarded = headers.get(b"x-forwarded-for")
    if not peer.is_local or (forwarded is None and b"forwarded" not in headers):
        return peer
    for one in reversed((forwarded or b"").decode("latin-1").split(",")):
        address = one.strip()
        if not is_loopback(address):
            return Peer(address[:64], False)
    return peer


class RequestAuthenticator:
    """Authenticates the requests of one node."""

    def __init__(
        self,
        users: UserStore,
        authenticator: Authenticator,
        verifier: "TokenVerifier | None",
        sessions: Sessions,
        clock: Callable[[], float],
        place_of: PlaceOf,
        anonymous: str,
    ) -> None:
        self.users = users
        self.sessions = sessions
        self._authenticator = authenticator
        self._verifier = verifier
        self._clock = clock
        self._place_of = place_of
        self._anonymous = anonymous or (NO_USER if verifier is not None else DEFAULT_USER)
        self._of_users: dict[tuple[str, str | None], Identity] = {}

    @property
    def attempts(self) -> AuthAttempts:
        """How many logins were tried."""
        return self._authenticator.attempts

    def still_holds(self, identity: Identity) -> bool:
        """Whether an identity found earlier is still valid."""
        if identity.changes != self.users.changes:
            return False
        return identity.expires_at is None or self._clock() < identity.expires_at

    def is_open(self, path: bytes) -> bool:
        """Whether ``auth.jwt_skip_paths`` opens the path to all clients."""
        return self._verifier is not None and self._verifier.is_open(path.decode("latin-1"))

    def open_path_identity(self) -> Identity:
        """The identity of any client on such a path: the admin role, without a subject."""
        return of_role(self.users, Role.ADMIN, None, self._place_of, None)

    def at_once(self, headers: Headers, peer: Peer) -> Identity | None:
        """The sender, from memory; None when only ``identify`` can tell. Raises TokenRefused."""
        authorization = headers.get(b"authorization")
        if authorization is None:
            cookies = headers.get(b"cookie")
            if cookies is not None and token_in(cookies):
                return self._of_session(cookies)
            return self._of_anonymous(peer)
        credentials = read_basic(authorization)
        try:
            if credentials is not None:
                known = self._authenticator.from_memory(*credentials, from_loopback=peer.is_local)
                if known is None:
                    return None
                self.attempts.count(Protocol.HTTP, peer.address, known.name, succeeded=True)
                return self._of_user(known, known.name)
            verifier = self._verifier_for(authorization)
            if verifier.fetches_keys:
                return None
            return self._of_bearer(verifier.verify(_text(authorization), self._clock()), peer)
        except LoginRefused as refusal:
            raise self._refused(refusal, peer, credentials[0] if credentials else "") from None

    async def identify(self, headers: Headers, peer: Peer) -> Identity:
        """The sender of a request; raises TokenRefused, or Refusal when too many log in at a time."""
        found = self.at_once(headers, peer)
        if found is not None:
            return found
        authorization = headers[b"authorization"]
        credentials = read_basic(authorization)
        if credentials is None:
            verifier = self._verifier_for(authorization)
            bearer = await verifier.authenticate(_text(authorization), self._clock())
            try:
                return self._of_bearer(bearer, peer)
            except LoginRefused as refusal:
                raise self._refused(refusal, peer) from None
        if self._verifier is not None and looks_like_token(credentials[1]):  # whatever the name says
            bearer = await self._verifier.authenticate(credentials[1], self._clock())
            try:
                return self._of_bearer(bearer, peer)
            except LoginRefused as refusal:
                raise self._refused(refusal, peer) from None
        user = await self.log_in(*credentials, peer)
        return self._of_user(user, user.name)

    async def again(self, identity: Identity, headers: Headers, peer: Peer) -> Identity:
        """The sender of a request that was let in before, as of now; raises as ``identify`` does.

        A token is verified again; a password is not, as on an AMQP connection that is open.
        """
        if identity.expires_at is not None:
            return await self.identify(headers, peer)
        user = self.users.user(identity.name) if identity.role is None else None
        if user is None:
            raise TokenRefused(REQUIRED)
        return self._of_user(user, identity.subject)

    async def log_in(self, name: str, password: str, peer: Peer) -> User:
        """The user of a name and password; raises as ``identify`` does."""
        try:
            user = await self._authenticator.authenticate(
                name, password, from_loopback=peer.is_local, address=peer.address
            )
            self.attempts.count(Protocol.HTTP, peer.address, name, succeeded=True)
            return user
        except LoginRefused as refusal:
            raise self._refused(refusal, peer, name) from None
        except TooManyLogins as error:
            raise Refusal(429, f"{error}: try again in a second", "too_many_logins") from None

    def _of_session(self, cookies: bytes) -> Identity:
        user = self.sessions.find(cookies, self._clock())
        if user is None:
            raise TokenRefused("The session has ended: log in again")
        return self._of_user(user, user.name)

    def _of_anonymous(self, peer: Peer) -> Identity:
        user = self.users.user(self._anonymous) if self._anonymous != NO_USER else None
        if user is None:
            raise TokenRefused(REQUIRED)
        try:
            refuse_from_outside(user, peer.is_local)
        except LoginRefused:
            raise TokenRefused(REQUIRED) from None
        return self._of_user(user, None)

    def _of_bearer(self, bearer: Bearer, peer: Peer) -> Identity:
        expires_at = math.inf if bearer.expires_at is None else bearer.expires_at
        if self._verifier is not None and self._verifier.fetches_keys:
            expires_at = min(expires_at, self._clock() + _RECHECK_SECONDS)  # its key may be withdrawn
        return identity_of(
            bearer, self.users, self._place_of, from_loopback=peer.is_local, expires_at=expires_at
        )

    def _of_user(self, user: User, subject: str | None) -> Identity:
        known = self._of_users.get((user.name, subject))
        if known is None or known.changes != self.users.changes:
            if len(self._of_users) >= _MOST_REMEMBERED:
                self._of_users.clear()
            known = of_user(self.users, user, self._place_of, subject)
            self._of_users[user.name, subject] = known
        return known

    def _verifier_for(self, authorization: bytes) -> "TokenVerifier":
        scheme = authorization.split(b" ", 1)[0].lower()
        if scheme == b"basic":
            raise TokenRefused("The basic credentials cannot be read: base64 of name:password is expected")
        if self._verifier is None:
            raise TokenRefused("Tokens are not enabled on this broker (auth.jwt_enabled)")
        return self._verifier

    def _refused(self, refusal: LoginRefused, peer: Peer, name: str = "") -> TokenRefused:
        self.attempts.count(Protocol.HTTP, peer.address, name, succeeded=False)
        log.warning("login refused", extra={"reason": str(refusal), "peer": peer.address})
        # One text for every reason: an attacker must not learn which names exist.
        return TokenRefused("Login failed")


def read_basic(authorization: bytes) -> tuple[str, str] | None:
    """Name and password of a Basic Authorization header; None when it is not one or is malformed."""
    scheme, _, encoded = authorization.partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    name, colon, password = text.partition(":")
    return (name, password) if colon else None


def _text(authorization: bytes) -> str:
    if not authorization.isascii():
        raise TokenRefused("Invalid token format")
    return authorization.decode("ascii")

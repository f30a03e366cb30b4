"""Who sends the requests of one connection, and whether a request may be made at all.

Owns: the order of the checks before a body is read: site, sender, right. Must not touch: credentials
(``authentication.py``), sockets, bodies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holtmq.auth.rights import Identity
from holtmq.http.engine.authentication import TELLING, Peer, behind_proxy
from holtmq.http.engine.cross_site import MARKS
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.request import HttpRequest
from holtmq.http.engine.request_parser import TWICE

if TYPE_CHECKING:
    from holtmq.http.engine.engine import Engine


class Sender:
    """The sender of one connection's requests; remembered as long as the credentials are the same."""

    __slots__ = ("_credentials", "_engine", "_host", "remembered")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._credentials: bytes | None = None
        self.remembered: Identity | None = None  # of the last request with these credentials
        self._host: bytes | None = None  # the last Host that passed the check, of an anonymous request

    def look_closer(self, request: HttpRequest) -> None:
        """Check headers that only browsers, proxies and few other clients send."""
        headers = request.headers
        if TWICE in headers:
            raise Refusal(400, f"the header {headers[TWICE].decode('latin-1')} came twice")
        if not MARKS.isdisjoint(headers):
            is_public = request.route.right.is_public
            request.origin = self._engine.cross_site.check(headers, is_public=is_public)
        request.expects_continue = headers.get(b"expect", b"").lower() == b"100-continue"

    def at_once(self, request: HttpRequest, peer: Peer) -> Identity | None:
        """The identity, from memory; None when only ``identify`` can tell. Raises as the authenticator."""
        headers, identity = request.headers, self.remembered
        if (
            identity is None
            or request.is_unusual
            or headers.get(b"authorization") != self._credentials
            or not self._engine.authenticator.still_holds(identity)
        ):
            identity = self._engine.authenticator.at_once(headers, behind_proxy(peer, headers))
            if identity is not None:
                self._remember(request, identity)
        return identity

    async def identify(self, request: HttpRequest, peer: Peer) -> Identity:
        """The identity of a sender that is not known from memory."""
        peer = behind_proxy(peer, request.headers)
        identity = await self._engine.authenticator.identify(request.headers, peer)
        self._remember(request, identity)
        return identity

    def _remember(self, request: HttpRequest, identity: Identity) -> None:
        """Keep the identity for the next request, if it depends on the Authorization header alone."""
        headers = request.headers
        self.remembered = identity if TELLING.isdisjoint(headers) else None
        self._credentials = headers.get(b"authorization")

    def let_in(self, request: HttpRequest, identity: Identity) -> None:
        """Make the request one of this identity; raises when it may not be made."""
        request.identity = identity
        headers, engine = request.headers, self._engine
        if b"authorization" not in headers:
            host = headers.get(b"host")
            if host != self._host and identity.subject is None:  # neither credentials nor a session
                engine.cross_site.check_host(host)
                self._host = host
        identity.check(request.route.right, request.names)
        if engine.is_congested:
            raise Refusal(503, "too many answers wait for clients to read them")
        if engine.refusal is not None:
            raise engine.refusal

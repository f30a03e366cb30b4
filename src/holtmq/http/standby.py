"""The HTTP side of a node that does not own the log: health for operators and load balancers, else 503.

Owns: those answers. Must not touch: the broker; on a standby it is not complete.
"""

import ssl
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holtmq.auth.login import Authenticator
from holtmq.auth.rights import PUBLIC
from holtmq.auth.users import DEFAULT_VHOST, UserStore
from holtmq.http.engine.authentication import NO_USER, RequestAuthenticator
from holtmq.http.engine.context import ServedCertificate
from holtmq.http.engine.cross_site import CrossSite
from holtmq.http.engine.engine import Engine
from holtmq.http.engine.listening import HttpPorts
from holtmq.http.engine.request import Found, HttpRequest, HttpRoute
from holtmq.http.engine.sessions import Sessions
from holtmq.http.operator.standby_metrics import TEXT, Standby, exposition

_MOST_CONNECTIONS: Final = 1000
_MEMORY_BYTES: Final = 1 << 20
_encode: Final = msgspec.json.Encoder().encode


class StandbyServer:
    """``health`` returns the state of the replica, ``reason`` why requests are refused."""

    def __init__(
        self,
        health: Callable[[], dict[str, object]],
        reason: Callable[[], str],
        certificates: Callable[[], list[ServedCertificate]] = list,
    ) -> None:
        self._health = health
        self._reason = reason
        self._certificates = certificates
        found: Found = (HttpRoute(self._answer, PUBLIC, 0), {})
        self._engine = Engine(
            lambda _method, _path: found,
            _authenticator_without_users(),
            CrossSite((), ()),
            max_body=0,
            max_long_body=0,
            most_connections=_MOST_CONNECTIONS,
            memory_bytes=_MEMORY_BYTES,
        )
        self._ports = HttpPorts(self._engine)

    async def listen(self, hosts: Sequence[str], port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open the listeners, all on one port; return the port."""
        return await self._ports.open(hosts, port, tls)

    async def close(self) -> None:
        """Close the listeners and abort all connections."""
        await self._ports.close()
        for connection in list(self._engine.connections):
            connection.transport.abort()

    def _answer(self, request: HttpRequest) -> None:
        body: dict[str, object]
        if request.path == b"/health":
            status, body = 200, self._health()
        elif request.path == b"/ready":
            status, body = 503, {"ready": False, "reason": self._reason()}
        elif request.path == b"/metrics":  # for scrapers: the node is up, and has no broker yet
            metrics = exposition(Standby(self._certificates(), time.time()))
            request.answer_with(200, metrics, content_type=TEXT)
            return
        else:
            status, body = 503, {"error": self._reason(), "code": "standby"}
        request.answer_with(status, _encode(body), headers={"retry-after": "1"} if status == 503 else {})


def _authenticator_without_users() -> RequestAuthenticator:
    """An authenticator without users: every answer here is public."""
    users = UserStore()
    return RequestAuthenticator(
        users,
        Authenticator(users),
        None,
        Sessions(users),
        time.time,
        lambda name: (DEFAULT_VHOST, name),
        NO_USER,
    )

"""Requests that wait or stream for a long time: whether their sender may still make them.

Owns: when they are looked at. Must not touch: credentials, rights, what they wait for. A pop may wait for
minutes; meanwhile its token may end, its user be deleted or a permission be withdrawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from holtmq.auth.rights import Identity, RightMissing
from holtmq.auth.roles import TokenRefused
from holtmq.http.engine.authentication import behind_proxy
from holtmq.http.engine.request import HttpRequest

EVERY_SECONDS: Final = 1.0
_AT_ONCE: Final = 1_000  # 0.4 ms, if nothing has changed


async def sender_now(request: HttpRequest) -> Identity:
    """The sender as of now; raises TokenRefused or RightMissing if it may not make the request any more."""
    connection = request.connection
    authenticator, identity = connection.engine.authenticator, request.identity
    if authenticator.still_holds(identity):
        return identity
    try:
        peer = behind_proxy(connection.peer, request.headers)
        identity = await authenticator.again(identity, request.headers, peer)
        identity.check(request.route.right, request.names)
    except (TokenRefused, RightMissing):
        if not authenticator.is_open(request.path):
            raise
        identity = authenticator.open_path_identity()
    request.identity = identity
    return identity


class _Waiting(NamedTuple):
    check: Callable[[Identity], None]
    refuse: Callable[[Exception], None]


class LastingRequests:
    """The requests of one node that wait without a task of their own."""

    def __init__(self) -> None:
        self._waiting: dict[HttpRequest, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(
        self, request: HttpRequest, check: Callable[[Identity], None], refuse: Callable[[Exception], None]
    ) -> None:
        """The request waits. ``check`` raises if a changed sender may not; ``refuse`` then answers it."""
        self._waiting[request] = _Waiting(check, refuse)

    def end(self, request: HttpRequest) -> None:
        """It waits no more."""
        self._waiting.pop(request, None)

    async def watch(self) -> None:
        """Look at all of them, again and again."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Answer those whose sender may not make them any more."""
        for place, request in enumerate(list(self._waiting)):
            waiting = self._waiting.get(request)
            if waiting is not None:
                try:
                    if not request.connection.engine.authenticator.still_holds(request.identity):
                        waiting.check(await sender_now(request))
                except Exception as error:
                    if self._waiting.pop(request, None) is not None:
                        waiting.refuse(error)
            if place % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)

"""The overview as server-sent events, once a second.

Owns: the streams and their maximum number. Must not touch: what the overview contains.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final

import msgspec

from holtmq.auth.rights import RightMissing
from holtmq.auth.roles import TokenRefused
from holtmq.http.dashboard.api import Dashboard, dashboard_of, overview_of
from holtmq.http.engine.endpoints import MONITOR, Call, Endpoint, Stream
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.lasting_requests import sender_now
from holtmq.http.engine.request import HttpRequest

EVERY_SECONDS: Final = 1.0
_MOST_STREAMS: Final = 64
_encode: Final = msgspec.json.Encoder().encode


class OverviewEvents:
    """The open event streams of one node: they share one event a second."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._open = 0
        self._made_at = float("-inf")
        self._event = b""

    def enter(self) -> None:
        """Count one more stream; raises 503 when there are too many."""
        if self._open >= _MOST_STREAMS:
            raise Refusal(503, f"{_MOST_STREAMS} event streams are open already", "too_many_streams")
        self._open += 1

    async def events(self, request: HttpRequest) -> AsyncGenerator[bytes, None]:
        """The overview once a second, until the client disconnects or may not see it any more."""
        try:
            with suppress(TokenRefused, RightMissing):
                while True:
                    await sender_now(request)
                    yield await self._latest()
                    await asyncio.sleep(EVERY_SECONDS)
        finally:
            self._open -= 1

    async def _latest(self) -> bytes:
        now = asyncio.get_running_loop().time()
        if now - self._made_at >= EVERY_SECONDS * 0.9:
            self._made_at = now
            self._event = b"event: overview\ndata: " + _encode(await overview_of(self._dashboard)) + b"\n\n"
        return self._event


async def stream(call: Call) -> object:
    context = call.context
    streams = context.kept.get(OverviewEvents)
    if not isinstance(streams, OverviewEvents):
        streams = context.kept[OverviewEvents] = OverviewEvents(dashboard_of(context))
    streams.enter()
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return Stream(streams.events(call.request), "text/event-stream", headers)


ENDPOINTS: Final = (
    Endpoint("GET", "/api/v1/dashboard/events", MONITOR, "dashboard", "The overview as it changes", stream),
)

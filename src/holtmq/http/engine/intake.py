"""From the socket to the parser: in parts, and only as fast as requests are answered.

Owns: received bytes that are not parsed yet, and when the socket is read. Must not touch: what a request may
do. One read can hold ten thousand pipelined requests. Parsed at once they would hold the event loop for a
tenth of a second and take two megabytes, before anyone has logged in; so the rest of a read waits, as bytes,
until the requests before it are answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Final

from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.request_parser import HEAD_MAX, RequestParser

if TYPE_CHECKING:
    from holtmq.http.engine.request import HttpRequest

_PART: Final = 8_192  # bytes: 450 of the shortest requests
_TIME_SLICE: Final = 0.003  # seconds for the requests of one read


class Intake:
    """The received bytes of one connection."""

    __slots__ = (
        "_framing",
        "_is_over",
        "_left",
        "_loop",
        "_parser",
        "_refuse",
        "_transport",
        "is_paused",
        "moved_at",
        "reading",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        parser: RequestParser,
        refuse: Callable[[Refusal], None],
    ) -> None:
        self._transport = transport
        self._parser = parser
        self._refuse = refuse
        self._loop = asyncio.get_running_loop()
        self._left: memoryview | None = None  # of the last read
        self._is_over = False
        self._framing = 0  # bytes since the last byte of a body: extensions of chunks, trailers
        self.reading: HttpRequest | None = None  # its body is arriving
        self.is_paused = False
        self.moved_at = self._loop.time()  # when the client last sent data, or reading was resumed

    def released(self) -> None:
        """The socket is closed: nothing is read or refused any more."""
        self.end()
        self.reading = None
        self._parser.released()
        del self._refuse

    def take(self, data: bytes) -> None:
        """Parse what was just read; the client is told what cannot be parsed."""
        if len(data) <= _PART and self._left is None:
            self._feed(data)
        elif self._left is None:
            self._work_off(memoryview(data))
        else:  # read before the pause took effect
            self._left = memoryview(bytes(self._left) + data)

    def pause(self) -> None:
        """Stop reading, and parsing what was read."""
        if not self.is_paused and not self._transport.is_closing():
            self.is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on with what was read before, then with the socket."""
        if self.is_paused and not self._transport.is_closing():
            self.is_paused = False
            self.moved_at = now = self._loop.time()
            self._parser.forgive(now)
            if self._left is None:
                self._transport.resume_reading()
            else:  # other clients have their turn first
                self._loop.call_soon(self._go_on)

    def end(self) -> None:
        """Parse nothing more, also of what was read."""
        self._is_over = True
        self._left = None

    def _go_on(self) -> None:
        left = self._left
        if left is None or self.is_paused:
            return
        self._left = None
        self._work_off(left)
        if self._left is None and not self.is_paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def _work_off(self, data: memoryview) -> None:
        at, until = 0, perf_counter() + _TIME_SLICE
        while at < len(data) and not self._is_over:
            if self.is_paused:
                self._left = data[at:]
                return
            if perf_counter() > until:  # other clients have their turn
                self._left = data[at:]
                self._transport.pause_reading()
                self._loop.call_soon(self._go_on)
                return
            stop = at + max(_PART, self._missing())
            self._feed(data[at:stop])
            at = stop

    def _missing(self) -> int:
        """How many bytes complete the body that is arriving, as far as that is known."""
        reading = self.reading
        if reading is None:
            return 0
        length = reading.headers.get(b"content-length")
        return 0 if length is None else int(length) - reading.size

    def _feed(self, data: bytes | memoryview) -> None:
        reading = self.reading
        size = 0 if reading is None else reading.size
        try:
            self._parser.feed(data, self.moved_at)
            if reading is None or reading.size != size or self.reading is not reading:
                self._framing = 0
            else:
                self._framing += len(data)
                if self._framing > HEAD_MAX:
                    raise Refusal(431, "The trailers of the body are too long", "head_too_large")
        except Refusal as error:
            self._refuse(error)

"""A publisher and a consumer on a non-blocking socket.

Owns: the measured traffic of one connection. Must not touch: when to stop, and the totals.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from holtmq.load import frames
from holtmq.load.blobs import Blob, Layout, body_is_intact, stamp_at
from holtmq.load.confirm_stream import ConfirmStream
from holtmq.load.delivery_stream import AckWriter, DeliveryStream
from holtmq.load.errors import LoadError
from holtmq.load.link import CHANNEL, Link
from holtmq.load.sockets import has_begun, has_decrypted
from holtmq.load.varied_blob import VariedBlob
from holtmq.load.varied_stream import VariedStream

_READ_BYTES: Final = 256 * 1024
_SENDS_A_TURN: Final = 4


class Publisher:
    """Sends its blob repeatedly, as far as its window allows."""

    def __init__(self, link: Link, blob: Blob | VariedBlob, window: int) -> None:
        self.link = link
        self.blob = blob
        self.window = window
        self.sent = 0  # whole messages handed to the kernel
        self.stuck = False  # the socket buffer is full
        self.finishing = False  # only a partly sent message may still be completed
        self.confirms = ConfirmStream()
        self.waits_ns: list[int] = []  # time to each confirm, for a window of one
        self._at = 0  # bytes of the blob already sent
        self._since = 0
        link.sock.setblocking(False)

    @property
    def confirmed(self) -> int:
        return self.confirms.confirmed

    @property
    def half_sent(self) -> bool:
        return self._at != self.blob.end_of(self.blob.whole(self._at)) or has_begun(self.link.sock)

    def send(self, allowed: int) -> None:
        """Send up to ``allowed`` more messages, fewer when the window or the socket buffer is full."""
        if self.finishing:
            allowed = int(self.half_sent)
        elif self.window:
            allowed = min(allowed, self.window - (self.sent - self.confirms.confirmed))
        blob = self.blob
        for _ in range(_SENDS_A_TURN):
            if allowed <= 0:
                return
            first = blob.whole(self._at)
            started = self._at != blob.end_of(first)
            now = perf_counter_ns()
            if first + started < blob.messages:
                blob.stamp(first + started, now)
            stop = blob.end_of(min(first + allowed, blob.messages))
            try:
                out = self.link.sock.send(blob.view[self._at : stop])
            except BlockingIOError:
                self.stuck = True
                return
            except OSError as error:
                raise LoadError(f"{self.link.address} closed a publisher: {error}") from None
            self._since = now
            at = self._at + out
            whole = blob.whole(at) - first
            self.sent += whole
            allowed -= whole
            self._at = 0 if at == len(blob.data) else at
            if at < stop:
                self.stuck = True
                return

    def readable(self) -> None:
        self._read()
        while has_decrypted(self.link.sock):
            self._read()

    def _read(self) -> None:
        try:
            data = self.link.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise LoadError(f"{self.link.address} closed a publisher: {error}") from None
        if not data:
            raise LoadError(f"{self.link.address} closed a publisher")
        self.confirms.feed(data)
        if self.window == 1 and self.confirms.confirmed == self.sent:
            self.waits_ns.append(perf_counter_ns() - self._since)


class Consumer:
    """Counts deliveries, acks them as the workload says, and samples latencies."""

    def __init__(
        self,
        link: Link,
        layout: Layout | None,
        body_bytes: int,
        ack_every: int,
        *,
        every_latency: bool = False,
        clock: Callable[[], int] = perf_counter_ns,
        varied: VariedStream | None = None,
    ) -> None:
        self.link = link
        self.stream: DeliveryStream | VariedStream
        if varied is not None:
            self.stream = varied
        else:
            assert layout is not None
            self.stream = DeliveryStream(layout.prefix, layout.message_bytes, layout.body_at)
        self.latencies_ns: list[int] = []
        self._layout = layout
        self._body_bytes = body_bytes
        self._ack_every = ack_every  # 0: no acks
        self._acks = AckWriter(CHANNEL)
        self._acked = 0
        self._unsent = b""
        self._every_latency = every_latency
        self._clock = clock
        link.sock.setblocking(False)

    @property
    def received(self) -> int:
        return self.stream.count

    @property
    def stuck(self) -> bool:
        return bool(self._unsent)

    def start(self, early: bytes) -> None:
        """Process the bytes that arrived together with the reply to ``basic.consume``."""
        room = self.stream.room()
        for at in range(0, len(early), len(room)):
            part = early[at : at + len(room)]
            self.stream.room()[: len(part)] = part
            self._count(len(part))

    def readable(self) -> None:
        self._read()
        while has_decrypted(self.link.sock):
            self._read()

    def _read(self) -> None:
        try:
            size = self.link.sock.recv_into(self.stream.room())
        except BlockingIOError:
            return
        except OSError as error:
            raise LoadError(f"{self.link.address} closed a consumer: {error}") from None
        if not size:
            raise LoadError(f"{self.link.address} closed a consumer")
        self._count(size)

    def _count(self, size: int) -> None:
        stream = self.stream
        if stream.added(size) and isinstance(stream, DeliveryStream) and stream.last_at >= 0:
            self._sample(stream)
        stream.settle()
        behind = stream.count - self._acked
        if self._ack_every == 1 and behind:
            self._send_acks(self._acks.each(self._acked, stream.count))
            self._acked = stream.count
        elif self._ack_every and behind >= self._ack_every:
            self._acked = stream.count - stream.count % self._ack_every
            self._send_acks(frames.ack(CHANNEL, self._acked, multiple=True))

    def _sample(self, stream: DeliveryStream) -> None:
        assert self._layout is not None
        last = stream.last_at + self._layout.body_at
        if not body_is_intact(stream.buffer, last, self._body_bytes):
            raise LoadError("a delivered body is not the one that was published")
        now = self._clock()
        if self._every_latency:
            first = stream.first_at + self._layout.body_at
            for at in range(first, last + 1, self._layout.message_bytes):
                self.latencies_ns.append(now - stamp_at(stream.buffer, at))
        else:
            self.latencies_ns.append(now - stamp_at(stream.buffer, last))

    def _send_acks(self, data: bytes) -> None:
        self._unsent += data
        self.writable()

    def writable(self) -> None:
        """Resume sending acks that did not fit into the socket buffer."""
        try:
            out = self.link.sock.send(self._unsent)
        except BlockingIOError:
            return
        except OSError as error:
            raise LoadError(f"{self.link.address} closed a consumer: {error}") from None
        self._unsent = self._unsent[out:]

"""Streams with something to deliver take turns, so that all of them together do not hold the event loop.

Owns: which streams wait, and how much is delivered before other work goes on. Must not touch: readers.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from holtmq.broker.partitioned.service import PartitionedService

if TYPE_CHECKING:
    from holtmq.broker.streams.stream_queue import StreamQueue

SERVED_AT_ONCE: Final = 3_000  # messages of readers without a group: about 15 ms


class Serving:
    """The streams of a node that wait for their turn. One per node."""

    def __init__(self, service: PartitionedService, now: Callable[[], float]) -> None:
        self._service = service
        self._now = now
        self._waiting: OrderedDict[StreamQueue, None] = OrderedDict()
        self._work_left = 0
        self._since = 0.0  # when there was work to be done for the last time
        self._is_planned = False

    def enlist(self, stream: "StreamQueue") -> None:
        """Serve the stream's readers: now, or in its turn if others wait or much was delivered just now."""
        self._waiting.setdefault(stream)
        if not self._is_planned:
            if self._now() != self._since:
                self._begin()
            self._serve()

    def _begin(self) -> None:
        self._since = self._now()
        self._work_left = SERVED_AT_ONCE

    def _serve(self) -> None:
        try:
            while self._waiting and self._work_left > 0:
                stream, _ = self._waiting.popitem(last=False)
                self._work_left -= stream.serve(self._work_left)
                if stream.is_serving:
                    self._waiting[stream] = None
        finally:
            if self._waiting:
                # No turn of the queues: a turn means that something has happened, after which all readers of
                # a stream are looked at again. It would never end.
                self._is_planned = True
                self._service.line.at(self._now(), self._continue)

    def _continue(self) -> None:
        self._is_planned = False
        journal = self._service.store.journal
        if journal.failed or journal.stalled:
            waiting, self._waiting = self._waiting, OrderedDict()
            for stream in waiting:
                stream.touch(stream)  # which decides whether to deliver at all
        else:
            self._begin()
            self._serve()

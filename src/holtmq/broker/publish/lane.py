"""The messages of a large transaction for one queue.

Owns: how they enter it at one moment. Must not touch: which queues a message is for (``prepared.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holtmq.broker.message import Message
from holtmq.broker.work.priority_levels import Levels
from holtmq.broker.work.work_queue import WorkQueue

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow


class Lane:
    """The messages for one queue, in order."""

    __slots__ = ("_by_level", "_bytes", "_expires", "_queue")

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._by_level: dict[int, list[Message]] = {}
        self._bytes = 0
        self._expires = False

    def add(self, message: Message) -> None:
        """Add a message behind the others of its priority."""
        store = self._queue.store
        level = store.level_of(message.priority) if isinstance(store, Levels) else 0
        found = self._by_level.get(level)
        if found is None:
            found = self._by_level[level] = []
        found.append(message)
        self._bytes += len(message.body)
        if message.expires_ms:
            self._expires = True

    def enqueue(self, flow: Flow) -> None:
        """``Flow.place`` of all messages. A queue that refuses some has room for these (``check``)."""
        queue = self._queue
        for level, messages in self._by_level.items():
            fifo = queue.fifo if queue.fifo is not None else queue.fifos[level]
            fifo.inbox += messages
        queue.bytes += self._bytes
        if self._expires:
            queue.expiring = True
        flow.touch(queue)
        if queue.limited:
            flow.enforce_limits(queue)
            if queue.outcasts.is_full:
                flow.late_letters[queue] = None

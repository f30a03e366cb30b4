"""Deletes queues that were not used for the time that their options say (``x-expires``).

Owns: the timer of each such queue. Must not touch: what a deletion does, clocks.
"""

from collections.abc import Callable

from holtmq.broker.flow import Flow
from holtmq.broker.topology.destinations import Queue


class QueueExpiry:
    """``remove`` deletes a queue, with its record."""

    def __init__(self, flow: Flow, remove: Callable[[Queue], None]) -> None:
        self._flow = flow
        self._remove = remove

    def schedule(self, queue: Queue) -> None:
        """Set the timer of a queue that expires. Call it when the queue or its options are new."""
        if queue.options.expires_ms is None:
            return
        due_ms = queue.used_ms + queue.options.expires_ms
        # One timer at a time: an earlier timer schedules the next when it fires.
        if not queue.expiry_scheduled_ms or due_ms < queue.expiry_scheduled_ms:
            queue.expiry_scheduled_ms = due_ms
            self._flow.at(due_ms, lambda: self._expire(queue, due_ms))

    def _expire(self, queue: Queue, due_ms: int) -> None:
        if queue.expiry_scheduled_ms != due_ms:
            return
        queue.expiry_scheduled_ms = 0
        expires_ms = queue.options.expires_ms
        if queue.deleted or expires_ms is None:
            return
        if queue.consumers or queue.paused:
            queue.used_ms = self._flow.now_ms
        if queue.used_ms + expires_ms <= self._flow.now_ms:
            self._remove(queue)
        else:
            self.schedule(queue)

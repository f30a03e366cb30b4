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
        if queue.expiry_timer is None or due_ms / 1000 < queue.expiry_timer.at:
            self.stop(queue)
            queue.expiry_timer = self._flow.at(due_ms, lambda: self._expire(queue))

    def stop(self, queue: Queue) -> None:
        """Cancel the timer, which would keep a deleted queue in memory for as long as ``x-expires``."""
        if queue.expiry_timer is not None:
            queue.expiry_timer.cancel()
            queue.expiry_timer = None

    def _expire(self, queue: Queue) -> None:
        queue.expiry_timer = None
        expires_ms = queue.options.expires_ms
        if queue.deleted or expires_ms is None:
            return
        if queue.consumers or queue.paused:
            queue.used_ms = self._flow.now_ms
        if queue.used_ms + expires_ms <= self._flow.now_ms:
            self._remove(queue)
        else:
            self.schedule(queue)

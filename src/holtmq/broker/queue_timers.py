"""What the messages of a work queue wait for: the end of their time to live, or of the wait after a return.

Owns: the timers of a queue for its messages. Must not touch: when a queue itself expires
(``queue_expiry.py``), what becomes of expired messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holtmq.broker.message import Message
from holtmq.broker.work.work_queue import WorkQueue

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow


class QueueTimers:
    """The timers of all work queues of a node."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def hold_back(self, queue: WorkQueue, waiting: dict[int, list[Message]]) -> None:
        """Return messages to a queue after their wait in ms."""
        for wait_ms, part in waiting.items():
            queue.held_back[id(part)] = part
            queue.retry_timers[id(part)] = self._flow.at(
                self._flow.now_ms + wait_ms,
                lambda part=part: self._offer_again(queue, part),  # type: ignore[misc]
            )

    def _offer_again(self, queue: WorkQueue, messages: list[Message]) -> None:
        queue.retry_timers.pop(id(messages), None)
        if queue.held_back.pop(id(messages), None) is not None and not queue.deleted:
            queue.restore(messages, self._flow.pager)
            if queue.limited:
                self._flow.enforce_limits(queue)
            self._flow.touch(queue)

    def expire(self, queue: WorkQueue) -> None:
        """Drop what has expired, of very many messages some, and look again when the next one does."""
        queue.expire(self._flow.now_ms, self._flow.pager, self._flow.per_turn.expired)
        deadline = queue.store.next_deadline(queue.deadline_ms, self._flow.pager)
        if not deadline:
            queue.expiring = queue.options.message_ttl_ms is not None or len(queue.store) > 0
        elif deadline <= self._flow.now_ms:
            self._flow.unfinished[queue] = None
        elif queue.deadline_timer is None or deadline / 1000 < queue.deadline_timer.at:
            self._stop_deadline(queue)
            queue.deadline_timer = self._flow.at(deadline, lambda: self._deadline_reached(queue))

    def forget(self, queue: WorkQueue) -> None:
        """Cancel the timers of a queue that is deleted: they would keep it in memory until they are due."""
        self._stop_deadline(queue)
        queue.held_back.clear()
        for timer in queue.retry_timers.values():
            timer.cancel()
        queue.retry_timers.clear()

    def _stop_deadline(self, queue: WorkQueue) -> None:
        if queue.deadline_timer is not None:
            queue.deadline_timer.cancel()
            queue.deadline_timer = None

    def _deadline_reached(self, queue: WorkQueue) -> None:
        queue.deadline_timer = None
        self._flow.touch(queue)

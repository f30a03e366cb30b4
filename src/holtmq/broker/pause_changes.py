"""Pausing and resuming a queue of either kind, with the record that makes it durable.

Owns: the two commands. Must not touch: what a paused queue does; each kind checks its own pause.
"""

from collections.abc import Callable

from holtmq.broker.flow import Flow
from holtmq.broker.pausing import Pause
from holtmq.broker.records.change_log import ChangeLog
from holtmq.broker.records.changes import QueuePaused, QueueResumed
from holtmq.broker.streams.stream_queue import StreamQueue
from holtmq.broker.streams.vhost_streams import Streams
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.work_queue import WorkQueue


class PauseChanges:
    """``streams`` returns the partitioned queues; they are attached after the broker is made."""

    def __init__(self, change_log: ChangeLog, flow: Flow, streams: Callable[[], Streams]) -> None:
        self._log = change_log
        self._flow = flow
        self._streams = streams

    def pause(self, queue: Queue, by: str, reason: str = "") -> Pause:
        """Hand out nothing of this queue until ``resume``; a queue that is paused stays as it is."""
        known = queue.paused
        if known is not None:
            return known
        if queue.persisted:
            self._log.refuse_if_failed()
        self._flow.turn()  # what was ready before the pause goes to consumers that have room
        pause = Pause(self._flow.now_ms, by, reason)
        if isinstance(queue, StreamQueue):
            self._streams().pause(queue, pause)
        elif isinstance(queue, WorkQueue):
            queue.pause(pause)
            if queue.persisted:
                self._log.record(QueuePaused(queue.id, pause.since_ms, by, reason))
        return pause

    def resume(self, queue: Queue) -> bool:
        """Hand out messages again; False when the queue was not paused."""
        if queue.paused is None:
            return False
        if queue.persisted:
            self._log.refuse_if_failed()
        queue.used_ms = self._flow.now_ms
        if isinstance(queue, StreamQueue):
            self._streams().resume(queue)
        elif isinstance(queue, WorkQueue):
            queue.pause(None)
            if queue.persisted:
                self._log.record(QueueResumed(queue.id))
        self._flow.touch(queue)
        return True

"""A waiting pop of a work queue, as one of its consumers.

Owns: that it takes messages once. Must not touch: leases (``timed_leases.py`` makes them).
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from holtmq.broker.message import Message
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.work_queue import WorkQueue

if TYPE_CHECKING:
    from holtmq.broker.work.timed_leases import TimedLeases, Worker, WorkMessage


class WaitingPop:
    """A consumer that takes messages for one pop and then leaves."""

    priority = 0
    arguments: Final[Mapping[str, object]] = {}

    def __init__(
        self,
        leases: "TimedLeases",
        queue: WorkQueue,
        lease_id: str,
        limit: int,
        seconds: float,
        auto_ack: bool,
        deliver: "Callable[[list[WorkMessage]], None]",
        give_up: Callable[[], None],
        worker: "Worker",
    ) -> None:
        self.queue = queue
        self._worker = worker
        self._leases = leases
        self._lease_id = lease_id
        self._limit = limit
        self._seconds = seconds
        self._auto_ack = auto_ack
        self._deliver = deliver
        self._give_up = give_up
        self._served = False

    def room(self) -> int:
        """The pop's limit, until it was served. Of very many pops, some wait for the next turn."""
        return 0 if self._served or not self._leases.may_serve(self.queue) else self._limit

    def deliver(self, queue: Queue, messages: list[Message]) -> None:
        """Answer the pop."""
        self._served = True
        self._leases.note_served()
        self._deliver(
            self._leases.hand_out(
                self.queue, messages, self._lease_id, self._seconds, self._auto_ack, self._worker
            )
        )

    def cancelled(self, queue: Queue) -> None:
        """The queue was deleted."""
        if not self._served:
            self._served = True
            self._give_up()

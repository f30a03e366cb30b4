"""What happened to the messages of one work queue, counted by the batch.

Owns: the counters, and how many messages came in, which nothing counts: all that ever came is still there or
has left in one of the counted ways. Must not touch: clocks, rules.
"""

from typing import TYPE_CHECKING, NamedTuple

from holtmq.broker.figures.rings import Ring

if TYPE_CHECKING:
    from holtmq.broker.work.work_queue import WorkQueue


class Totals(NamedTuple):
    """Since the node started."""

    published: int
    delivered: int
    acked: int


class QueueFigures:
    """Counters that only go up; ``ring`` is there once the queue has been used."""

    __slots__ = ("acked", "delivered", "dropped", "purged", "returned", "ring", "there_before")

    def __init__(self) -> None:
        self.delivered = 0  # handed to a consumer or a single get, again or not
        self.acked = 0
        self.returned = 0  # came back without a verdict
        self.dropped = 0  # rejected, expired, too many, or returned too often: dead-lettered or gone
        self.purged = 0
        self.there_before = 0  # recovered from the journal: they did not come in now
        self.ring: Ring | None = None

    def recovered(self, queue: "WorkQueue") -> None:
        """What the queue holds now was there before this node started."""
        self.there_before = _present(queue) + self.acked + self.dropped + self.purged

    def totals(self, queue: "WorkQueue") -> Totals:
        """The counters now."""
        gone = self.acked + self.dropped + self.purged
        return Totals(_present(queue) + gone - self.there_before, self.delivered, self.acked)


def _present(queue: "WorkQueue") -> int:
    waiting_again = sum(map(len, queue.held_back.values())) if queue.held_back else 0
    return len(queue) + queue.unacked + waiting_again

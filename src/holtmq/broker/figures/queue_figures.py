"""Counters of one work queue's messages, updated per batch.

Owns: the counters. The number of published messages is not counted but derived: each is still in the queue
or has left in one of the counted ways. Must not touch: clocks, rules.
"""

from typing import TYPE_CHECKING, NamedTuple

from holtmq.broker.figures.day_counter import DayCounter
from holtmq.broker.figures.rings import LevelRing, Ring

if TYPE_CHECKING:
    from holtmq.broker.work.work_queue import WorkQueue


class Totals(NamedTuple):
    """Totals since the node started."""

    published: int
    delivered: int
    acked: int


class Kinds(NamedTuple):
    """How messages were delivered, other than to a consumer that acknowledges, and how many again."""

    delivered_no_ack: int = 0
    got: int = 0
    got_no_ack: int = 0
    redelivered: int = 0
    get_empty: int = 0  # basic.get that found nothing


class QueueFigures:
    """Counters that only go up; the rings are set once the queue has been used."""

    __slots__ = (
        "acked",
        "dead_letters",
        "delivered",
        "delivered_no_ack",
        "depth",
        "dropped",
        "ended",
        "get_empty",
        "got",
        "got_no_ack",
        "kinds",
        "purged",
        "redelivered",
        "returned",
        "ring",
        "there_before",
        "unacked",
        "used",
    )

    def __init__(self) -> None:
        self.delivered = 0  # to a consumer or by basic.get, redeliveries included
        self.delivered_no_ack = 0  # of these, to consumers without acks
        self.got = 0  # by basic.get
        self.got_no_ack = 0  # by basic.get without acks
        self.get_empty = 0  # basic.get that found nothing
        self.redelivered = 0  # delivered, and not for the first time
        self.acked = 0
        self.returned = 0  # without ack or reject
        self.dropped = 0  # rejected, expired, over a limit, or returned too often: dead-lettered or deleted
        self.dead_letters: DayCounter | None = None  # of the dropped ones; set by the first
        self.purged = 0
        self.there_before = 0  # recovered from the journal, not published since the start
        self.ring: Ring | None = None
        self.kinds: Ring | None = None  # of ``Kinds``; set once one of them is not 0
        self.depth: LevelRing | None = None  # ready messages over time
        self.unacked: LevelRing | None = None  # unacknowledged messages over time
        self.used: int | None = None  # the last second in which something happened to the queue
        self.ended = False  # the queue was deleted and sampled after that: nothing more can happen to it

    def dead_lettered(self, now_ms: int, count: int = 1) -> None:
        """Note that messages went to the dead-letter exchange."""
        if self.dead_letters is None:
            self.dead_letters = DayCounter()
        self.dead_letters.add(now_ms, count)

    def recovered(self, queue: "WorkQueue") -> None:
        """Note that the queue's present messages were recovered, not published."""
        self.there_before = _present(queue) + self.acked + self.dropped + self.purged

    def kind_totals(self) -> Kinds:
        """The current totals by kind of delivery."""
        return Kinds(self.delivered_no_ack, self.got, self.got_no_ack, self.redelivered, self.get_empty)

    def totals(self, queue: "WorkQueue") -> Totals:
        """The current totals."""
        gone = self.acked + self.dropped + self.purged
        return Totals(_present(queue) + gone - self.there_before, self.delivered, self.acked)


def _present(queue: "WorkQueue") -> int:
    waiting_again = sum(map(len, queue.held_back.values())) if queue.held_back else 0
    return len(queue) + queue.unacked + waiting_again

"""Once a second: the counters of the queues that were used go into their rings.

Owns: which queues have a ring. Must not touch: clocks (the time comes in), counting. The cost depends on the
queues that were used in that second, not on how many there are.
"""

from collections.abc import Iterable

from holtmq.broker.figures.queue_figures import Totals
from holtmq.broker.figures.rings import Ring
from holtmq.broker.partitioned.counters import QueueCounters, QueueTally
from holtmq.broker.work.work_queue import WorkQueue

_NOTHING = Totals(0, 0, 0)


class Sampler:
    """The rings of a node: one for each queue in use, and one over all of them."""

    def __init__(self, second: int) -> None:
        self.node = Ring(_NOTHING, second)
        self.partitioned: dict[str, Ring] = {}
        self._totals = list(_NOTHING)
        self._last: dict[object, Totals] = {}

    def sample(self, second: int, used: Iterable[WorkQueue], counters: QueueCounters) -> None:
        """Read the work queues in ``used`` and the partitioned queues that ``counters`` saw used."""
        for queue in used:
            figures = queue.figures
            totals = figures.totals(queue)
            if figures.ring is None:
                figures.ring = Ring(_NOTHING, second)
            figures.ring.record(second, totals)
            self._add(queue.id, totals)
            if queue.deleted:
                self._last.pop(queue.id, None)
        for name in counters.take_used():
            tally = counters.queues.get(name)
            if tally is None:  # deleted since
                self.partitioned.pop(name, None)
                self._last.pop(name, None)
                continue
            totals = totals_of(tally)
            ring = self.partitioned.get(name)
            if ring is None:
                ring = self.partitioned[name] = Ring(_NOTHING, second)
            ring.record(second, totals)
            self._add(name, totals)
        self.node.record(second, self._totals)

    def _add(self, key: object, totals: Totals) -> None:
        last = self._last.get(key, _NOTHING)
        for series, total in enumerate(totals):
            self._totals[series] += max(total - last[series], 0)
        self._last[key] = totals


def totals_of(tally: QueueTally) -> Totals:
    """The same three figures of a partitioned queue."""
    return Totals(tally.push_messages, tally.pop_messages, tally.ack_success)

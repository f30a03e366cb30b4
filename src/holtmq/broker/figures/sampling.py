"""Once a second, adds the counters of the used queues to their rings and to the node's sums.

Owns: which queues have a ring, and the sums over all queues. Must not touch: clocks (the time is an
argument), counting. The cost depends on the queues used in that second, not on how many exist. It is done in
steps: a queue's first sample takes 30 µs, a later one 6 µs, and 20,000 may have been used.
"""

from collections.abc import Iterator
from typing import Final

from holtmq.broker.figures.client_counts import ClientCounts
from holtmq.broker.figures.queue_figures import Kinds, Totals
from holtmq.broker.figures.rings import LevelRing, Ring
from holtmq.broker.partitioned.counters import QueueCounters, QueueCounts
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.vhost import QueueExchange
from holtmq.broker.work.work_queue import WorkQueue

_NOTHING: Final = Totals(0, 0, 0)


class Sampler:
    """The rings of a node: one per used queue, and one for all queues together."""

    def __init__(self, second: int) -> None:
        self.node = Ring(_NOTHING, second)
        self.depth = LevelRing(0, second)  # ready messages of all work queues
        self.held = LevelRing(0, second)  # unacknowledged ones
        self.kinds = Ring(Kinds(), second)  # deliveries to AMQP clients by kind
        self.churn = Ring(ClientCounts().churn(), second)
        self.partitioned: dict[str, Ring] = {}
        self.work = [0, 0, 0]  # published, delivered, acked, over all work queues
        self.streams = [0, 0, 0]  # the same over all partitioned queues
        self.ready = 0  # in all work queues
        self.unacked = 0
        self._last: dict[object, Totals] = {}
        self._levels: dict[int, tuple[int, int]] = {}

    def sample_exchanges(self, second: int, used: set[QueueExchange]) -> Iterator[None]:
        """Sample the exchanges in ``used``, one in each step. Empties it: see ``sample``."""
        while used:
            exchange = used.pop()
            if exchange.ring is None:
                exchange.ring = Ring((0, 0), second)
            exchange.ring.record(second, (exchange.published, exchange.routed))
            yield

    def sample(
        self, second: int, used: set[Queue], counters: QueueCounters, clients: ClientCounts
    ) -> Iterator[None]:
        """Sample the work queues in ``used`` and the partitioned queues that ``counters`` lists as used, one
        in each step. Empties ``used``: deleted queues would else be freed all at once."""
        while used:
            queue = used.pop()
            if isinstance(queue, WorkQueue) and not queue.figures.ended:
                self._sample_work(second, queue)
            yield
        for name in counters.take_used():
            counts = counters.queues.get(name)
            if counts is None:  # deleted since
                self.partitioned.pop(name, None)
                self._last.pop(name, None)
                continue
            totals = totals_of(counts)
            ring = self.partitioned.get(name)
            if ring is None:
                ring = self.partitioned[name] = Ring(_NOTHING, second)
            ring.record(second, totals)
            self._add(self.streams, name, totals)
            yield
        self.churn.record(second, clients.churn())
        self.kinds.record(second, clients.kinds())
        self.depth.record(second, self.ready)
        self.held.record(second, self.unacked)
        self.node.record(second, [work + more for work, more in zip(self.work, self.streams, strict=True)])

    def _sample_work(self, second: int, queue: WorkQueue) -> None:
        figures = queue.figures
        figures.used = second
        totals = figures.totals(queue)
        if figures.ring is None:
            figures.ring = Ring(_NOTHING, second)
        figures.ring.record(second, totals)
        kinds = figures.kind_totals()
        if figures.kinds is None and any(kinds):
            figures.kinds = Ring(Kinds(), second)
        if figures.kinds is not None:
            figures.kinds.record(second, kinds)
        if figures.depth is None:
            figures.depth = LevelRing(figures.there_before, second)
        figures.depth.record(second, len(queue))
        if figures.unacked is None:
            figures.unacked = LevelRing(0, second)
        figures.unacked.record(second, queue.unacked)
        self._add(self.work, queue.id, totals)
        before = self._levels.pop(queue.id, (0, 0))
        now = (0, 0) if queue.deleted else (len(queue), queue.unacked)
        self.ready += now[0] - before[0]
        self.unacked += now[1] - before[1]
        if queue.deleted:
            figures.ended = True
            del self._last[queue.id]
        elif now != (0, 0):
            self._levels[queue.id] = now

    def _add(self, sums: list[int], key: object, totals: Totals) -> None:
        last = self._last.get(key, _NOTHING)
        for series, total in enumerate(totals):
            sums[series] += max(total - last[series], 0)
        self._last[key] = totals


def totals_of(counts: QueueCounts) -> Totals:
    """The totals of a partitioned queue."""
    return Totals(counts.push_messages, counts.pop_messages, counts.ack_success)

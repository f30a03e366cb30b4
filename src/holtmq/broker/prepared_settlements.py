"""The settlements of a large transaction: computed in steps, then applied at one moment.

Owns: what can be done before that moment. Must not touch: queues and the journal until then; which
transactions are large (``amqp/transaction.py``). The leases are set aside in their ledger meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from holtmq.broker.partitioned.commands.settled_runs import SettledRuns
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.store import Change
from holtmq.broker.prepared_letters import PreparedLetters
from holtmq.broker.publish.prepared import Outdated, PreparedPublishes
from holtmq.broker.records.changes import Kind
from holtmq.broker.streams.claims import Verdicts, by_claim
from holtmq.broker.streams.stream_queue import StreamQueue
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.dead_letter import letter_work
from holtmq.broker.work.departures import Departures
from holtmq.broker.work.leases import Lease
from holtmq.broker.work.retaken import Retaken
from holtmq.broker.work.work_queue import WorkQueue

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow

LETTER: Final = 12  # a dead letter takes as long as so many publishes
LATE: Final = 6  # likewise: a delivery that was taken back
_LEASES: Final = 4  # leases that take as long as one publish
_AT_ONCE: Final = 40  # leases that are looked at together
_queue: Final = attrgetter("queue")


class Ending(Enum):
    """How leases end."""

    ACK = 1
    REJECT = 2
    RELEASE = 3


_STATUS: Final = {
    Ending.ACK: AckStatus.COMPLETED,
    Ending.REJECT: AckStatus.DEAD_LETTER,
    Ending.RELEASE: AckStatus.RETRY,
}


class PreparedSettlements:
    """The settlements of one transaction, in one record with its ``prepared`` publishes."""

    def __init__(self, flow: Flow, prepared: PreparedPublishes, retaken: Retaken) -> None:
        self._flow = flow
        self._prepared = prepared
        self._by_queue: dict[WorkQueue, Departures] = {}  # in the order of their first settlements
        self._letters: PreparedLetters | None = None
        self._retaken = retaken
        self._of_streams: Counter[StreamQueue] = Counter()
        self.verdicts: Verdicts = {}  # on deliveries to consumer groups
        self._decided: SettledRuns | None = None
        prepared.settlements = self

    def prepare(self, settlements: Iterable[tuple[Ending, list[Lease]]]) -> Iterator[None]:
        """Prepare everything, in items as long as a publish takes. Raises Unpreparable."""
        for ending, leases in settlements:
            for start in range(0, len(leases), _AT_ONCE):
                some = leases[start : start + _AT_ONCE]
                late = [lease for lease in some if lease.holder is None]
                if late:
                    some = [lease for lease in some if lease.holder is not None]
                    if ending is not Ending.RELEASE:  # else it has been returned already
                        for lease in late:
                            some += self._retaken.take([lease])
                            yield from repeat(None, LATE)
                if some:
                    self._add(ending, some)
                yield from repeat(None, 1 + len(some) // _LEASES)
        for departures in self._by_queue.values():
            yield from self._make_letters(departures)
        if self._letters is not None:
            for _ in self._letters.pass_on():
                yield from repeat(None, LETTER)
        for departures in self._by_queue.values():
            departures.sort()
            self._record(departures)
            yield

    def _add(self, ending: Ending, leases: Sequence[Lease]) -> None:
        if len(set(map(_queue, leases))) == 1:
            self._add_of(leases[0].queue, ending, leases)
            return
        parts: dict[Queue, list[Lease]] = {}
        for lease in leases:
            parts.setdefault(lease.queue, []).append(lease)
        for queue, part in parts.items():
            self._add_of(queue, ending, part)

    def _add_of(self, queue: Queue, ending: Ending, leases: Sequence[Lease]) -> None:
        if queue.deleted:
            return
        if isinstance(queue, StreamQueue):
            self._of_streams[queue] += len(leases)
            for claim, said in by_claim([lease.message for lease in leases], _STATUS[ending]).items():
                self.verdicts.setdefault(claim, {}).update(said)
            return
        assert isinstance(queue, WorkQueue)
        departures = self._by_queue.get(queue)
        if departures is None:
            departures = self._by_queue[queue] = Departures(queue)
        if ending is Ending.RELEASE:
            departures.release(leases)
            return
        messages = [lease.message for lease in leases]
        (departures.ack if ending is Ending.ACK else departures.reject)(messages)

    def _make_letters(self, departures: Departures) -> Iterator[None]:
        queue = departures.queue
        if not departures.outcasts or queue.options.dead_letter_exchange is None:
            return
        if self._letters is None:
            self._letters = PreparedLetters(self._flow, self._prepared, self._flow.vhosts[queue.vhost])
            for other in self._by_queue.values():
                self._prepared.room.give_back(other.queue, len(other.ready), other.ready_bytes)
        exchange = self._letters.exchange_of(queue)
        if exchange is None:
            return
        for reason, message in departures.outcasts:
            self._letters.add(queue, exchange, reason, message)
            yield from repeat(None, LETTER * letter_work(message.header))

    def _record(self, departures: Departures) -> None:
        returned, settled = departures.returned_record(), departures.settled_record()
        if returned:
            self._prepared.add_record(int(Kind.RETURNED), returned)
        if settled:
            self._prepared.add_record(int(Kind.SETTLED), settled)

    def check(self) -> None:
        """Outdated unless all is still as it was prepared, Unpreparable if letters must wait in line."""
        for queue, departures in self._by_queue.items():
            if queue.deleted or queue.options is not departures.options:
                raise Outdated
        if self._letters is not None:
            self._letters.check()

    def decide(self) -> Sequence[Change]:
        """The changes of partitioned queues, decided on their state at the moment of the commit."""
        if not self.verdicts:
            return ()
        assert self._flow.cross_kind is not None
        self._decided = self._flow.cross_kind.settled(self.verdicts)
        return self._decided.changes

    def apply(self) -> None:
        """End the leases, at the moment of the commit. Their record is written."""
        flow = self._flow
        for stream, ended in self._of_streams.items():
            stream.unacked -= ended
            flow.touch(stream)
        if self._decided is not None:
            self._decided.apply()
        for queue, departures in self._by_queue.items():
            departures.apply(flow.pager)
            flow.queue_timers.hold_back(queue, departures.waiting)
            flow.touch(queue)  # its limits are enforced by the turn

    def count_letters(self) -> None:
        """Count the dead letters, which have been placed."""
        if self._letters is not None:
            self._letters.count()

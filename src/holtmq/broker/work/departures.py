"""What a large transaction does to the messages of one work queue: computed in steps, applied at once.

Owns: the sums and lists that the moment needs. Must not touch: the queue until then; leases; the journal.
The leases are set aside in their ledger, so nothing else can change these messages or the count of their
returns meanwhile.
"""

from array import array
from collections.abc import Collection
from operator import attrgetter
from typing import Final

from holtmq.broker.message import Message
from holtmq.broker.records.message_records import encode_returned, encode_settled
from holtmq.broker.work.leases import Lease
from holtmq.broker.work.outcasts import Outcast, Reason
from holtmq.broker.work.paging import Pager
from holtmq.broker.work.priority_levels import Levels
from holtmq.broker.work.returns import count_returns
from holtmq.broker.work.work_queue import WorkQueue

_seq: Final = attrgetter("seq")
_expires_ms: Final = attrgetter("expires_ms")


class Departures:
    """Messages of one queue that are acked, rejected or returned."""

    __slots__ = (
        "_acked",
        "_bytes",
        "_expires",
        "_forgotten",
        "_levels",
        "_positions",
        "_returned",
        "_rows",
        "options",
        "outcasts",
        "queue",
        "ready",
        "ready_bytes",
        "waiting",
    )

    def __init__(self, queue: WorkQueue) -> None:
        self.queue = queue
        self.options = queue.options  # all of this is valid as long as the queue has these
        self.outcasts: list[Outcast] = []  # in the order of their settlements
        self.ready: list[Message] = []  # they return
        self.ready_bytes = 0
        self.waiting: dict[int, list[Message]] = {}  # they return after a wait, by its milliseconds
        self._expires = False  # some of those that return
        self._levels: dict[int, list[Message]] = {}  # likewise, by priority
        self._acked = 0
        self._positions = array("Q")  # of messages that leave the journal
        self._bytes = 0
        self._forgotten: list[int] = []  # seqs whose returns need no longer be counted
        self._returned: dict[int, int] = {}  # how often messages have been returned then
        self._rows: list[bytes] = []  # of the record about them

    def ack(self, messages: Collection[Message]) -> None:
        """Messages that are acknowledged."""
        self._acked += len(messages)
        self._leave(messages)

    def reject(self, messages: Collection[Message]) -> None:
        """Messages that are rejected."""
        self.outcasts += [(Reason.REJECTED, message) for message in messages]
        self._leave(messages)

    def release(self, leases: Collection[Lease]) -> None:
        """Messages that return to the queue, unless they were delivered too often."""
        queue = self.queue
        seqs = [lease.message.seq for lease in leases]
        counted = {seq: queue.returned[seq] for seq in seqs if seq in queue.returned}
        found = count_returns(counted, leases, self.options, failed=False)
        for message in found.too_often:
            del counted[message.seq]
        self.outcasts += [(Reason.DELIVERY_LIMIT, message) for message in found.too_often]
        self._leave(found.too_often)
        self._returned.update(counted)
        self.ready += found.ready
        self.ready_bytes += sum([len(message.body) for message in found.ready])
        self._expires = self._expires or any(map(_expires_ms, found.ready))
        for wait_ms, part in found.waiting.items():
            self.waiting.setdefault(wait_ms, []).extend(part)
        if queue.persisted and self.options.deliveries_allowed is not None:
            lasting = {lease.message.seq for lease in leases if lease.message.persistent}
            rows = ((queue.id, seq, times) for seq, times in counted.items() if seq in lasting)
            self._rows.append(encode_returned(rows))

    def _leave(self, messages: Collection[Message]) -> None:
        queue = self.queue
        if queue.returned:
            self._forgotten += [message.seq for message in messages if message.seq in queue.returned]
        if queue.persisted:
            kept = [message for message in messages if message.persistent]
            self._positions.extend([message.position for message in kept])
            self._bytes += sum([len(message.body) for message in kept])

    def settled_record(self) -> bytes:
        """Payload of SETTLED; empty when nothing leaves the journal."""
        return encode_settled(self.queue.id, self._bytes, self._positions) if self._positions else b""

    def returned_record(self) -> bytes:
        """Payload of RETURNED; empty when nothing is counted."""
        return b"".join(self._rows)

    def sort(self) -> None:
        """Bring the returning messages into the order of the queue."""
        self.ready.sort(key=_seq)
        if isinstance(self.queue.store, Levels):
            self._levels = self.queue.store.split(self.ready)

    def apply(self, pager: Pager) -> None:
        """Let the messages leave or return. The caller holds back those that wait."""
        queue, returned, figures = self.queue, self.queue.returned, self.queue.figures
        for seq in self._forgotten:
            returned.pop(seq, None)
        returned.update(self._returned)
        back = len(self.ready) + sum(map(len, self.waiting.values()))
        figures.acked += self._acked
        figures.dropped += len(self.outcasts)
        figures.returned += back
        queue.unacked -= self._acked + len(self.outcasts) + back
        if isinstance(queue.store, Levels):
            queue.store.restore_levels(self._levels, pager)
        elif self.ready:
            queue.store.restore(self.ready, pager)
        queue.bytes += self.ready_bytes
        queue.expiring = queue.expiring or self._expires
        if not back and not queue.unacked and not len(queue) and not queue.held_back:
            returned.clear()  # as after a single ack

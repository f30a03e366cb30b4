"""What the tests of the work-queue core share: a broker to play with and a client without a wire.

Owns: ``Bench`` (a broker over a journal that can be restarted) and ``Session`` (a channel's leases and
consumers). Must not touch: sockets and clocks; ``bench.now_ms`` is the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final

from holtmq.broker.broker import Broker
from holtmq.broker.flow import PublishOutcome
from holtmq.broker.message import Message, decode_message, make_address
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.records.message_records import decode_delayed
from holtmq.broker.records.recovery import recover
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.vhost import VHost
from holtmq.broker.work import memory_budget, spilling_fifo
from holtmq.broker.work.leases import Holder, Lease, Ledger
from holtmq.broker.work.paging import MemorySpill, MessagePager, SpilledBytes
from holtmq.broker.work.priority_levels import Levels
from holtmq.broker.work.work_queue import WorkQueue, require_work_queue
from holtmq.journal import FileJournal, JournalOptions, MemoryJournal, Recovery, open_journal
from holtmq.journal.fake_disk import FakeDisk, Keep
from holtmq.journal.interface import RecordUnreadable
from holtmq.testing.views import raw_messages
from holtmq.wire.properties import Properties, decode_properties, encode_header, encode_properties
from holtmq.wire.tables import FieldTable

VHOST = "/"
START_MS = 1_700_000_000_000
UNLIMITED = 1 << 30
SMALL_SEGMENTS = JournalOptions(segment_bytes=4096)


def message(
    seq: int, body: bytes = b"", *, priority: int = 0, persistent: bool = True, position: int = 0
) -> Message:
    """A message that no one published."""
    return Message(
        seq,
        make_address("", "q"),
        content_header(body or b"%d" % seq),
        body or b"%d" % seq,
        START_MS,
        0,
        priority,
        persistent,
        position,
    )


def content_header(
    body: bytes,
    *,
    persistent: bool = True,
    priority: int | None = None,
    expiration: str | None = None,
    headers: FieldTable | None = None,
) -> bytes:
    """A content header with these properties."""
    properties = Properties(
        delivery_mode=2 if persistent else 1, priority=priority, expiration=expiration, headers=headers
    )
    return encode_header(len(body), encode_properties(properties))


def headers_of(found: Message) -> FieldTable:
    """The headers table of a message; empty when it has none."""
    return decode_properties(found.header, 12).headers or {}


class Session:
    """A channel without a wire: its leases, its consumers, and what they were given."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.ledger = Ledger()
        bench.broker.sessions.add(self.ledger)
        self.gets = Holder()
        self.consumers: list[Taker] = []

    def consume(
        self,
        queue: str,
        *,
        prefetch: int = 0,
        no_ack: bool = False,
        priority: int = 0,
        exclusive: bool = False,
        turn: bool = True,
    ) -> Taker:
        """Add a consumer (prefetch 0: without limit)."""
        found = self.bench.queue(queue)
        taker = Taker(self, found, prefetch, no_ack, priority)
        self.bench.broker.consume(found, taker, exclusive)
        self.consumers.append(taker)
        if turn:
            self.bench.turn()
        return taker

    def get(self, queue: str) -> Lease | None:
        """Take one message under a lease."""
        found = self.bench.queue(queue)
        taken = self.bench.broker.get(found)
        return None if taken is None else self.ledger.grant(found, taken, self.gets)

    def ack(self, *numbers: int) -> None:
        """End these leases; a number that is unknown is the test's mistake."""
        self.bench.flow.ack(self._end(numbers))

    def reject(self, *numbers: int) -> None:
        """Refuse these messages for good."""
        self.bench.flow.reject(self._end(numbers))

    def release(self, *numbers: int) -> None:
        """Requeue these messages."""
        self.bench.flow.release([lease for lease in self._end(numbers) if lease.holder is not None])

    def cancel(self, taker: Taker, *, requeue: bool = True) -> list[int]:
        """Remove a consumer; the numbers of its leases, revoked if ``requeue``."""
        numbers = list(taker.held)
        self.consumers.remove(taker)
        if requeue:
            self.bench.flow.release(self.ledger.revoke(taker))
        self.bench.broker.cancel(taker.queue, taker)
        return numbers

    def close(self) -> None:
        """The channel ends: everything it holds goes back."""
        released = self.ledger.end_all()
        for taker in self.consumers:
            if not taker.queue.deleted:
                taker.queue.remove_consumer(taker)
        self.bench.flow.release(released)
        for taker in self.consumers:
            self.bench.broker.after_cancel(taker.queue)
        self.consumers = []
        self.bench.broker.sessions.discard(self.ledger)

    def _end(self, numbers: Iterable[int]) -> list[Lease]:
        leases = [self.ledger.end(number) for number in numbers]
        assert None not in leases
        return [lease for lease in leases if lease is not None]


class Taker(Holder):
    """A consumer that keeps what it is given."""

    arguments: Final[Mapping[str, object]] = {}

    def __init__(
        self, session: Session, queue: WorkQueue, prefetch: int, no_ack: bool, priority: int
    ) -> None:
        super().__init__()
        self.session = session
        self.queue = queue
        self.prefetch = prefetch
        self.no_ack = no_ack
        self.priority = priority
        self.got: list[bytes] = []
        self.redelivered: list[bytes] = []
        self.lost_queue = False

    def room(self) -> int:
        """How many more it takes."""
        return self.prefetch - len(self.held) if self.prefetch and not self.no_ack else UNLIMITED

    def deliver(self, queue: Queue, messages: list[Message]) -> None:
        """Lease the messages and remember them."""
        for found in messages:
            self.got.append(found.body)
            if queue.is_redelivered(found):
                self.redelivered.append(found.body)
            if not self.no_ack:
                self.session.ledger.grant(queue, found, self)
        if self.no_ack:
            queue.settle_all(messages)

    def cancelled(self, queue: Queue) -> None:
        """The queue is gone."""
        self.lost_queue = True

    def numbers(self) -> list[int]:
        """The leases it holds, in order."""
        return sorted(self.held)


@dataclass
class Bench:
    """A broker over a journal in memory, or on a disk that can crash."""

    disk: FakeDisk | None = None
    max_priority: int = 10
    options: JournalOptions = field(default_factory=lambda: SMALL_SEGMENTS)

    def __post_init__(self) -> None:
        self.now_ms = START_MS
        self._journal: MemoryJournal | FileJournal
        found: Recovery | None = None
        if self.disk is None:
            self._journal = MemoryJournal()
        else:
            self._journal, found = open_journal("", self.options, disk=self.disk)
        self._start(found)
        self.broker.put_vhost(VHOST)

    def _start(self, found: Recovery | None) -> None:
        self.broker = Broker(self._journal, max_priority=self.max_priority)
        self.flow = self.broker.flow
        self.flow.now_ms = self.now_ms
        if found is not None:
            recover(self.broker, found)

    @property
    def journal(self) -> MemoryJournal:
        """The journal in memory, for the faults only it has."""
        assert isinstance(self._journal, MemoryJournal)
        return self._journal

    @property
    def vhost(self) -> VHost:
        """The one vhost there is."""
        return self.broker.vhosts[VHOST]

    def queue(self, name: str) -> WorkQueue:
        """The queue of this name."""
        return require_work_queue(self.vhost.queues[name], "this broker has no streams")

    def declare(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        owner: object | None = None,
    ) -> WorkQueue:
        """A queue; exclusive if it has an owner."""
        found, _ = self.broker.declare_queue(
            self.vhost,
            name,
            durable=durable,
            auto_delete=auto_delete,
            exclusive=owner is not None,
            owner=owner,
            arguments=arguments,
        )
        return self.queue(found.name)

    def publish(
        self,
        key: str,
        body: bytes,
        *,
        exchange: str = "",
        persistent: bool = True,
        priority: int | None = None,
        expiration: str | None = None,
        headers: FieldTable | None = None,
        turn: bool = True,
    ) -> PublishOutcome:
        """Publish one message."""
        header = content_header(
            body, persistent=persistent, priority=priority, expiration=expiration, headers=headers
        )
        route = self.broker.resolve(self.vhost, exchange, key, make_address(exchange, key))
        outcome = self.flow.publishing.publish(route, self.flow.publish_properties.of(header), header, body)
        if turn:
            self.turn()
        return outcome

    def fill(self, key: str, *bodies: bytes, persistent: bool = True) -> None:
        """Publish several and end the turn."""
        for body in bodies:
            self.publish(key, body, persistent=persistent, turn=False)
        self.turn()

    def session(self) -> Session:
        """A holder of leases."""
        return Session(self)

    def turn(self) -> None:
        """End the turn."""
        self.flow.turn()

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms
        self.flow.now_ms = self.now_ms
        self.flow.tick()
        self.turn()

    def sync(self) -> None:
        """Make everything so far durable."""
        self.turn()
        self._journal.flush()

    def checkpoint(self) -> None:
        """As the node does it: end the turn, then hand over a snapshot, and wait until it counts."""
        self.turn()
        assert self._journal.checkpoint(*snapshot(self.broker))
        self._journal.flush()

    def read_back(self) -> int:
        """Read whatever the journal keeps for a queue, lease or delay, and compare; how many there were."""
        leases = [lease for session in self.broker.sessions for lease in session.outstanding()]
        # Nothing is kept for a queue that is gone: its leases end without effect.
        held = [lease.message for lease in leases if not lease.queue.deleted]
        for queue in self.broker.work_queues():
            held += raw_messages(self.broker, queue)
            held += [message for batch in queue.held_back.values() for message in batch]
        there = [message for message in held if message.position]
        delayed = list(self.flow.delayed)
        records = self._journal.read_many([*(message.position for message in there), *delayed])
        for message, (_, payload) in zip(there, records, strict=False):
            stored, _ = decode_message(payload, message.position)
            assert (stored.body, stored.address) == (message.body, message.address), message
        for _, payload in records[len(there) :]:
            decode_delayed(payload)
        return len(records)

    def crash(self, keep: Keep = Keep.NOTHING) -> None:
        """Lose what was not durable, and start again."""
        found: Recovery
        if self.disk is None:
            self._journal, found = self.journal.restart()
        else:
            self.disk.crash(keep)
            self._journal, found = open_journal("", self.options, disk=self.disk)
        self._start(found)
        self.turn()

    def restart(self) -> None:
        """Stop in good order, and start again."""
        self.turn()
        self._journal.close()
        if self.disk is None:
            self.crash()
        else:
            self._journal, found = open_journal("", self.options, disk=self.disk)
            self._start(found)
            self.turn()

    def bodies(self, name: str) -> list[bytes]:
        """What waits in a queue, next first; left as it is."""
        return [found.body for found in self.waiting(name)]

    def waiting(self, name: str) -> list[Message]:
        """The messages that wait in a queue, next first; nothing is moved or paged for it."""
        store = self.queue(name).store
        fifos = [found for _, found in store.by_level(True)] if isinstance(store, Levels) else [store]
        return [found for one in fifos for found in one.browse(self.flow.pager)]


class Shelf:
    """A pager over a dict; counts what it is asked."""

    def __init__(self) -> None:
        self.stored: dict[int, Message] = {}
        self.reads = 0
        self.written: list[int] = []
        self.broken = self.full = False  # a broken one reads nothing, neither journal nor spill
        self.spill_broken = False
        self._pager = MessagePager(MemoryJournal(), MemorySpill())

    def read(self, positions: Sequence[int]) -> list[Message]:
        if self.broken:
            raise OSError("the disk is gone")
        self.reads += len(positions)
        return [copy(self.stored[position]) for position in positions]

    def unreadable(self) -> list[RecordUnreadable]:
        return []

    def keep(self, found: Message) -> Message:
        """As if the journal had it, where it says so."""
        self.stored[found.position] = copy(found)
        return found

    def spill(self, messages: list[Message]) -> SpilledBytes:
        if self.full:
            raise OSError("no space left")
        self.written += [found.seq for found in messages]
        return self._pager.spill(messages)

    def read_back(self, spilled: SpilledBytes) -> list[Message]:
        if self.broken or self.spill_broken:
            raise OSError("the disk is gone")
        found = self._pager.read_back(spilled)
        self.reads += len(found)
        return found


def copy(found: Message) -> Message:
    """As read from a disk: equal, and another object."""
    return Message(
        found.seq,
        found.address,
        found.header,
        found.body,
        found.arrived_ms,
        found.expires_ms,
        found.priority,
        found.persistent,
        found.position,
    )


def seqs(messages: list[Message]) -> list[int]:
    """Where these stood in the order of arrival."""
    return [found.seq for found in messages]


def shrink_paging() -> list[tuple[ModuleType, str, int]]:
    """Constants that make a dozen messages a deep queue."""
    return [
        (memory_budget, "DEFAULT_BYTES", -1),
        (spilling_fifo, "HEAD_MAX", 6),
        (spilling_fifo, "HEAD_KEEP", 2),
        (spilling_fifo, "HEAD_MAX_BYTES", 400),
        (spilling_fifo, "RUN", 3),
        (spilling_fifo, "_FIRST_RUN", 2),
        (spilling_fifo, "TAIL_MAX", 2),
        (spilling_fifo, "_CHUNK", 8),
    ]


def drain(bench: Bench, name: str) -> list[bytes]:
    """Take everything out of a queue for good, one by one."""
    session = bench.session()
    bodies: list[bytes] = []
    while (lease := session.get(name)) is not None:
        bodies.append(lease.message.body)
        session.ack(lease.number)
    session.close()
    bench.turn()
    return bodies

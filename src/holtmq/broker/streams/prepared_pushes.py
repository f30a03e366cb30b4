"""The messages of a large transaction for streams: encoded in steps, then pushed at one moment.

Owns: their records, partitions and fingerprints, made ahead. Must not touch: the log until then, clocks, the
record, which the transaction writes (``publish/prepared.py``).

The bodies are not put into the cache: so many would displace all others, and their readers come one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from holtmq.broker.message import Message
from holtmq.broker.partitioned.captured import StateRecord
from holtmq.broker.partitioned.commands.addressing import Addresses
from holtmq.broker.partitioned.commands.pushing import has_room
from holtmq.broker.partitioned.events import Pushed
from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.log.bodies import AmqpMetadata, Body, encode_bodies
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.partitioned.store import Change
from holtmq.broker.records.changes import Kind
from holtmq.broker.streams.envelopes import Envelope, body_of, partition_of, to_payload
from holtmq.broker.streams.stream_queue import StreamQueue
from holtmq.journal.encoded_batch import EncodedBatch
from holtmq.journal.records import FRAME_SIZE

_AT_ONCE: Final = 200  # messages that are encoded together: less than a millisecond
_EXPIRED: Final = 10_000  # ids that are forgotten together: about 7 ms
_BODY: Final = int(Kind.PARTITIONED_BODY)


class PreparedPush:
    """The messages for one stream."""

    def __init__(self, service: PartitionedService, name: str, now: float) -> None:
        self.name = name
        self.offsets: list[int] = []  # of the bodies in their batch
        self.shift = 0  # where that batch is in the transaction's
        self.batch = EncodedBatch()
        queue = service.store.queues.get(name)
        self._service = service
        self._is_new = queue is None
        self._queue = queue or service.store.draft(name, now)[0]
        self._is_sealed = self._queue.config.encryption_enabled
        self.addresses = Addresses(self._queue)
        self._items: list[tuple[str, str]] = []  # partition, id; not encoded yet
        self._bodies: list[Body] = []

    def __len__(self) -> int:
        return len(self.addresses.places) + len(self._items)

    def add(self, partition: str, body: Body) -> None:
        self._items.append((partition, body.transaction_id))
        self._bodies.append(body)
        if len(self._items) >= _AT_ONCE:
            self.encode()

    def encode(self) -> None:
        """Encode what was added."""
        items, self._items = self._items, []
        bodies, self._bodies = self._bodies, []
        self.addresses.add(items)
        cipher = self._service.store.cipher if self._is_sealed else None
        for record in encode_bodies(bodies, cipher):
            self.offsets.append(self.batch.add(_BODY, record))

    def holds(self) -> bool:
        """Whether it can be pushed as it is: the stream has changed in nothing that it depends on."""
        queue = self._service.store.queues.get(self.name)
        config = self._service.store.default_config if queue is None else queue.config
        return (
            self.addresses.holds(queue)
            and self.addresses.all_new()
            and (queue is None) == self._is_new
            and config.encryption_enabled == self._is_sealed
        )

    def has_room(self) -> bool:
        """Whether the stream's limit allows all messages."""
        return self._is_new or has_room(self._queue, len(self))

    def decide(self, queue: PartitionedQueue, now: float) -> Pushed:
        """The event that pushes all messages now."""
        addresses = self.addresses
        created_us = max(micros(now), queue.log.last_created_us + 1)
        return Pushed(
            queue.log.next_offset, created_us, addresses.places, addresses.prints, tuple(addresses.new)
        )


class PreparedPushes:
    """The messages for all streams of a transaction."""

    def __init__(
        self, service: PartitionedService, now: Callable[[], float], new_id: Callable[[], str]
    ) -> None:
        self._service = service
        self._now = now
        self._new_id = new_id
        self._pushes: dict[StreamQueue, PreparedPush] = {}
        self._configured: list[Change] = []
        self._pushed: list[Change] = []

    def add(self, stream: StreamQueue, message: Message, envelope: Envelope | None) -> None:
        """Add a message; the envelope, if it is known."""
        push = self._pushes.get(stream)
        if push is None:
            push = self._pushes[stream] = PreparedPush(self._service, stream.stored_as, self._now())
        if envelope is None:
            push.add(partition_of(message), body_of(message, self._new_id()))
            return
        metadata: AmqpMetadata = envelope.metadata
        push.add(envelope.partition, Body(self._new_id(), to_payload(message.body), metadata=metadata))

    @property
    def size(self) -> int:
        """Bytes of the bodies that are not in the transaction's batch yet."""
        return sum([push.batch.size - FRAME_SIZE for push in self._pushes.values()])

    def __len__(self) -> int:
        """How many streams there are messages for."""
        return len(self._pushes)

    def join(self, batch: EncodedBatch) -> Iterator[None]:
        """Put all bodies into the transaction's batch, behind each other; a stream is an item."""
        for push in self._pushes.values():
            push.encode()
            push.shift = batch.absorb(push.batch)
            push.batch = EncodedBatch()
            yield

    @property
    def is_outdated(self) -> bool:
        """Whether the messages must be prepared again."""
        return not all(push.holds() and push.has_room() for push in self._pushes.values())

    @property
    def are_spooled(self) -> bool:
        """Whether pushes go to the spool now."""
        return self._service.spool.holds

    def record(self, earlier: Sequence[Change]) -> StateRecord:
        """The record that must be appended behind the bodies, with these changes; then the caller must apply
        them, and ``apply`` the pushes."""
        store, now = self._service.store, self._now()
        for push in self._pushes.values():
            queue = store.queues.get(push.name)
            if queue is None:
                queue, configured = store.draft(push.name, now, len(self._configured))
                self._configured.append((queue.number, configured))
            self._pushed.append((queue.number, push.decide(queue, now)))
        return store.events_record([*earlier, *self._configured, *self._pushed])

    def apply(self, base: int) -> None:
        """The transaction was written at this position: put the messages on their streams."""
        store = self._service.store
        if self._configured:
            store.apply(self._configured, ())
        for push, change in zip(self._pushes.values(), self._pushed, strict=True):
            addresses = push.addresses
            store.by_number[change[0]].dedup.prepare(addresses.prints, addresses.by_print)
            first = base + push.shift
            store.apply([change], [first + offset for offset in push.offsets])
            self._service.counters.of(push.name).pushed(len(push), len(push), len(addresses.new))

    def expire_ids(self) -> Iterator[None]:
        """Forget ids that are older than the window, in steps: one push would forget very many."""
        store, now_us = self._service.store, micros(self._now())
        for number, _ in self._pushed:
            yield
            while (queue := store.by_number.get(number)) is not None and queue.expire_ids(now_us, _EXPIRED):
                yield

"""A partitioned queue as AMQP sees it: exchanges route into it, consumers read it or join a group.

Owns: what each AMQP consumer has read and holds of a partitioned queue. Must not touch: the journal;
``PartitionedService`` writes. It is a subclass of the work queue, so that topology needs only one kind.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Final, Protocol

from holtmq.broker.dialect import HOLT, Dialect
from holtmq.broker.errors import Conflict
from holtmq.broker.message import Message
from holtmq.broker.partitioned.commands.pushing import has_room
from holtmq.broker.partitioned.commands.stream_limits import Limits
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.groups.subscriptions import StartMode, StartRequest
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.requests import AckRequest, PopRequest, PushItem
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.partitioned.store import MessagesSetAside
from holtmq.broker.pausing import Pause
from holtmq.broker.streams.envelopes import Showing, body_of, partition_of, readable
from holtmq.broker.streams.stream_filter import StreamFilter, make_filter
from holtmq.broker.topology.queue_arguments import QueueOptions
from holtmq.broker.work.leases import Lease
from holtmq.broker.work.spilling_fifo import Pager, SpillingFifo
from holtmq.broker.work.work_queue import Consumer, WorkQueue

_READ_AT_ONCE: Final = 256
_SCANS: Final = 8  # reads of a filtering reader before other work goes on
_GROUP_PARTITIONS: Final = 64
_FOR_EVER: Final = 10 * 365 * 86_400.0  # an AMQP lease does not expire: it ends with its holder
_UNITS: Final = {"Y": 31_536_000, "M": 2_592_000, "D": 86_400, "h": 3_600, "m": 60, "s": 1}


class StreamConsumer(Consumer, Protocol):
    """A consumer with arguments, which say where to start."""

    @property
    def arguments(self) -> Mapping[str, object]: ...


class _Store(SpillingFifo):
    """An always empty store with the log's length: the messages are in the log."""

    __slots__ = ("_count",)

    def __init__(self, count: Callable[[], int]) -> None:
        super().__init__()
        self._count = count

    def push(self, message: Message) -> None:
        raise AssertionError("a stream's messages are written with the record of their publish")

    def __len__(self) -> int:
        return self._count()

    def spill(self, pager: Pager, bytes_held: int, is_short: bool = True) -> None:
        """Nothing is in memory."""


class StreamQueue(WorkQueue):
    """A partitioned queue with the interface of a work queue."""

    __slots__ = (
        "_held",
        "_is_planned",
        "_new_id",
        "_now",
        "_readers",
        "_service",
        "settle_log",
        "stored_as",
        "touch",
    )

    is_stream = True

    def __init__(
        self,
        name: str,
        vhost: str,
        queue_id: int,
        options: QueueOptions,
        service: PartitionedService,
        now: Callable[[], float],
        new_id: Callable[[], str],
        settle_log: Callable[[Sequence[AckRequest], bool], None],
        touch: Callable[[WorkQueue], None],
        arguments: dict[str, object] | None = None,
        dialect: Dialect = HOLT,
    ) -> None:
        self.stored_as = stored_name(vhost, name)
        self._service = service
        super().__init__(name, vhost, queue_id, options, durable=True, arguments=arguments, dialect=dialect)
        self.fifo = None
        self.store = _Store(self._count)
        self._now = now
        self._new_id = new_id
        self.settle_log = settle_log  # acks at once or with the open batch; the flag: the claim has ended
        self.touch = touch  # makes the flow dispatch this queue before the turn ends
        self._readers: dict[StreamConsumer, _Reader | _Member] = {}
        self._is_planned = False
        self._held: dict[int, tuple[_Member, int, int]] = {}  # id() of a message -> member, partition, offset

    @property
    def log(self) -> PartitionedQueue | None:
        """The partitioned queue behind this name; None before its first message."""
        return self._service.store.queues.get(self.stored_as)

    @property
    def paused(self) -> Pause | None:
        """The pause of the log, which HTTP's consumer groups share."""
        log = self.log
        return None if log is None else log.paused

    def reconfigure(self, options: QueueOptions) -> None:
        """Apply changed options; retention enforces the limits from time to time."""
        super().reconfigure(options)
        self.limited = False
        self._service.stream_limits.put(self.stored_as, Limits(options.max_age, options.max_length_bytes))

    def item_of(self, message: Message) -> PushItem:
        """A published message as an item to push to the log."""
        return PushItem(self.stored_as, partition_of(message), body_of(message, self._new_id()))

    def _count(self) -> int:
        log = self.log
        return 0 if log is None else log.log.live

    @property
    def refuses_when_full(self) -> bool:
        """Whether the log has a limit (``maxSize``); retention enforces AMQP's own limits."""
        log = self.log
        return log is not None and log.config.max_size > 0

    def is_full(self, size: int, on_the_way: int = 0, bytes_on_the_way: int = 0) -> bool:
        """Whether the log has no room for one more message behind others already accepted."""
        log = self.log
        return log is not None and not self._service.spool.holds and not has_room(log, on_the_way + 1)

    def dispatch(self, now_ms: int, pager: Pager) -> None:
        """Deliver to every reader from its offset, and to every group member what it can claim."""
        if self._readers and self.paused is not None:
            return
        for consumer, reader in list(self._readers.items()):
            while (room := min(consumer.room(), _READ_AT_ONCE)) > 0:
                messages = reader.next(room)
                if not messages:
                    break
                self.unacked += len(messages)
                consumer.deliver(self, messages)
            if isinstance(reader, _Reader) and reader.has_unread and consumer.room() > 0:
                self._dispatch_soon()

    def _dispatch_soon(self) -> None:
        """Continue after other work: a filter has skipped many messages."""
        if not self._is_planned:
            self._is_planned = True
            self._service.line.at(self._now(), self._continue)

    def _continue(self) -> None:
        self._is_planned = False
        if not self.deleted:
            self.touch(self)

    def take(self, limit: int, now_ms: int, pager: Pager) -> list[Message]:
        """Refuse ``basic.get``: it has no offset in the log."""
        raise Conflict(
            f"queue '{self.name}' in vhost '{self.vhost}' is a stream: consume from it, do not get"
        )

    def expire(self, now_ms: int, pager: Pager, limit: int) -> None:
        """Do nothing: the partitioned queue has its own retention."""

    def purge(self, outstanding: Iterable[Message] = ()) -> int:
        """Refuse: readers have offsets in the log."""
        raise Conflict(f"queue '{self.name}' in vhost '{self.vhost}' is a stream: it cannot be purged")

    def settle(self, message: Message) -> None:
        """Acknowledge: moves a group's cursor; for a plain reader it only frees room."""
        self.unacked -= 1
        self._verdict(message, AckStatus.COMPLETED)

    def settle_all(self, messages: list[Message]) -> None:
        """Acknowledge messages delivered to a consumer that sends no acks."""
        for message in messages:
            self.settle(message)

    def reject(self, message: Message) -> None:
        """Move the message to the group's dead letters. For a plain reader the same as an ack."""
        self.unacked -= 1
        self._verdict(message, AckStatus.DEAD_LETTER)

    def release(
        self, leases: Iterable[Lease], pager: Pager, failed: bool = False
    ) -> dict[int, list[Message]]:
        """Return messages to the group for redelivery. A plain reader has moved on."""
        for lease in leases:
            self.unacked -= 1
            self._verdict(lease.message, AckStatus.RETRY)
        return {}

    def take_out(self, message: Message) -> bool:
        """Nothing is stored here that could be removed."""
        return False

    def withdraw(self, message: Message) -> bool:
        """Ignore a late ack after a cancel: the lease has ended."""
        return False

    def is_redelivered(self, message: Message) -> bool:
        """Only a group counts deliveries; a log does not."""
        held = self._held.get(id(message))
        return held is not None and held[0].redelivers(held[1])

    def _verdict(self, message: Message, status: AckStatus) -> None:
        held = self._held.pop(id(message), None)
        if held is not None:
            member, partition, offset = held
            member.verdict(partition, offset, status)

    def add_consumer(self, consumer: Consumer) -> None:
        """Start reading where the consumer's arguments say, or join its group."""
        stream_consumer: StreamConsumer = consumer  # type: ignore[assignment]
        arguments = stream_consumer.arguments
        group = arguments.get("x-consumer-group")
        if group is not None and (not isinstance(group, str) or not group or readable(group) != group):
            raise Conflict(
                f"invalid arg 'x-consumer-group' for queue '{self.name}': expected a name, got {group!r}"
            )
        start = arguments.get("x-stream-offset")
        chosen = make_filter(arguments, self.name)
        if isinstance(group, str):
            if chosen is not None:
                raise Conflict(
                    f"invalid arg 'x-stream-filter' for queue '{self.name}': the members of a consumer group "
                    "share all messages; a reader without 'x-consumer-group' may filter"
                )
            self._readers[stream_consumer] = _Member(
                self, group, _group_start(self.name, start), self._new_id()
            )
        else:
            self._readers[stream_consumer] = _Reader(self, self._start_offset(start), chosen)
        self.consumers.append(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Stop reading; a member returns its claims to the group."""
        self.consumers.remove(consumer)
        reader = self._readers.pop(consumer)  # type: ignore[call-overload]
        if isinstance(reader, _Member):
            reader.leave()
        if not self.consumers:
            self.exclusive_consumer = False

    def end(self) -> None:
        """Detach all readers of a deleted queue; the consumers were notified."""
        for reader in self._readers.values():
            if isinstance(reader, _Member):
                reader.leave()
        self._readers.clear()

    def hold(self, member: "_Member", partition: int, message: Message) -> None:
        """Remember which member has this message, until it is settled."""
        self._held[id(message)] = (member, partition, message.seq)

    def forget(self, member: "_Member") -> None:
        """Drop the messages of a member that has left."""
        self._held = {key: held for key, held in self._held.items() if held[0] is not member}

    @property
    def service(self) -> PartitionedService:
        return self._service

    def now(self) -> float:
        """Seconds since the epoch, from the broker's clock."""
        return self._now()

    def _start_offset(self, start: object) -> int:
        log = self.log
        first, end = (0, 0) if log is None else (log.log.first_offset, log.log.next_offset)
        match start:
            case None | "next":
                return end
            case "first":
                return first
            case "last":
                return max(first, end - 1)
            case bool():
                pass
            case int() if start >= 0:
                return start
            case datetime():
                return 0 if log is None else log.log.offset_at(int(start.timestamp() * 1_000_000))
            case str() if (seconds := _interval(start)) is not None:
                return 0 if log is None else log.log.offset_at(int((self._now() - seconds) * 1_000_000))
        raise Conflict(_bad_offset(self.name, start))


class _Reader:
    """Reads a log from an offset on, independently of other consumers."""

    def __init__(self, queue: StreamQueue, offset: int, chosen: StreamFilter | None = None) -> None:
        self._queue = queue
        self._offset = offset
        self._filter = chosen
        self._showing = Showing(queue.name)
        self.has_unread = False  # a filter stopped after many messages; there may be more to deliver

    def next(self, limit: int) -> list[Message]:
        if self._filter is None:
            return self._read(limit)
        self.has_unread = False
        for _ in range(_SCANS):
            found = self._read(limit, self._filter)
            if found or self._is_at_end:
                return found
        self.has_unread = True
        return []

    @property
    def _is_at_end(self) -> bool:
        log = self._queue.log
        return log is None or self._offset >= log.log.durable_end

    def _read(self, limit: int, chosen: StreamFilter | None = None) -> list[Message]:
        queue = self._queue
        log = queue.log
        if log is None or self._offset >= log.log.durable_end:
            return []
        while True:
            most = limit if chosen is None else _READ_AT_ONCE
            offsets = list(islice(log.log.live_offsets(self._offset, log.log.durable_end), most))
            rows = log.log.refs(offsets)
            try:
                bodies = queue.service.store.bodies([position for _, position, _ in rows])
                break
            except MessagesSetAside:
                continue  # unreadable messages are set aside; read the rest
        self._offset = offsets[-1] + 1 if offsets else log.log.durable_end
        pairs = list(zip(rows, bodies, strict=True))
        if chosen is not None:
            pairs = [pair for pair in pairs if chosen.accepts(pair[1])]
            if len(pairs) > limit:
                self._offset = pairs[limit][0][0]
                pairs = pairs[:limit]
        show, partition_of, partitions = self._showing.message, log.log.partition, log.partitions
        return [
            show(partitions[partition_of(offset)].name, offset, created_us, body)
            for (offset, _, created_us), body in pairs
        ]


class _Claimed:
    """One partition claimed by a member: its offsets in order, and the verdicts received so far."""

    __slots__ = ("attempt", "lease_id", "transactions", "verdicts", "waiting")

    def __init__(self, lease_id: str, attempt: int) -> None:
        self.lease_id = lease_id
        self.attempt = attempt
        self.waiting: deque[int] = deque()
        self.transactions: dict[int, str] = {}
        self.verdicts: dict[int, AckStatus] = {}


class _Member:
    """A consumer in a consumer group: claims partitions and settles them in order."""

    def __init__(self, queue: StreamQueue, group: str, start: StartRequest, name: str) -> None:
        self._queue = queue
        self._group = group
        self._start = start
        self._name = name
        self._showing = Showing(queue.name)
        self._claims = 0
        self._claimed: dict[int, _Claimed] = {}
        queue.service.line.enlist(queue.stored_as, group, self._told)

    def _told(self) -> None:
        self._queue.touch(self._queue)

    def next(self, limit: int) -> list[Message]:
        queue = self._queue
        now = queue.now()
        self._claims += 1
        lease_id = f"{self._name}-{self._claims}"
        popped = queue.service.pop(
            PopRequest(
                lease_id,
                queue.stored_as,
                group=self._group,
                limit=limit,
                most_partitions=_GROUP_PARTITIONS,
                lease_seconds=_FOR_EVER,
                start=self._start,
            ),
            now,
        )
        log = queue.log
        if popped is None and log is not None:
            # The broker's clock has whole milliseconds, so a deadline within this one is due in the next. The
            # never-ending leases of members are not deadlines.
            queue.service.line.plan_for_member(log, self._group, now + 0.001, now + _FOR_EVER / 2)
        messages: list[Message] = []
        for run in popped.runs if popped is not None else ():
            partition = run.delivery.partition
            claimed = self._claimed[partition] = _Claimed(lease_id, run.delivery.attempt)
            for (offset, _, created_us), body in zip(run.rows, run.bodies, strict=True):
                message = self._showing.message(run.delivery.name, offset, created_us, body)
                claimed.waiting.append(offset)
                claimed.transactions[offset] = body.transaction_id
                queue.hold(self, partition, message)
                messages.append(message)
        return messages

    def redelivers(self, partition: int) -> bool:
        claimed = self._claimed.get(partition)
        return claimed is not None and claimed.attempt > 1

    def verdict(self, partition: int, offset: int, status: AckStatus) -> None:
        """Settle from the front up to the first offset without a verdict, which the cursor cannot skip."""
        claimed = self._claimed.get(partition)
        if claimed is None or offset not in claimed.transactions:
            return  # the claim has ended: another consumer has or will get the message
        claimed.verdicts[offset] = status
        acks: list[AckRequest] = []
        log = self._queue.log
        if log is None:
            return
        given_back = False
        while claimed.waiting and claimed.waiting[0] in claimed.verdicts and not given_back:
            front = claimed.waiting.popleft()
            said = claimed.verdicts.pop(front)
            given_back = said is AckStatus.RETRY
            transaction = claimed.transactions.pop(front)
            acks.append(AckRequest(log.number, partition, self._group, transaction, said, claimed.lease_id))
        over = given_back or not claimed.waiting
        if over:
            del self._claimed[partition]
        if acks:
            self._queue.settle_log(acks, over)

    def leave(self) -> None:
        """Return every claim, without counting an attempt."""
        log = self._queue.log
        claimed, self._claimed = self._claimed, {}
        self._queue.forget(self)
        self._queue.service.line.discharge(self._queue.stored_as, self._group, self._told)
        if log is not None:
            for partition, claim in claimed.items():
                self._queue.service.give_back(log, self._group, partition, claim.lease_id)


def stored_name(vhost: str, name: str) -> str:
    """A stream's name among partitioned queues: unchanged in the default vhost."""
    return name if vhost == "/" else f"{vhost}/{name}"


def _interval(text: str) -> int | None:
    parts = re.fullmatch(r"([0-9]{1,9})([YMDhms])", text)
    return int(parts[1]) * _UNITS[parts[2]] if parts else None


def _group_start(queue: str, start: object) -> StartRequest:
    match start:
        case None:
            return StartRequest(explicit=False)
        case "first":
            return StartRequest(StartMode.ALL)
        case "next" | "last":
            return StartRequest(StartMode.NEW)
        case datetime():
            return StartRequest(StartMode.TIMESTAMP, int(start.timestamp() * 1_000_000))
    raise Conflict(_bad_offset(queue, start) + " (a group starts at first, next or a timestamp)")


def _bad_offset(queue: str, start: object) -> str:
    return (
        f"invalid arg 'x-stream-offset' for queue '{queue}': {start!r} is none of first, last, next, "
        "an offset, a timestamp or an interval such as 1h"
    )

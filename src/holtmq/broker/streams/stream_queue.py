"""A partitioned queue as AMQP sees it: exchanges route into it, consumers read it or join a group.

Owns: what each AMQP consumer has read and holds of a partitioned queue. Must not touch: the journal;
``PartitionedService`` writes. It is a ``Queue`` of ``topology/destinations.py``, as a work queue is.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from datetime import datetime

from holtmq.broker.dialect import HOLT, Dialect
from holtmq.broker.errors import Conflict
from holtmq.broker.figures.queue_figures import QueueFigures
from holtmq.broker.message import Message
from holtmq.broker.partitioned.commands.pushing import has_room
from holtmq.broker.partitioned.commands.stream_limits import Limits
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.pausing import Pause
from holtmq.broker.streams.claims import ClaimedMessage, Verdicts, by_claim
from holtmq.broker.streams.envelopes import body_of, partition_of, readable
from holtmq.broker.streams.serving import Serving
from holtmq.broker.streams.stream_filter import make_filter
from holtmq.broker.streams.stream_readers import (
    READ_AT_ONCE,
    GroupMember,
    StreamReader,
    bad_offset,
    group_start,
    interval_seconds,
)
from holtmq.broker.timer_wheel import ActionTimer
from holtmq.broker.topology.destinations import Consumer, Queue
from holtmq.broker.topology.queue_options import QueueOptions
from holtmq.broker.work.leases import Lease
from holtmq.broker.work.paging import Pager


class StreamQueue:
    """A partitioned queue among the queues of a vhost."""

    __slots__ = (
        "_acks_in_time",
        "_new_id",
        "_now",
        "_readers",
        "_service",
        "_serving",
        "_to_serve",
        "arguments",
        "consumers",
        "declared",
        "deleted",
        "dirty",
        "exclusive_consumer",
        "expiry_timer",
        "figures",
        "has_ack_timeout",
        "id",
        "name",
        "options",
        "policy",
        "settle_claims",
        "stored_as",
        "touch",
        "unacked",
        "used_ms",
        "vhost",
    )

    is_stream = True
    durable = True
    persisted = True
    always_persists = False  # the log journals all messages; this is about the records of work queues
    forgets_transient = False
    auto_delete = False
    owner = None
    bytes = 0  # the messages are in the log
    limited = False  # retention enforces the limits from time to time
    counts_deliveries = False

    def __init__(
        self,
        name: str,
        vhost: str,
        queue_id: int,
        options: QueueOptions,
        service: PartitionedService,
        serving: Serving,
        now: Callable[[], float],
        new_id: Callable[[], str],
        settle_claims: Callable[[Verdicts], None],
        touch: Callable[[Queue], None],
        arguments: dict[str, object] | None = None,
        dialect: Dialect = HOLT,
    ) -> None:
        self.name = name
        self.vhost = vhost
        self.id = queue_id
        self.stored_as = stored_name(vhost, name)
        self.arguments = arguments or {}
        self.declared = options
        self.policy: str | None = None
        self.consumers: list[Consumer] = []
        self.exclusive_consumer = False
        self.unacked = 0
        self.figures = QueueFigures()
        self.dirty = False
        self.deleted = False
        self.used_ms = 0
        self.expiry_timer: ActionTimer | None = None
        self.settle_claims = settle_claims  # at once or with the open batch
        self.touch = touch  # makes the flow dispatch this queue before the turn ends
        self._service = service
        self._serving = serving
        self._now = now
        self._new_id = new_id
        self._acks_in_time = dialect.consumer_timeout_closes_channel
        self._readers: dict[Consumer, StreamReader | GroupMember] = {}
        self._to_serve: OrderedDict[Consumer, None] = OrderedDict()  # readers to look at in this round
        self.reconfigure(options)

    def __len__(self) -> int:
        log = self.log
        return 0 if log is None else log.log.live

    def __repr__(self) -> str:
        return f"StreamQueue({self.name!r}, {len(self)} stored, {self.unacked} unacked)"

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
        self.options = options
        self.has_ack_timeout = self._acks_in_time or options.consumer_timeout_ms is not None
        self._service.stream_limits.put(self.stored_as, Limits(options.max_age, options.max_length_bytes))

    def item_of(self, message: Message) -> PushItem:
        """A published message as an item to push to the log."""
        return PushItem(self.stored_as, partition_of(message), body_of(message, self._new_id()))

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
        """Deliver to every reader from its offset, and to every group member what it can claim.

        Of very many readers some are served now, and the others after other work. Those who still wait come
        first, so that none is passed over for ever.
        """
        for consumer in self._readers:
            self._to_serve.setdefault(consumer)
        if self._to_serve:
            self._serving.enlist(self)

    @property
    def is_serving(self) -> bool:
        """Whether readers wait for their turn."""
        return bool(self._to_serve)

    def serve(self, most_work: int) -> int:
        """Serve readers whose turn it is; return how much work it was, which may be a little more."""
        if self._readers and self.paused is not None:
            self._to_serve.clear()  # the end of the pause is a new dispatch
            return 0
        again: list[Consumer] = []
        work_left = most_work
        while self._to_serve and work_left > 0:
            consumer, _ = self._to_serve.popitem(last=False)
            reader = self._readers.get(consumer)
            if reader is None:
                continue
            has_more = True
            while has_more and work_left > 0 and (room := min(consumer.room(), READ_AT_ONCE)) > 0:
                messages = reader.next(room, work_left)
                work_left -= reader.work
                has_more = bool(messages) or reader.has_unread
                if messages:
                    self.unacked += len(messages)
                    consumer.deliver(self, messages)
            if has_more and consumer.room() > 0:
                again.append(consumer)
        self._to_serve.update(dict.fromkeys(again))
        return most_work - work_left

    def settle(self, message: Message) -> None:
        """Acknowledge: moves a group's cursor; for a plain reader it only frees room."""
        self.unacked -= 1
        self._verdict((message,), AckStatus.COMPLETED)

    def settle_all(self, messages: list[Message]) -> None:
        """``settle`` for many at once."""
        self.unacked -= len(messages)
        self._verdict(messages, AckStatus.COMPLETED)

    def reject_all(self, messages: list[Message]) -> None:
        """Move messages to the group's dead letters. For a plain reader the same as an ack."""
        self.unacked -= len(messages)
        self._verdict(messages, AckStatus.DEAD_LETTER)

    @property
    def has_to_journal(self) -> bool:
        """Whether records of this queue belong before the next confirm: its group writes them at once."""
        return False

    def release(
        self, leases: Iterable[Lease], pager: Pager, failed: bool = False
    ) -> dict[int, list[Message]]:
        """Return messages to the group for redelivery. A plain reader has moved on."""
        messages = [lease.message for lease in leases]
        self.unacked -= len(messages)
        self._verdict(messages, AckStatus.RETRY)
        return {}

    def is_first_delivery(self, messages: list[Message]) -> bool:
        """Whether none of these was delivered to the group before; a plain reader reads each message once."""
        return type(messages[0]) is not ClaimedMessage or not any(map(self.is_redelivered, messages))

    def times_returned(self, message: Message) -> int:
        """Not counted per message: ``counts_deliveries`` is False."""
        return 1

    def is_redelivered(self, message: Message) -> bool:
        """Only a group counts deliveries; a log does not."""
        return type(message) is ClaimedMessage and message.redelivered

    def _verdict(self, messages: Iterable[Message], status: AckStatus) -> None:
        claims = by_claim(messages, status)
        if claims:
            self.settle_claims(claims)

    def add_consumer(self, consumer: Consumer) -> None:
        """Start reading where the consumer's arguments say, or join its group."""
        arguments = consumer.arguments
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
            self._readers[consumer] = GroupMember(self, group, group_start(self.name, start), self._new_id())
        else:
            self._readers[consumer] = StreamReader(self, self._start_offset(start), chosen)
        self.consumers.append(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Stop reading; a member returns its claims to the group."""
        self.consumers.remove(consumer)
        self._end_reader(consumer)

    def _end_reader(self, consumer: Consumer) -> None:
        reader = self._readers.pop(consumer)
        if isinstance(reader, GroupMember):
            reader.leave()
        if not self.consumers:
            self.exclusive_consumer = False

    def remove_consumers(self, gone: Collection[Consumer]) -> None:
        """``remove_consumer`` for many at once."""
        left = set(gone)
        self.consumers = [consumer for consumer in self.consumers if consumer not in left]
        for consumer in gone:
            self._end_reader(consumer)

    def end(self) -> None:
        """Detach all readers of a deleted queue; the consumers were notified."""
        for reader in self._readers.values():
            if isinstance(reader, GroupMember):
                reader.leave()
        self._readers.clear()

    @property
    def service(self) -> PartitionedService:
        return self._service

    def now(self) -> float:
        """Seconds since the epoch, from the broker's clock."""
        return self._now()

    def _start_offset(self, start: object) -> int:
        log = self.log
        first, end = (0, 0) if log is None else (log.log.first_offset, log.log.visible_end)
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
                return 0 if log is None else min(end, log.log.offset_at(int(start.timestamp() * 1_000_000)))
            case str() if (seconds := interval_seconds(start)) is not None:
                at_us = int((self._now() - seconds) * 1_000_000)
                return 0 if log is None else min(end, log.log.offset_at(at_us))
        raise Conflict(bad_offset(self.name, start))


def stored_name(vhost: str, name: str) -> str:
    """A stream's name among partitioned queues: unchanged in the default vhost."""
    return name if vhost == "/" else f"{vhost}/{name}"

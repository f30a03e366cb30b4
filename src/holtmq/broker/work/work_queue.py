"""A work queue: consumers compete for ready messages; an acknowledged message is deleted.

Owns: ready messages, consumers, how often a message was returned. Must not touch: the journal, clocks, wire
names. It leaves what must be journalled or dead-lettered in ``settled`` and ``outcasts``; the broker empties
both within the same turn.

Over 400 lines: all methods change the same counters of the queue, which must agree (ready, unacked, bytes,
settled), and most are on the path of each message.
"""

from collections.abc import Collection, Iterable
from operator import attrgetter
from typing import Final

from holtmq.broker.dialect import HOLT, Dialect
from holtmq.broker.errors import Conflict
from holtmq.broker.figures.queue_figures import QueueFigures
from holtmq.broker.message import Message
from holtmq.broker.pausing import Pause
from holtmq.broker.timer_wheel import ActionTimer
from holtmq.broker.topology.destinations import Consumer, Queue
from holtmq.broker.topology.queue_options import QueueOptions, QueueType
from holtmq.broker.work.leases import Lease
from holtmq.broker.work.memory_budget import MESSAGE_BYTES
from holtmq.broker.work.outcasts import Outcasts, Reason
from holtmq.broker.work.paging import Pager
from holtmq.broker.work.priority_levels import Levels
from holtmq.broker.work.returns import count_returns
from holtmq.broker.work.round_robin import next_takers, only
from holtmq.broker.work.spilling_fifo import SpillingFifo

_SHARE: Final = 256  # most messages delivered before the consumers' room is checked again
_SHARE_BYTES: Final = 262_144
DELIVERED_AT_ONCE: Final = 10_000  # messages, to the consumers of very many connections: about 10 ms
_FEW: Final = 100  # of so many consumers one is removed as fast by itself as all are looked at
SHED_AT_ONCE: Final = 5_000  # messages beyond a limit, which a policy may have lowered: about 10 ms
_READ_BACK: Final = 4  # a message that is read back from the disk first takes so many times as long
_NO_LEVELS: Final[dict[int, SpillingFifo]] = {}
_seq: Final = attrgetter("seq")
_body: Final = attrgetter("body")
_expires_ms: Final = attrgetter("expires_ms")


class WorkQueue:
    """Competing consumers on messages in arrival (or priority) order."""

    is_stream = False

    __slots__ = (
        "_always_ack_timeout",
        "_next_turn",
        "_pause",
        "active",
        "always_persists",
        "arguments",
        "auto_delete",
        "bytes",
        "consumers",
        "counts_deliveries",
        "deadline_timer",
        "declared",
        "deleted",
        "delivered_recorded",
        "delivered_upto",
        "dirty",
        "durable",
        "exclusive_consumer",
        "expiring",
        "expiry_timer",
        "fifo",
        "fifos",
        "figures",
        "forgets_transient",
        "has_ack_timeout",
        "held_back",
        "id",
        "levels_clamped",
        "limited",
        "name",
        "options",
        "outcasts",
        "owner",
        "persisted",
        "policy",
        "redelivered_upto",
        "retry_timers",
        "returned",
        "returning",
        "settled",
        "settled_bytes",
        "store",
        "unacked",
        "used_ms",
        "vhost",
    )

    def __init__(
        self,
        name: str,
        vhost: str,
        queue_id: int,
        options: QueueOptions,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        owner: object | None = None,
        arguments: dict[str, object] | None = None,
        max_levels: int = 255,
        now_ms: int = 0,
        dialect: Dialect = HOLT,
    ) -> None:
        self.name = name
        self.vhost = vhost
        self.id = queue_id  # its name in the journal; a redeclared queue gets a new one
        self.durable = durable
        # An exclusive queue is deleted with its connection, so nothing is kept for a restart.
        self.persisted = durable and owner is None
        # A quorum queue journals every message, whatever its delivery mode.
        self.always_persists = self.persisted and options.queue_type is QueueType.QUORUM
        # True: a transient message is lost here at a restart even if a quorum queue keeps it.
        self.forgets_transient = (
            dialect.transient_stays_transient and self.persisted and not self.always_persists
        )
        self._always_ack_timeout = (
            options.queue_type is QueueType.QUORUM or dialect.consumer_timeout_closes_channel
        )
        self.auto_delete = auto_delete
        self.owner = owner  # the connection that owns an exclusive queue
        self.arguments = arguments or {}
        self.declared = options  # from its own arguments
        self.options = options  # after policies
        self.policy: str | None = None
        top = min(options.max_priority or 0, max_levels)
        self.levels_clamped = (options.max_priority or 0) > max_levels  # until this was logged
        self.fifo: SpillingFifo | None = None if top else SpillingFifo()
        self.store: SpillingFifo | Levels = (
            self.fifo if self.fifo is not None else Levels(top, sheds_highest=dialect.drop_highest_priority)
        )
        self.fifos = self.store.by_priority if isinstance(self.store, Levels) else _NO_LEVELS
        self.consumers: list[Consumer] = []  # by priority, then in order of arrival
        self.active: Consumer | None = None  # the single active consumer
        self.exclusive_consumer = False
        self.settled: list[int] = []
        self.settled_bytes = 0
        self.outcasts = Outcasts()
        self.returned: dict[int, int] = {}  # seq -> times it was delivered and returned
        self.returning = 0  # sessions that return many messages in steps; no deliveries until then
        self.redelivered_upto = 0  # messages up to this seq may have been delivered before a restart
        self.delivered_upto = 0  # highest seq delivered; the broker journals it after it rises
        self.delivered_recorded = 0
        self.unacked = 0
        self.bytes = 0  # of ready messages
        self.held_back: dict[int, list[Message]] = {}  # batches waiting for x-retry-delay
        self.retry_timers: dict[int, ActionTimer] = {}  # of those batches
        self.figures = QueueFigures()
        self.dirty = False
        self.deleted = False
        self.expiring = options.message_ttl_ms is not None
        self.limited = False
        self.deadline_timer: ActionTimer | None = None
        self.expiry_timer: ActionTimer | None = None
        self.used_ms = now_ms
        self._next_turn = 0
        self._pause: Pause | None = None
        self.reconfigure(options)

    def __len__(self) -> int:
        return len(self.store)

    @property
    def paused(self) -> Pause | None:
        """The pause, if the queue hands out nothing at the moment."""
        return self._pause

    def pause(self, pause: Pause | None) -> None:
        """Hand out nothing from now on; None: resume. The broker journals it and dispatches again."""
        self._pause = pause

    def __repr__(self) -> str:
        return f"WorkQueue({self.name!r}, {len(self)} waiting, {self.unacked} unacked)"

    @property
    def bytes_in_memory(self) -> int:
        """Approximate memory used by its ready messages."""
        held = self.store.in_memory
        if not held:
            return 0
        return held * MESSAGE_BYTES + self.bytes * held // len(self.store)

    @property
    def is_all_in_memory(self) -> bool:
        """Whether nothing is paged out."""
        return self.fifo is not None and self.fifo.inbox is self.fifo.ready

    def reconfigure(self, options: QueueOptions) -> None:
        """Apply changed options, after a policy change."""
        self.options = options
        self.counts_deliveries = options.queue_type is QueueType.QUORUM  # shown as x-delivery-count
        # Whether deliveries may have to be acked in time; a consumer may ask for it by itself.
        self.has_ack_timeout = self._always_ack_timeout or options.consumer_timeout_ms is not None
        self.limited = options.max_length is not None or options.max_length_bytes is not None
        if options.message_ttl_ms is not None:
            self.expiring = True

    def push(self, message: Message) -> None:
        """Append a message. The broker enforces limits after consumers were served."""
        self.store.push(message)
        self.bytes += len(message.body)
        if message.expires_ms:
            self.expiring = True

    def is_full(self, size: int, on_the_way: int = 0, bytes_on_the_way: int = 0) -> bool:
        """Whether a message of this size, behind others already accepted, would exceed a limit."""
        options = self.options
        return (options.max_length is not None and len(self.store) + on_the_way >= options.max_length) or (
            options.max_length_bytes is not None
            and self.bytes + bytes_on_the_way + size > options.max_length_bytes
        )

    @property
    def refuses_when_full(self) -> bool:
        """Whether a full queue refuses publishers, rather than drop its oldest message."""
        return self.limited and not self.options.drops_head

    def shed_excess(self, pager: Pager, limit: int = SHED_AT_ONCE) -> bool:
        """Drop messages beyond the limits from the head, unless the queue refuses publishers instead.

        Drops at most ``limit``, fewer if they are paged out or many wait to be dead-lettered; returns whether
        there are more.
        """
        options = self.options
        if not options.drops_head:
            return False
        if not self.is_all_in_memory:
            limit = max(1, limit // _READ_BACK)
        most, most_bytes = options.max_length, options.max_length_bytes
        while (most is not None and len(self.store) > most) or (
            most_bytes is not None and self.bytes > most_bytes and len(self.store) > 0
        ):
            if not limit or self.outcasts.is_full:
                return True
            limit -= 1
            message = self.store.shed(pager)
            if message is None:
                return False
            self._leave(message, Reason.MAXLEN)
        return False

    def dispatch(self, now_ms: int, pager: Pager) -> None:
        """Deliver ready messages to consumers with room, round-robin, highest priority first.

        About ``DELIVERED_AT_ONCE`` at most: a further call goes on.
        """
        if self._pause is not None or self.returning:
            return
        figures = self.figures
        last = figures.delivered + DELIVERED_AT_ONCE
        while self.consumers and (waiting := len(self.store)) and figures.delivered < last:
            if self.options.single_active_consumer:
                takers = only(self.active) if self.active is not None else []
            else:
                takers = next_takers(self.consumers, self._next_turn, waiting)
            if not takers:
                return
            share = min(min(room for _, room in takers) * len(takers), self._share())
            messages = self.take(share, now_ms, pager)
            if not messages:
                if self.outcasts.is_full:
                    return  # all had expired; the next turn goes on
                continue
            self.unacked += len(messages)
            if self.persisted:
                newest = messages[-1].seq if self.fifo is not None else max(m.seq for m in messages)
                if newest > self.delivered_upto:
                    self.delivered_upto = newest
            if len(takers) == 1:
                takers[0][0].deliver(self, messages)
                self._next_turn += len(messages)  # round-robin must advance for single messages too
                continue
            self._share_out(takers, messages, pager)

    def _share_out(self, takers: list[tuple[Consumer, int]], messages: list[Message], pager: Pager) -> None:
        stride = len(takers)
        for at, (consumer, _) in enumerate(takers):
            part = messages[at::stride]
            room = max(consumer.room(), 0)  # again: two consumers may share one channel's limit
            if part[:room]:
                consumer.deliver(self, part[:room])
                self._next_turn += len(part[:room])
            if room < len(part):
                # Return everything that is left, not just this part: no later consumer may overtake it.
                spare = part[room:] + [m for after in range(at + 1, stride) for m in messages[after::stride]]
                self.unacked -= len(spare)
                self.figures.delivered -= len(spare)
                self.restore(spare, pager)
                return

    def take(self, limit: int, now_ms: int, pager: Pager) -> list[Message]:
        """Remove up to ``limit`` messages from the head; expired ones become outcasts."""
        messages = self.store.take(limit, pager)
        taken_bytes = 0
        for message in messages:
            taken_bytes += len(message.body)
        self.bytes -= taken_bytes
        if self.expiring:
            messages = self._drop_expired(messages, now_ms)
        self.figures.delivered += len(messages)
        return messages

    def expire(self, now_ms: int, pager: Pager, limit: int) -> None:
        """Drop up to ``limit`` expired messages from the head, none if many wait to be dead-lettered."""
        if self.outcasts.is_full:
            return
        for message in self.store.expired(self.deadline_ms, now_ms, pager, limit):
            self._leave(message, Reason.EXPIRED)

    def deadline_ms(self, message: Message) -> int:
        """When this message expires here: the earlier of its own and the queue's deadline; 0 if never."""
        ttl = self.options.message_ttl_ms
        if ttl is None:
            return message.expires_ms
        deadline = message.arrived_ms + ttl
        return min(deadline, message.expires_ms) if message.expires_ms else deadline

    def purge(self, outstanding: Iterable[Message] = ()) -> int:
        """Delete the ready messages without dead-lettering; ``outstanding`` ones may still be returned."""
        count = len(self.store)
        self.store.clear()
        self.bytes = 0
        self.figures.purged += count
        if self.returned:
            returned = self.returned
            self.returned = {m.seq: returned[m.seq] for m in outstanding if m.seq in returned}
        return count

    def settle(self, message: Message) -> None:
        """Forget an acknowledged message."""
        self.unacked -= 1
        self.figures.acked += 1
        if self.returned:
            self.returned.pop(message.seq, None)
            if not self.unacked and not len(self.store) and not self.held_back:
                self.returned.clear()  # recovery may leave entries of deleted messages
        if message.persistent and self.persisted:
            self.settled.append(message.position)
            self.settled_bytes += len(message.body)

    def settle_all(self, messages: list[Message]) -> None:
        """``settle`` for many at once."""
        if self.returned:
            for message in messages:
                self.settle(message)
            return
        self.unacked -= len(messages)
        self.figures.acked += len(messages)
        if self.persisted:
            kept = [message for message in messages if message.persistent]
            self.settled += [message.position for message in kept]
            self.settled_bytes += sum([len(message.body) for message in kept])

    def is_first_delivery(self, messages: list[Message]) -> bool:
        """Whether none of these was delivered before: the common case, checked once per batch."""
        before = self.redelivered_upto
        return (
            not self.returned
            and messages[0].seq > before
            and (not before or min([message.seq for message in messages]) > before)
        )

    def is_redelivered(self, message: Message) -> bool:
        """Whether it may have been delivered before."""
        return message.seq <= self.redelivered_upto or message.seq in self.returned

    def times_returned(self, message: Message) -> int:
        """How often it was delivered and returned; 1 for one that was delivered before a restart."""
        return self.returned.get(message.seq, 1)

    def reject_all(self, messages: list[Message]) -> None:
        """Dead-letter rejected messages."""
        self.unacked -= len(messages)
        self.figures.dropped += len(messages)
        self.outcasts.add_all(Reason.REJECTED, messages)

    @property
    def has_to_journal(self) -> bool:
        """Whether records of this queue belong before the next confirm."""
        return bool(self.settled) or (
            self.delivered_upto > self.delivered_recorded and bool(self.unacked or self.returned)
        )

    def release(
        self, leases: Iterable[Lease], pager: Pager, failed: bool = False
    ) -> dict[int, list[Message]]:
        """Take back unacknowledged messages. Returns those that must wait first, by their wait in ms."""
        found = count_returns(self.returned, leases, self.options, failed)
        self.outcasts.add_all(Reason.DELIVERY_LIMIT, found.too_often)
        self.unacked -= found.count
        self.figures.dropped += len(found.too_often)
        self.figures.returned += found.count - len(found.too_often)
        self.restore(found.ready, pager)
        return found.waiting

    def restore(self, messages: list[Message], pager: Pager) -> None:
        """Put messages back at their old places."""
        if messages:
            messages.sort(key=_seq)
            self.store.restore(messages, pager)
            self.bytes += sum(map(len, map(_body, messages)))
            if not self.expiring:
                self.expiring = any(map(_expires_ms, messages))

    def take_out(self, message: Message) -> bool:
        """Remove a message that is ready or waits for a retry; False when a consumer has it."""
        if self.store.withdraw(message):
            self.bytes -= len(message.body)
            return True
        for batch in self.held_back.values():
            for at, waiting in enumerate(batch):
                if waiting.seq == message.seq:
                    del batch[at]
                    return True
        return False

    def withdraw(self, message: Message) -> bool:
        """Handle a late ack: delete the message if no consumer has taken it yet."""
        if not self.take_out(message):
            return False
        self.figures.acked += 1
        self.returned.pop(message.seq, None)
        if message.persistent and self.persisted:
            self.settled.append(message.position)
            self.settled_bytes += len(message.body)
        return True

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer behind all of the same or a higher priority."""
        at = len(self.consumers)
        while at and self.consumers[at - 1].priority < consumer.priority:
            at -= 1
        self.consumers.insert(at, consumer)
        if self.active is None:
            self.active = consumer

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer; the next one becomes the single active consumer."""
        self.consumers.remove(consumer)
        if self.active is consumer:
            self.active = self.consumers[0] if self.consumers else None
        if not self.consumers:
            self.exclusive_consumer = False

    def remove_consumers(self, gone: Collection[Consumer]) -> None:
        """``remove_consumer`` for many at once."""
        if len(gone) * _FEW < len(self.consumers):
            for consumer in gone:
                self.remove_consumer(consumer)
            return
        left = set(gone)
        self.consumers = [consumer for consumer in self.consumers if consumer not in left]
        if self.active in left:
            self.active = self.consumers[0] if self.consumers else None
        if not self.consumers:
            self.exclusive_consumer = False

    def _share(self) -> int:
        if self.bytes <= _SHARE_BYTES:
            return _SHARE
        return max(1, min(_SHARE, len(self.store) * _SHARE_BYTES // self.bytes))

    def _drop_expired(self, messages: list[Message], now_ms: int) -> list[Message]:
        live = []
        for message in messages:
            deadline = self.deadline_ms(message)
            # A TTL of zero means "now or never": a consumer that can take it in this turn gets it.
            if 0 < deadline <= now_ms and now_ms > message.arrived_ms:
                self.outcasts.add(Reason.EXPIRED, message)
                self.figures.dropped += 1
            else:
                live.append(message)
        return live

    def _leave(self, message: Message, reason: Reason) -> None:
        self.bytes -= len(message.body)
        self.figures.dropped += 1
        self.outcasts.add(reason, message)


def require_work_queue(queue: Queue, instead: str) -> WorkQueue:
    """The queue, if it is a work queue. Else Conflict, which says what to do ``instead``."""
    if isinstance(queue, WorkQueue):
        return queue
    raise Conflict(f"queue '{queue.name}' in vhost '{queue.vhost}' is a stream: {instead}")

"""Work queues for workers whose leases expire: push, pop, acknowledge, renew.

Owns: the leases of such workers and when they expire. Must not touch: wire names, sockets, the meaning of
JSON. A waiting pop is a consumer that takes once, so it competes with AMQP consumers in the usual order.
Over 400 lines: pops, settlements and expiry change the same few tables.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from holtmq.broker.errors import LimitReached
from holtmq.broker.flow import PublishOutcome
from holtmq.broker.message import Message, make_address
from holtmq.broker.partitioned.groups.acknowledgment import AckRefused, AckStatus, AckVerdict
from holtmq.broker.publish.routes import Route
from holtmq.broker.streams.envelopes import readable, to_payload
from holtmq.broker.timer_wheel import Timer
from holtmq.broker.work.leases import Holder, Lease, Ledger
from holtmq.broker.work.waiting_pop import WaitingPop
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.wire.primitives import CodecError, decode_text
from holtmq.wire.properties import (
    PROPERTIES_AT,
    Properties,
    decode_properties,
    encode_header,
    encode_properties,
)

if TYPE_CHECKING:
    from holtmq.broker.broker import Broker

_VHOST: Final = "/"
_JSON: Final = "application/json"
_ID_MAX: Final = 255  # bytes of a message-id property
# The properties of a message that was pushed, up to the length of its id.
_PUSHED: Final = encode_properties(Properties(content_type=_JSON, delivery_mode=2, message_id=""))[:-1]
_ID_AT: Final = PROPERTIES_AT + len(_PUSHED) + 1
SERVED_AT_ONCE: Final = 300  # waiting pops in one turn: about 10 ms, and as much for their answers
RETURNED_AT_ONCE: Final = 3_000  # messages of expired loans in one step: about 5 ms
_MARKED_AFTER_MS: Final = 50  # a worker that settles faster costs no record of the delivery
_LOAN: Final = 50  # to return a loan by itself takes as long as so many messages


@dataclass(frozen=True, slots=True)
class WorkMessage:
    """One message delivered to a worker."""

    queue: WorkQueue
    transaction_id: str
    payload: bytes
    seq: int
    created_ms: int
    attempt: int
    header: bytes  # the content header of AMQP


class WorkPush(NamedTuple):
    """A transaction's push to a work queue."""

    queue: WorkQueue
    transaction_id: str
    payload: bytes
    delay_ms: int = 0  # published after this time


class WorkAck(NamedTuple):
    """A transaction's acknowledgment of a work-queue message."""

    queue: WorkQueue | None  # None: no such queue
    transaction_id: str
    lease_id: str
    status: AckStatus | None  # None: unknown status


class Worker(NamedTuple):
    """Who popped, for operators."""

    user: str = ""
    host: str = ""


_UNKNOWN_WORKER: Final = Worker()


class Loan(Holder):
    """The messages of one pop that are not settled yet."""

    __slots__ = ("expires_ms", "leases", "name", "queue", "since_ms", "timer", "worker")

    def __init__(self, name: str, queue: WorkQueue, worker: Worker, now_ms: int, expires_ms: int) -> None:
        super().__init__()
        self.name = name
        self.queue = queue
        self.worker = worker
        self.since_ms = now_ms
        self.expires_ms = expires_ms
        self.leases: dict[str, list[Lease]] = {}  # a list: publishers may reuse an id
        self.timer: Timer[Callable[[], object]] | None = None

    def held_since_ms(self) -> int | None:
        """When they were popped."""
        return self.since_ms if self.held else None


class TimedLeases:
    """Leases with an expiry, for the work queues of the default vhost."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._flow = broker.flow
        self._ledger = Ledger()
        self._loans: dict[str, Loan] = {}
        # For acks without a lease id: queue -> transaction id -> the loan with that message, or all such
        # loans, oldest first. Ids are rarely reused, and a dict per message would cost a third of a pop.
        self._held: dict[int, dict[str, str | dict[str, None]]] = {}
        self._routes: dict[str, tuple[int, Route]] = {}
        self._serves_left = SERVED_AT_ONCE  # pops that have waited, before others have their turn
        self._not_served: dict[WorkQueue, None] = {}  # have more of these
        self._overdue: list[tuple[str, Loan]] = []  # expired, and not returned yet
        self._returned = 0  # messages of loans that have expired at ``_returned_ms``
        self._returned_ms = 0
        self._unmarked: dict[WorkQueue, int] = {}  # the newest message that was popped and not marked
        broker.sessions.add(self._ledger)

    def find(self, name: str) -> WorkQueue | None:
        """The work queue of this name; None when it does not exist, is a stream or is exclusive."""
        vhost = self._broker.vhosts.get(_VHOST)
        queue = vhost.queues.get(name) if vhost is not None else None
        return queue if isinstance(queue, WorkQueue) and queue.owner is None else None

    def by_id(self, queue_id: int) -> WorkQueue | None:
        """The work queue with this id."""
        queue = self._broker.queues_by_id.get(queue_id)
        return queue if isinstance(queue, WorkQueue) else None

    def push(self, queue: WorkQueue, items: Sequence[tuple[str, bytes]]) -> list[bool]:
        """Publish (transaction id, payload) pairs to one queue; return for each whether it was accepted."""
        route = self._route(queue)
        taken = []
        for transaction_id, payload in items:
            header = _header(transaction_id, payload)
            properties = self._flow.publish_properties.of(header)
            outcome = self._flow.publishing.publish(route, properties, header, payload)
            taken.append(outcome in (PublishOutcome.PLACED, PublishOutcome.JOURNALLED))
        return taken

    def push_later(self, push: WorkPush) -> None:
        """Publish after the delay; a queue that is full or deleted by then does not get the message."""
        header = _header(push.transaction_id, push.payload)
        self._flow.publishing.publish_later(self._route(push.queue), header, push.payload, push.delay_ms)

    def pop(
        self,
        queue: WorkQueue,
        lease_id: str,
        limit: int,
        seconds: float,
        auto_ack: bool,
        worker: Worker = _UNKNOWN_WORKER,
    ) -> list[WorkMessage]:
        """Take ready messages, under one lease or acknowledged at once."""
        self._flow.turn()
        queue.used_ms = self._flow.now_ms
        if queue.paused:
            return []
        messages = queue.take(limit, self._flow.now_ms, self._flow.pager)
        self._flow.touch(queue)
        if not messages:
            return []
        queue.unacked += len(messages)
        if queue.persisted and not auto_ack:
            newest = messages[-1] if queue.fifo is not None else max(messages, key=attrgetter("seq"))
            self._mark_later(queue, newest.seq)
        return self.hand_out(queue, messages, lease_id, seconds, auto_ack, worker)

    def _mark_later(self, queue: WorkQueue, newest: int) -> None:
        """Journal soon that messages up to this one were delivered, if they are not settled until then."""
        if newest > queue.delivered_upto:
            if not self._unmarked:
                self._flow.at(self._flow.now_ms + _MARKED_AFTER_MS, self._mark)
            self._unmarked[queue] = max(newest, self._unmarked.get(queue, 0))

    def _mark(self) -> None:
        unmarked, self._unmarked = self._unmarked, {}
        for queue, newest in unmarked.items():
            if (queue.unacked or queue.returned) and not queue.deleted:
                queue.delivered_upto = max(newest, queue.delivered_upto)
                self._flow.touch(queue)

    def wait(
        self,
        queue: WorkQueue,
        lease_id: str,
        limit: int,
        seconds: float,
        auto_ack: bool,
        deliver: Callable[[list[WorkMessage]], None],
        give_up: Callable[[], None],
        worker: Worker = _UNKNOWN_WORKER,
    ) -> WaitingPop:
        """Wait for messages; calls ``deliver`` once or, when the queue is deleted, ``give_up``."""
        waiting = WaitingPop(self, queue, lease_id, limit, seconds, auto_ack, deliver, give_up, worker)
        self._broker.consume(queue, waiting)
        return waiting

    def may_serve(self, queue: WorkQueue) -> bool:
        """Whether a waiting pop may be served in this turn; if not, its queue gets another turn soon."""
        if self._serves_left:
            return True
        if not self._not_served:
            self._flow.at(self._flow.now_ms, self._serve_more)
        self._not_served[queue] = None
        return False

    def _serve_more(self) -> None:
        self._serves_left = SERVED_AT_ONCE
        waiting, self._not_served = self._not_served, {}
        for queue in waiting:
            if not queue.deleted:
                self._flow.touch(queue)

    def note_served(self) -> None:
        """Count a pop that has waited and is served now."""
        self._serves_left = max(0, self._serves_left - 1)

    def withdraw(self, waiting: WaitingPop) -> None:
        """Cancel a waiting pop. That it was the last one does not delete an auto-delete queue."""
        queue = waiting.queue
        if waiting in queue.consumers:
            queue.remove_consumer(waiting)
            queue.used_ms = self._flow.now_ms
            self._flow.touch(queue)

    def hand_out(
        self,
        queue: WorkQueue,
        messages: list[Message],
        lease_id: str,
        seconds: float,
        auto_ack: bool,
        worker: Worker = _UNKNOWN_WORKER,
    ) -> list[WorkMessage]:
        """Convert messages taken from a queue for a worker, and lease them unless ``auto_ack``."""
        handed = [self._shown(queue, message) for message in messages]
        if auto_ack:
            queue.settle_all(messages)
            self._flow.touch(queue)
            return handed
        now_ms = self._flow.now_ms
        loan = self._loans[lease_id] = Loan(lease_id, queue, worker, now_ms, now_ms + int(seconds * 1000))
        self._broker.other_holders.add(queue.id, loan)
        held = self._held.setdefault(queue.id, {})
        for shown, message in zip(handed, messages, strict=True):
            lease = self._ledger.grant(queue, message, loan)
            loan.leases.setdefault(shown.transaction_id, []).append(lease)
            others = held.setdefault(shown.transaction_id, lease_id)
            if isinstance(others, dict):
                others[lease_id] = None
            elif others != lease_id:
                held[shown.transaction_id] = {others: None, lease_id: None}
        self._plan(lease_id, loan)
        return handed

    def settle(self, queue: WorkQueue, transaction_id: str, lease_id: str, status: AckStatus) -> AckVerdict:
        """End one lease. Without a lease id any loan may match."""
        found = self._find(queue, transaction_id, lease_id)
        if found is None:
            return AckVerdict.INVALID_LEASE if lease_id else AckVerdict.NOT_FOUND
        name, loan, lease = found
        loan.leases[transaction_id].remove(lease)
        if not loan.leases[transaction_id]:
            del loan.leases[transaction_id]
            self._forget_holder(queue, transaction_id, name)
            if not loan.leases:
                del self._loans[name]
                self._broker.other_holders.remove(queue.id, loan)
                if loan.timer is not None:
                    loan.timer.cancel()  # else thousands of timers would wait for minutes
        self._ledger.end(lease.number)
        match status:
            case AckStatus.COMPLETED:
                self._flow.ack((lease,))
                return AckVerdict.ACKNOWLEDGED
            case AckStatus.DEAD_LETTER:
                self._flow.reject((lease,))
                return AckVerdict.FILED
            case AckStatus.FAILED | AckStatus.RETRY:
                self._flow.release((lease,), failed=True)
                return AckVerdict.REDELIVERED

    def write_down(self) -> None:
        """Journal what was settled. The end of the turn is too late for an answer that waits for the journal:
        it would take a sync already in progress for its own."""
        self._flow.turn()

    def check(self, pushes: Sequence[WorkPush], acks: Sequence[WorkAck]) -> None:
        """Raise the first reason to refuse these, taken together; changes nothing."""
        self._flow.turn()  # consumers first: they may make room
        ahead: dict[int, tuple[int, int]] = {}
        for queue, _, payload, delay_ms in pushes:
            if delay_ms:
                continue
            count, size = ahead.get(queue.id) or self._flow.on_the_way(queue)
            if queue.refuses_when_full and queue.is_full(len(payload), count, size):
                raise LimitReached(f"queue {queue.name} is full and refuses publishers")
            ahead[queue.id] = count + 1, size + len(payload)
        named: set[tuple[int, str]] = set()
        taken: set[int] = set()  # leases ended by an earlier ack
        for ack in acks:
            if ack.queue is None:
                raise AckRefused(AckVerdict.NOT_FOUND)
            if ack.status is None:
                raise AckRefused(AckVerdict.UNKNOWN_STATUS)
            found = self._find(ack.queue, ack.transaction_id, ack.lease_id, taken)
            if found is None:
                if (ack.queue.id, ack.transaction_id) in named:
                    raise AckRefused(AckVerdict.STALE)
                raise AckRefused(AckVerdict.INVALID_LEASE if ack.lease_id else AckVerdict.NOT_FOUND)
            named.add((ack.queue.id, ack.transaction_id))
            taken.add(found[2].number)

    def give_back(self, lease_id: str) -> None:
        """End a lease whose messages have not reached their worker."""
        loan = self._loans.get(lease_id)
        if loan is not None:
            loan.expires_ms = self._flow.now_ms
            self._plan(lease_id, loan)

    def queue_of_lease(self, lease_id: str) -> str | None:
        """The name of the queue whose messages this lease holds."""
        loan = self._loans.get(lease_id)
        return None if loan is None else loan.queue.name

    def extend(self, lease_id: str, seconds: float) -> float | None:
        """Renew a lease; return its expiry in seconds since the epoch, None when there is no such lease."""
        loan = self._loans.get(lease_id)
        if loan is None:
            return None
        loan.expires_ms = max(loan.expires_ms, self._flow.now_ms + int(seconds * 1000))
        self._plan(lease_id, loan)
        return loan.expires_ms / 1000

    def _find(
        self, queue: WorkQueue, transaction_id: str, lease_id: str, taken: AbstractSet[int] = frozenset()
    ) -> tuple[str, Loan, Lease] | None:
        """The oldest lease that an ack can mean, except those in ``taken``."""
        held: str | dict[str, None] = lease_id or self._held.get(queue.id, {}).get(transaction_id, {})
        for name in (held,) if isinstance(held, str) else held:
            loan = self._loans.get(name)
            if loan is not None and loan.queue is queue:
                for lease in loan.leases.get(transaction_id, ()):
                    if lease.number not in taken:
                        return name, loan, lease
        return None

    def _forget_holder(self, queue: WorkQueue, transaction_id: str, lease_id: str) -> None:
        held = self._held[queue.id]
        others = held[transaction_id]
        if isinstance(others, dict):
            del others[lease_id]
            if others:
                return
        del held[transaction_id]
        if not held:
            del self._held[queue.id]

    def _plan(self, lease_id: str, loan: Loan) -> None:
        if loan.timer is not None:
            loan.timer.cancel()
        loan.timer = self._flow.timers.schedule(loan.expires_ms / 1000, lambda: self._expire(lease_id, loan))

    def _expire(self, lease_id: str, loan: Loan) -> None:
        """Return the loan's messages. Of very many that expire at once, some return now, the others in steps.

        One by one, each message would be moved by all loans that return after it.
        """
        now_ms = self._flow.now_ms
        if now_ms != self._returned_ms:
            self._returned_ms, self._returned = now_ms, 0
        if self._overdue:
            self._overdue.append((lease_id, loan))
        elif self._returned >= RETURNED_AT_ONCE:
            self._overdue.append((lease_id, loan))
            self._flow.at(now_ms, self._return_overdue)
        else:
            self._returned += _LOAN + len(loan.held)
            self._return([(lease_id, loan)])

    def _return_overdue(self) -> None:
        """The newest first: those before them then need no search."""
        some: list[tuple[str, Loan]] = []
        count = 0
        while self._overdue and count < RETURNED_AT_ONCE:
            some.append(self._overdue.pop())
            count += len(some[-1][1].held)
        if self._overdue:
            self._flow.at(self._flow.now_ms, self._return_overdue)
        self._return(some)

    def _return(self, loans: Sequence[tuple[str, Loan]]) -> None:
        returning: list[Lease] = []
        for lease_id, loan in loans:
            if self._loans.get(lease_id) is not loan or loan.expires_ms > self._flow.now_ms:
                continue  # settled or extended
            del self._loans[lease_id]
            self._broker.other_holders.remove(loan.queue.id, loan)
            for transaction_id in loan.leases:
                self._forget_holder(loan.queue, transaction_id, lease_id)
            leases = [lease for same in loan.leases.values() for lease in same]
            for lease in leases:
                self._ledger.end(lease.number)
            returning += leases
        self._flow.release(returning, failed=True)

    def _shown(self, queue: WorkQueue, message: Message) -> WorkMessage:
        header = message.header
        if header.startswith(_PUSHED, PROPERTIES_AT) and header[_ID_AT - 1] == len(header) - _ID_AT:
            name: str | None = decode_text(header[_ID_AT:])  # a fifth of the time
            is_json = True
        else:
            name, is_json = _described(header)
        return WorkMessage(
            queue,
            readable(name) if name else f"seq-{message.seq}",
            to_payload(message.body, is_json=is_json),
            message.seq,
            message.arrived_ms,
            queue.times_returned(message) + 1 if queue.is_redelivered(message) else 1,
            message.header,
        )

    def _route(self, queue: WorkQueue) -> Route:
        vhost = self._broker.vhosts[_VHOST]
        known = self._routes.get(queue.name)
        if known is None or known[0] != vhost.version:
            route = self._broker.resolve(vhost, "", queue.name, make_address("", queue.name))
            if len(self._routes) > 1024:
                self._routes.clear()
            known = self._routes[queue.name] = (vhost.version, route)
        return known[1]


def _header(transaction_id: str, payload: bytes) -> bytes:
    name = transaction_id.encode()
    if len(name) <= _ID_MAX:
        return encode_header(len(payload), _PUSHED + bytes((len(name),)) + name)
    return encode_header(len(payload), encode_properties(Properties(content_type=_JSON, delivery_mode=2)))


def _described(header: bytes) -> tuple[str | None, bool]:
    """The message id, and whether the publisher has declared JSON."""
    try:
        properties = decode_properties(header, PROPERTIES_AT)
    except CodecError:  # not decoded until now; the other messages of this pop must still be delivered
        return None, False
    return properties.message_id, properties.content_type == _JSON

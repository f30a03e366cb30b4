"""One AMQP channel, sans-IO: methods in, broker calls and frames out.

Owns: publish and confirm; the channel's leases and prefetch; method dispatch; closing. How deliveries are
settled is in ``settling.py``, consuming in ``consuming.py``, tx.commit in ``committing.py``.
Must not touch: sockets, the connection's handshake, parsing of frames.
"""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Final

from holtmq.amqp.codec import encode_method
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.committing import commit, roll_back
from holtmq.amqp.confirms import Confirms
from holtmq.amqp.consumer import Consumer, content_frames
from holtmq.amqp.consuming import Consuming, remove_consumers
from holtmq.amqp.errors import ChannelFault, ConnectionFault
from holtmq.amqp.frames import FRAME_METHOD, encode_frame
from holtmq.amqp.late_answers import answering_late
from holtmq.amqp.long_settlements import Closing, leave_queues
from holtmq.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicReject,
    BasicReturn,
    ChannelFlow,
    ChannelFlowOk,
    ConfirmSelect,
    ConfirmSelectOk,
    Method,
    TxCommit,
    TxRollback,
    TxSelect,
    TxSelectOk,
)
from holtmq.amqp.settling import Settling
from holtmq.amqp.topology import Topology
from holtmq.amqp.transaction import Transaction
from holtmq.broker.errors import Conflict
from holtmq.broker.figures.client_counts import ChannelMessages
from holtmq.broker.flow import PublishOutcome
from holtmq.broker.publish.publish_properties import PublishProperties
from holtmq.broker.publish.routes import Route
from holtmq.broker.work.leases import Ledger
from holtmq.journal.interface import JournalFailed
from holtmq.wire.properties import PROPERTIES_AT, read_content_header, with_reply_to

if TYPE_CHECKING:
    from holtmq.amqp.connection import Connection


_queue: Final = attrgetter("queue")
_UNROUTED: Final = PublishOutcome.UNROUTED
_REFUSED: Final = PublishOutcome.REFUSED
_IN_STEPS: Final = PublishOutcome.IN_STEPS


class Channel:
    """An open channel."""

    def __init__(self, connection: "Connection", number: int) -> None:
        self.connection = connection
        self.number = number
        interceptors = connection.settings.interceptors
        self._interceptors = None if interceptors.are_off else interceptors
        self.broker = connection.broker
        self.flow = connection.broker.flow
        self.counts = connection.broker.counts
        self.received = 0  # messages published on this channel
        self.messages = ChannelMessages(self.flow.now_ms)
        self.outbox = connection.outbox
        self.max_payload = connection.max_payload
        self.ledger = Ledger()
        self.broker.sessions.add(self.ledger)
        self.consumers: dict[str, Consumer] = {}
        self.flowing = True  # channel.flow: the client accepts deliveries
        self.prefetch = 0
        self.global_prefetch = 0
        self.confirms: Confirms | None = None
        self.owes_confirms = False  # published with confirms in this read
        self.transaction: Transaction | None = None
        self.topology = Topology(self)
        self.consuming = Consuming(self)
        self.settling = Settling(self)
        self.closing = False  # we sent channel.close and wait for the client's close-ok
        # A message whose frames have not all arrived: (route, mandatory), header, body so far, bytes missing.
        self.partial_route: tuple[Route, bool] | None = None
        self.partial_header: bytes | None = None
        self.partial_body: list[bytes | memoryview] = []
        self.partial_missing = 0

    make_consumer: ClassVar[type[Consumer]] = Consumer  # a traced channel makes others

    def publish(self, route: Route, mandatory: bool, header: bytes, body: bytes) -> None:
        """Publish a message of which all frames have arrived."""
        if self._interceptors is not None:
            header = self._interceptors.apply(header, self.connection)
        counts = self.counts
        try:
            properties = self.flow.publish_properties.of(header)
        except Conflict:
            self._check_user_id(read_content_header(header).user_id)  # RabbitMQ looks at it first
            raise
        if not properties.plain:
            for key in properties.extra_keys:  # as the frame loop does for the routing key
                self.connection.rights.check_topic(route.exchange.name, key, write=True)
            header, properties = self._check_special(properties, header)
        counts.received += 1
        self.received += 1
        self.messages.used_ms = self.flow.now_ms
        if self.transaction is not None:
            self.transaction.publish(route, properties, header, body, mandatory)
            return
        try:
            if route.streams:
                outcome = self.flow.publishing.publish_in_read(route, properties, header, body)
            else:
                outcome = self.flow.publishing.publish(route, properties, header, body)
        except JournalFailed:
            if self.confirms is None:
                raise
            outcome = _REFUSED
        if outcome is _IN_STEPS:
            self.connection.stall()
            self.broker.long_changes.add(self._publish_in_steps(route, mandatory, header, body), step=1)
            return
        if outcome is _UNROUTED and not mandatory:
            counts.dropped += 1
            self.messages.dropped += 1
        if self.confirms is not None or mandatory:
            self._published(outcome, route, mandatory, header, body)

    def _publish_in_steps(self, route: Route, mandatory: bool, header: bytes, body: bytes) -> Iterator[None]:
        """Place a message in very many queues. The connection processes no frame until the end; if it is lost
        meanwhile, the message still enters all queues."""
        steps = self.flow.publishing.take_steps()
        with answering_late(self, BasicPublish):
            try:
                outcome = yield from steps
            except JournalFailed:
                if self.confirms is None:
                    raise
                outcome = _REFUSED
            if not self.closing and (self.confirms is not None or mandatory):
                self._published(outcome, route, mandatory, header, body)
                self.tell_confirms()

    def published(self, count: int, journalled: bool) -> None:
        """Count messages that the fast path published on this channel, which is in confirm mode."""
        confirms = self.confirms
        assert confirms is not None
        confirms.last += count
        self.counts.received_confirm += count
        if journalled:
            confirms.journalled = True
        self._owe_confirms()

    def _published(
        self, outcome: PublishOutcome, route: Route, mandatory: bool, header: bytes, body: bytes
    ) -> None:
        if mandatory and outcome is PublishOutcome.UNROUTED:
            self.return_unrouted(route, header, body)
        confirms = self.confirms
        if confirms is not None:
            confirms.last += 1
            self.counts.received_confirm += 1
            if outcome:
                confirms.note(outcome is PublishOutcome.JOURNALLED, outcome is PublishOutcome.REFUSED)
            self._owe_confirms()

    def _owe_confirms(self) -> None:
        if not self.owes_confirms:
            self.owes_confirms = True
            self.connection.confirming.append(self)

    def tell_confirms(self) -> None:
        """Confirm what this read published, at once or when it is durable."""
        confirms = self.confirms
        self.owes_confirms = False
        if confirms is None or self.closing:
            return
        batch = confirms.end_batch()
        if not batch.journalled and not confirms.waiting:
            self.outbox.append(batch.frames(failed=False))
            confirms.told = batch.last
            self.counts.confirmed += batch.accepted
            self.messages.confirmed += batch.accepted
            return
        confirms.waiting += 1

        def durable(failure: JournalFailed | None) -> None:
            confirms.waiting -= 1
            confirms.told = batch.last
            if (
                self.connection.is_running
                and self.connection.channels.get(self.number) is self
                and not self.closing
            ):
                self.outbox.append(batch.frames(failed=failure is not None))
                if failure is None:
                    self.counts.confirmed += batch.accepted
                    self.messages.confirmed += batch.accepted

        self.broker.journal.on_durable(durable)

    def _check_special(self, properties: PublishProperties, header: bytes) -> tuple[bytes, PublishProperties]:
        self._check_user_id(properties.user_id)
        if properties.direct_reply:
            reply_queue = self.consuming.reply_queue
            if reply_queue is None:
                raise ChannelFault(ReplyCode.PRECONDITION_FAILED, "fast reply consumer does not exist")
            changed = with_reply_to(header[PROPERTIES_AT:], reply_queue.name)
            header = header[:PROPERTIES_AT] + changed
            properties = self.flow.publish_properties.of(header)
        return header, properties

    def _check_user_id(self, user_id: str | None) -> None:
        user = self.connection.user_name
        if user_id is not None and user_id != user and not self.connection.may_impersonate:
            raise ChannelFault(
                ReplyCode.PRECONDITION_FAILED,
                f"user_id property set to '{user_id}' but authenticated user was '{user}'",
            )

    def return_unrouted(self, route: Route, header: bytes, body: bytes) -> None:
        """basic.return: a mandatory message has reached no queue."""
        self.counts.returned += 1
        self.messages.returned += 1
        visible = self.flow.publish_properties.of(header).visible_bytes
        if visible is not None:
            header = header[:PROPERTIES_AT] + visible
        self.send(BasicReturn(ReplyCode.NO_ROUTE, "NO_ROUTE", route.exchange.name, route.routing_key))
        for frame in content_frames(self.number, header, body, self.max_payload):
            self.outbox.append(frame)

    def make_room(self) -> None:
        """Wake all consumers if the prefetch limit is channel-wide: one settlement makes room for each."""
        if self.global_prefetch:
            self.wake_consumers()

    def wake_consumers(self) -> None:
        """Try to deliver again: there may be room now."""
        for consumer in self.consumers.values():
            self.flow.touch(consumer.queue)

    def consumer_leases(self) -> int:
        """How many unacked deliveries count against the channel-wide prefetch."""
        return len(self.ledger) - self.consuming.got()

    def handle(self, method: Method) -> None:
        """Run a method other than basic.publish. (The frame loop handles basic.ack itself.)"""
        self.messages.used_ms = self.flow.now_ms
        match method:
            case BasicAck(tag, multiple):
                self.settling.ack(tag, multiple)
            case BasicNack(tag, multiple, requeue):
                self.settling.refuse(tag, multiple, requeue)
            case BasicReject(tag, requeue):
                self.settling.refuse(tag, False, requeue)
            case BasicQos():
                self._qos(method)
            case BasicConsume():
                self.consuming.consume(method)
            case BasicCancel(tag, no_wait):
                self.consuming.cancel(tag, lambda: None if no_wait else self.send(BasicCancelOk(tag)))
            case BasicGet(queue, no_ack):
                self.consuming.get(queue, no_ack)
            case BasicRecover(requeue) | BasicRecoverAsync(requeue):
                if not requeue:
                    raise ConnectionFault(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
                self.settling.recover(replies=isinstance(method, BasicRecover))
            case ChannelFlow(active):
                if not active and not self.connection.settings.channel_flow:
                    raise ConnectionFault(ReplyCode.NOT_IMPLEMENTED, "active=false")
                self.flowing = active
                if active:
                    self.wake_consumers()
                self.send(ChannelFlowOk(active))
            case ChannelFlowOk():
                pass
            case ConfirmSelect(no_wait):
                self._confirm_select(no_wait)
            case TxSelect():
                if self.confirms is not None:
                    raise ChannelFault(ReplyCode.PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
                self.transaction = self.transaction or Transaction(
                    self.flow, self.ledger, self.counts, self.messages
                )
                self.send(TxSelectOk())
            case TxCommit() | TxRollback() if self.transaction is None:
                raise ChannelFault(ReplyCode.PRECONDITION_FAILED, "channel is not transactional")
            case TxCommit() if self.transaction is not None:
                commit(self, self.transaction)
            case TxRollback() if self.transaction is not None:
                roll_back(self, self.transaction)
            case _:
                self.topology.handle(method)

    def _qos(self, method: BasicQos) -> None:
        if method.prefetch_size:
            raise ConnectionFault(ReplyCode.NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
        if method.global_:
            self.global_prefetch = method.prefetch_count
        else:
            self.prefetch = method.prefetch_count
            self.global_prefetch = 0  # as in RabbitMQ, a per-consumer limit replaces the channel's
        self.wake_consumers()
        self.send(BasicQosOk())

    def _confirm_select(self, no_wait: bool) -> None:
        if self.transaction is not None:
            raise ChannelFault(ReplyCode.PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
        self.confirms = self.confirms or Confirms(self.number)
        if not no_wait:
            self.send(ConfirmSelectOk())

    def close(self, then: Callable[[], None] | None = None) -> None:
        """Remove the channel's consumers and requeue its unacked messages. ``then``: run after the last."""

        def closed() -> None:
            self.released()
            if then is not None:
                then()

        gone = list(self.consumers.values())
        remove_consumers([self])
        self.settling.return_all(*self.begin_close(closed), failed=True)
        self.broker.long_changes.free(gone)

    def released(self) -> None:
        """All is done. Refer to nothing that refers back: then no garbage collection is needed."""
        del self.topology, self.consuming, self.settling

    def begin_close(self, then: Callable[[], None] | None = None) -> Closing:
        """Close the channel, but for its consumers in their queues and its unacked messages.

        Returns the queues of these, and what to do when they have returned.
        """
        self.closing = True
        self.broker.limits.channel_closed(self.connection.user_name)
        self.counts.channels_closed += 1
        self.connection.closed_channel_messages.add(self.received, self.ledger.last, len(self.ledger))
        if self.transaction is not None:
            self.broker.long_changes.free(self.transaction.abandon())
        self.settling.overdue.clear()
        queues = list(dict.fromkeys(map(_queue, self.consumers.values())))
        self.counts.consumers -= len(self.consumers)
        self.consumers = {}

        def left() -> None:
            self.broker.sessions.discard(self.ledger)
            self.consuming.closed()
            self.transaction = None  # the garbage collector does not track leases: drop all references
            if then is not None:
                then()

        def returned() -> None:
            leave_queues(self, queues, left)

        others = (one.queue for one in self.consuming.other_holders())
        return Closing([*queues, *others], returned)

    def send(self, method: Method) -> None:
        """Send one method frame."""
        self.outbox.append(encode_frame(FRAME_METHOD, self.number, encode_method(method)))

"""One AMQP channel, sans-IO: methods in, broker calls and frames out.

Owns: publish, settle and confirm; the channel's leases and prefetch; method dispatch; closing.
Must not touch: sockets, the connection's handshake, parsing of frames.

Over 400 lines: method dispatch, and the per-message paths, which share the channel's state.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from holtmq.amqp.codec import encode_method
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.confirms import Confirms
from holtmq.amqp.consumer import Consumer, content_frames
from holtmq.amqp.consuming import Consuming
from holtmq.amqp.errors import ChannelFault, ConnectionFault, channel_error
from holtmq.amqp.frames import FRAME_METHOD, encode_frame
from holtmq.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
    BasicReturn,
    ChannelFlow,
    ChannelFlowOk,
    ConfirmSelect,
    ConfirmSelectOk,
    Method,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from holtmq.amqp.topology import Topology
from holtmq.amqp.transaction import STEP, Committed, Settle, Transaction
from holtmq.broker.errors import BrokerError, Conflict
from holtmq.broker.figures.client_counts import ChannelMessages
from holtmq.broker.flow import PublishOutcome
from holtmq.broker.message import Message
from holtmq.broker.publish.publish_properties import PublishProperties
from holtmq.broker.publish.routes import Route
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.queue_arguments import queue_text
from holtmq.broker.work.leases import Holder, Lease, Ledger
from holtmq.journal.interface import JournalFailed
from holtmq.wire.properties import PROPERTIES_AT, read_content_header, with_reply_to

if TYPE_CHECKING:
    from holtmq.amqp.connection import Connection


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
        self.overdue: dict[
            int, Consumer
        ] = {}  # deliveries taken back from consumers that wait to settle them
        self.flowing = True  # channel.flow: the client accepts deliveries
        self.prefetch = 0
        self.global_prefetch = 0
        self.confirms: Confirms | None = None
        self.owes_confirms = False  # published with confirms in this read
        self.transaction: Transaction | None = None
        self.topology = Topology(self)
        self.consuming = Consuming(self)
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
            outcome = PublishOutcome.REFUSED
        if outcome is PublishOutcome.UNROUTED and not mandatory:
            counts.dropped += 1
            self.messages.dropped += 1
        if self.confirms is not None or mandatory:
            self._published(outcome, route, mandatory, header, body)

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
            self._return(route, header, body)
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

    def _return(self, route: Route, header: bytes, body: bytes) -> None:
        self.counts.returned += 1
        self.messages.returned += 1
        visible = self.flow.publish_properties.of(header).visible_bytes
        if visible is not None:
            header = header[:PROPERTIES_AT] + visible
        self.send(BasicReturn(ReplyCode.NO_ROUTE, "NO_ROUTE", route.exchange.name, route.routing_key))
        for frame in content_frames(self.number, header, body, self.max_payload):
            self.outbox.append(frame)

    def ack(self, tag: int, multiple: bool) -> None:
        """basic.ack."""
        if multiple or self.transaction is not None:
            leases = self._leases(tag, multiple)
            if self.transaction is None:
                self.messages.acked += len(leases)
            self._settle(self.flow.ack, leases)
            return
        lease = self.ledger.by_number.pop(tag, None)
        if lease is None:
            raise self._unknown_tag(tag)
        self.messages.acked += 1
        holder = lease.holder
        if holder is None:
            self.ledger.forgot_revoked()
            self.flow.ack((lease,))
            self._settled_late(tag)
            return
        del holder.held[tag]
        queue = lease.queue
        queue.settle(lease.message)
        if not queue.dirty:
            self.flow.touch(queue)
        if self.global_prefetch:
            self._make_room()

    def ack_each(self, tags: list[int]) -> None:
        """Many basic.ack in a row, each for one delivery. This is the hot path."""
        if self.transaction is not None:
            for tag in tags:
                self.ack(tag, False)
            return
        take = self.ledger.by_number.pop
        before = len(self.ledger.by_number)
        holder: Holder | None = None
        queue: Queue | None = None
        done: list[Message] = []  # of this holder and queue
        try:
            for tag in tags:
                lease = take(tag, None)
                if lease is None:
                    raise self._unknown_tag(tag)
                if lease.holder is not holder or lease.queue is not queue:
                    if queue is not None:
                        self.flow.settle(queue, done)
                    done, holder, queue = [], lease.holder, lease.queue
                if holder is None:
                    self.ledger.forgot_revoked()
                    self.flow.ack((lease,))
                    self._settled_late(tag)
                    queue = None
                    continue
                del holder.held[tag]
                done.append(lease.message)
        finally:
            if queue is not None:
                self.flow.settle(queue, done)
            self.messages.acked += before - len(self.ledger.by_number)
            self.messages.used_ms = self.flow.now_ms
            self._make_room()

    def _settle(self, how: Settle, leases: list[Lease]) -> None:
        if self.transaction is not None:
            self.transaction.settle(how, leases)
        else:
            how(leases)
            self._make_room()

    def _settled_late(self, tag: int) -> None:
        """A delivery that was taken back is settled at last: its consumer may receive again."""
        consumer = self.overdue.pop(tag, None)
        if consumer is not None:
            consumer.overdue.discard(tag)
            if not consumer.overdue and not consumer.queue.deleted:
                self.flow.touch(consumer.queue)

    def _leases(self, tag: int, multiple: bool) -> list[Lease]:
        ended = self._end_leases(tag, multiple)
        if self.overdue:
            for lease in ended:
                self._settled_late(lease.number)
        return ended

    def _end_leases(self, tag: int, multiple: bool) -> list[Lease]:
        if multiple:
            if tag and tag not in self.ledger.by_number:
                raise self._unknown_tag(tag)
            return self.ledger.end_upto(tag)
        lease = self.ledger.end(tag)
        if lease is None:
            raise self._unknown_tag(tag)
        return [lease]

    def _unknown_tag(self, tag: int) -> ChannelFault:
        return ChannelFault(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}")

    def _make_room(self) -> None:
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
                self.ack(tag, multiple)
            case BasicNack(tag, multiple, requeue):
                self._refuse(self._leases(tag, multiple), requeue)
            case BasicReject(tag, requeue):
                self._refuse(self._leases(tag, False), requeue)
            case BasicQos():
                self._qos(method)
            case BasicConsume():
                self.consuming.consume(method)
            case BasicCancel(tag, no_wait):
                self.consuming.cancel(tag)
                if not no_wait:
                    self.send(BasicCancelOk(tag))
            case BasicGet(queue, no_ack):
                self.consuming.get(queue, no_ack)
            case BasicRecover(requeue) | BasicRecoverAsync(requeue):
                if not requeue:
                    raise ConnectionFault(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
                self.flow.release(self.ledger.end_all())
                if isinstance(method, BasicRecover):
                    self.send(BasicRecoverOk())
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
            case TxCommit():
                self._tx_commit()
            case TxRollback():
                self._tx_rollback()
            case _:
                self.topology.handle(method)

    def _refuse(self, leases: list[Lease], requeue: bool) -> None:
        for lease in leases:
            if (
                lease.queue.is_stream
                and isinstance(lease.holder, Consumer)
                and (not lease.holder.joins_group or self.broker.dialect.refuse_group_nack)
            ):
                self._requeue(leases)  # the connection ends here, so they return to the queue
                queue = lease.queue
                raise ConnectionFault(
                    ReplyCode.NOT_IMPLEMENTED,
                    "basic.nack and basic.reject not supported by stream queues "
                    + queue_text(queue.name, queue.vhost),
                )
        self._settle(self._requeue if requeue else self.flow.reject, leases)

    def _requeue(self, leases: list[Lease]) -> None:
        self.flow.release([lease for lease in leases if lease.holder is not None])

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

    def _tx_commit(self) -> None:
        if self.transaction is None:
            raise ChannelFault(ReplyCode.PRECONDITION_FAILED, "channel is not transactional")
        if self.transaction.is_long:
            self.connection.stall()
            self.broker.long_changes.add(self._commit_in_steps(self.transaction), STEP)
        else:
            self._committed(self.transaction.commit())

    def _commit_in_steps(self, transaction: Transaction) -> Iterator[None]:
        """The connection processes no frame until the end."""
        connection = self.connection
        try:
            done = yield from transaction.commit_in_steps(lambda: self.closing)
            if done is not None:
                self._committed(done)
        except JournalFailed as error:
            connection.fail(ConnectionFault(ReplyCode.INTERNAL_ERROR, str(error)))
        except (BrokerError, ChannelFault) as error:
            which = TxCommit.class_id << 16 | TxCommit.method_id
            fault = error if isinstance(error, ChannelFault) else channel_error(error)
            connection.fail_channel(self, fault, which)
        finally:
            connection.unstall()

    def _committed(self, done: Committed) -> None:
        for message in done.unrouted:
            self._return(*message)
        self._make_room()
        if done.is_partial:  # as in RabbitMQ: the rest is done, and the client must learn that not all is
            raise ChannelFault(ReplyCode.PRECONDITION_FAILED, "partial tx completion")
        self.connection.reply_when_durable(self, TxCommitOk(), done.journalled)

    def _tx_rollback(self) -> None:
        if self.transaction is None:
            raise ChannelFault(ReplyCode.PRECONDITION_FAILED, "channel is not transactional")
        self.transaction.rollback()
        self.send(TxRollbackOk())

    def close(self) -> None:
        """Remove the channel's consumers and requeue its unacked messages."""
        self.closing = True
        self.broker.limits.channel_closed(self.connection.user_name)
        self.counts.channels_closed += 1
        self.connection.closed_channel_messages.add(self.received, self.ledger.last, len(self.ledger))
        if self.transaction is not None:
            self.transaction.rollback()
        self.overdue.clear()
        consumers, self.consumers = list(self.consumers.values()), {}
        self.counts.consumers -= len(consumers)
        released = self.ledger.end_all()
        for consumer in consumers:
            if not consumer.queue.deleted:
                consumer.queue.remove_consumer(consumer)
        self.flow.release(released, failed=True)
        for consumer in consumers:
            self.broker.after_cancel(consumer.queue)
        self.broker.sessions.discard(self.ledger)
        self.consuming.closed()
        self.transaction = None  # the garbage collector does not track leases: drop all references

    def send(self, method: Method) -> None:
        """Send one method frame."""
        self.outbox.append(encode_frame(FRAME_METHOD, self.number, encode_method(method)))

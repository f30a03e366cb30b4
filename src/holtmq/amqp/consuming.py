"""basic.consume, basic.cancel and basic.get, for one channel.

Owns: those methods, direct reply-to, and the ack timeouts of basic.get.
Must not touch: how deliveries are settled (``settling.py``), the frames of basic.deliver (``consumer.py``).
"""

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from holtmq.amqp.ack_timeout import AckTimeout
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.consumer import Consumer, content_frames, with_delivery_count
from holtmq.amqp.errors import ChannelFault, ConnectionFault
from holtmq.amqp.late_answers import answering_late
from holtmq.amqp.long_settlements import is_long, return_in_steps
from holtmq.amqp.methods import (
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
)
from holtmq.amqp.topology import refuse_on_stream, refuse_single_active_get
from holtmq.broker.errors import StillExpiring
from holtmq.broker.message import Message
from holtmq.broker.publish.publish_properties import DIRECT_REPLY_TO
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.equivalence import type_name
from holtmq.broker.topology.queue_arguments import MAX_MS, queue_text
from holtmq.broker.topology.queue_options import QueueType
from holtmq.broker.work.leases import Holder
from holtmq.broker.work.work_queue import WorkQueue, require_work_queue

if TYPE_CHECKING:
    from holtmq.amqp.channel import Channel

_LOW_PRIORITY: Final = 0

log = logging.getLogger(__name__)


class Consuming:
    """Handles these methods. The channel holds the consumers, because its settlements make room for them."""

    def __init__(self, channel: "Channel") -> None:
        self._channel = channel
        self._broker = channel.broker
        self._connection = channel.connection
        self.gets: dict[Queue, Getting] = {}  # those that hold nothing are removed when another one is made
        self._departed: list[Consumer] = []  # cancelled consumers that keep their leases
        self.reply_queue: WorkQueue | None = None
        self.notices: list[BasicCancel] | None = None  # a list: keep them until the delete-ok is sent

    def consume(self, method: BasicConsume) -> None:
        """basic.consume."""
        if method.queue == DIRECT_REPLY_TO:
            self._consume_replies(method)
            return
        channel = self._channel
        tag = self._new_tag(method)  # first, as in RabbitMQ: a tag used twice ends the connection
        queue = channel.topology.readable_queue(method.queue)
        self._refuse_as_rabbitmq(queue, method.no_ack)
        priority = method.arguments.get("x-priority", _LOW_PRIORITY)
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise ChannelFault(
                ReplyCode.PRECONDITION_FAILED,
                f"invalid arg 'x-priority' for {queue_text(queue.name, queue.vhost)}: "
                f'"expected integer, got {type_name(priority)}"',
            )
        timeout = method.arguments.get("x-consumer-timeout", 1)
        if not isinstance(timeout, int) or isinstance(timeout, bool) or not 0 < timeout <= MAX_MS:
            raise ChannelFault(
                ReplyCode.PRECONDITION_FAILED,
                f"invalid arg 'x-consumer-timeout' for {queue_text(queue.name, queue.vhost)}: {timeout!r} is "
                "not a positive integer of at most ten years in milliseconds",
            )
        consumer = self._channel.make_consumer(
            channel,
            tag,
            queue,
            no_ack=method.no_ack,
            exclusive=method.exclusive,
            prefetch=channel.prefetch,
            priority=priority,
            arguments=method.arguments,
        )
        self._broker.consume(queue, consumer, method.exclusive)
        channel.settling.has_joined_group |= queue.is_stream and consumer.joins_group
        self._begin(consumer, method)

    def _refuse_as_rabbitmq(self, queue: Queue, no_ack: bool) -> None:
        dialect = self._broker.dialect
        thing = queue_text(queue.name, queue.vhost)
        if dialect.refuse_unbounded_stream_consumers and queue.is_stream:
            if no_ack:
                raise ConnectionFault(
                    ReplyCode.NOT_IMPLEMENTED,
                    f"automatic acknowledgement not supported by stream queues {thing}",
                )
            if not self._channel.prefetch and not self._channel.global_prefetch:
                raise ChannelFault(
                    ReplyCode.PRECONDITION_FAILED, f"consumer prefetch count is not set for '{thing}'"
                )
        replicated = queue.options.queue_type is not QueueType.CLASSIC
        if dialect.refuse_global_prefetch and self._channel.global_prefetch and replicated:
            raise ConnectionFault(ReplyCode.NOT_IMPLEMENTED, f"{thing} does not support global qos")

    def _consume_replies(self, method: BasicConsume) -> None:
        """Direct reply-to: a queue that exists without a declare, while this channel is open."""
        if self.reply_queue is not None:
            raise ChannelFault(ReplyCode.PRECONDITION_FAILED, "reply consumer already set")
        if not method.no_ack:
            raise ChannelFault(ReplyCode.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
        tag = self._new_tag(method)
        queue = self._broker.add_reply_queue(
            self._connection.vhost, f"{DIRECT_REPLY_TO}.{secrets.token_urlsafe(24)}"
        )
        consumer = self._channel.make_consumer(
            self._channel, tag, queue, no_ack=True, exclusive=True, prefetch=0, priority=_LOW_PRIORITY
        )
        self._broker.consume(queue, consumer)
        self.reply_queue = queue
        self._begin(consumer, method)

    def _new_tag(self, method: BasicConsume) -> str:
        tag = method.consumer_tag or "amq.ctag-" + secrets.token_urlsafe(16)
        if tag in self._channel.consumers:
            raise ConnectionFault(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        return tag

    def _begin(self, consumer: Consumer, method: BasicConsume) -> None:
        self._channel.consumers[consumer.tag] = consumer
        self._channel.counts.consumers += 1
        if not method.no_wait:
            self._channel.send(BasicConsumeOk(consumer.tag))

    def cancel(self, tag: str, then: Callable[[], None]) -> None:
        """basic.cancel. Requeues the consumer's unacked messages, unless the queue or node sets otherwise.

        ``then`` runs when that is done.
        """
        channel = self._channel
        consumer = channel.consumers.pop(tag, None)
        if consumer is None:
            then()
            return
        channel.counts.consumers -= 1
        queue = consumer.queue
        if queue is self.reply_queue:
            self.reply_queue = None

        def returned() -> None:
            if not queue.is_stream:
                self._broker.cancel(queue, consumer)
            then()

        if queue.is_stream:  # first, or it would get again what it returns
            self._broker.cancel(queue, consumer)
        setting = queue.options.cancel_requeue
        if self._broker.cancel_requeue if setting is None else setting:
            self._return(consumer, queue, list(consumer.held), returned)
            return
        if consumer.held:
            self._depart(consumer)
        returned()

    def _return(self, holder: Holder, queue: Queue, numbers: list[int], then: Callable[[], None]) -> None:
        """Return deliveries to their queue; a late ack of them is no error."""
        channel = self._channel
        revoke = partial(channel.ledger.revoke, holder)
        if is_long(channel, len(numbers)):
            return_in_steps(channel, numbers, revoke, (queue,), then)
        else:
            channel.flow.release(revoke(numbers))
            then()

    def _depart(self, consumer: Consumer) -> None:
        empty: list[Getting | Consumer] = [one for one in self._departed if not one.held]
        if empty:
            self._departed = [one for one in self._departed if one.held]
            self._unlist(empty)
        self._departed.append(consumer)
        self._broker.other_holders.add(consumer.queue.id, consumer)

    def got(self) -> int:
        """How many deliveries of basic.get are not settled."""
        return sum(len(one.held) for one in self.gets.values()) if self.gets else 0

    def other_holders(self) -> "list[Getting | Consumer]":
        """Holders of leases that are no consumers."""
        return [*self.gets.values(), *self._departed]

    def closed(self) -> None:
        """The channel is closed, and its leases have ended."""
        holders = self.other_holders()
        self.gets.clear()
        self._departed.clear()
        self._unlist(holders)

    def _unlist(self, holders: "list[Getting | Consumer]") -> None:
        """Do not list these as holders any more; it empties the list. There may be 100,000."""
        listed = self._broker.other_holders

        def steps() -> Iterator[None]:
            while holders:
                one = holders.pop()
                listed.remove(one.queue.id, one)
                yield

        self._broker.long_changes.add(steps())

    def take_back(self, holder: Holder, queue: Queue, upto: int, timeout_ms: int) -> None:
        """Return overdue deliveries to their queue; their consumer is cancelled, or waits until it settles.

        As in RabbitMQ 4.3 the client learns of it by basic.cancel, if it announced that capability.
        """
        channel = self._channel

        numbers = [number for number in holder.held if number <= upto]
        log.warning(
            "deliveries were not acked in time and returned to their queue",
            extra={
                "queue": queue.name,
                "vhost": queue.vhost,
                "channel": channel.number,
                "deliveries": len(numbers),
                "timeout_ms": timeout_ms,
            },
        )
        if isinstance(holder, Consumer) and channel.consumers.get(holder.tag) is holder:
            if self._connection.wants_cancel_notify:
                del channel.consumers[holder.tag]
                channel.counts.consumers -= 1
                self._broker.cancel(queue, holder)
                self._depart(holder)  # the client may still settle what it got later
                channel.send(BasicCancel(holder.tag, True))
            else:
                holder.overdue.update(numbers)
                channel.settling.overdue.update(dict.fromkeys(numbers, holder))
        self._return(holder, queue, numbers, lambda: None)

    def dismiss(self, tag: str) -> bool | None:
        """Cancel a consumer for an operator; None: there is none. False: its client cannot be told."""
        if tag not in self._channel.consumers or self._channel.closing:
            return None
        self.cancel(tag, lambda: None)
        if not self._connection.wants_cancel_notify:
            return False
        self._channel.send(BasicCancel(tag, True))
        return True

    def lost(self, consumer: Consumer) -> None:
        """Remove a consumer whose queue was deleted, and notify the client."""
        channel = self._channel
        if channel.consumers.get(consumer.tag) is not consumer:
            return  # cancelled by its client meanwhile, which may use the tag again
        del channel.consumers[consumer.tag]
        channel.counts.consumers -= 1
        if not self._connection.wants_cancel_notify or channel.closing:
            return
        if self.notices is not None:
            self.notices.append(BasicCancel(consumer.tag, True))
        else:
            channel.send(BasicCancel(consumer.tag, True))

    def get(self, name: str, no_ack: bool) -> None:
        """basic.get."""
        channel = self._channel
        queue = channel.topology.readable_queue(name)
        refuse_on_stream("basic.get", queue, self._broker.dialect)
        refuse_single_active_get(queue, self._broker.dialect)
        work_queue = require_work_queue(queue, "consume from it, do not get")
        if work_queue.returning:  # another session's messages, of which some are older
            self._connection.stall()
            self._broker.long_changes.then(partial(self._get_late, queue.name, no_ack))
            return
        try:
            message = self._broker.get(work_queue)
        except StillExpiring:
            self._connection.stall()
            self._broker.long_changes.add(self._get_in_next_step(queue.name, no_ack), step=1)
            return
        if message is None:
            channel.send(BasicGetEmpty())
            channel.counts.get_empty += 1
            channel.messages.get_empty += 1
            work_queue.figures.get_empty += 1
            channel.flow.touch(work_queue)  # the figures are sampled
            return
        self.hand_over(work_queue, message, no_ack)

    def _get_in_next_step(self, name: str, no_ack: bool) -> Iterator[None]:
        yield
        self._get_late(name, no_ack)

    def _get_late(self, name: str, no_ack: bool) -> None:
        with answering_late(self._channel, BasicGet):
            if not self._channel.closing:
                self.get(name, no_ack)

    def hand_over(self, queue: WorkQueue, message: Message, no_ack: bool) -> None:
        """Answer a basic.get with a message; lease it unless it counts as acked."""
        channel = self._channel
        counts = channel.counts
        redelivered = queue.is_redelivered(message)
        if redelivered:
            counts.redelivered += 1
            channel.messages.redelivered += 1
            queue.figures.redelivered += 1
        header = message.header
        if redelivered and queue.counts_deliveries:
            header = with_delivery_count(header, queue.times_returned(message))
        ledger = channel.ledger
        if no_ack:
            ledger.last += 1
            counts.get_auto_ack += 1
            channel.messages.got_no_ack += 1
            queue.figures.got_no_ack += 1
            queue.settle(message)
        else:
            holder = self.gets.get(queue) or self._getting(queue)
            ledger.grant(queue, message, holder)
            if channel.flow.now_ms >= holder.note_due_ms:
                holder.note_delivery(channel.flow.now_ms, ledger.last)
            counts.get_manual_ack += 1
            channel.messages.got += 1
            queue.figures.got += 1
            if not holder.timeout.armed:
                holder.timeout.delivered()
        channel.send(BasicGetOk(ledger.last, redelivered, message.exchange, message.routing_key, len(queue)))
        for frame in content_frames(channel.number, header, message.body, channel.max_payload):
            channel.outbox.append(frame)

    def _getting(self, queue: WorkQueue) -> "Getting":
        if self._channel.transaction is None:  # a rollback gives leases back to their holders
            empty: list[Getting | Consumer] = [one for one in self.gets.values() if not one.held]
            for one in empty:
                del self.gets[one.queue]
            self._unlist(empty)
        made = self.gets[queue] = Getting(self._channel, queue)
        self._broker.other_holders.add(queue.id, made)
        return made


class Getting(Holder):
    """Holds what basic.get took from one queue on one channel."""

    __slots__ = ("channel", "queue", "timeout")

    def __init__(self, channel: "Channel", queue: Queue) -> None:
        super().__init__()
        self.channel = channel
        self.queue = queue
        self.timeout = AckTimeout(channel, self, queue)


def _removing(consumers: list[Consumer]) -> Iterator[None]:
    """Remove consumers of a channel that ends, each from its queue; those of streams at once."""
    for consumer in consumers:
        if consumer.queue.is_stream and not consumer.queue.deleted:
            consumer.queue.remove_consumer(consumer)
    while consumers:
        consumer = consumers.pop()
        queue = consumer.queue
        if not queue.is_stream and consumer in queue.consumers:  # else it was deleted
            queue.remove_consumer(consumer)
        yield


def remove_consumers(channels: Iterable["Channel"]) -> None:
    """Remove the consumers of these channels from their queues, each queue's in one go."""
    by_queue: dict[Queue, list[Consumer]] = {}
    for channel in channels:
        consumers = channel.consumers.values()
        queues: set[Queue] = set(map(attrgetter("queue"), consumers))
        if len(queues) == 1:  # there may be 100,000
            by_queue.setdefault(queues.pop(), []).extend(consumers)
            continue
        if len(queues) == len(consumers):  # there may be 100,000 of each
            channel.flowing = False  # they get nothing more
            channel.broker.long_changes.add(_removing(list(consumers)))
            continue
        for consumer in consumers:
            by_queue.setdefault(consumer.queue, []).append(consumer)
    for queue, gone in by_queue.items():
        if not queue.deleted:
            queue.remove_consumers(gone)

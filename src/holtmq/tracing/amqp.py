"""AMQP connections whose traced messages leave spans.

Owns: where spans begin and end. Must not touch: frames, rules; every method does what its base class does.
Messages without ``traceparent`` in their headers take the same way as without tracing.
"""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from opentelemetry.trace import Span, SpanKind

from holtmq.amqp.channel import Channel
from holtmq.amqp.connection import Connection
from holtmq.amqp.consumer import Consumer
from holtmq.amqp.consuming import Consuming
from holtmq.amqp.long_settlements import Closing
from holtmq.amqp.publish_caches import PublishCaches
from holtmq.amqp.publish_run import PublishRun
from holtmq.amqp.settling import Settling
from holtmq.amqp.transaction import Settle
from holtmq.broker.message import Message
from holtmq.broker.publish.routes import Route
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.vhost import VHost
from holtmq.broker.work.leases import Lease
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal.interface import JournalFailed
from holtmq.tracing.spans import Attributes, Spans, failed, of_header


class TracedConnection(Connection):
    """Makes traced channels."""

    def __init__(self, spans: Spans, *arguments: Any, **options: Any) -> None:
        self.spans = spans
        super().__init__(*arguments, **options)

    def make_channel(self, number: int) -> Channel:
        """A traced channel."""
        return TracedChannel(self, number)

    def make_publish_run(self, vhost: VHost, caches: PublishCaches) -> PublishRun:
        """The fast path for reads without trace contexts."""
        return UntracedRun(self, vhost, caches)


class UntracedRun(PublishRun):
    """Leaves a read with trace contexts to the general path."""

    __slots__ = ()

    def take(self, channel: Channel, data: bytes, at: int, end: int) -> int:
        """Publish nothing if any of the messages may be traced."""
        if data.find(b"traceparent", at, end) >= 0:
            self.elsewhere = b""
            return at
        return super().take(channel, data, at, end)


class TracedConsumer(Consumer):
    """A span for each traced delivery."""

    __slots__ = ()

    def deliver(self, queue: Queue, messages: list[Message]) -> None:
        """Deliver, then note it."""
        channel = self.channel
        assert isinstance(channel, TracedChannel)
        first = channel.ledger.last + 1
        super().deliver(queue, messages)
        for number, message in enumerate(messages, first):
            channel.note_delivery(queue, message, number, self.tag)


class TracedConsuming(Consuming):
    """A span for each traced basic.get."""

    def hand_over(self, queue: WorkQueue, message: Message, no_ack: bool) -> None:
        """Answer, then note it."""
        super().hand_over(queue, message, no_ack)
        channel = self._channel
        assert isinstance(channel, TracedChannel)
        channel.note_delivery(queue, message, channel.ledger.last, "")


class TracedChannel(Channel):
    """Spans of publishes."""

    make_consumer: ClassVar[type[Consumer]] = TracedConsumer

    def __init__(self, connection: TracedConnection, number: int) -> None:
        super().__init__(connection, number)
        self._spans = connection.spans
        self.consuming = TracedConsuming(self)
        self.settling = TracedSettling(self)

    def publish(self, route: Route, mandatory: bool, header: bytes, body: bytes) -> None:
        """Publish; the span of a persistent message ends when it is durable."""
        parent = of_header(header)
        if parent is None:
            super().publish(route, mandatory, header, body)
            return
        exchange = route.exchange.name or "amq.default"
        attributes: Attributes = {
            "messaging.rabbitmq.destination.routing_key": route.routing_key,
            "messaging.message.body.size": len(body),
        }
        span = self._spans.begin("publish", exchange, parent, SpanKind.SERVER, attributes)
        try:
            super().publish(route, mandatory, header, body)
        except Exception as error:
            failed(span, str(error))
            span.end()
            raise
        if not self.broker.journal.backlog:
            span.end()
        else:
            self.broker.journal.on_durable(lambda failure: _end(span, failure))

    def note_delivery(self, queue: Queue, message: Message, number: int, tag: str) -> None:
        """Make the span of a delivery, if the message is traced."""
        parent = of_header(message.header)
        if parent is None:
            return
        attributes: Attributes = {
            "messaging.rabbitmq.message.delivery_tag": number,
            "messaging.consumer.tag": tag,
            "holtmq.message.age_ms": max(0, self.flow.now_ms - message.arrived_ms),
        }
        self._spans.begin("deliver", queue.name, parent, SpanKind.PRODUCER, attributes).end()

    def begin_close(self, then: Callable[[], None] | None = None) -> Closing:
        """Close; what was not settled is released."""
        leases = list(self.ledger.by_number.values())
        closing = super().begin_close(then)
        self.note_settled(leases, "release")
        return closing

    def note_settled(self, leases: Iterable[Lease], outcome: str) -> None:
        """Make the spans of settlements, for messages that are traced."""
        for lease in leases:
            parent = of_header(lease.message.header)
            if parent is not None:
                attributes: Attributes = {
                    "messaging.rabbitmq.message.delivery_tag": lease.number,
                    "holtmq.settle.outcome": outcome,
                }
                self._spans.begin("settle", lease.queue.name, parent, SpanKind.SERVER, attributes).end()


class TracedSettling(Settling):
    """A span for each settlement of a traced message."""

    def __init__(self, channel: TracedChannel) -> None:
        super().__init__(channel)
        self._note = channel.note_settled

    def ack(self, tag: int, multiple: bool) -> None:
        """basic.ack; with ``multiple``, ``_settle`` makes the spans."""
        lease = None if multiple or self._channel.transaction is not None else self._ledger.by_number.get(tag)
        super().ack(tag, multiple)
        if lease is not None:
            self._note((lease,), "ack")

    def ack_each(self, tags: list[int]) -> None:
        """Many basic.ack in a row."""
        known = self._ledger.by_number
        leases = [known[tag] for tag in tags if tag in known] if self._channel.transaction is None else []
        super().ack_each(tags)
        self._note(leases, "ack")

    def _settle(self, how: Settle, leases: list[Lease]) -> None:
        super()._settle(how, leases)
        outcome = "ack" if how == self._flow.ack else "reject" if how == self._flow.reject else "release"
        self._note(leases, outcome)

    def _refuse_many(self, tag: int, requeue: bool) -> bool:
        return False  # each settlement has its span, from ``_settle``


def _end(span: Span, failure: JournalFailed | None) -> None:
    if failure is not None:
        failed(span, str(failure))
    span.end()

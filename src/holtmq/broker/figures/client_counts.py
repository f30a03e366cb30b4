"""What AMQP clients did on this node since it started, and how many there are.

Owns: the counters. The AMQP side adds to them, per batch of messages and not per message.
Must not touch: clocks, clients.
"""

from typing import Final

from holtmq.broker.figures.queue_figures import Kinds


class ClientCounts:
    """Counters that only go up, and levels of what is open now."""

    __slots__ = (
        "channels_closed",
        "channels_opened",
        "confirmed",
        "connections_closed",
        "connections_opened",
        "consumers",
        "delivered_auto_ack",
        "delivered_manual_ack",
        "dropped",
        "get_auto_ack",
        "get_empty",
        "get_manual_ack",
        "publishers",
        "queues_created",
        "queues_declared",
        "queues_deleted",
        "received",
        "received_confirm",
        "redelivered",
        "returned",
    )

    def __init__(self) -> None:
        self.connections_opened = 0  # with a completed handshake
        self.connections_closed = 0
        self.channels_opened = 0
        self.channels_closed = 0
        self.consumers = 0  # now
        self.publishers = 0  # connections that have published and are open now
        self.received = 0  # messages from publishers
        self.received_confirm = 0  # of these, on channels with confirms
        self.confirmed = 0
        self.returned = 0  # mandatory, and no queue took them
        self.dropped = 0  # not mandatory, and no queue took them
        self.delivered_auto_ack = 0  # to consumers
        self.delivered_manual_ack = 0
        self.get_auto_ack = 0  # by basic.get
        self.get_manual_ack = 0
        self.get_empty = 0
        self.redelivered = 0
        self.queues_declared = 0  # also those that existed
        self.queues_created = 0
        self.queues_deleted = 0

    def kinds(self) -> Kinds:
        """Deliveries by kind."""
        return Kinds(
            self.delivered_auto_ack,
            self.get_manual_ack,
            self.get_auto_ack,
            self.redelivered,
            self.get_empty,
        )

    def churn(self) -> tuple[int, ...]:
        """What came and went, in the order of ``CHURN``."""
        return (
            self.connections_opened,
            self.connections_closed,
            self.channels_opened,
            self.channels_closed,
            self.queues_declared,
            self.queues_created,
            self.queues_deleted,
        )


CHURN: Final = (  # RabbitMQ's names
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
    "queue_declared",
    "queue_created",
    "queue_deleted",
)


class ChannelMessages:
    """What one channel's messages were, beside those published, delivered and still held."""

    __slots__ = (
        "acked",
        "confirmed",
        "delivered_no_ack",
        "dropped",
        "get_empty",
        "got",
        "got_no_ack",
        "redelivered",
        "returned",
        "used_ms",
    )

    def __init__(self, now_ms: int) -> None:
        self.used_ms = now_ms  # when a method arrived or a message was delivered last
        self.acked = 0
        self.confirmed = 0
        self.returned = 0  # mandatory, and no queue took them
        self.dropped = 0  # not mandatory, and no queue took them
        self.delivered_no_ack = 0  # to consumers
        self.got = 0  # by basic.get
        self.got_no_ack = 0
        self.get_empty = 0
        self.redelivered = 0


class ConnectionMessages:
    """The messages of one connection's channels."""

    __slots__ = ("delivered", "published", "settled")

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0
        self.settled = 0

    def copy(self) -> "ConnectionMessages":
        """The same counts, to add to."""
        made = ConnectionMessages()
        made.published, made.delivered, made.settled = self.published, self.delivered, self.settled
        return made

    def add(self, published: int, delivered: int, held: int) -> None:
        """Add a channel that published and was delivered so many, of which it still holds ``held``."""
        self.published += published
        self.delivered += delivered
        self.settled += delivered - held

"""Views of a broker for tests: messages, leases, consumers, exchanges, connections. Reading changes nothing.

Owns: the view types, and reading them from a broker. The functions run on the broker's own thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from holtmq.amqp.connection import Connection
from holtmq.amqp.consumer import Consumer
from holtmq.amqp.protocol import AmqpProtocol
from holtmq.broker.broker import Broker
from holtmq.broker.message import Message
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.priority_levels import Levels
from holtmq.broker.work.spilling_fifo import SpillingFifo
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.wire.properties import PROPERTIES_AT, Properties, decode_properties
from holtmq.wire.tables import FieldTable


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message stored in a queue."""

    body: bytes
    properties: Properties
    exchange: str
    routing_key: str
    queue: str
    redelivered: bool
    persistent: bool

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode()

    @property
    def headers(self) -> FieldTable:
        """The headers table; empty when there is none."""
        return self.properties.headers or {}

    @property
    def deaths(self) -> list[FieldTable]:
        """Its ``x-death`` history, the latest first."""
        history = self.headers.get("x-death")
        return [death for death in history if isinstance(death, dict)] if isinstance(history, list) else []


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A delivered message that is not settled."""

    message: StoredMessage
    queue: str
    consumer_tag: str  # empty: delivered by basic.get
    delivery_tag: int
    connection: str


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """A consumer of a queue."""

    tag: str
    queue: str
    prefetch: int
    no_ack: bool
    exclusive: bool
    priority: int
    unacked: int
    connection: str


@dataclass(frozen=True, slots=True)
class ExchangeView:
    """An exchange and its bindings."""

    name: str
    kind: str
    durable: bool
    auto_delete: bool
    internal: bool
    bindings: tuple[tuple[str, str], ...]  # destination and routing key


@dataclass(frozen=True, slots=True)
class ConnectionView:
    """A connected client."""

    peer: str  # address and port of the client's socket
    name: str  # the client's own name for the connection, or empty
    user: str
    channels: int
    client_properties: dict[str, object]


def work_queue(broker: Broker, name: str, vhost: str = "/") -> WorkQueue:
    """The work queue of this name, also an exclusive one."""
    found = broker.vhost(vhost).queues[name]
    assert isinstance(found, WorkQueue), f"{found} is a stream"
    return found


def ready_messages(broker: Broker, queue: WorkQueue) -> list[StoredMessage]:
    """The ready messages of a queue, next one first."""
    return [stored_message(queue, message) for message in raw_messages(broker, queue)]


def raw_messages(broker: Broker, queue: WorkQueue) -> list[Message]:
    """The same as the broker stores them, properties not decoded."""
    return [message for fifo in _fifos(queue) for message in _waiting(broker, fifo)]


def leases(broker: Broker, connections: Iterator[Connection]) -> list[LeaseView]:
    """Every unsettled delivery, connection by connection, in order of delivery."""
    return [
        LeaseView(
            stored_message(lease.queue, lease.message),
            lease.queue.name,
            lease.holder.tag if isinstance(lease.holder, Consumer) else "",
            lease.number,
            _name(connection),
        )
        for connection in connections
        for channel in connection.channels.values()
        for lease in channel.ledger.by_number.values()
        if lease.holder is not None
    ]


def consumers(connections: Iterator[Connection]) -> list[ConsumerView]:
    """Every consumer."""
    return [
        ConsumerView(
            consumer.tag,
            consumer.queue.name,
            consumer.prefetch,
            consumer.no_ack,
            consumer.exclusive,
            consumer.priority,
            len(consumer.held),
            _name(connection),
        )
        for connection in connections
        for channel in connection.channels.values()
        for consumer in channel.consumers.values()
    ]


def exchanges(broker: Broker, vhost: str) -> list[ExchangeView]:
    """Every exchange of a vhost."""
    return [
        ExchangeView(
            exchange.name,
            exchange.kind.value,
            exchange.durable,
            exchange.auto_delete,
            exchange.internal,
            tuple((binding.destination.name, binding.routing_key) for binding in exchange.bindings()),
        )
        for exchange in broker.vhost(vhost).exchanges.values()
    ]


def connection_view(protocol: AmqpProtocol) -> ConnectionView:
    """The view of one connection."""
    connection = protocol.connection
    return ConnectionView(
        protocol.peer,
        _name(connection),
        connection.user_name,
        len(connection.channels),
        dict(connection.client_properties),
    )


def _fifos(queue: WorkQueue) -> list[SpillingFifo]:
    store = queue.store
    if isinstance(store, Levels):
        return [store.fifos[level] for level in sorted(store.fifos, reverse=True)]
    return [store]


def _waiting(broker: Broker, fifo: SpillingFifo) -> Iterator[Message]:
    yield from fifo.browse(broker.flow.pager)


def stored_message(queue: Queue, message: Message) -> StoredMessage:
    """The view of one message."""
    return StoredMessage(
        message.body,
        decode_properties(message.header, PROPERTIES_AT),
        message.exchange,
        message.routing_key,
        queue.name,
        queue.is_redelivered(message),
        message.persistent,
    )


def _name(connection: Connection) -> str:
    given = connection.client_properties.get("connection_name", connection.name)
    return given if isinstance(given, str) else ""

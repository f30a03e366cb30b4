"""Where a shovel publishes: a broker over AMQP, or this broker without a connection.

Owns: publishing in order, and which message was accepted or refused. Must not touch: the source.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, NamedTuple, Protocol, cast

from holtmq.amqp.methods import (
    BasicAck,
    BasicNack,
    BasicReturn,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionBlocked,
    ConnectionUnblocked,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueDeclare,
    QueueDeclareOk,
)
from holtmq.broker.broker import Broker
from holtmq.broker.errors import BrokerError
from holtmq.broker.flow import PublishOutcome
from holtmq.broker.message import make_address
from holtmq.broker.publish.publish_properties import PublishProperties
from holtmq.broker.publish.routes import Route
from holtmq.broker.records.changes import Kind, ParameterPut, encode_change
from holtmq.broker.topology.shovels import AckMode, ShovelDefinition
from holtmq.journal.interface import JournalFailed
from holtmq.shovel.link import Content, Link, LinkLost
from holtmq.shovel.progress import Progress
from holtmq.wire.primitives import CodecError
from holtmq.wire.properties import encode_header
from holtmq.wire.tables import FieldTable

_BACKLOG_HIGH: Final = 32 * 1_048_576  # bytes the journal may lag before the shovel waits
_ALARM_SECONDS: Final = 0.2  # between looks at an alarm
_ROUTES_MAX: Final = 4096
REFUSED: Final = "the destination refused a message"


class Verdict(NamedTuple):
    """What became of published messages: of number ``number``, or of all up to it."""

    number: int
    up_to: bool
    refusal: str  # empty: accepted


class Moved(NamedTuple):
    """A message to publish."""

    exchange: str
    routing_key: str
    properties: bytes
    body: bytes
    offset: int | None = None  # in the stream that it comes from


class Destination(Protocol):
    """Numbers the messages from 1, in the order of ``publish``."""

    blocked: str  # why the broker takes no messages; empty: it does

    def publish(self, message: Moved, redelivered: bool, mark: bytes | None) -> None:
        """Publish the next message."""
        ...

    def acked(self, mark: bytes | None) -> None:
        """The source was told that a message was accepted."""
        ...

    async def flush(self) -> None:
        """Send what was published; wait while the destination is behind."""
        ...

    async def verdicts(self) -> list[Verdict]:
        """Wait for the next verdicts."""
        ...

    async def close(self) -> None:
        """Release the connection."""
        ...


class AmqpDestination:
    """Another broker."""

    def __init__(self, link: Link, definition: ShovelDefinition) -> None:
        self._link = link
        self._definition = definition
        self._confirms = definition.ack_mode is AckMode.ON_CONFIRM
        self.blocked = ""  # why the broker takes no messages
        self._number = 0
        self._sent: dict[int, tuple[str, str, bytes, int]] = {}  # not confirmed yet; size of the body last
        self._unroutable: dict[int, str] = {}  # returned, not confirmed yet

    async def prepare(self) -> None:
        """Declare the queue if it is missing; turn confirms on."""
        definition, link = self._definition, self._link
        name = definition.dest_queue
        if name is not None:
            await ensure_queue(link, name, definition.dest_queue_args, definition.dest_predeclared)
        if definition.dest_exchange:
            await link.call(ExchangeDeclare(definition.dest_exchange, passive=True), ExchangeDeclareOk)
        if self._confirms:
            await link.call(ConfirmSelect(), ConfirmSelectOk)

    def publish(self, message: Moved, redelivered: bool, mark: bytes | None) -> None:
        """Publish the next message."""
        self._number += 1
        exchange, key, properties, body, _ = message
        self._link.publish(exchange, key, properties, body)
        if self._confirms:
            self._sent[self._number] = exchange, key, properties, len(body)

    def acked(self, mark: bytes | None) -> None:
        """Nothing is kept."""

    async def flush(self) -> None:
        """Wait until the socket has room."""
        await self._link.drain()

    async def verdicts(self) -> list[Verdict]:
        """The next confirms and returns."""
        found: list[Verdict] = []
        while not found:
            for event in await self._link.read():
                match event:
                    case Content(BasicReturn()):
                        found += self._came_back(event)
                    case BasicAck(number, up_to):
                        found += self._confirmed(number, up_to, "")
                    case BasicNack(number, up_to):
                        found += self._confirmed(number, up_to, REFUSED)
                    case ConnectionBlocked(reason):
                        self.blocked = reason
                    case ConnectionUnblocked():
                        self.blocked = ""
        return found

    def _came_back(self, returned: Content) -> list[Verdict]:
        """A returned message has no number: find the first that is equal. Its confirm follows."""
        method = returned.method
        reason = unroutable(method.exchange, method.routing_key)
        if not self._confirms:
            return [Verdict(self._number, False, reason)]
        wanted = method.exchange, method.routing_key, returned.properties, len(returned.body)
        for number, sent in self._sent.items():
            if sent == wanted and number not in self._unroutable:
                self._unroutable[number] = reason
                break
        return []

    def _confirmed(self, number: int, up_to: bool, refusal: str) -> list[Verdict]:
        found: list[Verdict] = []
        numbers = list(takewhile(lambda one: one <= number, self._sent)) if up_to else [number]
        for one in numbers:
            self._sent.pop(one, None)
            if self._unroutable and (reason := self._unroutable.pop(one, "")):
                found.append(Verdict(one, False, reason))
        return [*found, Verdict(number, up_to, refusal)]

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()


@dataclass(frozen=True, slots=True)
class Inside:
    """This broker, as a shovel sees it."""

    broker: Broker
    alarm: Callable[[], str]  # why publishers are blocked; empty: they are not
    refresh_clock: Callable[[], None]
    wake: Callable[[], None]


class LocalDestination:
    """A vhost of this broker. Messages are confirmed when they are durable, as over AMQP."""

    def __init__(self, inside: Inside, vhost: str, definition: ShovelDefinition, progress: Progress) -> None:
        self._inside = inside
        self._progress = progress
        self._collected: list[tuple[Moved, bool, bytes | None]] = []  # until ``flush``
        self._broker = inside.broker
        self._vhost = inside.broker.vhost(vhost)
        self._definition = definition
        self._number = 0
        self._verdicts: asyncio.Queue[Verdict | JournalFailed] = asyncio.Queue()
        self._routes: dict[tuple[str, str], Route] = {}
        self._version = -1
        self.blocked = ""

    def prepare(self) -> None:
        """Declare the queue if it is missing."""
        definition, name = self._definition, self._definition.dest_queue
        if name is not None and name not in self._vhost.queues:
            if definition.dest_predeclared:
                raise LinkLost(f"no queue '{name}' in vhost '{self._vhost.name}'")
            self._broker.declare_queue(
                self._vhost, name, durable=True, arguments=definition.dest_queue_args, any_name=True
            )
        if definition.dest_exchange:
            self._vhost.exchange(definition.dest_exchange)
        if name is not None and self._progress.from_stream:
            self._progress.aim_at(self._vhost.name, name, self._vhost.queues[name].id)

    def publish(self, message: Moved, redelivered: bool, mark: bytes | None) -> None:
        """Publish the next message."""
        self._collected.append((message, redelivered, mark))

    def acked(self, mark: bytes | None) -> None:
        """The source was told that a message was accepted."""
        self._progress.acked(mark, asyncio.get_running_loop().time())

    def _write(self) -> None:
        """Publish what was collected, and what was moved so far, as one record."""
        broker, flow = self._broker, self._broker.flow
        if broker.vhosts.get(self._vhost.name) is not self._vhost:
            raise LinkLost(f"vhost '{self._vhost.name}' is deleted")
        collected, self._collected = self._collected, []
        self._inside.refresh_clock()
        flow.begin()
        try:
            self._publish_all(collected)
        except BaseException:
            flow.abort()
            raise
        flow.commit()

    def _publish_all(self, collected: list[tuple[Moved, bool, bytes | None]]) -> None:
        moved: list[tuple[bool, bytes | None, int | None]] = []
        for message, redelivered, mark in collected:
            self._number += 1
            refusal = self._place(message)
            if refusal:
                self._verdicts.put_nowait(Verdict(self._number, False, refusal))
                if message.offset is not None:
                    break  # a stream keeps its order: what follows must not overtake
            else:
                moved.append((redelivered, mark, message.offset))
        # Only now: an error above undoes the whole batch, and its messages must not be taken for moved.
        for redelivered, mark, offset in moved:
            self._progress.moved(redelivered, mark, offset)
        if moved and self._definition.ack_mode is AckMode.ON_CONFIRM:
            stored = self._progress.take(asyncio.get_running_loop().time())
            self._broker.parameters.put(stored)
            change = ParameterPut(stored.vhost, stored.component, stored.name, stored.value)
            self._broker.flow.add_record(Kind.CHANGE, encode_change(change))

    def _place(self, message: Moved) -> str:
        """Publish one message; return why it was refused."""
        flow = self._broker.flow
        header = encode_header(len(message.body), message.properties)
        try:
            properties = flow.publish_properties.of(header)
            if self._definition.keep_address and properties.extra_keys:
                # CC was honoured when the message was first published: each copy is moved by itself.
                properties = PublishProperties(header)
                properties.extra_keys = []
            outcome = flow.publishing.publish(self._route(message), properties, header, message.body)
        except (BrokerError, CodecError) as error:
            return f"{REFUSED}: {error}"
        if outcome is PublishOutcome.UNROUTED:
            return unroutable(message.exchange, message.routing_key)
        return f"{REFUSED}: the queue is full" if outcome is PublishOutcome.REFUSED else ""

    def _route(self, message: Moved) -> Route:
        vhost = self._vhost
        if self._version != vhost.version or len(self._routes) > _ROUTES_MAX:
            self._routes.clear()
            self._version = vhost.version
        at = message.exchange, message.routing_key
        route = self._routes.get(at)
        if route is None:
            address, name = make_address(*at), self._definition.dest_queue
            target = ("", name) if self._definition.keep_address and name is not None else at
            route = self._routes[at] = self._broker.resolve(vhost, *target, address)
        return route

    async def flush(self) -> None:
        """Hand the messages to the queues; wait while publishers are blocked or the journal lags."""
        inside, journal = self._inside, self._broker.journal
        if self._collected:
            self._write()
            number = self._number
            inside.wake()

            def told(failed: JournalFailed | None) -> None:
                self._verdicts.put_nowait(failed or Verdict(number, True, ""))

            journal.on_durable(told)
        while (alarm := inside.alarm()) or journal.backlog > _BACKLOG_HIGH:
            self.blocked = alarm
            await asyncio.sleep(_ALARM_SECONDS)
        self.blocked = ""

    async def verdicts(self) -> list[Verdict]:
        """What became durable or was refused."""
        found = await self._verdicts.get()
        if isinstance(found, JournalFailed):
            raise LinkLost(f"the journal failed: {found}")
        return [found]

    async def close(self) -> None:
        """Nothing is held open."""


def unroutable(exchange: str, routing_key: str) -> str:
    """The refusal of a message that reaches no queue."""
    return f"no queue for a message to exchange '{exchange}' with routing key '{routing_key}'"


async def ensure_queue(link: Link, name: str, arguments: dict[str, object], predeclared: bool) -> int:
    """Declare a durable queue unless there is one; return how many messages it has."""
    passive = QueueDeclare(name, passive=True)
    if predeclared:
        return (await link.call(passive, QueueDeclareOk)).message_count
    found = await link.ask(passive, QueueDeclareOk)
    if found is None:
        declare = QueueDeclare(name, durable=True, arguments=cast(FieldTable, arguments))
        found = await link.call(declare, QueueDeclareOk)
    return found.message_count

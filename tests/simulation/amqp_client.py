"""A simulated client: the other side of a sans-IO AMQP connection, without a socket.

Owns: what the client has sent, holds and waits for. Must not touch: the broker's insides; it sees bytes only.
"""

from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass
from random import Random
from typing import Final

from holtmq.amqp.codec import decode_method, encode_method
from holtmq.amqp.connection import Connection
from holtmq.amqp.errors import AmqpError
from holtmq.amqp.frames import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, FrameReader, encode_frame
from holtmq.amqp.handshake import PROTOCOL_HEADER, Settings
from holtmq.amqp.methods import (
    BasicAck,
    BasicDeliver,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    ChannelClose,
    ChannelOpen,
    ConnectionClose,
    ConnectionOpen,
    ConnectionStartOk,
    ConnectionTuneOk,
    Method,
    TxCommitOk,
)
from holtmq.broker.broker import Broker
from holtmq.verify.record import name_of
from holtmq.wire.properties import Properties, body_size, encode_header, encode_properties
from holtmq.wire.tables import FieldTable
from simulation.promises import BrokenRule

_SETTINGS: Final = Settings("HoltMQ", "simulated", heartbeat=0)
_CHANNEL: Final = 1
_PROPERTIES: Final = {
    persistent: encode_properties(Properties(delivery_mode=2 if persistent else 1))
    for persistent in (True, False)
}


@dataclass(frozen=True, slots=True)
class Held:
    """A delivery that is not settled."""

    tag: int
    name: str
    routing_key: str
    fetched: bool  # by basic.get: not a consumer's


class SimClient:
    """One connection with one channel. Meets the connection's ``Hooks``."""

    def __init__(
        self,
        broker: Broker,
        random: Random,
        number: int,
        on_confirm: Callable[[str], None],
        unordered: Container[str],
    ) -> None:
        self.number = number
        self._unordered = unordered  # queues whose order says nothing: messages come as they die, or are due
        self._random = random
        self._on_confirm = on_confirm
        self._frames = FrameReader()
        self._partial: tuple[BasicDeliver | BasicGetOk, int, list[bytes]] | None = None
        self._last_first_delivery: dict[str, int] = {}
        self._published = 0
        self.unconfirmed: deque[tuple[int, str]] = deque()
        self.held: list[Held] = []  # delivered and not settled, in order
        self.revoked: list[Held] = []  # taken back by a cancel; may still be acked
        self.commits_answered = 0
        self.refused = 0
        self.closed_by_broker = ""
        self.connection = Connection(broker, _SETTINGS, self, from_loopback=True)
        self.connection.receive(PROTOCOL_HEADER)
        self._send_on(0, ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"))
        self.connection.handshake.checked("guest")
        self._send_on(0, ConnectionTuneOk(1, 131_072, 0))
        self._send_on(0, ConnectionOpen("/"))
        self.send(ChannelOpen())

    @property
    def is_alive(self) -> bool:
        """Whether there is any point in saying more."""
        return self.connection.is_running and not self.closed_by_broker

    def send(self, method: Method) -> None:
        """One method on the channel."""
        self._send_on(_CHANNEL, method)

    def publish(
        self, queue: str, name: str, body: bytes, persistent: bool, exchange: str = "", delay_ms: int = 0
    ) -> None:
        """A message, in one piece or torn apart anywhere."""
        properties = _PROPERTIES[persistent]
        if delay_ms:
            headers: FieldTable = {"x-delay": delay_ms}
            properties = encode_properties(Properties(delivery_mode=2 if persistent else 1, headers=headers))
        self._published += 1
        self.unconfirmed.append((self._published, name))
        self._feed(
            encode_frame(FRAME_METHOD, _CHANNEL, encode_method(BasicPublish(exchange, queue)))
            + encode_frame(FRAME_HEADER, _CHANNEL, encode_header(len(body), properties))
            + encode_frame(FRAME_BODY, _CHANNEL, body)
        )

    def _send_on(self, channel: int, method: Method) -> None:
        self._feed(encode_frame(FRAME_METHOD, channel, encode_method(method)))

    def _feed(self, data: bytes) -> None:
        if self._random.random() < 0.1:
            cut = self._random.randrange(len(data))
            self.connection.receive(data[:cut])
            data = data[cut:]
        self.connection.receive(data)

    def read(self) -> None:
        """Take in whatever the broker has said."""
        for kind, _, payload in self._frames.feed(self.connection.outbox.take()):
            if kind == FRAME_METHOD:
                self._method(decode_method(payload))
            elif self._partial is not None:
                self._content(kind, payload)

    def _method(self, method: Method) -> None:
        match method:
            case BasicDeliver() | BasicGetOk():
                self._partial = method, -1, []
            case BasicAck(tag):
                for name in self._settled(tag):
                    self._on_confirm(name)
            case BasicNack(tag):
                self.refused += len(self._settled(tag))
            case TxCommitOk():
                self.commits_answered += 1
            case ConnectionClose(_, text) | ChannelClose(_, text):
                self.closed_by_broker = text
            case _:
                pass

    def _settled(self, upto: int) -> list[str]:
        names = []
        while self.unconfirmed and self.unconfirmed[0][0] <= upto:
            names.append(self.unconfirmed.popleft()[1])
        return names

    def _content(self, kind: int, payload: bytes) -> None:
        assert self._partial is not None
        method, missing, parts = self._partial
        if kind == FRAME_HEADER:
            missing = body_size(payload)
        else:
            parts.append(payload)
            missing -= len(payload)
        self._partial = (method, missing, parts) if missing else None
        if not missing:
            self._delivered(method, b"".join(parts))

    def _delivered(self, method: BasicDeliver | BasicGetOk, body: bytes) -> None:
        name = name_of(body)
        if name is None:
            raise BrokenRule(f"a damaged body was delivered: {body[:60]!r}")
        fetched = isinstance(method, BasicGetOk)
        self.held.append(Held(method.delivery_tag, name, method.routing_key, fetched))
        publisher, _, number = name.partition(">")[0].rpartition(".")
        source = f"{method.routing_key} {publisher}"
        if not method.redelivered and method.routing_key not in self._unordered:
            if int(number) <= self._last_first_delivery.get(source, 0):
                raise BrokenRule(f"{name} was delivered after a later message of the same publisher")
            self._last_first_delivery[source] = int(number)

    def has_output(self) -> None:
        """Nothing: ``read`` looks when it is told to."""

    def check_secret(self, secret: str) -> None:
        raise AssertionError("no client here has a token")

    def check_password(self, name: str, password: str) -> None:
        """Nothing: every login is accepted."""

    def certified_name(self) -> str | None:
        """No client has a certificate here."""
        return None

    def certified_user(self) -> str | None:
        """No client has a certificate here."""
        return None

    def opened(self) -> None:
        """Nothing to do."""

    def channel_failed(self, number: int, error: AmqpError) -> None:
        """The client will read why."""

    def failed(self, error: AmqpError) -> None:
        """The client will read why."""

    def ended(self) -> None:
        """Nothing to do."""

    def is_time_up(self) -> bool:
        """Never: time is the simulation's."""
        return False

    def unstall_soon(self) -> None:
        """Nothing to do."""

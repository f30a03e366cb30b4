"""A connection without a socket, in the hands of a test.

Owns: ``Peer`` (a connection and what it said), ``Client`` (that and a channel), a broker for them, the frames
of methods and publishes. Must not touch: sockets and clocks.
"""

from holtmq.amqp.codec import decode_method, encode_method
from holtmq.amqp.connection import Connection
from holtmq.amqp.errors import AmqpError
from holtmq.amqp.frames import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, FrameReader, encode_frame
from holtmq.amqp.handshake import Settings
from holtmq.amqp.methods import BasicPublish, ChannelOpen, Method
from holtmq.auth.permissions import FULL_ACCESS
from holtmq.auth.users import User
from holtmq.broker.broker import Broker
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal import MemoryJournal
from holtmq.journal.interface import Journal
from holtmq.testing.views import work_queue
from holtmq.wire.properties import Properties, encode_header, encode_properties

NOW_MS = 1_700_000_000_000


def new_broker(journal: Journal | None = None, partitioned: PartitionedService | None = None) -> Broker:
    """One vhost, and a guest who may do anything there."""
    broker = Broker(journal or MemoryJournal())
    streams = broker.attach(partitioned) if partitioned is not None else None
    broker.put_vhost("/")
    broker.access.put_user(User("guest", "unused"))
    broker.access.set_permissions("guest", "/", FULL_ACCESS)
    broker.flow.now_ms = NOW_MS
    if streams is not None:
        streams.follow()
    return broker


class Peer:
    """The guest is connected; implements the connection's ``Hooks``."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.failure: AmqpError | None = None
        self.time_is_up = False
        self.unstalls = 0  # that were asked for
        self._replies = FrameReader(0)
        self.connection = Connection(broker, Settings("HoltMQ", "0"), self, from_loopback=True)
        self.connection.opened(broker.vhost("/"), "guest", broker.users.access("guest", "/"))

    def told(self) -> list[Method]:
        """The methods that it has been sent since it was last asked."""
        answer = self.connection.outbox.take()
        return [decode_method(data) for kind, _, data in self._replies.feed(answer) if kind == FRAME_METHOD]

    def has_output(self) -> None: ...
    def check_secret(self, secret: str) -> None:
        raise AssertionError("no client here has a token")

    def check_password(self, name: str, password: str) -> None: ...
    def certified_name(self) -> str | None: ...
    def certified_user(self) -> str | None: ...
    def opened(self) -> None: ...
    def channel_failed(self, number: int, error: AmqpError) -> None:
        self.failure = error

    def failed(self, error: AmqpError) -> None:
        self.failure = error

    def ended(self) -> None: ...
    def is_time_up(self) -> bool:
        return self.time_is_up

    def unstall_soon(self) -> None:
        self.unstalls += 1


class Client(Peer):
    """Has channel 1 open, and hears at once what is said to it."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.call(ChannelOpen())

    def call(self, *methods: Method, channel: int = 1) -> list[Method]:
        return self.feed(b"".join(frame(method, channel) for method in methods))

    def feed(self, data: bytes, size: int = 1 << 20) -> list[Method]:
        """Bytes arrive, so many in a read; the methods that were answered."""
        out: list[Method] = []
        for at in range(0, len(data), size):
            self.connection.receive(data[at : at + size])
            self.broker.flow.turn()
            while self.connection.outbox.chunks:
                out += self.told()
                self.connection.wake_consumers()
                self.broker.flow.turn()
        return out

    def queue(self, name: str = "q") -> WorkQueue:
        return work_queue(self.broker, name)

    def bodies(self, name: str = "q") -> list[bytes]:
        """What waits in a queue, in the order in which it would leave."""
        return [m.body for run in self.queue(name).store.drain(self.broker.flow.pager) for m in run]


def frame(method: Method, channel: int = 1) -> bytes:
    return encode_frame(FRAME_METHOD, channel, encode_method(method))


def publish(
    body: bytes,
    key: str = "q",
    properties: Properties | None = None,
    *,
    exchange: str = "",
    channel: int = 1,
    mandatory: bool = False,
) -> bytes:
    """The frames of one publish; an empty body has none of its own."""
    header = encode_header(len(body), encode_properties(properties or Properties()))
    data = frame(BasicPublish(exchange, key, mandatory), channel)
    data += encode_frame(FRAME_HEADER, channel, header)
    return data + encode_frame(FRAME_BODY, channel, body) if body else data


def numbers(count: int, first: int = 0) -> list[bytes]:
    """Bodies that tell each other apart."""
    return [b"%03d" % number for number in range(first, first + count)]


def step(client: Client) -> list[Method]:
    """The next step of what goes in steps; all that was written is durable. What the client is told."""
    client.broker.flow.tick()
    client.broker.flow.turn()
    client.broker.journal.flush()
    return client.told()


def finish(client: Client) -> list[Method]:
    """All steps that are left."""
    told: list[Method] = []
    while client.broker.long_changes:
        told += step(client)
    return told

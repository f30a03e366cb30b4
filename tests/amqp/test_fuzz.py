"""Hostile and broken peers, by the thousand: whatever arrives, the broker lives and forgets it.

Frames and methods in any order on several channels, cut anywhere, damaged, and plain noise, fed into
the sans-IO connection over a broker with a journal in memory.
"""

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holtmq.amqp.codec import decode_method, encode_method
from holtmq.amqp.connection import Connection
from holtmq.amqp.errors import AmqpError
from holtmq.amqp.frames import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, FrameReader, encode_frame
from holtmq.amqp.handshake import PROTOCOL_HEADER, Settings
from holtmq.amqp.methods import (
    METHODS,
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicDeliver,
    BasicGet,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicRecover,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelOpen,
    ConfirmSelect,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionStartOk,
    ConnectionTuneOk,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    QueueUnbind,
    TxCommit,
    TxRollback,
    TxSelect,
)
from holtmq.amqp.phase import Phase
from holtmq.auth.permissions import FULL_ACCESS
from holtmq.auth.users import User
from holtmq.broker.broker import Broker
from holtmq.broker.message import Message
from holtmq.broker.work.spilling_fifo import SpillingFifo
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal import MemoryJournal
from holtmq.wire.properties import Properties, encode_properties
from holtmq.wire.tables import FieldValue

QUEUES = ("q1", "q2", "q3")
HANDSHAKE = PROTOCOL_HEADER + b"".join(
    encode_frame(FRAME_METHOD, 0, encode_method(method))
    for method in (
        ConnectionStartOk(
            {"capabilities": {"consumer_cancel_notify": True, "connection.blocked": True}},
            "PLAIN",
            b"\0guest\0guest",
        ),
        ConnectionTuneOk(16, 4096, 0),
        ConnectionOpen("/"),
    )
)


@dataclass(frozen=True)
class Settle:
    """Settle one of the deliveries a channel has; which, is known when it happens."""

    channel: int
    how: str
    which: int
    multiple: bool
    requeue: bool


class World:
    """A broker and its one loop, in the test's hands."""

    def __init__(self) -> None:
        self.deferred: deque[Callable[[], None]] = deque()
        self.broker = Broker(MemoryJournal(self.deferred.append))
        self.broker.put_vhost("/")
        self.broker.access.put_user(User("guest", "unused"))
        self.broker.access.set_permissions("guest", "/", FULL_ACCESS)
        self.broker.flow.now_ms = 1_700_000_000_000
        self.settle()

    def connect(self, reopens: bool = True) -> "Peer":
        return Peer(self, reopens)

    def settle(self) -> None:
        """Run turns and journal callbacks until nothing is left to do."""
        for _ in range(1_000):
            self.broker.flow.turn()
            if not self.deferred and not self.broker.flow.dirty:
                return
            while self.deferred:
                self.deferred.popleft()()
        raise AssertionError("the broker never comes to rest")

    def pass_time(self, milliseconds: int) -> None:
        self.broker.flow.now_ms += milliseconds
        self.broker.flow.tick()
        self.settle()

    def assert_consistent(self) -> None:
        """Every count agrees with what it counts."""
        leased: dict[int, int] = {}
        for session in self.broker.sessions:
            for lease in session.by_number.values():
                if lease.holder is not None:
                    leased[lease.queue.id] = leased.get(lease.queue.id, 0) + 1
        for queue in self.broker.work_queues():
            assert queue.unacked >= leased.get(queue.id, 0)  # more, while a transaction has ended some
            assert queue.bytes == sum(len(message.body) for message in waiting(queue))
            assert len(queue) == len(waiting(queue))

    def assert_unowned(self) -> None:
        """Nothing of any connection is left."""
        assert not self.broker.sessions
        for queue in self.broker.work_queues():
            assert queue.owner is None
            assert not queue.consumers
            assert queue.active is None
            assert not queue.exclusive_consumer
            assert queue.unacked == 0
            assert queue.bytes >= 0
            assert len(queue) >= 0
            assert not queue.outcasts


def waiting(queue: WorkQueue) -> list[Message]:
    """What waits in a queue; few enough here that nothing is paged out."""
    fifos = [queue.store] if isinstance(queue.store, SpillingFifo) else list(queue.store.fifos.values())
    return [message for fifo in fifos for message in fifo.ready]


class Peer:
    """The owner of one connection's socket: implements the connection's ``Hooks``."""

    def __init__(self, world: World, reopens: bool = True) -> None:
        self.world = world
        self.reopens = reopens
        self.asked = 0  # whether time is up
        self.delivered: dict[int, list[int]] = {}
        self.connection = Connection(world.broker, Settings("HoltMQ", "0"), self, from_loopback=True)
        self.out = FrameReader(0)
        self.frames: list[tuple[int, int, bytes]] = []

    def feed(self, data: bytes) -> None:
        """Bytes arrive; the turn ends; the outbox is flushed."""
        self.connection.receive(data)
        self.flush()

    def flush(self) -> None:
        self.world.settle()
        for _ in range(10):
            data = self.connection.outbox.take()
            if not data:
                return
            if data.startswith(b"AMQP"):
                data = data[8:]
            # What we send must itself be well-formed, whatever the peer did.
            frames = self.out.feed(data)
            self.frames += frames
            self._note(frames)
            self.connection.wake_consumers()
            self.world.settle()

    def _note(self, frames: list[tuple[int, int, bytes]]) -> None:
        """Remember what can be settled; go on after a channel error as a client would."""
        for kind, channel, payload in frames:
            if kind != FRAME_METHOD:
                continue
            method = decode_method(payload)
            if isinstance(method, BasicDeliver | BasicGetOk):
                self.delivered.setdefault(channel, []).append(method.delivery_tag)
            elif isinstance(method, ChannelClose):
                self.delivered.pop(channel, None)
                if self.reopens:
                    self.connection.receive(
                        method_frame(channel, ChannelCloseOk()) + method_frame(channel, ChannelOpen())
                    )

    def step(self, step: "bytes | Settle") -> bytes:
        """The bytes of one step, which may depend on what has been delivered."""
        if isinstance(step, bytes):
            return step
        waiting = self.delivered.get(step.channel, [])
        if not waiting:
            return b""
        tag = waiting[step.which % len(waiting)]
        done = [other for other in waiting if other <= tag] if step.multiple else [tag]
        self.delivered[step.channel] = [other for other in waiting if other not in done]
        match step.how:
            case "ack":
                return method_frame(step.channel, BasicAck(tag, step.multiple))
            case "nack":
                return method_frame(step.channel, BasicNack(tag, step.multiple, step.requeue))
            case _:
                self.delivered[step.channel] = [other for other in waiting if other != tag]
                return method_frame(step.channel, BasicReject(tag, step.requeue))

    def methods(self) -> list[Method]:
        return [decode_method(payload) for kind, _, payload in self.frames if kind == FRAME_METHOD]

    def end(self) -> None:
        self.connection.end("the socket is gone")
        self.world.settle()

    # Hooks
    def has_output(self) -> None: ...

    def check_secret(self, secret: str) -> None:
        raise AssertionError("no client here has a token")

    def check_password(self, name: str, password: str) -> None:
        right = (name, password) == ("guest", "guest")
        self.world.deferred.append(lambda: self._checked("guest" if right else None))

    def _checked(self, user: str | None) -> None:
        if self.connection.phase is Phase.HANDSHAKE:
            self.connection.handshake.checked(user)

    def certified_name(self) -> str | None:
        return None

    def certified_user(self) -> str | None:
        return None

    def opened(self) -> None: ...

    def channel_failed(self, number: int, error: AmqpError) -> None: ...

    def failed(self, error: AmqpError) -> None: ...

    def ended(self) -> None: ...

    def is_time_up(self) -> bool:
        self.asked += 1
        return self.asked % 3 == 0

    def unstall_soon(self) -> None:
        self.world.deferred.append(self.connection.unstall)


names = st.sampled_from((*QUEUES, "", "amq.rabbitmq.reply-to", "amq.x", "nope", "\udcff"))
exchange_names = st.sampled_from(
    ("x1", "x2", "", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "nope", "\udcff")
)
keys = st.sampled_from((*QUEUES, "k", "a.b", "#", "1", "", "\udcff"))
tags = st.sampled_from(("t1", "t2", "t3", ""))
numbers = st.integers(0, 12) | st.sampled_from((99, 2**63))
bits = st.booleans()
SETUPS: tuple[dict[str, FieldValue], ...] = (
    {},
    {"x-max-priority": 5},
    {"x-message-ttl": 10, "x-dead-letter-exchange": "x1"},
    {"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q2"},
    {"x-max-length": 2, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "x1"},
    {"x-dead-letter-exchange": "x1"},
    {"x-single-active-consumer": True},
    {"x-delivery-limit": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q3"},
    {"x-message-ttl": 10, "x-dead-letter-exchange": "x1", "x-dead-letter-routing-key": "k" * 256},
    {"x-retry-delay": 5},
    {"x-delayed-retry-type": "all", "x-delayed-retry-min": 5, "x-delayed-retry-max": 20},
    {"x-consumer-timeout": 60},
    {"x-cancel-requeue": False},
)
# What makes sense for each, and now and then something that does not.
sensible: dict[str, tuple[FieldValue, ...]] = {
    "x-message-ttl": (0, 10, 50),
    "x-expires": (20, 1_000),
    "x-max-length": (0, 1, 3),
    "x-max-length-bytes": (0, 150),
    "x-overflow": ("reject-publish", "reject-publish-dlx", "drop-head"),
    "x-dead-letter-exchange": ("", "x1", "amq.fanout", "nope"),
    "x-dead-letter-routing-key": ("q1", "q2", "k" * 256),
    "x-max-priority": (1, 5),
    "x-single-active-consumer": (True, False),
    "x-delivery-limit": (0, 1),
    "x-queue-type": ("quorum", "classic"),
    "x-retry-delay": (5,),
    "x-delayed-retry-type": ("all", "failed", "returned"),
    "x-delayed-retry-min": (5,),
    "x-consumer-timeout": (60,),
    "x-cancel-requeue": (True, False),
    "x-priority": (-1, 5),
    "alternate-exchange": ("x2", "amq.fanout"),
    "x-delayed-type": ("direct", "fanout"),
    "x-match": ("any", "all"),
}
arguments = st.lists(
    st.sampled_from(sorted(sensible)).flatmap(
        lambda key: st.tuples(
            st.just(key),
            st.sampled_from(sensible[key])
            | st.sampled_from(sensible[key])
            | st.sampled_from((-1, "", None, [])),
        )
    ),
    max_size=3,
).map(dict)
kinds = st.sampled_from(
    ("direct", "fanout", "topic", "headers", "x-delayed-message", "x-consistent-hash", "no")
)
durable_or_not = st.builds(QueueDeclare, st.sampled_from(QUEUES), st.just(False), bits)
methods = st.one_of(
    durable_or_not,
    st.builds(QueueDeclare, names, st.just(False), bits, bits, bits),
    st.builds(QueueDeclare, names, bits, bits, bits, bits, bits, arguments),
    st.builds(QueueBind, st.sampled_from(QUEUES), exchange_names, keys, bits, arguments),
    st.builds(QueueUnbind, names, exchange_names, keys, arguments),
    st.builds(QueueDelete, names, bits, bits, bits),
    st.builds(QueuePurge, names, bits),
    st.builds(ExchangeDeclare, exchange_names, kinds, bits, bits, bits, bits, bits, arguments),
    st.builds(ExchangeDelete, exchange_names, bits, bits),
    st.builds(ExchangeBind, exchange_names, exchange_names, keys, bits, arguments),
    st.builds(ExchangeUnbind, exchange_names, exchange_names, keys, bits, arguments),
    st.builds(BasicConsume, names, st.just(""), bits, bits, bits, bits, arguments),
    st.builds(BasicConsume, st.sampled_from(QUEUES), st.just("")),
    st.builds(BasicConsume, st.just("amq.rabbitmq.reply-to"), st.just(""), st.just(False), st.just(True)),
    st.builds(BasicCancel, tags, bits),
    st.builds(BasicGet, st.sampled_from(QUEUES), bits),
    st.builds(BasicGet, st.sampled_from(QUEUES), bits),
    st.builds(BasicQos, st.just(0), st.integers(0, 5), bits),
    st.just(BasicRecover(True)),
    st.builds(ChannelFlow, bits),
    st.just(ConfirmSelect()),
    st.just(TxSelect()),
    st.sampled_from((TxCommit(), TxRollback())),
)
# These end the channel or the connection more often than not.
grave = st.one_of(
    st.builds(BasicAck, numbers, bits),
    st.builds(BasicNack, numbers, bits, bits),
    st.builds(BasicReject, numbers, bits),
    st.builds(BasicConsume, st.sampled_from(QUEUES), tags),
    st.builds(BasicQos, st.just(1)),
    st.just(BasicRecover(False)),
    st.sampled_from((ChannelOpen(), ChannelClose(200, ""), ChannelCloseOk())),
)
channels = st.sampled_from((1, 1, 1, 2, 2, 3))
properties = st.builds(
    Properties,
    headers=st.none()
    | st.dictionaries(
        st.sampled_from(("CC", "BCC", "x-delay", "x-death", "x")),
        st.sampled_from((1, "q1", ["q1", "q2"], [1], [{"queue": "q1", "reason": "rejected"}], True)),
        max_size=2,
    ),
    delivery_mode=st.sampled_from((None, 1, 2)),
    priority=st.none() | st.integers(0, 255),
    reply_to=st.sampled_from((None, "amq.rabbitmq.reply-to")),
    expiration=st.sampled_from((None, None, "0", "10", "x")),
    user_id=st.sampled_from((None, None, "guest", "bob")),
)


def method_frame(channel: int, method: Method) -> bytes:
    return encode_frame(FRAME_METHOD, channel, encode_method(method))


def message(channel: int, method: BasicPublish, body: bytes, properties: Properties) -> bytes:
    """A publish with its content, the body in as many frames as it needs."""
    header = struct.pack(">HHQ", 60, 0, len(body)) + encode_properties(properties)
    return b"".join(
        (
            method_frame(channel, method),
            encode_frame(FRAME_HEADER, channel, header),
            *(encode_frame(FRAME_BODY, channel, body[at : at + 4_000]) for at in range(0, len(body), 4_000)),
        )
    )


publishes = st.builds(
    message,
    channels,
    st.builds(BasicPublish, st.just(""), st.sampled_from(QUEUES), bits)
    | st.builds(BasicPublish, exchange_names, keys, bits),
    st.sampled_from((b"", b"x", b"y" * 100, b"z" * 5_000)),
    st.just(Properties()) | properties,
)
settlements = st.builds(
    Settle, channels, st.sampled_from(("ack", "nack", "reject")), st.integers(0, 5), bits, bits
)
good = st.one_of(
    st.builds(method_frame, channels, methods),
    publishes,
    publishes,
    st.just(b"\x08\0\0\0\0\0\0\xce"),  # a heartbeat
)
steps = st.one_of(good, good, settlements)
# What a test begins with: three queues that do something, and an exchange that leads to all of them.
setups = st.tuples(*[st.tuples(bits, st.sampled_from(SETUPS)) for _ in QUEUES]).map(
    lambda chosen: b"".join(
        (
            *(
                method_frame(1, QueueDeclare(name, False, durable, arguments=table))
                for name, (durable, table) in zip(QUEUES, chosen, strict=True)
            ),
            method_frame(1, ExchangeDeclare("x1", "fanout")),
            *(method_frame(1, QueueBind(name, "x1", "")) for name in QUEUES),
            method_frame(1, BasicConsume("q1", "t1")),
            method_frame(2, BasicConsume("q2", "t2")),
            *(message(3, BasicPublish("x1", ""), b"x", Properties(delivery_mode=2)) for _ in range(3)),
        )
    )
)
bad = st.one_of(
    st.builds(method_frame, channels, grave),
    st.builds(method_frame, channels, grave),
    st.just(method_frame(1, BasicPublish("", "q1", immediate=True))),
    st.builds(encode_frame, st.sampled_from((1, 2, 3, 8, 5)), st.integers(0, 3), st.binary(max_size=40)),
    st.builds(
        lambda kind, channel: encode_frame(
            FRAME_METHOD, channel, struct.pack(">HH", kind.class_id, kind.method_id) + b"\0" * 12
        ),
        st.sampled_from(METHODS),
        st.integers(0, 3),
    ),
    st.builds(method_frame, st.just(0), methods),
    st.just(method_frame(0, ConnectionClose(200, ""))),
    st.just(method_frame(0, ConnectionCloseOk())),
    st.binary(max_size=60),
    st.builds(lambda frame, at: frame[: at % (len(frame) + 1)], good, st.integers(0, 500)),
    st.builds(
        lambda frame, at, octet: frame[: at % len(frame)] + bytes((octet,)) + frame[at % len(frame) + 1 :],
        good,
        st.integers(0, 500),
        st.integers(0, 255),
    ),
)
OPENED = HANDSHAKE + b"".join(method_frame(number, ChannelOpen()) for number in (1, 2, 3))


def serves(world: World) -> None:
    """A newcomer can declare, publish with confirms, consume and ack."""
    peer = world.connect()
    peer.feed(OPENED)
    for method in (
        QueueDeclare("newcomer", durable=True),
        ConfirmSelect(),
        BasicConsume("newcomer", "t"),
    ):
        peer.feed(method_frame(1, method))
    peer.feed(message(1, BasicPublish("", "newcomer"), b"hi", Properties(delivery_mode=2)))
    got = peer.methods()
    assert any(isinstance(method, BasicDeliver) for method in got), got
    assert BasicAck(1) in got
    assert (FRAME_BODY, 1, b"hi") in peer.frames
    peer.feed(method_frame(1, BasicAck(1)) + method_frame(1, QueueDelete("newcomer")))
    assert not peer.connection.closed_because
    peer.end()


Steps = list[bytes | Settle]


def run(setup: bytes, first: Steps, second: Steps, bytewise: bool = False) -> None:
    """Two connections that interleave; then both are gone."""
    world = World()
    peers = [world.connect(), world.connect()]
    for peer in peers:
        peer.feed(OPENED)
    peers[0].feed(setup)
    scripts = [deque(first), deque(second)]
    while any(scripts):
        for peer, script in zip(peers, scripts, strict=True):
            if script:
                data = peer.step(script.popleft())
                if bytewise:
                    for at in range(len(data)):
                        peer.feed(data[at : at + 1])
                else:
                    peer.feed(data)
                world.assert_consistent()
        world.pass_time(7)
    for peer in peers:
        peer.end()
        assert peer.connection.phase is Phase.CLOSED
        assert not peer.connection.channels
    world.assert_unowned()
    world.pass_time(100_000)
    world.assert_unowned()
    serves(world)


@given(setups, st.lists(steps, min_size=10, max_size=40), st.lists(steps, max_size=20))
@settings(max_examples=300)
def test_any_order_of_methods_leaves_a_working_broker(setup: bytes, first: Steps, second: Steps) -> None:
    run(setup, first, second)


@given(setups, st.lists(steps | bad, min_size=5, max_size=25), st.lists(steps, max_size=15))
@settings(max_examples=300)
def test_damage_anywhere_leaves_a_working_broker(setup: bytes, first: Steps, second: Steps) -> None:
    run(setup, first, second)


@given(setups, st.lists(good | bad, max_size=12))
@settings(max_examples=60)
def test_damage_byte_by_byte_leaves_a_working_broker(setup: bytes, pieces: list[bytes]) -> None:
    run(setup, [piece[:300] for piece in pieces], [], bytewise=True)


@given(st.lists(st.binary(max_size=300), max_size=8))
@example([b"AMQP"])
@example([b"AMQP\0\0\x09\x01\x01\0\0\xff\xff\xff\xff"])
def test_noise_instead_of_a_handshake_leaves_a_working_broker(pieces: list[bytes]) -> None:
    world = World()
    peer = world.connect()
    for piece in pieces:
        peer.feed(piece)
    peer.end()

    world.assert_unowned()
    serves(world)


@given(st.integers(0, len(HANDSHAKE)), st.binary(max_size=100))
@settings(max_examples=150)
def test_a_handshake_that_breaks_off_leaves_a_working_broker(cut: int, noise: bytes) -> None:
    world = World()
    peer = world.connect()
    peer.feed(HANDSHAKE[:cut] + noise)
    peer.feed(noise)
    peer.end()

    world.assert_unowned()
    serves(world)


@given(setups, st.lists(good, max_size=15), st.data())
@settings(max_examples=100)
def test_how_the_bytes_were_cut_makes_no_difference(
    setup: bytes, pieces: list[bytes], data: st.DataObject
) -> None:
    """The same stream in other portions gets the same answers, frame by frame and channel by channel."""
    stream = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    portions = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    # Neither goes on after an error: how much was discarded until then does depend on the cuts.
    whole, cut = World().connect(reopens=False), World().connect(reopens=False)
    for peer, parts in ((whole, [stream]), (cut, portions)):
        peer.feed(OPENED + setup)
        for part in parts:
            peer.feed(part)

    assert answers(whole) == answers(cut)


def answers(peer: Peer) -> dict[int, list[str]]:
    """What each channel was told, but for names the broker made up and what batching may change."""
    told: dict[int, list[str]] = {}
    for kind, channel, payload in peer.frames:
        if kind != FRAME_METHOD:
            continue
        method = decode_method(payload)
        # Confirms are merged and deliveries are shared out per read.
        if method.name not in ("basic.ack", "basic.nack", "basic.deliver", "basic.get-ok", "basic.return"):
            told.setdefault(channel, []).append(method.name)
    return told


@pytest.mark.parametrize("size", [0, 1, 13, 4_096])
def test_a_flood_of_channels_costs_nothing_lasting(size: int) -> None:
    world = World()
    peer = world.connect()
    peer.feed(HANDSHAKE)
    for number in range(1, size + 1):
        peer.feed(method_frame(number, ChannelOpen()))

    assert len(peer.connection.channels) <= 16
    peer.end()
    world.assert_unowned()
    serves(world)

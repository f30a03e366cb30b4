"""A broker with every kind of exchange and queue, driven by publishes that two paths may handle.

Owns: the topology, a pool of publishes, methods and changes from outside, and ``play``, which returns
everything that can be seen afterwards. Must not touch: sockets, clocks, the comparison itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Final

import pytest
from amqp_support import NOW_MS, Client, frame, new_broker

from holtmq.amqp import publish_caches
from holtmq.amqp.connection import Connection
from holtmq.amqp.frames import FRAME_BODY, FRAME_HEADER, encode_frame
from holtmq.amqp.handshake import Settings
from holtmq.amqp.methods import (
    BasicConsume,
    BasicPublish,
    ChannelClose,
    ChannelOpen,
    ConfirmSelect,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
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
from holtmq.amqp.publish_run import PublishRun
from holtmq.auth.permissions import FULL_ACCESS, Permissions
from holtmq.auth.topic_permissions import TopicPermission
from holtmq.broker.broker import Broker
from holtmq.broker.errors import BrokerError
from holtmq.broker.message import Message
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.publish.publish_properties import PublishProperties, PublishPropertiesCache
from holtmq.broker.topology.long_changes import LongChanges
from holtmq.journal import MemoryJournal
from holtmq.journal.interface import JournalFailed
from holtmq.testing.views import work_queue
from holtmq.wire.properties import Properties, body_size, encode_header, encode_properties

_DURABLE: Final[dict[str, dict[str, object]]] = {
    "durable": {},
    "quorum": {"x-queue-type": "quorum"},
    "stream": {"x-queue-type": "stream"},
    "stream2": {"x-queue-type": "stream"},
}
_TRANSIENT: Final[dict[str, dict[str, object]]] = {
    "plain": {},
    "priority": {"x-max-priority": 3},
    "limited": {"x-max-length": 4, "x-overflow": "reject-publish"},
    "short": {"x-max-length": 3},
    "expiring": {"x-message-ttl": 5_000, "x-dead-letter-exchange": "fan"},
}
QUEUES: Final = (*_DURABLE, *_TRANSIENT)
_EXCHANGES: Final[dict[str, tuple[str, dict[str, object]]]] = {
    "direct": ("direct", {}),
    "topic": ("topic", {}),
    "fan": ("fanout", {}),
    "heads": ("headers", {}),
    "hash": ("x-consistent-hash", {}),
    "delayed": ("x-delayed-message", {"x-delayed-type": "topic"}),
    "behind": ("direct", {"alternate-exchange": "fan"}),
    "outer": ("topic", {}),
    "streams": ("topic", {}),
    "empty": ("topic", {}),
    "recent": ("x-recent-history", {}),
}
_BINDINGS: Final = (
    QueueBind("plain", "direct", "k"),
    QueueBind("durable", "direct", "k"),
    QueueBind("priority", "direct", "a.b"),
    QueueBind("plain", "topic", "a.*"),
    QueueBind("durable", "topic", "#"),
    QueueBind("priority", "topic", "a.#"),
    QueueBind("quorum", "topic", "a.b"),
    QueueBind("stream", "topic", "s.#"),
    QueueBind("limited", "topic", "k"),
    QueueBind("expiring", "topic", "*"),
    QueueBind("plain", "fan", ""),
    QueueBind("durable", "fan", ""),
    QueueBind("plain", "heads", "", arguments={"x-match": "all", "a": 1}),
    QueueBind("durable", "hash", "1"),
    QueueBind("plain", "hash", "2"),
    QueueBind("plain", "delayed", "#"),
    QueueBind("limited", "behind", "k"),
    QueueBind("expiring", "outer", "a.*"),
    QueueBind("stream", "streams", "#"),
    QueueBind("stream2", "streams", "a.*"),
    ExchangeBind("topic", "outer", "a.#"),
    QueueBind("plain", "recent", ""),
)


@dataclass(frozen=True)
class Publish:
    """One publish, repeated."""

    channel: int
    exchange: str
    key: str
    mandatory: bool
    properties: str
    body: bytes
    parts: int
    times: int

    @property
    def data(self) -> bytes:
        header = encode_header(len(self.body), PROPERTIES[self.properties])
        data = frame(BasicPublish(self.exchange, self.key, self.mandatory), self.channel)
        data += encode_frame(FRAME_HEADER, self.channel, header)
        size = -(-len(self.body) // self.parts)
        for at in range(0, len(self.body), size or 1):
            data += encode_frame(FRAME_BODY, self.channel, self.body[at : at + size])
        return data * self.times


PROPERTIES: Final[dict[str, bytes]] = {
    name: encode_properties(one)
    for name, one in {
        "none": Properties(),
        "persistent": Properties(delivery_mode=2),
        "transient": Properties(delivery_mode=1, content_type="text/plain"),
        "id": Properties(delivery_mode=2, message_id="m", headers={"a": 1, "b": "x"}),
        "other id": Properties(delivery_mode=2, message_id="n", headers={"a": 2, "b": "x"}),
        "priority": Properties(priority=2),
        "high": Properties(priority=255, delivery_mode=2),
        "CC": Properties(headers={"CC": ["plain", "a.b"]}),
        "BCC": Properties(headers={"BCC": ["durable"], "a": 1}, delivery_mode=2),
        "bad CC": Properties(headers={"CC": "plain"}),
        "CC in a value": Properties(headers={"a": "CC"}),
        "reply": Properties(reply_to="amq.rabbitmq.reply-to", correlation_id="c"),
        "plain reply": Properties(reply_to="somewhere", correlation_id="c"),
        "expires": Properties(expiration="1000"),
        "expired": Properties(expiration="0"),
        "bad expiration": Properties(expiration="soon"),
        "my user": Properties(user_id="guest"),
        "other user": Properties(user_id="admin"),
        "delay": Properties(headers={"x-delay": 50}),
        "partition": Properties(headers={"x-partition": "p1"}, delivery_mode=2),
    }.items()
} | {
    "cut": encode_properties(Properties(content_type="text/plain", message_id="m"))[:-1],
    "long": encode_properties(Properties(message_id="m")) + b"x",
}

_KEYS: Final = (*QUEUES, "", "k", "a.b", "a", "a.b.c", "s.x", "caf\udce9.x")
_COMMON: Final = ("none", "persistent", "transient", "id", "other id", "priority")
_BODIES: Final = (b"", b"x", b"0123456789", b'{"a":1}', b"\xff\xfe\x00", b"y" * 300, b"z" * 900)


_REFUSED: Final = {"cut", "long", "bad CC", "bad expiration", "other user"}


def _pool(exchanges: Iterable[str], properties: Iterable[str], bodies: Sequence[bytes]) -> list[Publish]:
    """Every kind of property meets every exchange."""
    draw = Random(12)
    pool = []
    for exchange, name in product(exchanges, properties):
        # A key that leads somewhere, mostly.
        keys = QUEUES if exchange == "" and draw.random() < 0.9 else _KEYS
        pool.append(
            Publish(
                draw.choice((1, 1, 1, 1, 2, 3)),
                exchange,
                draw.choice(keys),
                draw.random() < 0.3,
                name,
                draw.choice(bodies),
                draw.choice((1, 1, 1, 1, 2, 3)),
                draw.choice((1, 1, 2, 5)),
            )
        )
    return pool


POOL: Final = _pool(
    ("", "", "", *_EXCHANGES, "topic", "streams", "amq.direct"),
    (*sorted(set(PROPERTIES) - _REFUSED), *_COMMON * 3),
    _BODIES[:-1],
)
FAULTS: Final = [  # they close their channel or the connection
    *_pool(("", "topic", "streams"), sorted(_REFUSED), _BODIES[:-1]),
    *_pool(("missing",), _COMMON, _BODIES[:-1]),
    *_pool(("", "topic", "streams"), ("none", "persistent"), _BODIES[-1:]),
]
_GOOD: Final = Publish(1, "", "plain", False, "none", b"x", 1, 1)
BROKEN: Final = (
    _GOOD.data * 4 + _GOOD.data[:-1] + b"\x00",  # the end of its frame is wrong
    _GOOD.data[:-9] + encode_frame(FRAME_BODY, 2, b"x"),
    _GOOD.data + frame(BasicPublish("", "plain"), 2) + _GOOD.data[len(frame(BasicPublish("", "plain"))) :],
    frame(BasicPublish("", "plain", False, True)),  # immediate
    frame(BasicPublish("", "plain")) * 2,
    encode_frame(8, 0, b""),  # a heartbeat is no fault
    _GOOD.data[:-9] + encode_frame(8, 0, b"") + _GOOD.data[-9:],
    encode_frame(FRAME_BODY, 1, b"x"),
    _GOOD.data[:-9] + encode_frame(FRAME_BODY, 1, b"xyz"),
    frame(BasicPublish("", "plain"), 9),
)
METHODS: Final[tuple[Method, ...]] = (
    QueueDelete("plain"),
    QueueDelete("stream"),
    QueueDelete("durable"),
    QueueDeclare("plain"),
    QueueDeclare("plain", arguments={"x-max-length": 2}),
    QueuePurge("priority"),
    QueueUnbind("plain", "topic", "a.*"),
    QueueBind("plain", "topic", "#"),
    QueueBind("plain", "streams", "a.*"),
    QueueUnbind("stream2", "streams", "a.*"),
    QueueBind("limited", "fan", ""),
    ExchangeDelete("direct"),
    ExchangeDelete("fan"),
    ExchangeDeclare("direct", "direct"),
    ExchangeDeclare("direct", "fanout"),
    ExchangeBind("fan", "direct", "k"),
    ConfirmSelect(),
    TxSelect(),
    TxCommit(),
    TxRollback(),
    ChannelClose(200, "", 0, 0),
    ChannelOpen(),
)


def _swallow(change: Callable[[Broker], object]) -> Callable[[Broker], None]:
    def apply(broker: Broker) -> None:
        with suppress(BrokerError, JournalFailed):
            change(broker)

    return apply


_NO_TOPICS: Final = Permissions(".*", r"^(fan|behind|missing|outer|amq\.default)$", ".*")
CHANGES: Final[dict[str, Callable[[Broker], None]]] = {
    name: _swallow(change)
    for name, change in {
        "another connection deletes plain": lambda b: b.delete_queue(b.vhost("/"), "plain"),
        "another connection deletes durable": lambda b: b.delete_queue(b.vhost("/"), "durable"),
        "another connection replaces plain": lambda b: (
            b.delete_queue(b.vhost("/"), "plain"),
            b.declare_queue(b.vhost("/"), "plain", durable=False),
        ),
        "another connection declares plain": lambda b: b.declare_queue(b.vhost("/"), "plain", durable=False),
        "another connection binds priority": lambda b: b.bind(b.vhost("/"), "topic", "priority", "#"),
        "another connection binds a stream": lambda b: b.bind(b.vhost("/"), "direct", "stream", "k"),
        "writing is forbidden": lambda b: b.access.set_permissions(
            "guest", "/", Permissions(".*", "^$", ".*")
        ),
        "writing to topic is forbidden": lambda b: b.access.set_permissions("guest", "/", _NO_TOPICS),
        "writing is allowed": lambda b: b.access.set_permissions("guest", "/", FULL_ACCESS),
        "topics are restricted": lambda b: b.access.put_topic_permission(
            TopicPermission("guest", "/", "topic", "^a", ".*")
        ),
        "topics are free": lambda b: b.access.delete_topic_permissions("guest", "/"),
        "a policy limits plain": lambda b: b.policy_changes.put("/", "p", "^plain$", {"max-length": 2}),
        "a policy sets an alternate": lambda b: b.policy_changes.put(
            "/", "q", "^(topic|empty)$", {"alternate-exchange": "fan"}, "exchanges"
        ),
        "the policies go": lambda b: (b.policy_changes.delete("/", "p"), b.policy_changes.delete("/", "q")),
        "time passes": lambda b: setattr(b.flow, "now_ms", b.flow.now_ms + 800),
    }.items()
}
Step = Publish | tuple[Method, int] | str | bytes


class _NoCaches(PublishPropertiesCache):
    """Decodes every header anew."""

    def of(self, header: bytes) -> PublishProperties:
        body_size(header)
        return PublishProperties(header)


def play(
    steps: list[Step], sizes: list[int], short: bool, limit: int = 600, fails_at: int = -1
) -> list[object]:
    """Everything that can be seen after these steps, with the fast path or without any of its parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holtmq.wire.property_walker._SEEN_BEFORE", 1)
        patch.setattr("holtmq.amqp.publish_run._SAMPLE", 1)
        # A body frame that a read has cut is kept in pieces, or completed first.
        patch.setattr("holtmq.amqp.frame_loop._PIECE", 1 if short else 1 << 30)
        patch.setattr("holtmq.amqp.connection._COPIED", 50 if short else 1 << 30)
        # A deleted queue's bindings go one at a time, so that publishes meet those that are left.
        patch.setattr(LongChanges.add, "__defaults__", (1,))
        patch.setattr("secrets.token_urlsafe", lambda size=24: "token")
        if not short:
            patch.setattr(PublishRun, "take", lambda self, channel, data, at, end: at)
            patch.setattr(publish_caches.PublishCaches, "route", lambda self, method: None)
        return _World(short).play(steps, sizes, fails_at)


class _World:
    def __init__(self, short: bool) -> None:
        self.journal = MemoryJournal()
        service = PartitionedService(self.journal)
        broker = self.broker = new_broker(self.journal, service)
        assert broker.streams is not None
        broker.streams._id_prefix = "id"
        if not short:
            broker.flow.publish_properties = _NoCaches()
        vhost = self.vhost = broker.vhost("/")
        for name, arguments in _DURABLE.items():
            broker.declare_queue(vhost, name, durable=True, arguments=arguments)
        for name, arguments in _TRANSIENT.items():
            broker.declare_queue(vhost, name, durable=False, arguments=arguments)
        for name, (kind, arguments) in _EXCHANGES.items():
            broker.exchanges.declare(vhost, name, kind, durable=False, arguments=arguments)  # type: ignore[arg-type]
        self.first_queues = [queue for queue in vhost.queues.values() if not queue.is_stream]
        Client(broker).call(*_BINDINGS)
        self.consumer = Client(broker)
        self.consumer.call(*(BasicConsume(name, name) for name in ("durable", "priority", "quorum")))
        self.publisher = Client(broker)
        self.publisher.call(ChannelOpen(), channel=2)
        self.publisher.call(ChannelOpen(), channel=3)
        self.publisher.call(ConfirmSelect())
        self.publisher.call(BasicConsume("amq.rabbitmq.reply-to", "r", no_ack=True))
        connection = self.publisher.connection
        connection.settings = Settings("HoltMQ", "0", max_message_bytes=600)
        connection.max_payload = 800
        connection._frame_loop.opened(vhost)

    def play(self, steps: list[Step], sizes: list[int], fails_at: int) -> list[object]:
        out: list[bytes] = []
        pending = bytearray()
        turn = 0
        for step in [*steps, "time passes"]:
            if not isinstance(step, str):
                pending += step if isinstance(step, bytes) else data_of(step)
                continue
            while pending:
                size = sizes[turn % len(sizes)]
                if turn == fails_at:
                    self.journal.fail("the disk is gone")
                self._read(bytes(pending[:size]), out)
                del pending[:size]
                turn += 1
            CHANGES[step](self.broker)
        return [out, *self._seen()]

    def _read(self, data: bytes, out: list[bytes]) -> None:
        connection: Connection = self.publisher.connection
        connection.receive(data)
        self.broker.flow.turn()
        self.journal.flush()
        self.broker.flow.tick()
        self.broker.flow.turn()
        out.append(connection.outbox.take())

    def _seen(self) -> list[object]:
        queues = self.vhost.queues
        pager = self.broker.flow.pager
        waiting = {
            name: [
                _of(message) for run in work_queue(self.broker, name).store.drain(pager) for message in run
            ]
            for name in (*_TRANSIENT, "durable", "quorum")
            if name in queues
        }
        return [
            self.consumer.connection.outbox.take(),
            waiting,
            {name: (len(queue), queue.bytes) for name, queue in queues.items()},
            [(len(queue), queue.bytes) for queue in self.first_queues],  # also those deleted meanwhile
            list(self.journal._records.values()),
            str(self.publisher.failure),
            self.publisher.connection.phase,
            sorted(self.publisher.connection.channels),
            self.broker.flow.now_ms - NOW_MS,
            {name: getattr(self.broker.counts, name) for name in self.broker.counts.__slots__},
        ]


def data_of(step: Publish | tuple[Method, int]) -> bytes:
    return step.data if isinstance(step, Publish) else frame(*step)


def _of(message: Message) -> tuple[object, ...]:
    return (
        message.address,
        message.header,
        message.body,
        message.expires_ms,
        message.priority,
        message.persistent,
    )

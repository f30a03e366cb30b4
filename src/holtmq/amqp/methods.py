"""Every method of AMQP 0-9-1 and of RabbitMQ's extensions, as a value.

Owns: names, numbers, fields and their wire layout. (The per-message paths have their own copies.)
Must not touch: bytes (``codec.py``) and what a method does (``connection.py``, ``channel.py``).

A layout has one letter per field in wire order: o u8, h u16, l u32, q u64, s short string, S long string,
b bit (neighbours share an octet), F table. Reserved fields are not part of the class; their letters are
H (u16), e (short string), E (long string), B (bit): ignored when read, written as zero or empty.
Long strings are bytes: they carry secrets and SASL tokens, which are not text.

Over 400 lines: a table, one entry for each method of the protocol.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from holtmq.wire.tables import FieldValue

METHODS: Final[list[type[Method]]] = []  # in the order below


class Method:
    """Base class of all methods."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()  # the fields, as dataclass lists them
    class_id: ClassVar[int]
    method_id: ClassVar[int]
    name: ClassVar[str]
    layout: ClassVar[str]

    def __init_subclass__(
        cls, number: tuple[int, int] | None = None, name: str = "", layout: str = ""
    ) -> None:
        # dataclass(slots=True) creates each class twice. The first class gets these arguments; the second
        # copies its attributes, gets no arguments, and is the one that is kept.
        if number is None:
            METHODS.append(cls)
            return
        cls.class_id, cls.method_id = number
        cls.name = name
        cls.layout = layout


@dataclass(frozen=True, slots=True)
class ConnectionStart(Method, number=(10, 10), name="connection.start", layout="ooFSS"):
    version_major: int
    version_minor: int
    server_properties: dict[str, FieldValue]
    mechanisms: bytes
    locales: bytes


@dataclass(frozen=True, slots=True)
class ConnectionStartOk(Method, number=(10, 11), name="connection.start-ok", layout="FsSs"):
    client_properties: dict[str, FieldValue]
    mechanism: str
    response: bytes = field(repr=False)  # a password, most often
    locale: str = "en_US"


@dataclass(frozen=True, slots=True)
class ConnectionSecure(Method, number=(10, 20), name="connection.secure", layout="S"):
    challenge: bytes


@dataclass(frozen=True, slots=True)
class ConnectionSecureOk(Method, number=(10, 21), name="connection.secure-ok", layout="S"):
    response: bytes = field(repr=False)  # a password, most often


@dataclass(frozen=True, slots=True)
class ConnectionTune(Method, number=(10, 30), name="connection.tune", layout="hlh"):
    channel_max: int
    frame_max: int
    heartbeat: int


@dataclass(frozen=True, slots=True)
class ConnectionTuneOk(Method, number=(10, 31), name="connection.tune-ok", layout="hlh"):
    channel_max: int
    frame_max: int
    heartbeat: int


@dataclass(frozen=True, slots=True)
class ConnectionOpen(Method, number=(10, 40), name="connection.open", layout="seB"):
    virtual_host: str


@dataclass(frozen=True, slots=True)
class ConnectionOpenOk(Method, number=(10, 41), name="connection.open-ok", layout="e"): ...


@dataclass(frozen=True, slots=True)
class ConnectionClose(Method, number=(10, 50), name="connection.close", layout="hshh"):
    reply_code: int
    reply_text: str
    failing_class_id: int = 0
    failing_method_id: int = 0


@dataclass(frozen=True, slots=True)
class ConnectionCloseOk(Method, number=(10, 51), name="connection.close-ok"): ...


@dataclass(frozen=True, slots=True)
class ConnectionBlocked(Method, number=(10, 60), name="connection.blocked", layout="s"):
    reason: str


@dataclass(frozen=True, slots=True)
class ConnectionUnblocked(Method, number=(10, 61), name="connection.unblocked"): ...


@dataclass(frozen=True, slots=True)
class ConnectionUpdateSecret(Method, number=(10, 70), name="connection.update-secret", layout="Ss"):
    new_secret: bytes = field(repr=False)
    reason: str


@dataclass(frozen=True, slots=True)
class ConnectionUpdateSecretOk(Method, number=(10, 71), name="connection.update-secret-ok"): ...


@dataclass(frozen=True, slots=True)
class ChannelOpen(Method, number=(20, 10), name="channel.open", layout="e"): ...


@dataclass(frozen=True, slots=True)
class ChannelOpenOk(Method, number=(20, 11), name="channel.open-ok", layout="E"): ...


@dataclass(frozen=True, slots=True)
class ChannelFlow(Method, number=(20, 20), name="channel.flow", layout="b"):
    active: bool


@dataclass(frozen=True, slots=True)
class ChannelFlowOk(Method, number=(20, 21), name="channel.flow-ok", layout="b"):
    active: bool


@dataclass(frozen=True, slots=True)
class ChannelClose(Method, number=(20, 40), name="channel.close", layout="hshh"):
    reply_code: int
    reply_text: str
    failing_class_id: int = 0
    failing_method_id: int = 0


@dataclass(frozen=True, slots=True)
class ChannelCloseOk(Method, number=(20, 41), name="channel.close-ok"): ...


@dataclass(frozen=True, slots=True)
class ExchangeDeclare(Method, number=(40, 10), name="exchange.declare", layout="HssbbbbbF"):
    exchange: str
    type: str = "direct"
    passive: bool = False
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    no_wait: bool = False
    arguments: dict[str, FieldValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExchangeDeclareOk(Method, number=(40, 11), name="exchange.declare-ok"): ...


@dataclass(frozen=True, slots=True)
class ExchangeDelete(Method, number=(40, 20), name="exchange.delete", layout="Hsbb"):
    exchange: str
    if_unused: bool = False
    no_wait: bool = False


@dataclass(frozen=True, slots=True)
class ExchangeDeleteOk(Method, number=(40, 21), name="exchange.delete-ok"): ...


@dataclass(frozen=True, slots=True)
class ExchangeBind(Method, number=(40, 30), name="exchange.bind", layout="HsssbF"):
    destination: str
    source: str
    routing_key: str = ""
    no_wait: bool = False
    arguments: dict[str, FieldValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExchangeBindOk(Method, number=(40, 31), name="exchange.bind-ok"): ...


@dataclass(frozen=True, slots=True)
class ExchangeUnbind(Method, number=(40, 40), name="exchange.unbind", layout="HsssbF"):
    destination: str
    source: str
    routing_key: str = ""
    no_wait: bool = False
    arguments: dict[str, FieldValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExchangeUnbindOk(Method, number=(40, 51), name="exchange.unbind-ok"): ...


@dataclass(frozen=True, slots=True)
class QueueDeclare(Method, number=(50, 10), name="queue.declare", layout="HsbbbbbF"):
    queue: str = ""
    passive: bool = False
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    no_wait: bool = False
    arguments: dict[str, FieldValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueDeclareOk(Method, number=(50, 11), name="queue.declare-ok", layout="sll"):
    queue: str
    message_count: int
    consumer_count: int


@dataclass(frozen=True, slots=True)
class QueueBind(Method, number=(50, 20), name="queue.bind", layout="HsssbF"):
    queue: str
    exchange: str
    routing_key: str = ""
    no_wait: bool = False
    arguments: dict[str, FieldValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueBindOk(Method, number=(50, 21), name="queue.bind-ok"): ...


@dataclass(frozen=True, slots=True)
class QueuePurge(Method, number=(50, 30), name="queue.purge", layout="Hsb"):
    queue: str
    no_wait: bool = False


@dataclass(frozen=True, slots=True)
class QueuePurgeOk(Method, number=(50, 31), name="queue.purge-ok", layout="l"):
    message_count: int


@dataclass(frozen=True, slots=True)
class QueueDelete(Method, number=(50, 40), name="queue.delete", layout="Hsbbb"):
    queue: str
    if_unused: bool = False
    if_empty: bool = False
    no_wait: bool = False


@dataclass(frozen=True, slots=True)
class QueueDeleteOk(Method, number=(50, 41), name="queue.delete-ok", layout="l"):
    message_count: int


@dataclass(frozen=True, slots=True)
class QueueUnbind(Method, number=(50, 50), name="queue.unbind", layout="HsssF"):
    queue: str
    exchange: str
    routing_key: str = ""
    arguments: dict[str, FieldValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueUnbindOk(Method, number=(50, 51), name="queue.unbind-ok"): ...


@dataclass(frozen=True, slots=True)
class BasicQos(Method, number=(60, 10), name="basic.qos", layout="lhb"):
    prefetch_size: int = 0
    prefetch_count: int = 0
    global_: bool = False


@dataclass(frozen=True, slots=True)
class BasicQosOk(Method, number=(60, 11), name="basic.qos-ok"): ...


@dataclass(frozen=True, slots=True)
class BasicConsume(Method, number=(60, 20), name="basic.consume", layout="HssbbbbF"):
    queue: str
    consumer_tag: str = ""
    no_local: bool = False
    no_ack: bool = False
    exclusive: bool = False
    no_wait: bool = False
    arguments: dict[str, FieldValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BasicConsumeOk(Method, number=(60, 21), name="basic.consume-ok", layout="s"):
    consumer_tag: str


@dataclass(frozen=True, slots=True)
class BasicCancel(Method, number=(60, 30), name="basic.cancel", layout="sb"):
    consumer_tag: str
    no_wait: bool = False


@dataclass(frozen=True, slots=True)
class BasicCancelOk(Method, number=(60, 31), name="basic.cancel-ok", layout="s"):
    consumer_tag: str


@dataclass(frozen=True, slots=True)
class BasicPublish(Method, number=(60, 40), name="basic.publish", layout="Hssbb"):
    exchange: str = ""
    routing_key: str = ""
    mandatory: bool = False
    immediate: bool = False


@dataclass(frozen=True, slots=True)
class BasicReturn(Method, number=(60, 50), name="basic.return", layout="hsss"):
    reply_code: int
    reply_text: str
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class BasicDeliver(Method, number=(60, 60), name="basic.deliver", layout="sqbss"):
    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class BasicGet(Method, number=(60, 70), name="basic.get", layout="Hsb"):
    queue: str
    no_ack: bool = False


@dataclass(frozen=True, slots=True)
class BasicGetOk(Method, number=(60, 71), name="basic.get-ok", layout="qbssl"):
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    message_count: int


@dataclass(frozen=True, slots=True)
class BasicGetEmpty(Method, number=(60, 72), name="basic.get-empty", layout="e"): ...


@dataclass(frozen=True, slots=True)
class BasicAck(Method, number=(60, 80), name="basic.ack", layout="qb"):
    delivery_tag: int = 0
    multiple: bool = False


@dataclass(frozen=True, slots=True)
class BasicReject(Method, number=(60, 90), name="basic.reject", layout="qb"):
    delivery_tag: int
    requeue: bool = True


@dataclass(frozen=True, slots=True)
class BasicRecoverAsync(Method, number=(60, 100), name="basic.recover-async", layout="b"):
    requeue: bool = False


@dataclass(frozen=True, slots=True)
class BasicRecover(Method, number=(60, 110), name="basic.recover", layout="b"):
    requeue: bool = False


@dataclass(frozen=True, slots=True)
class BasicRecoverOk(Method, number=(60, 111), name="basic.recover-ok"): ...


@dataclass(frozen=True, slots=True)
class BasicNack(Method, number=(60, 120), name="basic.nack", layout="qbb"):
    delivery_tag: int = 0
    multiple: bool = False
    requeue: bool = True


@dataclass(frozen=True, slots=True)
class ConfirmSelect(Method, number=(85, 10), name="confirm.select", layout="b"):
    no_wait: bool = False


@dataclass(frozen=True, slots=True)
class ConfirmSelectOk(Method, number=(85, 11), name="confirm.select-ok"): ...


@dataclass(frozen=True, slots=True)
class TxSelect(Method, number=(90, 10), name="tx.select"): ...


@dataclass(frozen=True, slots=True)
class TxSelectOk(Method, number=(90, 11), name="tx.select-ok"): ...


@dataclass(frozen=True, slots=True)
class TxCommit(Method, number=(90, 20), name="tx.commit"): ...


@dataclass(frozen=True, slots=True)
class TxCommitOk(Method, number=(90, 21), name="tx.commit-ok"): ...


@dataclass(frozen=True, slots=True)
class TxRollback(Method, number=(90, 30), name="tx.rollback"): ...


@dataclass(frozen=True, slots=True)
class TxRollbackOk(Method, number=(90, 31), name="tx.rollback-ok"): ...

"""The durable events of a partitioned queue, and their encoding.

Owns: the event types and their bytes: struct for the three hot ones (push, ack, trim), msgpack for the rare
ones. Must not touch: state. The queue applies events; its state is their fold, in order.
"""

from array import array
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final

import msgspec

from holtmq.broker.errors import BrokerError
from holtmq.broker.partitioned.extras.traces import Traced
from holtmq.broker.partitioned.groups.acknowledgment import Answers
from holtmq.broker.partitioned.groups.partition_leases import RecordedLease
from holtmq.broker.partitioned.log.message_log import from_bytes
from holtmq.broker.partitioned.queue_config import QueueConfig
from holtmq.broker.pausing import Pause


class UnreadableEvent(BrokerError):
    """Bytes that this version cannot decode as an event: the journal is newer, or damaged."""


@dataclass(frozen=True, slots=True)
class QueueConfigured:
    """The queue has these options; the first such event creates it."""

    name: str
    namespace: str
    task: str
    config: QueueConfig
    created_us: int


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    """The queue, its messages, groups and dead letters were deleted."""


@dataclass(frozen=True, slots=True)
class QueuePaused:
    """Groups and readers get nothing until the queue is resumed."""

    pause: Pause


@dataclass(frozen=True, slots=True)
class QueueResumed:
    """Groups and readers get messages again."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """New messages at consecutive offsets; their bodies are separate records of the same batch."""

    first_offset: int
    created_us: int  # of the first; each next message is one microsecond later
    partitions: "array[int]"  # "I": partition index of each
    fingerprints: "array[int]"  # "Q": of (partition, transaction id)
    new_partitions: tuple[str, ...] = ()  # take the next free indexes, in this order


@dataclass(frozen=True, slots=True)
class Filed:
    """One position that became a dead letter."""

    position: int
    retry_count: int
    error: str


class Acked(msgspec.Struct, frozen=True, gc=False):
    """A group's progress in one partition, by ack, nack, auto-ack or eviction."""

    group: int
    partition: int
    cursor: int  # everything below is settled
    retry_count: int
    at_us: int
    hold_until_us: int = 0  # a nacked head is not redelivered before this time
    released: bool = False
    dead_letters: tuple[Filed, ...] = ()
    # For the live lease only; never encoded, because leases end at a restart.
    answers: Answers | None = None
    error: str | None = None  # why the head failed, if it will be redelivered


@dataclass(frozen=True, slots=True)
class Trimmed:
    """These partitions now start at these positions, by retention or because they were cleared."""

    partitions: "array[int]"  # "I"
    firsts: "array[int]"  # "Q"
    # For counters only; never encoded.
    completed: int = field(default=0, compare=False)  # messages removed by completed retention
    overdue: int = field(default=0, compare=False)  # messages that waited too long


@dataclass(frozen=True, slots=True)
class MessageDeleted:
    """One message was deleted. Its transaction id may be reused; its position remains as a hole."""

    partition: int
    position: int


@dataclass(frozen=True, slots=True)
class PartitionsDeleted:
    """Empty partitions were deleted. Their names may be reused, their indexes are not."""

    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IdsGiven:
    """Message ids that were assigned before the push."""

    ids: tuple[tuple[int, str], ...]  # (offset, message id)


@dataclass(frozen=True, slots=True)
class HandedOut:
    """How often the head of each of these partitions has been delivered to a group."""

    group: int
    rows: tuple[tuple[int, int, int], ...]  # (partition, attempt, end of the delivered positions)


@dataclass(frozen=True, slots=True)
class Leased:
    """Leases with a clock that are held for a while, or were renewed: a restart does not end them."""

    group: int
    rows: tuple[RecordedLease, ...]


@dataclass(frozen=True, slots=True)
class LeaseReleased:
    """A recorded lease ended without a settlement, before its time."""

    group: int
    partition: int


@dataclass(frozen=True, slots=True)
class GroupStarted:
    """Where a group starts in partitions without a cursor: all of them, or the named one."""

    name: str
    group: int  # its number in this queue; a new number creates a new group
    start_us: int
    partition: str | None = None
    conflates: bool = False


@dataclass(frozen=True, slots=True)
class GroupDeleted:
    group: int


@dataclass(frozen=True, slots=True)
class Sought:
    """The group continues from this queue-wide offset, in one partition or in all current ones."""

    group: int
    offset: int
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class DeadLettersRemoved:
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A group's recorded start for a scope; blank fields mean "any"."""

    group: str
    queue: str
    partition: str
    namespace: str
    task: str
    mode: str
    timestamp_us: int
    created_us: int


@dataclass(frozen=True, slots=True)
class SubscriptionMoved:
    group: str
    timestamp_us: int


@dataclass(frozen=True, slots=True)
class SubscriptionsForgotten:
    """Records of a group, of a queue, or of a group on a queue were deleted; blank means "any"."""

    group: str
    queue: str


QueueEvent = (
    QueueConfigured
    | QueueDeleted
    | QueuePaused
    | QueueResumed
    | Pushed
    | Acked
    | Trimmed
    | GroupStarted
    | GroupDeleted
    | Sought
    | DeadLettersRemoved
    | MessageDeleted
    | PartitionsDeleted
    | IdsGiven
    | HandedOut
    | Leased
    | LeaseReleased
)
SubscriptionEvent = Subscribed | SubscriptionMoved | SubscriptionsForgotten
Event = QueueEvent | SubscriptionEvent | Traced

NO_QUEUE: Final = 0  # queue number of subscription and trace events, which belong to no single queue

# Numbers are the format: never reuse one.
_RARE: Final[dict[int, type[Event]]] = {
    16: QueueConfigured,
    17: QueueDeleted,
    18: GroupStarted,
    19: GroupDeleted,
    20: Sought,
    21: DeadLettersRemoved,
    22: Subscribed,
    23: SubscriptionMoved,
    24: SubscriptionsForgotten,
    25: Traced,
    26: MessageDeleted,
    27: PartitionsDeleted,
    28: IdsGiven,
    29: HandedOut,
    30: QueuePaused,
    31: QueueResumed,
    32: Leased,
    33: LeaseReleased,
}
_KINDS: Final = {kind: number for number, kind in _RARE.items()}
_FIELDS: Final = {
    number: frozenset(field.name for field in msgspec.inspect.type_info(kind).fields)  # type: ignore[attr-defined]
    for number, kind in _RARE.items()
}
_PUSHED, _ACKED, _TRIMMED = 1, 2, 3
_HEAD: Final = Struct("<IBI")  # length of what follows the head, kind, queue
_PUSH: Final = Struct("<QQI")  # first offset, created, count; then partitions, fingerprints, new names
_ACK: Final = Struct("<IIQIQQB")  # group, partition, cursor, retries, at, hold until, released; then letters
_HEAD_AND_ACK: Final = Struct(_HEAD.format + _ACK.format[1:])
_names: Final = msgspec.msgpack.Decoder(tuple[str, ...])
_letters: Final = msgspec.msgpack.Decoder(tuple[Filed, ...])
_encode_rare: Final = msgspec.msgpack.Encoder().encode


def encode(queue: int, event: Event) -> bytes:
    """One event as length-prefixed bytes; concatenate them for a record of several events."""
    if isinstance(event, Acked):
        tail = _encode_rare(event.dead_letters) if event.dead_letters else b""
        fields = _HEAD_AND_ACK.pack(
            _ACK.size + len(tail),
            _ACKED,
            queue,
            event.group,
            event.partition,
            event.cursor,
            event.retry_count,
            event.at_us,
            event.hold_until_us,
            event.released,
        )
        return fields + tail if tail else fields
    if isinstance(event, Pushed):
        count = len(event.partitions)
        names = _encode_rare(event.new_partitions) if event.new_partitions else b""
        head = _HEAD.pack(_PUSH.size + 12 * count + len(names), _PUSHED, queue)
        fields = _PUSH.pack(event.first_offset, event.created_us, count)
        return b"".join((head, fields, event.partitions.tobytes(), event.fingerprints.tobytes(), names))
    if isinstance(event, Trimmed):
        body = event.partitions.tobytes() + event.firsts.tobytes()
        return _HEAD.pack(len(body), _TRIMMED, queue) + body
    body = _encode_rare(event)
    return _HEAD.pack(len(body), _KINDS[type(event)], queue) + body


def decode_all(data: bytes) -> list[tuple[int, Event]]:
    """(queue number, event) pairs, in order. Truncated or unknown data raises ``UnreadableEvent``."""
    events: list[tuple[int, Event]] = []
    view, at = memoryview(data), 0
    while at < len(data):
        try:
            length, kind, queue = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            if at + length > len(data):
                raise UnreadableEvent(f"event of kind {kind} cut short at byte {at}")
            events.append((queue, _decode(kind, view[at : at + length])))
        except (StructError, ValueError, LookupError, msgspec.MsgspecError) as error:
            raise UnreadableEvent(f"not an event at byte {at}: {error}") from error
        at += length
    return events


def _decode(kind: int, body: memoryview) -> Event:
    if kind == _ACKED:
        group, partition, cursor, retries, at_us, hold, released = _ACK.unpack_from(body)
        tail = body[_ACK.size :]
        letters = _letters.decode(tail) if tail else ()
        return Acked(group, partition, cursor, retries, at_us, hold, bool(released), letters)
    if kind == _PUSHED:
        first, created, count = _PUSH.unpack_from(body)
        at = _PUSH.size
        if len(body) < at + 12 * count:
            raise ValueError("push shorter than its count")
        partitions = from_bytes("I", body[at : at + 4 * count])
        prints = from_bytes("Q", body[at + 4 * count : at + 12 * count])
        names = body[at + 12 * count :]
        return Pushed(first, created, partitions, prints, _names.decode(names) if names else ())
    if kind == _TRIMMED:
        count = len(body) // 12
        return Trimmed(from_bytes("I", body[: 4 * count]), from_bytes("Q", body[4 * count :]))
    event = _RARE[kind]
    unknown = set(msgspec.msgpack.decode(body, type=dict[str, msgspec.Raw])).difference(_FIELDS[kind])
    if unknown:  # msgspec ignores unknown fields when it decodes a dataclass
        raise ValueError(f"{event.__name__} has unknown fields: {', '.join(sorted(unknown))}")
    return msgspec.msgpack.decode(body, type=event)

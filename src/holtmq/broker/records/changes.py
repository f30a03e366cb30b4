"""Rare durable changes (topology, users, policies) as journal records.

Owns: the shape of each change and the kinds of record the broker writes. Must not touch: state; ``broker.py``
and the ``*_changes.py`` modules pair a change with its record, ``recovery.py`` folds records into state.
"""

from enum import IntEnum
from typing import TypeAlias

import msgspec

from holtmq.wire.tables import FieldTable, decode_table, encode_table


class Kind(IntEnum):
    """Record kinds. The numbers are on disk, so their meaning never changes."""

    MESSAGE = 16  # a message and its work queues
    SETTLED = 17  # positions that were removed from a work queue
    PAGED = 18  # a delayed transient message; a restart drops it
    CHANGE = 19  # one of the structs below
    DELIVERED = 20  # highest seq that a queue has delivered
    RETURNED = 21  # how often messages were returned
    DELAYED = 22  # a delayed message, and where it goes afterwards
    DELAY_ENDED = 23
    QUEUE_STATE = 24  # checkpoint: what one work queue holds
    COUNTERS = 25  # checkpoint: sequence numbers
    PURGED = 26  # a work queue was purged, except these positions
    DELAY_STATE = 27  # checkpoint: delayed messages
    DAMAGED = 28  # messages that cannot be read
    PARTITIONED = 32  # events of partitioned queues
    PARTITIONED_BODY = 33  # one message's body; the events it belongs to follow in the same batch
    PARTITIONED_QUEUE = 34  # checkpoint: one partitioned queue
    PARTITIONED_COUNTERS = 35  # checkpoint: numbers that must not be reused, and the switches
    SWITCHED = 36  # maintenance was turned on or off
    SPOOLED = 37  # where the preceding bodies go when maintenance ends
    UNSPOOLED = 38  # how many of the oldest spooled messages were pushed to their queues
    SPOOL_STATE = 39  # checkpoint: the spool
    STREAM = 40  # queries of stream processors and their state
    KEYED = 41  # key-value rows, locks among them
    TIMED = 42  # messages with a delivery time
    STAGED = 43  # rows of an external writer's batch, after their bodies; not visible yet
    STAGE_COMMITTED = 44  # a staged batch became messages
    STAGING_STATE = 45  # checkpoint: what is staged, and which batches were committed
    DELIVERY_STATE = 46  # checkpoint: the newest deliveries of one partitioned queue
    PARTITIONED_ROWS = 47  # checkpoint: rows of the partitioned queue that follows


class Change(msgspec.Struct, tag=True, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Base of all changes: encoded as a tagged array."""


class VhostPut(Change, tag="vhost+", frozen=True):
    name: str
    description: str = ""
    tags: list[str] = []


class VhostSettingsPut(Change, tag="vhost-settings", frozen=True):
    name: str
    default_queue_type: str
    protected_from_deletion: bool


class VhostDeleted(Change, tag="vhost-", frozen=True):
    name: str


class ExchangePut(Change, tag="exchange+", frozen=True):
    vhost: str
    name: str
    kind: str
    auto_delete: bool
    internal: bool
    arguments: bytes


class ExchangeDeleted(Change, tag="exchange-", frozen=True):
    vhost: str
    name: str


class QueuePut(Change, tag="queue+", frozen=True):
    vhost: str
    name: str
    id: int
    auto_delete: bool
    arguments: bytes


class QueueDeleted(Change, tag="queue-", frozen=True):
    id: int


class QueuePaused(Change, tag="queue-paused", frozen=True):
    id: int
    since_ms: int
    by: str
    reason: str


class QueueResumed(Change, tag="queue-resumed", frozen=True):
    id: int


class BindingPut(Change, tag="binding+", frozen=True):
    vhost: str
    source: str
    destination: str
    to_exchange: bool
    routing_key: str
    arguments: bytes


class BindingDeleted(Change, tag="binding-", frozen=True):
    vhost: str
    source: str
    destination: str
    to_exchange: bool
    routing_key: str
    arguments: bytes


class PolicyPut(Change, tag="policy+", frozen=True):
    vhost: str
    name: str
    pattern: str
    apply_to: str
    priority: int
    definition: bytes
    operator: bool = False


class PolicyDeleted(Change, tag="policy-", frozen=True):
    vhost: str
    name: str
    operator: bool = False


class UserPut(Change, tag="user+", frozen=True):
    name: str
    password_hash: str
    tags: list[str]


class UserDeleted(Change, tag="user-", frozen=True):
    name: str


class PermissionPut(Change, tag="permission+", frozen=True):
    user: str
    vhost: str
    configure: str
    write: str
    read: str


class PermissionDeleted(Change, tag="permission-", frozen=True):
    user: str
    vhost: str


class TopicPermissionPut(Change, tag="topic-permission+", frozen=True):
    user: str
    vhost: str
    exchange: str
    write: str
    read: str


class TopicPermissionDeleted(Change, tag="topic-permission-", frozen=True):
    user: str
    vhost: str
    exchange: str | None  # None: all exchanges


class VhostLimitsPut(Change, tag="vhost-limits", frozen=True):
    """All limits of a vhost; empty: no limits."""

    vhost: str
    limits: dict[str, int]


class UserLimitsPut(Change, tag="user-limits", frozen=True):
    """All limits of a user; empty: no limits."""

    user: str
    limits: dict[str, int]


class ParameterPut(Change, tag="parameter+", frozen=True):
    vhost: str
    component: str
    name: str
    value: bytes


class ParameterDeleted(Change, tag="parameter-", frozen=True):
    vhost: str
    component: str
    name: str


class GlobalParameterPut(Change, tag="global-parameter+", frozen=True):
    name: str
    value: bytes


class GlobalParameterDeleted(Change, tag="global-parameter-", frozen=True):
    name: str


class JobPut(Change, tag="job+", frozen=True):
    id: int
    job: bytes  # msgpack: what was asked for, and how far it has come


class JobDeleted(Change, tag="job-", frozen=True):
    id: int


AnyChange: TypeAlias = (
    VhostPut
    | VhostSettingsPut
    | VhostDeleted
    | ExchangePut
    | ExchangeDeleted
    | QueuePut
    | QueueDeleted
    | QueuePaused
    | QueueResumed
    | BindingPut
    | BindingDeleted
    | PolicyPut
    | PolicyDeleted
    | UserPut
    | UserDeleted
    | PermissionPut
    | PermissionDeleted
    | TopicPermissionPut
    | TopicPermissionDeleted
    | VhostLimitsPut
    | UserLimitsPut
    | ParameterPut
    | ParameterDeleted
    | GlobalParameterPut
    | GlobalParameterDeleted
    | JobPut
    | JobDeleted
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyChange] = msgspec.msgpack.Decoder(AnyChange)


def encode_change(change: AnyChange) -> bytes:
    """The payload of a CHANGE record."""
    return _encoder.encode(change)


def decode_change(payload: bytes) -> AnyChange:
    """Decode the payload of a CHANGE record."""
    return _decoder.decode(payload)


def pack_table(arguments: FieldTable) -> bytes:
    """Arguments with their wire types, which JSON would lose."""
    return encode_table(arguments)


def unpack_table(data: bytes) -> FieldTable:
    """Decode what ``pack_table`` wrote."""
    return decode_table(data)[0]

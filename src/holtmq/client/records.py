"""Messages, queues and groups as the broker reports them.

Owns: the response types, and the messages and acknowledgments a program handles.
Must not touch: how they are sent. Payloads are the caller's own JSON.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Self, TypedDict, TypeVar

import msgspec

T = TypeVar("T")


class Status(StrEnum):
    """How a message is settled."""

    COMPLETED = "completed"
    FAILED = "failed"  # counts against the queue's retry limit, then goes to the dead letters
    RETRY = "retry"  # return it: redelivered, no failure is counted
    DEAD_LETTER = "dlq"  # to the dead letters at once


class PushStatus(StrEnum):
    """The result of pushing an item."""

    QUEUED = "queued"
    DUPLICATE = "duplicate"  # its transaction id is known in that partition: not stored again
    BUFFERED = "buffered"  # accepted while the broker is in maintenance
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class MessageKey:
    """Identifies a message to the broker when it is acknowledged."""

    transaction_id: str
    partition_id: str
    lease_id: str = ""
    group: str = ""
    settled: Status | None = None  # set once an acknowledgment was accepted


class Popped(msgspec.Struct, rename="camel"):
    """A message as received."""

    transaction_id: str
    partition_id: str
    lease_id: str = ""
    consumer_group: str = ""
    id: str = ""
    queue: str = ""
    partition: str = ""
    data: Any = None
    created_at: datetime | None = None
    delivery_attempt: int = 1
    offset: int | None = None
    trace_id: str | None = None
    producer_sub: str | None = None


@dataclass(slots=True, eq=False)
class Delivery(MessageKey):
    """A message under a lease. ``data`` is the payload as decoded from JSON."""

    id: str = ""
    queue: str = ""
    partition: str = ""
    # The payload is the caller's own JSON, typed as ``json.loads`` types it; see ``decode``.
    data: Any = None
    created_at: datetime | None = None
    attempt: int = 1
    offset: int | None = None
    trace_id: str | None = None
    producer: str | None = None

    @classmethod
    def of(cls, popped: Popped) -> Self:
        return cls(
            popped.transaction_id,
            popped.partition_id,
            popped.lease_id,
            popped.consumer_group,
            None,
            popped.id,
            popped.queue,
            popped.partition,
            popped.data,
            popped.created_at,
            popped.delivery_attempt,
            popped.offset,
            popped.trace_id,
            popped.producer_sub,
        )

    def decode(self, kind: type[T]) -> T:
        """The payload as a struct, dataclass or any other type msgspec knows; raises ``ValidationError``."""
        return msgspec.convert(self.data, kind)


@dataclass(frozen=True, slots=True)
class Item:
    """A payload to push, with its metadata."""

    payload: object
    transaction_id: str = ""  # empty: a new one is created before the first attempt
    trace_id: str | None = None
    partition: str = ""  # empty: the partition of the queue it is pushed to


@dataclass(frozen=True, slots=True)
class Ack:
    """A message with its own status, for ``ack_batch``."""

    message: MessageKey
    status: Status = Status.COMPLETED
    error: str | None = None


class PushResult(msgspec.Struct, frozen=True):
    """The result of one pushed item."""

    status: PushStatus
    transaction_id: str = ""
    message_id: str = ""
    partition_id: str = ""
    error: str | None = None


class AckResult(msgspec.Struct, frozen=True, rename="camel"):
    """The result of one acknowledgment."""

    success: bool
    transaction_id: str = ""
    error: str | None = None
    lease_released: bool = False
    dlq: bool = False
    noop: bool = False


class Renewal(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a lease renewal."""

    success: bool
    renewed: int = 0  # how many partitions the lease covers
    expires_at: datetime | None = None
    error: str | None = None


class OperationResult(msgspec.Struct, frozen=True, rename="camel"):
    """One pushed item or one ack of a transaction. On a push, ``success`` false means a duplicate."""

    type: str
    success: bool
    transaction_id: str = ""
    message_id: str = ""
    partition_id: str = ""
    duplicate: bool = False


class TransactionResult(msgspec.Struct, frozen=True, rename="camel"):
    """A committed transaction."""

    success: bool
    transaction_id: str = ""
    results: list[OperationResult] = []
    error: str | None = None


class Configured(msgspec.Struct, frozen=True, rename="camel"):
    """A queue's current configuration; ``options`` holds all effective options by wire name."""

    queue: str
    namespace: str | None = None
    task: str | None = None
    options: dict[str, bool | int | float | str | None] = {}
    encrypted: bool = False  # whether payloads are encrypted on disk
    warning: str = ""  # requested options that the broker does not support


class DeadLetter(msgspec.Struct, frozen=True, rename="camel"):
    """A message that a group failed to process."""

    id: str
    message_id: str = ""
    transaction_id: str = ""
    partition_id: str = ""
    queue: str = ""
    partition: str = ""
    consumer_group: str = ""
    error_message: str | None = None
    retry_count: int = 0
    data: Any = None  # as in ``Delivery``
    created_at: datetime | None = None
    failed_at: datetime | None = None


class DeadLetterPage(msgspec.Struct, frozen=True):
    """A page of dead letters, newest failure first, and the total count."""

    messages: list[DeadLetter]
    total: int = 0


class Replayed(msgspec.Struct, frozen=True, rename="camel"):
    """Where a dead letter was moved."""

    success: bool
    result: str = ""  # ``moved``, or ``duplicate`` when it had been moved before
    queue: str = ""
    partition: str = ""


class GroupOnQueue(msgspec.Struct, frozen=True, rename="camel"):
    """A group's progress on one queue."""

    name: str
    queue_name: str = ""
    members: int = 0  # partitions it has read from
    partitions_with_lag: int = 0
    total_lag: int | None = None
    max_time_lag: float | None = None
    state: str = ""
    subscription_mode: str | None = None
    subscription_timestamp: datetime | None = None


class GroupOnPartition(msgspec.Struct, frozen=True, rename="camel"):
    """A group's progress on one partition."""

    partition: str
    total_consumed: int = 0
    offset_lag: int = 0
    time_lag_seconds: float = 0.0
    lease_active: bool = False
    last_consumed_at: datetime | None = None


class TraceEvent(msgspec.Struct, frozen=True):
    """An event that a handler recorded about a message."""

    id: str
    event_type: str = "info"
    data: Any = None  # as in ``Delivery``
    consumer_group: str | None = None
    created_at: datetime | None = None
    trace_names: list[str] = []
    transaction_id: str | None = None
    partition_id: str | None = None
    queue_name: str | None = None
    partition_name: str | None = None


class QueueConfig(TypedDict, total=False):
    """Options of a queue; times in seconds unless the name says otherwise."""

    lease_time: int
    retry_limit: int
    retry_delay: int  # milliseconds
    max_size: int
    ttl: int
    priority: int
    delayed_processing: int
    window_buffer: int
    max_wait_time_seconds: int
    retention_enabled: bool
    retention_seconds: int
    completed_retention_seconds: int
    encryption_enabled: bool
    dead_letter_queue: bool
    dlq_after_max_retries: bool
    dedup_window_seconds: int


Acks = Sequence[MessageKey | Ack]

"""The Python client for partitioned queues: ``Client`` for asyncio, ``SyncClient`` for blocking programs.

Owns: the public names. Depends only on the standard library, msgspec and httptools, so it can be installed
without the broker.
"""

from holtmq.client.buffering import BufferedPushFailed
from holtmq.client.client import Client
from holtmq.client.consuming import Consumed
from holtmq.client.consumption import Consumption
from holtmq.client.errors import (
    AckRefused,
    BadAnswer,
    BadRequest,
    ClientClosed,
    ClientError,
    Conflict,
    ConnectionFailed,
    Forbidden,
    LeaseLost,
    MessageNotFound,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    PushFailed,
    QueueFull,
    Refused,
    TimedOut,
    TooLarge,
    TransactionFailed,
    Unauthorized,
    Unavailable,
)
from holtmq.client.message import Message
from holtmq.client.queue import Buffer, Queue
from holtmq.client.records import (
    Ack,
    AckResult,
    Configured,
    DeadLetter,
    DeadLetterPage,
    GroupOnPartition,
    GroupOnQueue,
    Item,
    MessageKey,
    PushResult,
    PushStatus,
    QueueConfig,
    Renewal,
    Replayed,
    Status,
    TraceEvent,
    TransactionResult,
)
from holtmq.client.retrying import Backoff
from holtmq.client.sync import SyncClient, SyncMessage, SyncQueue

__all__ = [
    "Ack",
    "AckRefused",
    "AckResult",
    "Backoff",
    "BadAnswer",
    "BadRequest",
    "Buffer",
    "BufferedPushFailed",
    "Client",
    "ClientClosed",
    "ClientError",
    "Configured",
    "Conflict",
    "ConnectionFailed",
    "Consumed",
    "Consumption",
    "DeadLetter",
    "DeadLetterPage",
    "Forbidden",
    "GroupOnPartition",
    "GroupOnQueue",
    "Item",
    "LeaseLost",
    "Message",
    "MessageKey",
    "MessageNotFound",
    "NotFound",
    "OutcomeUnknown",
    "Overloaded",
    "PushFailed",
    "PushResult",
    "PushStatus",
    "Queue",
    "QueueConfig",
    "QueueFull",
    "Refused",
    "Renewal",
    "Replayed",
    "Status",
    "SyncClient",
    "SyncMessage",
    "SyncQueue",
    "TimedOut",
    "TooLarge",
    "TraceEvent",
    "TransactionFailed",
    "TransactionResult",
    "Unauthorized",
    "Unavailable",
]

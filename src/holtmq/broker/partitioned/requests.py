"""Requests from the edges to partitioned queues, and the answers: plain values, no wire names.

Owns: the types of requests and answers. Must not touch: state.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from holtmq.broker.partitioned.groups.acknowledgment import Ack, AckOutcome, AckStatus
from holtmq.broker.partitioned.groups.further import Further
from holtmq.broker.partitioned.groups.group import QUEUE_MODE, Delivery
from holtmq.broker.partitioned.groups.subscriptions import StartRequest
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.queue import PartitionedQueue


class PushItem(NamedTuple):
    queue: str
    partition: str
    body: Body


class PushResult(NamedTuple):
    """The address of a stored message; for a duplicate, that of the original."""

    queue: int
    partition: int
    offset: int
    created_us: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class PopRequest:
    """One pop. Without a queue it reads all queues of a namespace and/or task."""

    lease_id: str
    queue: str = ""
    partition: str = ""
    namespace: str = ""
    task: str = ""
    group: str = QUEUE_MODE
    limit: int = 1
    most_partitions: int = 1
    lease_seconds: float | None = None
    auto_ack: bool = False
    conflates: bool = False
    start: StartRequest = field(default_factory=lambda: StartRequest(explicit=False))
    reader: str = ""  # the user, if it may not read every queue
    may_read: Callable[[str], bool] | None = None
    further: Further | None = None  # see ``Group.claim_any``
    most_bytes: int = sys.maxsize  # the broker has a limit of its own; the last message may exceed either


class Run(NamedTuple):
    """Messages of one partition, in order, with their log rows and bodies."""

    queue: PartitionedQueue
    delivery: Delivery
    rows: list[tuple[int, int, int]]  # (offset, journal position, creation time)
    bodies: list[Body]


@dataclass(frozen=True, slots=True)
class Popped:
    """The result of a pop. ``waits``: it wrote records, so the answer must wait for the journal.

    Without runs: of very many partitions or queues it has looked at some; the same pop again looks at others.
    """

    request: PopRequest
    runs: list[Run]
    waits: bool

    @property
    def count(self) -> int:
        return sum([len(run.bodies) for run in self.runs])


class Waiter:
    """A waiting pop. ``deliver`` is called once, or ``give_up`` if the pop fails or the node stops."""

    __slots__ = ("deliver", "done", "give_up", "request", "wrote")

    def __init__(
        self,
        request: PopRequest,
        deliver: Callable[[Popped], None],
        give_up: Callable[[], None] | None = None,
    ) -> None:
        self.request = request
        self.deliver = deliver
        self.give_up = give_up or _nothing
        self.done = False
        self.wrote = False  # records, in an earlier step of its pop

    def end(self) -> None:
        """Mark it as served or withdrawn. The callbacks usually refer back to the waiter and to the delivered
        messages: dropping them here breaks the cycle, so that memory is freed without the collector."""
        self.done = True
        self.deliver, self.give_up = _ignore, _nothing


def _ignore(_popped: Popped) -> None:
    return None


def _nothing() -> None:
    return None


class AckRequest(NamedTuple):
    queue: int  # number
    partition: int  # index
    group: str
    transaction_id: str
    status: AckStatus | None
    lease_id: str = ""
    error: str | None = None

    @property
    def ack(self) -> Ack:
        """The acknowledgment, without its queue and group."""
        return Ack(self.partition, self.transaction_id, self.status, self.lease_id, self.error)


class HeldPartition(NamedTuple):
    """A partition that is leased to an AMQP consumer of a group."""

    queue: int  # number
    partition: int  # index
    group: str
    lease_id: str


class SettledRun(NamedTuple):
    """Verdicts of its holder on messages of a leased partition, by position."""

    held: HeldPartition
    verdicts: Mapping[int, AckStatus]
    is_last: bool  # the holder has no more of it


class AckAnswer(NamedTuple):
    outcome: AckOutcome
    queue: PartitionedQueue | None

"""The effect of an acknowledgment on one group's progress in one partition.

Owns: the possible answers, and the head rule: which positions a call settles, retries or dead-letters.
Must not touch: leases, clocks, identifiers. The caller resolves positions; the result is a plain value.
"""

from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from holtmq.broker.errors import BrokerError

RETRIES_EXHAUSTED: Final = "Retries exhausted"
ERROR_MAX: Final = 4_000  # characters of a caller's error text kept with a dead letter


class AckStatus(Enum):
    """What the worker reports about a message. For one position, the highest value wins."""

    COMPLETED = 0
    RETRY = 1
    FAILED = 2
    DEAD_LETTER = 3

    @classmethod
    def named(cls, word: str) -> "AckStatus | None":
        """The status for a client's word; None for an unknown one, which the caller refuses."""
        return _WORDS.get(word)


_WORDS: Final = {
    "completed": AckStatus.COMPLETED,
    "success": AckStatus.COMPLETED,
    "retry": AckStatus.RETRY,
    "failed": AckStatus.FAILED,
    "dlq": AckStatus.DEAD_LETTER,
}


class Ack(NamedTuple):
    """One message's acknowledgment. A tuple for speed: a hot call creates 100 of them."""

    partition: int
    transaction_id: str
    status: AckStatus | None = AckStatus.COMPLETED
    lease_id: str = ""  # blank: the lease is not checked
    error: str | None = None


class AckVerdict(Enum):
    """The result of one acknowledgment."""

    ACKNOWLEDGED = "acknowledged"
    REDELIVERED = "failed_retry"  # success; the message will be redelivered
    FILED = "failed_dlq"
    DROPPED = "dropped"  # would be dead-lettered, but the queue keeps no dead letters
    INVALID_LEASE = "invalid_lease"
    NOT_FOUND = "not_found"
    STALE = "stale"  # a failure reported for a settled message
    UNKNOWN_STATUS = "unknown_status"

    @property
    def success(self) -> bool:
        return self in _SUCCESSES


class AckRefused(BrokerError):
    """An acknowledgment that must succeed, as part of a transaction, was refused."""

    def __init__(self, verdict: AckVerdict) -> None:
        super().__init__(verdict.value)
        self.verdict = verdict


_SUCCESSES: Final = frozenset(
    {AckVerdict.ACKNOWLEDGED, AckVerdict.REDELIVERED, AckVerdict.FILED, AckVerdict.DROPPED}
)


@dataclass(frozen=True, slots=True)
class AckOutcome:
    """The answer for one item; equal answers of one call share one object."""

    verdict: AckVerdict
    lease_released: bool = False
    noop: bool = False  # a completed ack of a settled message
    repeated: bool = False  # the same answer as to an earlier, identical call

    @property
    def success(self) -> bool:
        return self.verdict.success

    @property
    def dead_lettered(self) -> bool:
        return self.verdict is AckVerdict.FILED


class Answers(msgspec.Struct, frozen=True, gc=False):
    """The answers of one call for a partition, kept in case it is repeated; usually all are the same."""

    first: int
    end: int
    same: AckOutcome | None
    each: Mapping[int, AckOutcome]  # used when they differ

    def at(self, position: int) -> AckOutcome | None:
        if self.same is None:
            return self.each.get(position)
        return self.same if self.first <= position < self.end else None


class Named(NamedTuple):
    """What one call reports about one position."""

    status: AckStatus
    error: str | None


class Budget(NamedTuple):
    """Retries already used in this (partition, group), and how many the queue allows."""

    spent: int
    limit: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """The group's progress after a call."""

    cursor: int  # everything below is settled
    retry_count: int
    released: bool  # the lease, if any, ends
    failed: bool = False  # the head is retried after a failure: the retry delay applies
    filed: tuple[tuple[int, str], ...] = ()  # (position, error), lowest first


def settle(
    named: Mapping[int, Named],
    cursor: int,
    lease_end: int | None,
    budget: Budget,
    release: bool | None = None,
    holes: Collection[int] = (),
) -> Settlement:
    """Apply all of one call's items for one (partition, group) together.

    ``named`` has at least one position, all at or above ``cursor``. ``lease_end`` is one past the live
    lease's last position. ``release`` ends the lease at a clean ack even if positions remain. ``holes`` are
    positions of deleted messages, which nobody can name.
    """
    heads = [position for position, item in named.items() if item.status is not AckStatus.COMPLETED]
    if not heads:
        # Implicit ack: a worker that acks only the last message of a batch settles all of it.
        cursor = max(named) + 1
        released = bool(release) or (lease_end is not None and cursor >= lease_end)
        return Settlement(cursor, 0 if released else budget.spent, released)
    head = min(heads)
    status = named[head].status
    if status is AckStatus.RETRY or (status is AckStatus.FAILED and budget.spent < budget.limit):
        below = max((position + 1 for position in named if position < head), default=cursor)
        failed = status is AckStatus.FAILED
        return Settlement(below, budget.spent + failed, released=True, failed=failed)
    return _file_from(head, named, budget, holes)


def _file_from(head: int, named: Mapping[int, Named], budget: Budget, holes: Collection[int]) -> Settlement:
    """Dead-letter the head, then continue upward until a position that the call does not cover."""
    exhausted = budget.spent >= budget.limit
    filed = [(head, named[head].error or RETRIES_EXHAUSTED)]
    top = max((p for p, item in named.items() if item.status is AckStatus.COMPLETED), default=-1)
    cursor, retry_count = head + 1, 0
    for position in sorted(p for p in named if p > head):
        while cursor in holes:
            cursor += 1
        if position > cursor and position > top:
            break  # an unnamed position with nothing completed above it: the rest is redelivered
        item = named[position]
        if item.status is AckStatus.RETRY or (item.status is AckStatus.FAILED and not exhausted):
            # Unnamed positions below are settled by a completed position above, as in an implicit ack.
            cursor = position
            if item.status is AckStatus.FAILED:
                retry_count = budget.spent
            break
        if item.status is not AckStatus.COMPLETED:
            filed.append((position, item.error or RETRIES_EXHAUSTED))
        cursor = position + 1
    return Settlement(cursor, retry_count, released=True, filed=tuple(filed))


def verdict_at(position: int, settlement: Settlement, files: bool) -> AckVerdict:
    """The verdict for one position of a settlement."""
    if position >= settlement.cursor:
        return AckVerdict.REDELIVERED
    filed = settlement.filed
    at = bisect_left(filed, (position,))  # there may be as many as a call has acks
    if at < len(filed) and filed[at][0] == position:
        return AckVerdict.FILED if files else AckVerdict.DROPPED
    return AckVerdict.ACKNOWLEDGED

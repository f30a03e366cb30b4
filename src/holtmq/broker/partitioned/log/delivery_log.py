"""The newest deliveries of one partitioned queue: to which group, at which attempt, with what outcome.

Owns: runs of positions settled together, numbered without gaps, in columns (56 bytes per run) and bounded.
The log follows from the acks alone, so recovery gives the same numbers; a crash loses only what the live
lease knew (delivery time, error text of a failure that is retried). Must not touch: clocks, bodies, the
rules of acking.
"""

from array import array
from collections import deque
from collections.abc import Container, Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from holtmq.broker.partitioned.events import Acked
from holtmq.broker.partitioned.groups.partition_leases import PartitionLease

RUNS_MAX: Final = 128 << 10  # about 7 MB for a busy queue
_BLOCK: Final = 4096
_US: Final = 1_000_000


class DeliveryOutcome(IntEnum):
    """How a delivery ended. A lease that expired or was released leaves no row: it settled nothing."""

    ACKED = 0
    FAILED = 1  # will be redelivered
    DEAD = 2  # filed as a dead letter


class DeliveryRun(NamedTuple):
    """Positions ``first`` to ``end - 1`` of a partition, settled together."""

    number: int
    group: int
    partition: int
    first: int
    end: int
    attempt: int
    delivered_us: int  # 0: unknown
    settled_us: int
    outcome: int
    error: str | None


class LogState(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The whole log, in a checkpoint."""

    next_number: int
    blocks: list[tuple[int, bytes, bytes, dict[int, str]]]  # first number, columns, errors by row
    failing: list[tuple[int, int, int]]
    first_failed: dict[int, int]


class CapturedDeliveries(NamedTuple):
    """The log at one moment. Blocks only grow, at the end of the last one: ``next_number`` says how far."""

    next_number: int
    blocks: list["_Block"]
    failing: dict[tuple[int, int], int]
    first_failed: dict[int, int]

    def state(self) -> LogState:
        blocks: list[tuple[int, bytes, bytes, dict[int, str]]] = []
        for block in self.blocks:
            rows = min(self.next_number - block.first, _BLOCK)
            numbers, times = block.numbers[: 5 * rows], block.times[: 2 * rows]
            errors = {row: text for row, text in block.errors.copy().items() if row < rows}
            blocks.append((block.first, numbers.tobytes(), times.tobytes(), errors))
        failing = [(group, partition, at_us) for (group, partition), at_us in self.failing.items()]
        return LogState(self.next_number, blocks, failing, self.first_failed)


class _Block:
    __slots__ = ("errors", "first", "numbers", "times")

    def __init__(self, first: int) -> None:
        self.first = first
        self.numbers: array[int] = array("Q")  # group, partition, first, end, attempt * 4 + outcome
        self.times: array[int] = array("Q")  # delivered, settled
        self.errors: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.times) // 2

    def at(self, row: int) -> DeliveryRun:
        group, partition, first, end, mixed = self.numbers[5 * row : 5 * row + 5]
        delivered, settled = self.times[2 * row : 2 * row + 2]
        return DeliveryRun(
            self.first + row,
            group,
            partition,
            first,
            end,
            mixed >> 2,
            delivered,
            settled,
            mixed & 3,
            self.errors.get(row),
        )


class DeliveryLog:
    """The delivery runs of one queue. Above ``limit`` the oldest are dropped, a block at a time."""

    __slots__ = ("_blocks", "_failing", "_limit", "first_failed", "next_number")

    def __init__(self, limit: int = RUNS_MAX) -> None:
        self.next_number = 0
        self.first_failed: dict[int, int] = {}  # dead letter -> µs of its message's first failure
        self._limit = limit
        self._blocks: deque[_Block] = deque()
        self._failing: dict[tuple[int, int], int] = {}  # (group, partition) -> µs of its head's first failure

    @property
    def first_number(self) -> int:
        return self._blocks[0].first if self._blocks else self.next_number

    def settled(
        self, event: Acked, old: int, retries: int, lease: PartitionLease | None, next_letter: int
    ) -> None:
        """Log an ack that is about to be applied; ``old`` is the cursor, ``retries`` the count before it."""
        delivered_us = event.at_us if lease is None and not event.released else 0
        attempt = retries + 1
        if lease is not None:
            delivered_us, attempt = round(lease.lent_at * _US), lease.attempt
        if not event.dead_letters and event.retry_count <= retries:
            self._add(event, old, event.cursor, attempt, delivered_us, DeliveryOutcome.ACKED, None)
            if self._failing and event.cursor > old:
                self._failing.pop((event.group, event.partition), None)
            return
        key = (event.group, event.partition)
        at = old
        for number, filed in enumerate(event.dead_letters, next_letter):
            if at < filed.position:
                self._add(event, at, filed.position, attempt, delivered_us, DeliveryOutcome.ACKED, None)
            at = filed.position + 1
            self._add(event, filed.position, at, attempt, delivered_us, DeliveryOutcome.DEAD, filed.error)
            first_us = self._failing.pop(key, event.at_us) if retries else event.at_us
            if first_us != event.at_us:
                self.first_failed[number] = first_us
        self._add(event, at, event.cursor, attempt, delivered_us, DeliveryOutcome.ACKED, None)
        if event.retry_count > retries:
            self._failing.setdefault(key, event.at_us)
            self._add(
                event,
                event.cursor,
                event.cursor + 1,
                attempt,
                delivered_us,
                DeliveryOutcome.FAILED,
                event.error,
            )
        elif event.cursor > old:
            self._failing.pop(key, None)

    def _add(
        self,
        event: Acked,
        first: int,
        end: int,
        attempt: int,
        delivered_us: int,
        outcome: int,
        error: str | None,
    ) -> None:
        if end <= first:
            return
        blocks = self._blocks
        if not blocks or len(blocks[-1].times) == 2 * _BLOCK:
            blocks.append(_Block(self.next_number))
            if (len(blocks) - 1) * _BLOCK >= self._limit:
                blocks.popleft()
        block = blocks[-1]
        if error:
            block.errors[len(block)] = error
        block.numbers.extend((event.group, event.partition, first, end, attempt << 2 | outcome))
        block.times.extend((delivered_us, event.at_us))
        self.next_number += 1

    def runs(self, start: int, stop: int) -> Iterator[DeliveryRun]:
        """The stored runs numbered ``start`` to ``stop - 1``, oldest first."""
        for block in list(self._blocks):
            for row in range(max(0, start - block.first), min(len(block), stop - block.first)):
                yield block.at(row)

    def capture(self, letters: Container[int]) -> CapturedDeliveries:
        """The log as it is now; ``letters``: the numbers of the dead letters there are."""
        if self.first_failed:
            self.first_failed = {number: us for number, us in self.first_failed.items() if number in letters}
        return CapturedDeliveries(
            self.next_number, list(self._blocks), self._failing.copy(), self.first_failed.copy()
        )

    def load(self, state: LogState) -> None:
        self._blocks.clear()
        for first, numbers, times, errors in state.blocks:
            block = _Block(first)
            block.numbers.frombytes(numbers)
            block.times.frombytes(times)
            block.errors = errors
            self._blocks.append(block)
        self._load_rest(state.next_number, state.failing, state.first_failed)

    def load_runs(
        self,
        next_number: int,
        runs: Iterable[DeliveryRun],
        failing: Iterable[tuple[int, int, int]],
        first_failed: dict[int, int],
    ) -> None:
        """The same from a checkpoint that has a row for each run."""
        self._blocks.clear()
        for run in runs:
            if not self._blocks or len(self._blocks[-1]) == _BLOCK:
                self._blocks.append(_Block(run.number))
            block = self._blocks[-1]
            if run.error:
                block.errors[len(block)] = run.error
            block.numbers.extend(
                (run.group, run.partition, run.first, run.end, run.attempt << 2 | run.outcome)
            )
            block.times.extend((run.delivered_us, run.settled_us))
        self._load_rest(next_number, failing, first_failed)

    def _load_rest(
        self, next_number: int, failing: Iterable[tuple[int, int, int]], first_failed: dict[int, int]
    ) -> None:
        self.next_number = next_number
        self._failing = {(group, partition): at_us for group, partition, at_us in failing}
        self.first_failed = first_failed

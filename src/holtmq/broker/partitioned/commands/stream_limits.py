"""The limits of streams: ``x-max-age`` and ``x-max-length-bytes``, from arguments or a policy.

Owns: the limits by queue name, and the message sizes of queues with a limit in bytes. No index has these
sizes, so they are measured, newest first and in bounded steps. Must not touch: clocks, how messages are
removed (``retention.py``).
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.log.message_log import GONE, MessageLog
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.queue_config import US

STEP_MESSAGES: Final = 2_000  # measured in one step

# Sizes of the messages at these journal positions, in order: at least one, not all if they are large.
Weigh = Callable[[Sequence[int]], list[int]]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one stream."""

    max_age: int | None = None  # seconds
    max_bytes: int | None = None


class StreamLimits:
    """The limits of all streams that have any."""

    def __init__(self, weigh: Weigh) -> None:
        self._weigh = weigh
        self._limits: dict[str, Limits] = {}
        self._scales: dict[int, _Scale] = {}  # by queue number

    def __len__(self) -> int:
        return len(self._limits)

    def names(self) -> list[str]:
        """The queues with a limit; some may not exist yet."""
        return list(self._limits)

    def put(self, name: str, limits: Limits) -> None:
        """Set the limits of the queue with this name."""
        if limits == Limits():
            self._limits.pop(name, None)
        else:
            self._limits[name] = limits

    def floor(self, queue: PartitionedQueue, now: float) -> tuple[int, bool]:
        """The offset below which messages must be dropped, and whether there is more to measure."""
        limits = self._limits.get(queue.name, Limits())
        log = queue.log
        floor, busy = 0, False
        if limits.max_age is not None:
            floor = log.offset_at(micros(now) - limits.max_age * US)
        if limits.max_bytes is not None:
            scale = self._scales.get(queue.number)
            if scale is None:
                scale = self._scales[queue.number] = _Scale(log)
            heavy, busy = scale.cut(limits.max_bytes, self._weigh)
            floor = max(floor, heavy)
        return min(floor, log.durable_end), busy

    def drop_scales(self, living: Callable[[int], bool]) -> None:
        """Drop the measured sizes of deleted queues."""
        for number in [number for number in self._scales if not living(number)]:
            del self._scales[number]


class _Scale:
    """Sizes of a log's newest messages, as far back as the limit reaches."""

    __slots__ = ("_complete", "_head", "_log", "_newer", "_older", "_start", "_total")

    def __init__(self, log: MessageLog) -> None:
        self._log = log
        self._start = log.durable_end
        self._older: array[int] = array("Q")  # sizes of messages below ``_start``, the newest first
        self._newer: array[int] = array("Q")  # sizes from ``_start`` on, the oldest first
        self._head = 0  # how many at the start of ``_newer`` are no longer counted
        self._total = 0
        self._complete = False  # nothing below the counted messages is to be kept

    def cut(self, most: int, weigh: Weigh) -> tuple[int, bool]:
        """The offset below which the limit is exceeded (0: unknown), and whether there is more to measure."""
        log = self._log
        end = self._start + len(self._newer)
        sizes = self._sizes(range(end, min(log.durable_end, end + STEP_MESSAGES)), weigh)
        self._newer.extend(sizes)
        self._total += sum(sizes)
        if not self._complete:
            self._look_back(most, weigh)
        while self._total > most and self._count > 1:  # the newest is kept, whatever its size
            self._total -= self._pop_oldest()
            self._complete = True
        busy = end + len(sizes) < log.durable_end or not self._complete
        return (self._low if self._complete else 0), busy

    @property
    def _low(self) -> int:
        return self._start - len(self._older) + self._head

    @property
    def _count(self) -> int:
        return len(self._older) + len(self._newer) - self._head

    def _look_back(self, most: int, weigh: Weigh) -> None:
        low, first = self._low, self._log.first_offset
        for size in self._sizes(range(low - 1, max(first, low - STEP_MESSAGES) - 1, -1), weigh):
            if self._total + size > most and self._count:
                self._complete = True
                return
            self._older.append(size)
            self._total += size
        self._complete = self._low <= first

    def _sizes(self, offsets: range, weigh: Weigh) -> list[int]:
        log = self._log
        stored = [offset for offset in offsets if log.partition(offset) != GONE]
        weights = weigh([log.position(offset) for offset in stored]) if stored else []
        if len(weights) < len(stored):
            offsets = offsets[: offsets.index(stored[len(weights)])]
        known = dict(zip(stored, weights, strict=False))
        return [known.get(offset, 0) for offset in offsets]

    def _pop_oldest(self) -> int:
        if self._older:
            return self._older.pop()
        size = self._newer[self._head]
        self._head += 1
        if self._head > STEP_MESSAGES and 2 * self._head > len(self._newer):
            del self._newer[: self._head]
            self._start += self._head
            self._head = 0
        return size

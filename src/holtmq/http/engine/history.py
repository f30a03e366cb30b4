"""Counts per minute, for dashboards.

Owns: one day of differences between readings of the counters, per queue. Must not touch: the counters, except
to reset ``lag_max_us`` after reading it.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from holtmq.broker.partitioned.counters import QueueCounters, QueueCounts
from holtmq.http.engine.stepwise import Stepwise

MINUTE_US: Final = 60_000_000
_KEPT_MINUTES: Final = 24 * 60
_SPANS: Final = ((120, 1), (720, 5), (2880, 15), (10080, 60))  # (longest span, bucket width), in minutes
_NAMES: Final = tuple(name for name in QueueCounts.__slots__ if name != "lag_max_us")


def bucket_minutes(from_us: int, to_us: int) -> int:
    """The bucket width for a span, in minutes."""
    minutes = (to_us - from_us) / MINUTE_US
    return next((width for most, width in _SPANS if minutes <= most), 360)


@dataclass(slots=True)
class Machine:
    """The process in one minute: sums over ``samples`` samples."""

    samples: int = 0
    rss_bytes: int = 0
    cpu_user: float = 0.0  # seconds of CPU in this minute
    cpu_system: float = 0.0
    loop_lag_max: float = 0.0  # how late the event loop ran a timer, in seconds


class History:
    """Counts per minute and queue. ``read`` is called periodically, and before every query."""

    def __init__(self, counters: QueueCounters) -> None:
        self._counters_of_queues = counters
        self.machine: dict[int, Machine] = {}  # by minute
        self._cpu: tuple[float, float] | None = None
        self._last: dict[str, dict[str, int]] = {}
        self._minutes: dict[int, dict[str, QueueCounts]] = {}

    def read(self, now_us: int) -> None:
        """Add what changed since the last reading to the current minute."""
        minute = now_us // MINUTE_US
        for name, counters in self._counters_of_queues.queues.items():
            last = self._last.setdefault(name, dict.fromkeys(_NAMES, 0))
            row: QueueCounts | None = None
            for field in _NAMES:
                value: int = getattr(counters, field)
                if value != last[field]:
                    if row is None:
                        row = self._minutes.setdefault(minute, {}).setdefault(name, QueueCounts())
                    setattr(row, field, getattr(row, field) + max(0, value - last[field]))
                    last[field] = value
            if row is not None:
                row.lag_max_us = max(row.lag_max_us, counters.lag_max_us)
                counters.lag_max_us = 0
        for gone in [name for name in self._last if name not in self._counters_of_queues.queues]:
            del self._last[gone]
        for old in [at for at in self._minutes if at < minute - _KEPT_MINUTES]:
            del self._minutes[old]

    def note_machine(self, now_us: int, rss_bytes: int, user: float, system: float, loop_lag: float) -> None:
        """One sample of the process; the CPU times are totals since it started."""
        minute = now_us // MINUTE_US
        row = self.machine.setdefault(minute, Machine())
        row.samples += 1
        row.rss_bytes += rss_bytes
        row.loop_lag_max = max(row.loop_lag_max, loop_lag)
        if self._cpu is not None:
            row.cpu_user += user - self._cpu[0]
            row.cpu_system += system - self._cpu[1]
        self._cpu = (user, system)
        for old in [at for at in self.machine if at < minute - _KEPT_MINUTES]:
            del self.machine[old]

    def machine_between(self, start_us: int, width: int) -> Machine:
        """The process in one bucket."""
        total = Machine()
        for minute in range(start_us // MINUTE_US, start_us // MINUTE_US + width):
            row = self.machine.get(minute)
            if row is not None:
                total.samples += row.samples
                total.rss_bytes += row.rss_bytes
                total.cpu_user += row.cpu_user
                total.cpu_system += row.cpu_system
                total.loop_lag_max = max(total.loop_lag_max, row.loop_lag_max)
        return total

    def minute(self, at_us: int) -> dict[str, QueueCounts]:
        """Queue -> its counts in one minute."""
        return dict(self._minutes.get(at_us // MINUTE_US, {}))

    def starts(self, from_us: int, to_us: int, width: int) -> range:
        """Where the buckets of a span begin, in µs, oldest first."""
        first = from_us // MINUTE_US // width * width
        last = min(to_us, max(self._minutes, default=0) * MINUTE_US + MINUTE_US) // MINUTE_US
        return range(first * MINUTE_US, (max(last, first) + 1) * MINUTE_US, width * MINUTE_US)

    async def buckets(
        self, from_us: int, to_us: int, width: int, stepwise: Stepwise
    ) -> AsyncGenerator[tuple[int, dict[str, QueueCounts]], None]:
        """(start of the bucket in µs, queue -> its counts), oldest first, including empty buckets.

        In steps: a day of 100 queues has 144,000 rows.
        """
        for start in self.starts(from_us, to_us, width):
            rows: dict[str, QueueCounts] = {}
            for at in range(start, start + width * MINUTE_US, MINUTE_US):
                for name, row in self.minute(at).items():
                    add(rows.setdefault(name, QueueCounts()), row)
                    if stepwise.is_due:
                        await stepwise.rest()
            yield start, rows


def add(total: QueueCounts, more: QueueCounts) -> None:
    for field in _NAMES:
        setattr(total, field, getattr(total, field) + getattr(more, field))
    total.lag_max_us = max(total.lag_max_us, more.lag_max_us)


async def summed(
    rows: dict[str, QueueCounts], stepwise: Stepwise, wanted: set[str] | None = None
) -> QueueCounts:
    """The sum over several queues; all of them unless ``wanted`` is given."""
    total = QueueCounts()
    for name, row in rows.items():
        if wanted is None or name in wanted:
            add(total, row)
            if stepwise.is_due:
                await stepwise.rest()
    return total

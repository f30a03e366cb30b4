"""Counts per minute, for dashboards.

Owns: one day of readings of the counters, per queue. Must not touch: what is counted.
"""

from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Final

from holtmq.broker.partitioned.counters import QueueCounters, QueueCounts
from holtmq.http.engine.stepwise import Stepwise

MINUTE_US: Final = 60_000_000
_KEPT_MINUTES: Final = 24 * 60
_SPANS: Final = ((120, 1), (720, 5), (2880, 15), (10080, 60))  # (longest span, bucket width), in minutes
_ROWS_MAX: Final = 250_000  # of a queue in a minute; some 260 bytes each
OTHERS: Final = ""  # the rows of very many queues, added up: instead of the name of one


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
    """Counts per minute and queue. It is read periodically, and before every query.

    A day of very many queues would need gigabytes: beyond a bound, the oldest minutes keep only the sum over
    their queues.
    """

    def __init__(self, counters: QueueCounters) -> None:
        self._counters_of_queues = counters
        self.machine: dict[int, Machine] = {}  # by minute
        self._cpu: tuple[float, float] | None = None
        self._minutes: dict[int, dict[str, QueueCounts]] = {}
        self._rows = 0

    async def read(self, now_us: int, stepwise: Stepwise | None = None) -> QueueCounts:
        """Add what was counted since the last reading to the current minute; return the sums of all time."""
        steps = stepwise or Stepwise()
        for _ in self._reading(now_us // MINUTE_US):
            await steps.between()
        return self._counters_of_queues.total

    def _reading(self, minute: int) -> Iterator[None]:
        for name, more in self._counters_of_queues.readings():
            if more is not None:
                self._add(minute, name, more)
            yield
        for old in [at for at in self._minutes if at < minute - _KEPT_MINUTES]:
            yield from self._fold(old)
            self._minutes.pop(old, None)
        for old in sorted(self._minutes)[:-1]:
            if self._rows > _ROWS_MAX:
                yield from self._fold(old)

    def _add(self, minute: int, name: str, more: QueueCounts) -> None:
        rows = self._minutes.setdefault(minute, {})
        row = rows.get(name)
        if row is None:
            rows[name] = more
            self._rows += 1
        else:
            row.add(more)

    def _fold(self, minute: int) -> Iterator[None]:
        """Replace the rows of a minute by their sum."""
        rows = self._minutes.get(minute, {})
        others = rows.setdefault(OTHERS, QueueCounts())
        for name in [name for name in rows if name != OTHERS]:
            row = rows.pop(name, None)  # another reader may fold the same minute
            if row is not None:
                self._rows -= 1
                others.add(row)
            yield

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
                    rows.setdefault(name, QueueCounts()).add(row)
                    if stepwise.is_due:
                        await stepwise.rest()
            yield start, rows


async def summed(
    rows: dict[str, QueueCounts], stepwise: Stepwise, wanted: set[str] | None = None
) -> QueueCounts:
    """The sum over several queues; all of them unless ``wanted`` is given."""
    total = QueueCounts()
    for name, row in rows.items():
        if wanted is None or name in wanted:
            total.add(row)
            if stepwise.is_due:
                await stepwise.rest()
    return total

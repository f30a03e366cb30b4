"""When dead letters failed, as counts over time.

Owns: the width of a bucket. Must not touch: the letters.
"""

from array import array
from collections.abc import Iterable
from typing import Final

_BUCKETS_MOST: Final = 60
_MINUTE: Final = 60_000
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_WIDTHS: Final = (
    *(_MINUTE, 5 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY, 7 * _DAY, 30 * _DAY),
)


class LetterTimes:
    """The times of failures, by signature. A letter without a time is not counted."""

    def __init__(self) -> None:
        self._times: dict[str, array[int]] = {}

    def add(self, signature: str, failed_ms: int | None) -> None:
        """Add one letter."""
        if failed_ms is not None:
            self._times.setdefault(signature, array("q")).append(failed_ms)

    def over_time(self, now_ms: int) -> tuple[dict[str, int], dict[str, list[int]]]:
        """The start and the width of the buckets in milliseconds, and the counts of each signature, oldest
        first; the last bucket contains ``now_ms``."""
        oldest = min(map(min, self._times.values()), default=now_ms)
        width = next((one for one in _WIDTHS if (now_ms - oldest) // one < _BUCKETS_MOST - 1), _WIDTHS[-1])
        last = now_ms // width
        first = max(oldest // width, last - _BUCKETS_MOST + 1)
        counts = {
            signature: _counts(times, first, last - first + 1, width)
            for signature, times in self._times.items()
        }
        return {"from": first * width, "step_ms": width}, counts


def _counts(times: Iterable[int], first: int, size: int, width: int) -> list[int]:
    counts = [0] * size
    for at in times:
        # A clock that was set back leaves times ahead of now, and there may be more than all buckets cover.
        counts[min(max(at // width - first, 0), size - 1)] += 1
    return counts

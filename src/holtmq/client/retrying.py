"""When and where to retry: backoff with jitter, ``Retry-After``, which of several brokers.

Owns: the numbers. Must not touch: clocks, randomness, sockets; time and random numbers are arguments.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

_LONGEST_RETRY_AFTER: Final = 300.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from ``first`` to ``longest`` seconds; ``tries`` counts the first attempt too."""

    tries: int = 8
    first: float = 0.1
    longest: float = 5.0

    def __post_init__(self) -> None:
        if self.tries < 1 or self.first <= 0 or self.longest < self.first:
            raise ValueError("backoff needs at least one try and 0 < first <= longest")

    def delay(self, failures: int, dice: float, retry_after: float | None = None) -> float:
        """Seconds to wait after this many failures; ``dice`` is a random number from 0 to 1.

        Half of it is random, so that clients cut off together do not come back together. What the
        broker asked for is a lower bound: the jitter is added to it.
        """
        step = min(self.longest, self.first * 2.0 ** min(failures - 1, 60))
        if retry_after is not None:
            return min(retry_after, _LONGEST_RETRY_AFTER) + step * dice / 2
        return step / 2 + step * dice / 2


# With several brokers, one of them may be about to take over: 5 s after the other's last sign of life by
# default, and later on a busy machine. Eight tries may end after 5.6 s, fourteen after 20.
_FAILOVER_TRIES: Final = 14


def default_backoff(brokers: int) -> Backoff:
    """For a client that knows so many brokers."""
    return Backoff(tries=_FAILOVER_TRIES) if brokers > 1 else Backoff()


def read_retry_after(value: str, now: float) -> float | None:
    """Seconds from now, from a number or an HTTP date; None if it is neither."""
    try:
        return max(0.0, float(int(value)))
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.fromtimestamp(now, UTC)).total_seconds())


class Rotation:
    """Which of ``count`` brokers to use: stay with one while it works, avoid one that failed for a while."""

    __slots__ = ("_banned_until", "_current", "_seconds")

    def __init__(self, count: int, seconds: float = 5.0) -> None:
        if count < 1:
            raise ValueError("at least one broker is needed")
        self._banned_until = [0.0] * count
        self._current = 0
        self._seconds = seconds

    @property
    def current(self) -> int:
        return self._current

    def pick(self, now: float) -> int:
        """The current or the next one without a recent failure, else the one that failed longest ago."""
        count = len(self._banned_until)
        for step in range(count):
            index = (self._current + step) % count
            if self._banned_until[index] <= now:
                self._current = index
                return index
        self._current = min(range(count), key=self._banned_until.__getitem__)
        return self._current

    def failed(self, index: int, now: float) -> None:
        """Avoid this address for a while."""
        self._banned_until[index] = now + self._seconds

    def worked(self, index: int) -> None:
        self._banned_until[index] = 0.0

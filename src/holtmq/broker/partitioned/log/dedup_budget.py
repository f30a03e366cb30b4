"""A bound on the transaction ids that all partitioned queues of a node remember together.

Owns: each queue's share, and the work of keeping to it. Must not touch: clocks, logs; the caller passes the
time and reports what was forgotten early.

If all ids within their windows fit, each queue remembers all of them. Otherwise the queues with the most ids
forget their oldest ones first, so that a busy queue cannot shorten the window of a quiet one.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from holtmq.broker.partitioned.log.dedup import MAX_ENTRIES, DedupIndex
from holtmq.broker.partitioned.queue import PartitionedQueue

ID_BYTES: Final = 145  # measured: a dict entry and its two ints, of a dict that has just grown
_AT_ONCE: Final = 5_000  # ids forgotten in a step: about 5 ms
_QUEUES_AT_ONCE: Final = 2_000


class DedupBudget:
    """The ids of one node."""

    __slots__ = ("forgotten_by_deleted", "forgotten_early", "ids", "max_ids", "share")

    def __init__(self, max_ids: int) -> None:
        self.max_ids = max_ids
        self.share = MAX_ENTRIES  # the most ids that one queue may remember
        self.ids = 0  # at the last look
        self.forgotten_by_deleted = 0  # early, by queues that were deleted
        self.forgotten_early = 0  # ids forgotten within their window since the start, at the last look

    def keep(self, queues: Iterable[PartitionedQueue], now_us: int) -> Iterator[None]:
        """Compute the shares, then forget ids beyond their window or share; all in steps."""
        found, sizes = list(queues), list[int]()
        for some in _steps(found):
            sizes += [len(queue.dedup) for queue in some]
            yield
        self.ids = sum(sizes)
        self.share = MAX_ENTRIES if self.ids <= self.max_ids else _share(sizes, self.max_ids)
        early = self.forgotten_by_deleted  # not later: a queue that is deleted meanwhile is among those below
        for some in _steps(found):
            for queue in some:
                index = queue.dedup
                index.limit = self.share
                # Pushes do the same for their queue; a queue without pushes would keep its ids for ever.
                while index.expire(now_us - queue.config.dedup_window_us, _AT_ONCE):
                    yield
                early += index.forgotten_early
            yield
        self.forgotten_early = early


def _steps(queues: list[PartitionedQueue]) -> Iterator[list[PartitionedQueue]]:
    for start in range(0, len(queues), _QUEUES_AT_ONCE):
        yield queues[start : start + _QUEUES_AT_ONCE]


def shortened_us(index: DedupIndex, now_us: int, window_us: int) -> int | None:
    """For how long a queue remembers ids at the moment, if that is less than its window; else None."""
    if index.forgotten_us < now_us - window_us:
        return None
    return now_us - index.forgotten_us


def _share(sizes: list[int], total: int) -> int:
    """The largest size such that all sizes, each cut to it, are at most ``total`` together."""
    left = total
    for done, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - done)
        if size > share:
            return min(max(share, 1), MAX_ENTRIES)
        left -= size
    return MAX_ENTRIES

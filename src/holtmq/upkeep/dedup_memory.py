"""The transaction ids of partitioned queues stay within the node's memory for them.

Owns: when this is looked at, and the report when a window had to be shortened. Must not touch: which ids are
forgotten (``broker/partitioned/log/dedup_budget.py``).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from holtmq.broker.partitioned.log.dedup_budget import shortened_us
from holtmq.broker.partitioned.store import PartitionedStore

log = logging.getLogger(__name__)

_US: Final = 1_000_000
_REPORT_SECONDS: Final = 60.0


class DedupMemory:
    """The dedup memory of one node."""

    def __init__(self, store: PartitionedStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._reported = 0  # ids forgotten early, at the last report
        self._reported_at = 0.0

    async def keep(self) -> None:
        """Forget ids beyond their window, or beyond the node's memory for them, in steps."""
        now_us = int(self._clock() * _US)
        for _ in self._store.dedup_budget.keep(self._store.queues.values(), now_us):
            await asyncio.sleep(0)
        self._report(now_us)

    def _report(self, now_us: int) -> None:
        """Log that promises of queues are not kept, once a minute at most."""
        queues, forgotten = self._store.queues.values(), self._store.dedup_budget.forgotten_early
        now = now_us / _US
        if forgotten <= self._reported or 0 <= now - self._reported_at < _REPORT_SECONDS:
            return
        spans = [
            (span, queue.name)
            for queue in queues
            if (span := shortened_us(queue.dedup, now_us, queue.config.dedup_window_us)) is not None
        ]
        shortest, name = min(spans, default=(0, ""))
        log.warning(
            "transaction ids forgotten before the end of their dedup window",
            extra={
                "ids": forgotten - self._reported,
                "queues": len(spans),
                "shortest": name,
                "seconds": shortest // _US,
                "setting": "limits.dedup_memory",
            },
        )
        self._reported, self._reported_at = forgotten, now

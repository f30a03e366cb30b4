"""Stored files are verified, slowly, again and again.

Owns: the pace, and what follows from a damaged place. Must not touch: how files are verified
(``journal/scrub.py``).
"""

import asyncio
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holtmq.broker.broker import Broker
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.work import damage_review
from holtmq.journal import Journal, JournalError
from holtmq.journal.checkpoint import SUFFIX as CHECKPOINT_SUFFIX
from holtmq.journal.disk import OsDisk
from holtmq.journal.scrub import Rot, scrub

log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 300.0


class Scrubber:
    """Verifies the journal's files in a thread."""

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        broker: Broker,
        partitioned: PartitionedService,
        *,
        checkpoint: Callable[[], bool],
        wake: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._journal = journal
        self._broker = broker
        self._partitioned = partitioned
        self._checkpoint = checkpoint
        self._wake = wake

    async def run(self, bytes_per_second: float) -> None:
        """Verify all files at this pace, with a pause after each pass; never returns."""
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            try:
                await self.once(bytes_per_second)
            except (
                Exception
            ):  # a file that cannot be opened, a journal that failed: the next pass may succeed
                log.exception("the files could not be verified")

    async def once(self, bytes_per_second: float = math.inf) -> int:
        """Verify all files except the one being written; return the number of damaged places."""
        found = 0
        steps = scrub(OsDisk(self._folder), self._journal.last_segment)
        while (step := await asyncio.to_thread(next, steps, None)) is not None:
            if isinstance(step, int):
                await asyncio.sleep(step / bytes_per_second)
                continue
            found += 1
            log.error("damage found", extra={"file": step.name, "at": step.position, "reason": step.reason})
            if step.name.endswith(CHECKPOINT_SUFFIX):
                self._checkpoint()  # replaces the damaged one
            elif not await self._refetch(step):
                self._partitioned.store.note_rot(step.error())
                damage_review.note_unreadable(
                    self._broker.work_queues(), self._broker.flow.damage, step.error()
                )
                self._wake()
        return found

    async def _refetch(self, rot: Rot) -> bool:
        """Replace a damaged segment by the replica's copy; True also when that has to wait."""
        try:
            return await asyncio.to_thread(self._journal.refetch, rot.position)
        except JournalError as error:
            log.warning("a damaged segment is fetched later", extra={"reason": str(error)})
            return True

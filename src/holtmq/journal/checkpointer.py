"""Makes checkpoints, one at a time and in parallel to commits; keeps the previous one with all that it needs.

Owns: the two steps of a checkpoint (write; then, once the log is durable that far, publish and reclaim) and
the thread they run in. Must not touch: the open end of the log, the writer thread.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from .checkpoint import discard, publish, write_checkpoint
from .compaction import Keeping, Reclaimed, SealedSegment, Standing, reclaim
from .disk import Disk
from .dropped import Dropped
from .interface import Defer
from .live import LivePositions, live_bases
from .mirror import Mirror

_Value = TypeVar("_Value")
# Seconds before a thread begins its work: whoever starts it waits until it runs, and then for the
# interpreter, which it would hold for 5 ms first.
_PAUSE: Final = 0.001


@dataclass(slots=True)
class CheckpointOutcome:
    position: int
    published: bool = False
    reclaimed: Reclaimed = field(default_factory=Reclaimed)
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Running:
    position: int
    epoch: int
    bases: Sequence[int]  # of the segments at that position
    begun: bool = False
    live: LivePositions | None = None  # known once the checkpoint is written
    publishing: bool = False


class Checkpointer:
    """``done`` gets the outcome of each checkpoint. Without ``notify`` every step runs inline."""

    def __init__(
        self,
        disk: Disk,
        notify: Defer | None,
        done: Callable[[CheckpointOutcome], None],
        dropped: Dropped,
    ) -> None:
        self._disk = disk
        self._dropped = dropped
        self._notify = notify
        self._done = done
        self._running: _Running | None = None
        self._newest: Standing | None = None  # published; kept as the older one beside the next
        self._thread: threading.Thread | None = None
        self._results: deque[Callable[[], None]] = deque()
        self._stopping = threading.Event()
        # The journal is closed in another thread while the loop runs: what the loop has begun to handle may
        # start the next step, for which ``stop`` must wait, too.
        self._handling = threading.RLock()
        self.mirror: Mirror | None = None

    @property
    def waits_for(self) -> int | None:
        """The position up to which the log must be durable before ``proceed``; None when nothing waits."""
        running = self._running
        if running is None or running.live is None or running.publishing:
            return None
        return running.position

    @property
    def busy(self) -> bool:
        return self._running is not None

    @property
    def newest(self) -> int | None:
        """The position of the last published checkpoint."""
        return None if self._newest is None else self._newest.position

    @property
    def live(self) -> LivePositions | None:
        """The positions that the last published checkpoint refers to; None before the first of this run."""
        return None if self._newest is None else self._newest.live

    def recovered(self, position: int, segments: Sequence[int]) -> None:
        """Set the checkpoint that this journal was opened from."""
        self._newest = Standing(position, None, frozenset(segments))

    def reserve(self, position: int, epoch: int, bases: Sequence[int]) -> None:
        """Be busy with a checkpoint at this position, until ``begin`` or ``give_up``."""
        assert self._running is None
        self._running = _Running(position, epoch, bases)

    def give_up(self) -> None:
        """There will be no state for the reserved checkpoint."""
        assert self._running is not None
        assert not self._running.begun
        self._running = None

    def begin(
        self,
        records: Iterable[tuple[int, bytes]],
        live: Iterable[array[int]],
        written: Callable[[], None],
    ) -> None:
        """Start writing the reserved checkpoint; ``written`` is called when the file is written and
        ``waits_for`` is set."""
        running = self._running
        assert running is not None
        assert not running.begun
        running.begun = True
        self._background(
            partial(_write, self._disk, running.position, running.epoch, running.bases, records, live),
            partial(self._wrote, written),
        )

    def proceed(self, sealed: Sequence[SealedSegment], threshold: float, unsynced: str | None) -> None:
        """The log is durable far enough: publish, then reclaim from the sealed segments.

        What the previous checkpoint needs is kept: its messages, and the log from its position on.

        ``unsynced``: if commits do not sync, the segment that must be synced first. If a power cut left the
        checkpoint but not the log before it, the journal could not be opened.
        """
        with self._handling:
            running = self._running
            assert running is not None
            assert running.live is not None
            running.publishing = True
            state = Standing(running.position, running.live)
            keeping = Keeping(state, self._newest, self._dropped)
            work = partial(
                _publish, self._disk, keeping, sealed, threshold, unsynced, self._stopping.is_set, self.mirror
            )
            self._background(work, self._finished)

    def stop(self) -> None:
        """Skip what the next owner can do later, and wait for the running step."""
        self._stopping.set()
        with self._handling:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        self._collect()

    def _wrote(self, written: Callable[[], None], result: LivePositions | str) -> None:
        running = self._running
        assert running is not None
        if isinstance(result, str):
            self._finished(CheckpointOutcome(running.position, problems=[result]))
            return
        running.live = result
        written()

    def _finished(self, outcome: CheckpointOutcome) -> None:
        running, self._running = self._running, None
        if outcome.published and running is not None:
            self._newest = Standing(running.position, running.live)
        self._done(outcome)

    def _background(self, work: Callable[[], _Value], then: Callable[[_Value], None]) -> None:
        notify = self._notify
        if notify is None:
            then(work())
            return

        def run() -> None:
            time.sleep(_PAUSE)
            self._results.append(partial(then, work()))
            with suppress(RuntimeError):  # the loop is closed: stop() collects
                notify(self._collect)

        thread = threading.Thread(target=run, name="holt-journal-checkpoint", daemon=True)
        thread.start()
        self._thread = thread  # set after start(): a close in another thread may join it at once

    def _collect(self) -> None:
        with self._handling:
            while self._results:
                self._results.popleft()()


def _write(
    disk: Disk,
    position: int,
    epoch: int,
    bases: Sequence[int],
    records: Iterable[tuple[int, bytes]],
    arrays: Iterable[array[int]],
) -> LivePositions | str:
    """Write the checkpoint; return the positions to keep, or why it failed."""
    try:
        live = LivePositions(arrays, position)
        write_checkpoint(disk, position, epoch, live_bases(bases, position, live), records)
    except Exception as exc:  # most likely no space: the log is untouched, the last checkpoint stays valid
        discard(disk, position)
        return f"writing the checkpoint: {exc}"
    return live


def _publish(
    disk: Disk,
    keeping: Keeping,
    sealed: Sequence[SealedSegment],
    threshold: float,
    unsynced: str | None,
    stopping: Callable[[], bool],
    mirror: Mirror | None,
) -> CheckpointOutcome:
    outcome = CheckpointOutcome(keeping.state.position)
    try:
        if unsynced is not None:
            file = disk.open(unsynced, write=True)
            try:
                file.sync()
            finally:
                file.close()
        older = keeping.older
        fallback = None if older is None else older.position
        publish(disk, keeping.state.position, fallback)
        outcome.published = True
        if mirror is not None:
            mirror.published(keeping.state.position, fallback)
        if older is not None:  # the first checkpoint's fallback is the whole log: reclaim nothing
            outcome.reclaimed = reclaim(disk, sealed, keeping, threshold, stopping)
        outcome.problems = outcome.reclaimed.problems
        if mirror is not None:
            mirror.reclaimed([segment.base for segment in sealed], outcome.reclaimed.deleted)
    except Exception as exc:
        outcome.problems.append(f"publishing the checkpoint: {exc}")
    return outcome

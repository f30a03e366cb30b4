"""The interface of a journal, in terms of records and positions.

Owns: the ``Journal`` protocol, what recovery returns, and the errors every implementation raises.
Must not touch: files, segments, threads. A database can implement it as well as a folder.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from .encoded_batch import EncodedBatch

from holtmq.durations import Durations

FIRST_FREE_KIND: Final = 16  # kinds below belong to the journal itself
LAST_KIND: Final = 255
# Recovery yields these in place of records that a repair gave up; it yields no other kind below 16.
LOST: Final = 6  # records are missing here: do not connect what follows with what came before
LOST_IN_BATCH: Final = 7  # one or more records are missing from the batch that the neighbours belong to


class JournalError(Exception):
    """Something is wrong with the journal; the text says what and where."""


class JournalFailed(JournalError):
    """A write or a sync failed. The journal accepts nothing more until the node is restarted."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the journal failed and accepts nothing more: {reason}")
        self.reason = reason


class JournalCorrupt(JournalError):
    """Bytes that were once durable are damaged or missing."""


class RecordUnreadable(JournalCorrupt):
    """One record cannot be read; the others can."""

    def __init__(
        self, text: str, position: int, reason: str, size: int = 0, *, dropped: bool = False
    ) -> None:
        super().__init__(text)
        self.position = position
        self.reason = reason
        self.size = size  # as far as it is known
        self.dropped = dropped  # a repair has given it up: this is not new damage


class PositionNotHeld(RecordUnreadable):
    """No segment holds a record at this position, and no repair has given it up."""


class JournalTooNew(JournalError):
    """Not damaged, but written by a later version of the program; the text says which part."""


class FolderLost(JournalError):
    """The folder was removed or replaced while the journal was open."""


class JournalLocked(JournalError):
    """Another process owns this journal."""


DurableCallback = Callable[[JournalFailed | None], None]
Defer = Callable[[Callable[[], None]], object]  # loop.call_soon, or loop.call_soon_threadsafe
Later = Callable[[float, Callable[[], None]], object]  # loop.call_later


@dataclass(frozen=True, slots=True)
class TornTail:
    """The end of the log, half written at a crash. It was never reported durable."""

    position: int  # the log now ends here
    dropped_bytes: int
    where: str


@dataclass(slots=True)
class Recovery:
    """What opening found. Read ``checkpoint``, then ``records`` to the end, before the first append.

    ``torn`` and ``clean`` are known once ``records`` is exhausted.
    """

    checkpoint: Iterable[tuple[int, bytes]]
    records: Iterator[tuple[int, int, bytes]]  # (position, kind, payload), after the checkpoint
    epoch: int  # grows with every opening
    torn: TornTail | None = None
    clean: bool = False  # the last owner closed the journal properly
    warnings: list[str] = field(default_factory=list)
    writer: str = ""  # the newest version of the program that wrote any of it

    def drain(self) -> int:
        """Read and discard all records after the checkpoint; return how many."""
        return sum(1 for _ in self.records)


@dataclass(slots=True)
class JournalStats:
    """Counters since opening (they only go up), and current sizes."""

    records: int = 0
    bytes_written: int = 0
    commits: int = 0  # group commits: one write and one sync each
    polled_commits: int = 0  # those that the event loop's thread has sent and awaited itself
    syncs: int = 0
    last_sync_seconds: float = 0.0
    commit_seconds: Durations = field(default_factory=Durations)  # write and sync of each group
    segments: int = 0
    bytes_on_disk: int = 0
    checkpoints: int = 0
    checkpointed_at: float | None = None  # by the monotonic clock; None: not since opening
    checkpoint_failures: int = 0
    compactions: int = 0
    deleted_segments: int = 0
    reclaimed_bytes: int = 0


class SegmentState(NamedTuple):
    """One segment of the log on disk, and what keeps it there."""

    base: int  # the first position in it
    stop: int  # the base of the next one, or the end of the log
    size: int  # bytes on disk
    is_open: bool  # it is being written
    is_replayed: bool  # a restart reads it: it has records after the newest checkpoint
    live: int | None  # records that the newest checkpoint's state refers to; None: not known yet


class Framed(NamedTuple):
    """A stretch of log that starts at position ``base``, with the requested records at ``positions``."""

    data: bytes
    base: int
    positions: array[int]


class Loose(NamedTuple):
    """Payloads without frames."""

    payloads: list[bytes]


Run = Framed | Loose
ReadRuns = Callable[["array[int]"], list[Run]]


class Journal(Protocol):
    """One append-only log. All methods must be called in one thread, the event loop's."""

    @property
    def failed(self) -> JournalFailed | None:
        """Why the journal stopped permanently, or None."""
        ...

    @property
    def stalled(self) -> str:
        """Why nothing becomes durable at the moment, or "". It resumes by itself, and nothing is lost."""
        ...

    on_next_segment: Callable[[], object]
    """Called in the middle of an append, when the next segment is about to take its room on the disk."""

    @property
    def last_segment(self) -> int | None:
        """The base of the segment that is being written; None when there are no files."""
        ...

    @property
    def end(self) -> int:
        """Every record so far is below this position, every later one at it or above."""
        ...

    @property
    def durable(self) -> int:
        """Every record below this position is durable; equals ``end`` when nothing is waiting."""
        ...

    @property
    def backlog(self) -> int:
        """Bytes appended and not yet durable."""
        ...

    @property
    def bytes_since_checkpoint(self) -> int:
        """How much log a restart would replay; the caller uses it to decide when to checkpoint."""
        ...

    def append(self, kind: int, payload: bytes) -> int:
        """Add one record; return its position, which never changes. Durable later: see ``on_durable``."""
        ...

    def append_batch(self, records: Sequence[tuple[int, bytes]]) -> list[int]:
        """Add records atomically: after a crash, all or none are there. Return their positions."""
        ...

    def append_encoded(self, batch: EncodedBatch) -> int:
        """Add a batch, as ``append_batch``; return its position. Each record is its offset behind that."""
        ...

    def on_durable(self, callback: DurableCallback) -> None:
        """Call ``callback`` once everything appended so far is durable (None) or never will be (the error).

        Callbacks run in the order they were given, never from inside this call.
        """
        ...

    def flush(self) -> None:
        """Hand what is waiting to the writer now. Without a loop: write, sync and run the callbacks here."""
        ...

    def read(self, position: int, kind: int | None = None) -> tuple[int, bytes]:
        """The record at a position that ``append`` returned, durable yet or not.

        ``kind``: RecordUnreadable if the record is of another one. In a file that holds what it should not
        hold, such as old contents, a whole record of another kind may stand where a message was.
        """
        ...

    def read_many(self, positions: Sequence[int], kind: int | None = None) -> list[tuple[int, bytes]]:
        """The records at these positions, in the given order; ascending positions are cheap."""
        ...

    def run_reader(self, kind: int | None = None) -> ReadRuns:
        """A function that reads many records at once, for one sequential scan."""
        ...

    def refetch(self, position: int) -> bool:
        """Replace the damaged segment that holds this position by a copy kept elsewhere.

        False when there is none. May be called in another thread; it may take seconds. JournalError when the
        copy is out of reach.
        """
        ...

    def begin_checkpoint(self) -> int | None:
        """Fix the position of a checkpoint whose state is copied in steps: that of this moment.

        None when another one is being made. ``checkpoint`` or ``give_up_checkpoint`` must follow.
        """
        ...

    def give_up_checkpoint(self) -> None:
        """The state could not be copied."""
        ...

    def checkpoint(
        self, records: Iterable[tuple[int, bytes]], live: Iterable[array[int]], position: int | None = None
    ) -> bool:
        """Replace the log so far by ``records``, the caller's whole state at this moment, or at ``position``
        as ``begin_checkpoint`` has returned it.

        ``live`` are arrays of the positions that the state still refers to; all other records may be
        reclaimed. The checkpoint completes in the background, perhaps in another thread, which also iterates
        over ``live``, then ``records``, once each: do not change anything that they use. Returns False when
        another checkpoint is still running.
        """
        ...

    def check_folder(self) -> None:
        """Fail if the folder was removed or replaced: what is written then is in files without a name."""
        ...

    def stats(self) -> JournalStats:
        """A copy of the counters."""
        ...

    def segments(self) -> list[SegmentState]:
        """The segments on disk, oldest first; empty when there are no files."""
        ...

    @property
    def checkpoint_position(self) -> int:
        """Where the newest published checkpoint is; 0 when there is none."""
        ...

    @property
    def is_checkpointing(self) -> bool:
        """Whether a checkpoint is being written or published."""
        ...

    def close(self) -> None:
        """Make everything durable, mark the end as clean, release ownership."""
        ...

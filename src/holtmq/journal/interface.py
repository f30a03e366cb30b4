"""What a journal promises, in words of records and positions.

Owns: the ``Journal`` protocol, what recovery hands back, and the errors every implementation raises.
Must not touch: files, segments, threads. A database can meet this page as well as a folder can.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

FIRST_FREE_KIND: Final = 16  # kinds below belong to the journal itself
LAST_KIND: Final = 255
# What recovery hands out in the place of records that a repair gave up; no other kind below 16 is.
LOST: Final = 6  # something was here, and what follows has nothing to do with what came before
LOST_IN_BATCH: Final = 7  # a record, or several, of the batch whose other records surround it


class JournalError(Exception):
    """Something is wrong with the journal; the text says what and where."""


class JournalFailed(JournalError):
    """A write or a sync failed. The journal takes nothing more until the node is restarted."""

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
        self.dropped = dropped  # a repair gave it up: nothing is left to be done about it


class PositionNotHeld(RecordUnreadable):
    """No segment holds a record at this position (any more), and no repair has given it up."""


class JournalTooNew(JournalError):
    """Whole, but written by a later version of the program: the text names what is not understood."""


class JournalLocked(JournalError):
    """Another process owns this journal."""


DurableCallback = Callable[[JournalFailed | None], None]
Defer = Callable[[Callable[[], None]], object]  # loop.call_soon, or loop.call_soon_threadsafe
Later = Callable[[float, Callable[[], None]], object]  # loop.call_later


@dataclass(frozen=True, slots=True)
class TornTail:
    """The end of the log that a crash left half written. It was never reported durable."""

    position: int  # the log now ends here
    dropped_bytes: int
    where: str


@dataclass(slots=True)
class Recovery:
    """What was found on opening. Read ``checkpoint``, then ``records`` to the end, before the first append.

    ``torn`` and ``clean`` are known once ``records`` is exhausted.
    """

    checkpoint: Iterable[tuple[int, bytes]]
    records: Iterator[tuple[int, int, bytes]]  # (position, kind, payload), after the checkpoint
    epoch: int  # grows with every opening
    torn: TornTail | None = None
    clean: bool = False  # the last owner closed the journal in good order
    warnings: list[str] = field(default_factory=list)
    writer: str = ""  # the newest version of the program that wrote any of it

    def drain(self) -> int:
        """Read past everything, for a caller that does not want it; how many tail records there were."""
        return sum(1 for _ in self.records)


@dataclass(slots=True)
class JournalStats:
    """Counters since opening (they only go up), and the present sizes."""

    records: int = 0
    bytes_written: int = 0
    commits: int = 0  # group commits: one write and one sync each
    syncs: int = 0
    last_sync_seconds: float = 0.0
    segments: int = 0
    bytes_on_disk: int = 0
    checkpoints: int = 0
    checkpoint_failures: int = 0
    compactions: int = 0
    deleted_segments: int = 0
    reclaimed_bytes: int = 0


class Framed(NamedTuple):
    """A stretch of log that starts at position ``base``; the records wanted of it lie at ``positions``."""

    data: bytes
    base: int
    positions: array[int]


class Loose(NamedTuple):
    """Payloads alone."""

    payloads: list[bytes]


Run = Framed | Loose
ReadRuns = Callable[["array[int]"], list[Run]]


class Journal(Protocol):
    """One append-only log. All methods belong to one thread, the event loop's."""

    @property
    def failed(self) -> JournalFailed | None:
        """Why the journal stopped for good, or None."""
        ...

    @property
    def stalled(self) -> str:
        """Why nothing becomes durable just now, or "". It goes on by itself, and nothing is lost."""
        ...

    @property
    def last_segment(self) -> int | None:
        """Where the file begins that is being written; None when there are no files."""
        ...

    @property
    def end(self) -> int:
        """Every record so far lies below this position, every later one at it or above."""
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
        """How much log a restart would replay: the caller's measure for when to checkpoint."""
        ...

    def append(self, kind: int, payload: bytes) -> int:
        """Add one record; its position, which stays valid for ever. Durable later: see ``on_durable``."""
        ...

    def append_batch(self, records: Sequence[tuple[int, bytes]]) -> list[int]:
        """Add records of which a crash leaves all or none; their positions."""
        ...

    def on_durable(self, callback: DurableCallback) -> None:
        """Call back once everything appended so far is durable (None) or never will be (the error).

        Callbacks run in the order they were given, never from inside this call.
        """
        ...

    def flush(self) -> None:
        """Hand over what is waiting now. Without a loop: write, sync and run the callbacks here."""
        ...

    def read(self, position: int) -> tuple[int, bytes]:
        """The record at a position that ``append`` returned, durable yet or not."""
        ...

    def read_many(self, positions: Sequence[int]) -> list[tuple[int, bytes]]:
        """The records at these positions, in the order asked; runs of rising positions are cheap."""
        ...

    def run_reader(self) -> ReadRuns:
        """A function that reads many records at once, for one reading from somewhere to somewhere."""
        ...

    def checkpoint(self, records: Sequence[tuple[int, bytes]], live: Sequence[array[int]]) -> bool:
        """Replace the log so far by ``records``, the caller's whole state at this instant.

        ``live`` are sorted arrays of the positions that the state still refers to; what is not named may be
        reclaimed. Both are handed over: do not change them afterwards. It completes in the background;
        False when one is still running.
        """
        ...

    def stats(self) -> JournalStats:
        """A copy of the counters."""
        ...

    def close(self) -> None:
        """Make everything durable, mark the end as clean, give up ownership."""
        ...

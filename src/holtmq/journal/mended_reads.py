"""Reading records from segments; a damaged one is first replaced by the mirror's copy, if there is one.

Owns: when to fetch a copy, and the repeated read. Must not touch: records that are not in files yet.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from .interface import Defer, JournalError, PositionNotHeld, ReadRuns, RecordUnreadable, Run
from .mirror import Mirror
from .reader import LogReader
from .run_reader import RunReader
from .segment_map import SegmentMap

_Asked = TypeVar("_Asked")
_Read = TypeVar("_Read")


class MendedReads:
    """``out_of_reach`` is called with the error if a copy may exist and cannot be fetched; it raises."""

    def __init__(
        self,
        reader: LogReader,
        segments: SegmentMap,
        mirror: Mirror | None,
        notify: Defer | None,
        out_of_reach: Callable[[JournalError], None],
    ) -> None:
        self._reader = reader
        self._segments = segments
        self._mirror = mirror
        self._notify = notify
        self._out_of_reach = out_of_reach

    def read(self, position: int, kind: int | None) -> tuple[int, bytes]:
        """Kind and payload of the record at this position."""
        return _read_mending(lambda at: self._reader.read(at, kind), position, self._mend)

    def read_many(self, positions: Sequence[int], kind: int | None) -> list[tuple[int, bytes]]:
        """The records at these positions, in the given order."""
        return _read_mending(lambda some: self._reader.read_many(some, kind), positions, self._mend)

    def run_reader(self, kind: int | None) -> ReadRuns:
        """A function that reads many records at once, for one sequential scan."""
        reader = RunReader(self._reader, kind)

        def read(positions: array[int]) -> list[Run]:
            return _read_mending(reader.read, positions, self._mend)

        return read

    def refetch(self, position: int) -> bool:
        """Replace the segment that holds this position by the mirror's copy; False when there is none."""
        mirror, base = self._mirror, self._segments.holder(position)
        if mirror is None or not mirror.refetch(base, is_open=base == self._segments.last_base):
            return False
        forget = partial(self._reader.forget, base, gone=False)
        if self._notify is None:
            forget()
        else:
            self._notify(forget)
        return True

    def _mend(self, error: RecordUnreadable) -> None:
        """Fetch the segment of an unreadable record again; raise the error if there is no better copy.

        This holds up the event loop, once for each damaged segment. The caller would give the message up.
        """
        if self._mirror is None or error.dropped or isinstance(error, PositionNotHeld):
            raise error
        try:
            mended = self.refetch(error.position)
        except JournalError as exc:
            # A copy may exist: end, rather than give up a message. The next owner can read it.
            self._out_of_reach(exc)
            raise error from exc
        if not mended:
            raise error
        self._reader.forget(self._segments.holder(error.position), gone=False)


def _read_mending(
    read: Callable[[_Asked], _Read], asked: _Asked, mend: Callable[[RecordUnreadable], None]
) -> _Read:
    """Read, and read again after ``mend`` has replaced what was unreadable; it raises if it cannot."""
    mended: set[int] = set()
    while True:
        try:
            return read(asked)
        except RecordUnreadable as error:
            if error.position in mended:
                raise
            mended.add(error.position)
            mend(error)

"""The message sequence of a partitioned queue: four numbers per message, no body.

Owns: the columns (journal position, creation time, partition, fingerprint) by queue-wide offset, in chunks,
so that memory in the middle can be freed too. Must not touch: bodies, groups, clocks.

Over 400 lines: every method of the log reads or changes the same columns.
"""

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

CHUNK_SHIFT: Final = 13
CHUNK_ROWS: Final = 1 << CHUNK_SHIFT
_MASK: Final = CHUNK_ROWS - 1
GONE: Final = 0xFFFF_FFFF  # in the partition column: the message is no longer stored
NO_FINGERPRINT: Final = 1 << 63  # a fingerprint that no transaction id has: those have 60 bits


class Partition:
    """A named index into the log: its n-th message is ``offsets[n - first]``.

    A message deleted individually leaves a hole: its position and its row remain, so that cursors and
    readers' offsets stay valid. The oldest position is never a hole.
    """

    __slots__ = ("created_us", "first", "holes", "last_us", "name", "offsets")

    def __init__(self, name: str, created_us: int, first: int = 0) -> None:
        self.name = name
        self.created_us = created_us
        self.first = first  # position of the oldest message still stored
        self.last_us = 0  # creation time of the newest message removed from the front
        self.offsets: array[int] = array("Q")
        self.holes: list[int] | None = None  # ascending; None if there are none, the usual case

    @property
    def end(self) -> int:
        """The position the next message will get."""
        return self.first + len(self.offsets)

    def position_of(self, offset: int) -> int:
        """Position of the first message at or after a queue-wide offset."""
        return self.first + bisect_left(self.offsets, offset)

    def count(self, start: int, stop: int | None = None) -> int:
        """How many messages are stored at positions ``start`` to ``stop - 1``."""
        stop = self.end if stop is None else stop
        holes = self.holes
        if holes is None:
            return stop - start
        return stop - start - bisect_left(holes, stop) + bisect_left(holes, start)

    def live_from(self, position: int) -> int:
        """This position, or the next one that holds a message."""
        holes = self.holes
        if holes is not None:
            at = bisect_left(holes, position)
            while at < len(holes) and holes[at] == position:
                at += 1
                position += 1
        return position

    def live_end(self, end: int) -> int:
        """``end``, moved down until the position before it holds a message."""
        holes = self.holes
        if holes is not None:
            at = bisect_left(holes, end) - 1
            while at >= 0 and holes[at] == end - 1:
                at -= 1
                end -= 1
        return end

    def holes_in(self, first: int, end: int) -> list[int]:
        holes = self.holes
        return [] if holes is None else holes[bisect_left(holes, first) : bisect_left(holes, end)]

    def stored_from(self, first: int, end: int, limit: int) -> tuple["array[int]", tuple[int, ...], int]:
        """Up to ``limit`` messages of a span: their offsets, the holes between them, and where they end."""
        if self.holes is None:
            end = min(end, first + limit)
            return self.offsets[first - self.first : end - self.first], (), end
        holes, at = self.holes, bisect_left(self.holes, first)
        passed: list[int] = []
        found: array[int] = array("Q")
        for position in range(first, end):
            if at < len(holes) and holes[at] == position:
                passed.append(position)
                at += 1
                continue
            found.append(self.offsets[position - self.first])
            if len(found) == limit:
                break
        return found, tuple(passed), first + len(found) + len(passed)

    def punch(self, position: int) -> None:
        """Mark the message at this position as deleted."""
        if self.holes is None:
            self.holes = [position]
        else:
            insort(self.holes, position)

    def cut(self, first: int) -> None:
        """Drop the positions before ``first``."""
        del self.offsets[: first - self.first]
        self.first = first
        if self.holes is not None:
            del self.holes[: bisect_left(self.holes, first)]
            self.holes = self.holes or None


NO_PARTITION: Final = Partition("", 0)  # replaces a deleted partition: indexes are not reused


class Chunk:
    """Up to ``CHUNK_ROWS`` consecutive rows.

    A checkpoint shares the columns: ``positions`` and ``created`` only grow, and ``own`` is called before a
    value of another column is changed.
    """

    __slots__ = ("created", "fingerprints", "live", "partitions", "positions", "shared")

    def __init__(self) -> None:
        self.positions: array[int] = array("Q")
        self.created: array[int] = array("Q")
        self.partitions: array[int] = array("I")
        self.fingerprints: array[int] = array("Q")
        self.live = 0
        self.shared = False

    def own(self) -> None:
        """Replace the columns that a checkpoint may still read."""
        if self.shared:
            self.partitions, self.fingerprints = self.partitions[:], self.fingerprints[:]
            self.shared = False


class MessageLog:
    """Rows by offset. Creation times rise strictly, so time and offset order agree."""

    __slots__ = (
        "_base",
        "_chunks",
        "_dead",
        "_starts",
        "durable_end",
        "first_offset",
        "hidden_from",
        "last_created_us",
        "live",
        "next_offset",
    )

    def __init__(self) -> None:
        self.first_offset = 0  # the oldest live message, or next_offset when there is none
        self.next_offset = 0
        self.last_created_us = 0
        self.live = 0
        self._base = 0  # chunk number of _chunks[0]
        self._chunks: list[Chunk | None] = []
        self._starts: list[int] = []  # creation time of each chunk's first row; kept when the chunk is freed
        self._dead: set[int] = set()  # full chunks without a live row
        # The first offset that no consumer gets yet: a crash could lose it, or it is hidden; or next_offset.
        self.durable_end = 0
        self.hidden_from: int | None = None  # where a batch begins that is not complete

    @property
    def visible_end(self) -> int:
        """Where the messages end that a reader may see once they are durable."""
        return self.next_offset if self.hidden_from is None else self.hidden_from

    def append(
        self, positions: Sequence[int], created_us: int, partitions: "array[int]", fingerprints: "array[int]"
    ) -> None:
        """Add rows; the first is created at ``created_us``, each next one a microsecond later."""
        done, count = 0, len(partitions)
        while done < count:
            rows = self.next_offset & _MASK
            if rows == 0:
                self._chunks.append(Chunk())
                self._starts.append(created_us + done)
            chunk = self._chunks[-1]
            assert chunk is not None  # the last chunk is freed only when full
            take = min(count - done, CHUNK_ROWS - rows)
            whole = take == count
            chunk.positions.extend(positions if whole else positions[done : done + take])
            chunk.created.extend(range(created_us + done, created_us + done + take))
            chunk.partitions.extend(partitions if whole else partitions[done : done + take])
            chunk.fingerprints.extend(fingerprints if whole else fingerprints[done : done + take])
            chunk.live += take
            self.next_offset += take
            done += take
        self.live += count
        self.last_created_us = created_us + count - 1

    def forget(self, offsets: Iterable[int]) -> None:
        """Mark messages as removed; their rows remain until ``drop_dead``, because dedup reads them."""
        chunks, base = self._chunks, self._base
        for offset in offsets:
            number = offset >> CHUNK_SHIFT
            chunk = chunks[number - base]
            if chunk is None or chunk.partitions[offset & _MASK] == GONE:
                continue
            if chunk.shared:
                chunk.own()
            chunk.partitions[offset & _MASK] = GONE
            chunk.live -= 1
            self.live -= 1
            if not chunk.live and len(chunk.created) == CHUNK_ROWS:
                self._dead.add(number)
        self._find_first()

    def punch(self, offset: int) -> None:
        """Delete one message. Its row remains for its partition, without the fingerprint."""
        chunk = self._row(offset)
        chunk.own()
        chunk.partitions[offset & _MASK] = GONE
        chunk.fingerprints[offset & _MASK] = NO_FINGERPRINT | offset
        self.live -= 1
        self._find_first()

    def find_positions(self, wanted: Container[int], lowest: int, highest: int) -> list[tuple[int, int]]:
        """(offset, journal position) of the stored messages at these journal positions."""
        found: list[tuple[int, int]] = []
        for number, chunk in enumerate(self._chunks, self._base):
            if chunk is None or not chunk.positions:
                continue
            # A chunk that cannot have one is passed over at 20 ns a message; to look at each takes 100.
            if max(chunk.positions) < lowest or min(chunk.positions) > highest:
                continue
            rows = zip(chunk.positions, chunk.partitions, strict=True)
            for row, (position, partition) in enumerate(rows, number << CHUNK_SHIFT):
                if position in wanted and partition != GONE:
                    found.append((row, position))
        return found

    def fill(self, offsets: Iterable[int]) -> None:
        """After a restart: keep these rows, which are holes, like those of messages."""
        for offset in offsets:
            self._row(offset).live += 1
            self._dead.discard(offset >> CHUNK_SHIFT)

    def release(self, offsets: Iterable[int]) -> None:
        """Release the rows of holes that their partition has trimmed."""
        for offset in offsets:
            chunk = self._row(offset)
            chunk.live -= 1
            if not chunk.live and len(chunk.created) == CHUNK_ROWS:
                self._dead.add(offset >> CHUNK_SHIFT)

    def drop_dead(self, floor: int) -> None:
        """Free chunks without a live row below ``floor``, where dedup no longer needs fingerprints."""
        for number in [n for n in self._dead if (n + 1) << CHUNK_SHIFT <= floor]:
            self._chunks[number - self._base] = None
            self._dead.discard(number)
        gone = 0
        while gone < len(self._chunks) and self._chunks[gone] is None:
            gone += 1
        if gone:
            del self._chunks[:gone]
            del self._starts[:gone]
            self._base += gone

    def position(self, offset: int) -> int:
        return self._row(offset).positions[offset & _MASK]

    def created_us(self, offset: int) -> int:
        return self._row(offset).created[offset & _MASK]

    def partition(self, offset: int) -> int:
        """Partition index, or ``GONE`` if the message is not stored (any more, or yet)."""
        chunk = self._chunk(offset) if offset < self.next_offset else None
        return GONE if chunk is None else chunk.partitions[offset & _MASK]

    def fingerprint(self, offset: int) -> int:
        return self._row(offset).fingerprints[offset & _MASK]

    def fingerprints(self, offsets: "array[int]") -> Sequence[int]:
        """``fingerprint`` of each; the offsets ascend."""
        chunks, base = self._chunks, self._base
        if not offsets:
            return ()
        first, last = offsets[0], offsets[-1]
        if last - first == len(offsets) - 1:  # consecutive offsets: join the columns
            found: array[int] = array("Q")
            for number in range(first >> CHUNK_SHIFT, (last >> CHUNK_SHIFT) + 1):
                start = number << CHUNK_SHIFT
                column = self._row(max(first, start)).fingerprints
                found += column[max(0, first - start) : last - start + 1]
            return found
        found_rows: list[int] = []
        for offset in offsets:
            chunk = chunks[(offset >> CHUNK_SHIFT) - base]
            assert chunk is not None
            found_rows.append(chunk.fingerprints[offset & _MASK])
        return found_rows

    def refs(self, offsets: Sequence[int]) -> list[tuple[int, int, int]]:
        """(offset, journal position, creation time) of each; the offsets must ascend."""
        if not offsets:
            return []
        chunks, base = self._chunks, self._base
        first, last = offsets[0], offsets[-1]
        if last - first == len(offsets) - 1 and first >> CHUNK_SHIFT == last >> CHUNK_SHIFT:
            # Consecutive offsets, the usual case: slice the columns.
            whole = chunks[(first >> CHUNK_SHIFT) - base]
            assert whole is not None
            run = slice(first & _MASK, (last & _MASK) + 1)
            return [*zip(range(first, last + 1), whole.positions[run], whole.created[run], strict=True)]
        rows: list[tuple[int, int, int]] = []
        for offset in offsets:
            chunk = chunks[(offset >> CHUNK_SHIFT) - base]
            assert chunk is not None
            row = offset & _MASK
            rows.append((offset, chunk.positions[row], chunk.created[row]))
        return rows

    def offset_at(self, created_us: int) -> int:
        """The first offset created at or after that time; ``next_offset`` when there is none."""
        if created_us > self.last_created_us or not self._starts:
            return self.next_offset
        number = bisect_right(self._starts, created_us) - 1
        if number < 0:
            return self._base << CHUNK_SHIFT
        start = (self._base + number) << CHUNK_SHIFT
        chunk = self._chunks[number]
        if chunk is None:  # none of its rows is stored: the chunk's end is equivalent
            return start + CHUNK_ROWS
        return start + bisect_left(chunk.created, created_us)

    def live_offsets(self, start: int, stop: int) -> Iterable[int]:
        """Offsets in the range whose message is still stored, oldest first."""
        offset = max(start, self.first_offset)
        stop = min(stop, self.next_offset)
        while offset < stop:
            chunk = self._chunks[(offset >> CHUNK_SHIFT) - self._base]
            chunk_start = offset & ~_MASK
            until = min(stop, chunk_start + CHUNK_ROWS)
            if chunk is not None and chunk.live:
                partitions = chunk.partitions
                for row in range(offset - chunk_start, until - chunk_start):
                    if partitions[row] != GONE:
                        yield chunk_start + row
            offset = until

    def stretches(self, start: int, stop: int) -> Iterator["Stretch"]:
        """(first offset, positions, creation times, partitions) per chunk; may include ``GONE`` rows."""
        offset = max(start, self._base << CHUNK_SHIFT)
        stop = min(stop, self.next_offset)
        while offset < stop:
            chunk = self._chunks[(offset >> CHUNK_SHIFT) - self._base]
            row = offset & _MASK
            until = min(stop, (offset & ~_MASK) + CHUNK_ROWS)
            if chunk is not None and chunk.live:
                end = row + until - offset
                yield offset, chunk.positions[row:end], chunk.created[row:end], chunk.partitions[row:end]
            offset = until

    def count_live(self, start: int, stop: int) -> int:
        """How many messages of the range are still stored."""
        return sum(len(parts) - parts.count(GONE) for _, _, _, parts in self.stretches(start, stop))

    def fingerprint_runs(self, start: int) -> Iterator[tuple[int, "array[int]"]]:
        """(first offset, fingerprints) of each stored chunk from ``start`` on."""
        for number, chunk in enumerate(self._chunks, self._base):
            first = max(start, number << CHUNK_SHIFT)
            if chunk is not None and first < (number << CHUNK_SHIFT) + len(chunk.created):
                yield first, chunk.fingerprints[first & _MASK :]

    def partition_runs(self) -> Iterator[tuple[int, "array[int]"]]:
        """(first offset, partition indexes) of each stored chunk; may include ``GONE``."""
        for number, chunk in enumerate(self._chunks, self._base):
            if chunk is not None:
                yield number << CHUNK_SHIFT, chunk.partitions

    def capture(self) -> "CapturedLog":
        """The log as it is now."""
        chunks: list[Columns | None] = []
        for chunk in self._chunks:
            if chunk is None:
                chunks.append(None)
            else:
                chunk.shared = True
                chunks.append((chunk.positions, chunk.created, chunk.partitions, chunk.fingerprints))
        return CapturedLog(self._base, self.next_offset, self.last_created_us, list(self._starts), chunks)

    def load(self, state: "LogState") -> None:
        self._base, self.next_offset, self.last_created_us, self._starts, columns = state
        self.durable_end = self.next_offset
        self._chunks = []
        for number, column in enumerate(columns, self._base):
            if not column:
                self._chunks.append(None)
                continue
            chunk = Chunk()
            chunk.positions = from_bytes("Q", column[0])
            chunk.created = from_bytes("Q", column[1])
            chunk.partitions = from_bytes("I", column[2])
            chunk.fingerprints = from_bytes("Q", column[3])
            chunk.live = len(chunk.partitions) - chunk.partitions.count(GONE)
            if not chunk.live and len(chunk.created) == CHUNK_ROWS:
                self._dead.add(number)
            self.live += chunk.live
            self._chunks.append(chunk)
        self.first_offset = self._base << CHUNK_SHIFT
        self._find_first()

    def _find_first(self) -> None:
        offset = self.first_offset
        while offset < self.next_offset:
            index = (offset >> CHUNK_SHIFT) - self._base
            chunk = self._chunks[index] if index >= 0 else None
            if chunk is None or not chunk.live:
                offset = min((offset | _MASK) + 1, self.next_offset)
            elif chunk.partitions[offset & _MASK] == GONE:
                offset += 1
            else:
                break
        self.first_offset = offset

    def _chunk(self, offset: int) -> Chunk | None:
        index = (offset >> CHUNK_SHIFT) - self._base
        return self._chunks[index] if 0 <= index < len(self._chunks) else None

    def _row(self, offset: int) -> Chunk:
        chunk = self._chunk(offset)
        if chunk is None:
            raise IndexError(f"offset {offset} is not stored")
        return chunk


class CapturedLog(NamedTuple):
    """The log at one moment, in columns that it shares: of the last chunk they may have grown since."""

    base: int
    next_offset: int
    last_created_us: int
    starts: list[int]
    chunks: "list[Columns | None]"

    def columns(self) -> "Iterator[Columns | None]":
        """The columns of each chunk, as long as they were; None for one that was freed."""
        rows = self.next_offset & _MASK
        for number, chunk in enumerate(self.chunks, 1):
            if chunk is None or not rows or number < len(self.chunks):
                yield chunk
            else:
                positions, created, partitions, fingerprints = chunk
                yield positions[:rows], created[:rows], partitions[:rows], fingerprints[:rows]

    def positions(self) -> Iterator["array[int]"]:
        """Journal positions of all stored messages, per chunk and in offset order.

        Journal order may differ: batches staged by several tasks are committed task by task.
        """
        for columns in self.columns():
            if columns is None:
                continue
            positions, _, partitions, _ = columns
            if GONE in partitions:
                rows = zip(positions, partitions, strict=True)
                yield array("Q", [position for position, index in rows if index != GONE])
            else:
                yield positions


Columns = tuple["array[int]", "array[int]", "array[int]", "array[int]"]
Stretch = tuple[int, "array[int]", "array[int]", "array[int]"]
# In a checkpoint. A chunk is its columns; () if it was freed, ELSEWHERE if it has a record of its own.
LogState = tuple[int, int, int, list[int], list[tuple[bytes, ...]]]
ELSEWHERE: Final = (b"",)


def from_bytes(typecode: str, data: bytes | memoryview) -> "array[int]":
    column: array[int] = array(typecode)
    column.frombytes(data)
    return column

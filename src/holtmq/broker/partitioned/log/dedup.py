"""The transaction ids a queue has seen within its dedup window: 60-bit fingerprints, verified on a hit.

Owns: fingerprint -> offset, and the floor below which nothing is indexed. Must not touch: bodies (the
caller verifies a hit), clocks. The fingerprints are a column of the log, so the index can be rebuilt after a
restart without the ids.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Final

from holtmq.broker.partitioned.log.message_log import MessageLog

GENERATION: Final = 300_000  # ids; the largest dict that grows has 174,762 entries then, which takes 10 ms
_ADOPTED: Final = 50_000  # ids of a push that may be a generation of their own; few generations are faster
MAX_ENTRIES: Final = 4_000_000  # 90 to 145 bytes each; above it the oldest expire early, and are counted
_BITS: Final = (1 << 60) - 1  # two digits of a Python int: 32 bytes per entry instead of 48
_SPREAD: Final = 0x9E37_79B9_7F4A_7C15
_from_bytes: Final = int.from_bytes
_blank: Final = blake2b(digest_size=8).copy  # a copy takes two thirds of the time of a new one

Fingerprinter = Callable[[int, str], int]


def fingerprint(partition: int, transaction_id: str) -> int:
    """A stable number for (partition, transaction id). Collisions are possible: verify a match."""
    hashed = _blank()
    hashed.update(transaction_id.encode("utf-8", "surrogatepass"))
    return (_from_bytes(hashed.digest(), "little") ^ (partition * _SPREAD)) & _BITS


class _Generation:
    """Fingerprints of consecutive messages, from offset ``first`` on. Offsets are relative to it."""

    __slots__ = ("entries", "first", "twins")

    def __init__(self, first: int, entries: dict[int, int] | None = None) -> None:
        self.first = first
        self.entries: dict[int, int] = {} if entries is None else entries
        self.twins: dict[int, list[int]] = {}  # fingerprint -> its other offsets, if it has several

    def add(self, first_offset: int, prints: "array[int]") -> None:
        first_offset -= self.first
        entries, count, before = self.entries, len(prints), len(self.entries)
        if not entries.keys().isdisjoint(prints):
            # A collision, or an id reused after its window: the older message must still be found.
            for place, print_ in enumerate(prints):
                if print_ in entries:
                    self.twins.setdefault(print_, []).append(entries[print_])
                entries[print_] = first_offset + place
            return
        entries.update(zip(prints, range(first_offset, first_offset + count), strict=True))
        if len(entries) != before + count:  # two of these messages collide
            for offset, print_ in enumerate(prints, first_offset):
                if entries[print_] != offset:
                    self.twins.setdefault(print_, []).append(offset)

    def forget(self, print_: int, offset: int) -> None:
        offset -= self.first
        twins = self.twins.get(print_)
        if twins is None:
            if self.entries.get(print_) == offset:
                del self.entries[print_]
            return
        if self.entries[print_] == offset:
            self.entries[print_] = twins.pop()
        elif offset in twins:
            twins.remove(offset)
        if not twins:
            del self.twins[print_]


class DedupIndex:
    """Fingerprints of the messages inside the window. Entries expire in offset order, at the floor.

    They are in generations, because a dict that grows is copied: with a million entries that takes 60 ms, and
    no other client is served meanwhile. Most queues have one generation.
    """

    __slots__ = (
        "_ahead",
        "_generations",
        "_log",
        "_newest",
        "floor",
        "forgotten_early",
        "forgotten_us",
        "limit",
    )

    def __init__(self, log: MessageLog, max_entries: int = MAX_ENTRIES) -> None:
        self._log = log
        self.limit = max_entries  # a node with too many ids lowers it
        self._newest = _Generation(0)
        self._generations = [self._newest]  # oldest first
        self._ahead: tuple[array[int], dict[int, int]] | None = None  # of a push that is about to be added
        self.floor = 0
        self.forgotten_early = 0
        self.forgotten_us = 0  # creation time of the newest message whose id was forgotten early

    def __len__(self) -> int:
        if len(self._generations) == 1:
            return len(self._newest.entries)
        return sum([len(one.entries) for one in self._generations])

    def knows(self, print_: int) -> bool:
        """Whether a message may have the id; False: there is nothing to verify."""
        return any(print_ in one.entries for one in self._generations)

    def knows_none(self, prints: Sequence[int]) -> bool:
        """Whether all are new: the usual case of a push, in one check."""
        if len(self._generations) == 1:
            return self._newest.entries.keys().isdisjoint(prints)
        return all(one.entries.keys().isdisjoint(prints) for one in self._generations)

    def candidates(self, print_: int) -> Iterator[int]:
        """Offsets that may have the transaction id, newest first."""
        for one in reversed(self._generations):
            offset = one.entries.get(print_)
            if offset is not None:
                yield one.first + offset
                for twin in reversed(one.twins.get(print_, ())):
                    yield one.first + twin

    def prepare(self, prints: "array[int]", places: dict[int, int]) -> None:
        """The next push has these fingerprints, all different, whose places were indexed ahead.

        The caller expires old ids after it, in steps.
        """
        assert len(places) == len(prints)
        self._ahead = prints, places

    def add(self, first_offset: int, prints: "array[int]") -> bool:
        """Index new messages at consecutive offsets; return whether they were prepared."""
        ahead, self._ahead = self._ahead, None
        is_prepared = ahead is not None and ahead[0] is prints
        if ahead is not None and is_prepared and len(prints) >= _ADOPTED:
            self._newest = _Generation(first_offset, ahead[1])
            self._generations.append(self._newest)
            return True
        if len(self._newest.entries) + len(prints) > GENERATION and self._newest.entries:
            self._newest = _Generation(first_offset)
            self._generations.append(self._newest)
        self._newest.add(first_offset, prints)
        return is_prepared

    def expire(self, cutoff_us: int, most: int) -> bool:
        """Remove entries older than the window, and above the limit, oldest first.

        Looks at ``most`` messages; returns whether there may be more to remove.
        """
        log = self._log
        over = len(self) - self.limit
        if self.floor >= log.next_offset or (over <= 0 and log.created_us(self.floor) >= cutoff_us):
            return False
        aged = log.offset_at(cutoff_us)
        wanted = max(aged, self.floor + max(over, 0))
        stop = min(wanted, self.floor + most, log.next_offset)
        if stop > max(aged, self.floor):
            self.forgotten_early += stop - max(aged, self.floor)
            self.forgotten_us = log.created_us(stop - 1)
        for offset in range(self.floor, stop):
            self.forget(log.fingerprint(offset), offset)
        self.floor = stop
        while len(self._generations) > 1 and self._generations[1].first <= stop:
            del self._generations[0]
        log.drop_dead(stop)
        return stop < wanted

    def rebuild(self) -> None:
        """Rebuild the index from the log's column, after a restart."""
        self._newest = _Generation(self.floor)
        self._generations = [self._newest]
        for first_offset, prints in self._log.fingerprint_runs(self.floor):
            self.add(first_offset, prints)

    def forget(self, print_: int, offset: int) -> None:
        """Remove the entry of this message; its id may be used again."""
        for one in reversed(self._generations):
            if one.first <= offset:
                one.forget(print_, offset)
                return

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


class DedupIndex:
    """Fingerprints of the messages inside the window. Entries expire in offset order, at the floor."""

    __slots__ = ("_entries", "_log", "_twins", "floor", "forgotten_early", "forgotten_us", "limit")

    def __init__(self, log: MessageLog, max_entries: int = MAX_ENTRIES) -> None:
        self._log = log
        self.limit = max_entries  # a node with too many ids lowers it
        self._entries: dict[int, int] = {}
        self._twins: dict[int, list[int]] = {}  # fingerprint -> its other offsets, if it has several
        self.floor = 0
        self.forgotten_early = 0
        self.forgotten_us = 0  # creation time of the newest message whose id was forgotten early

    def __len__(self) -> int:
        return len(self._entries)

    def newest(self, print_: int) -> int | None:
        """The newest offset with this fingerprint; None: there is nothing to verify."""
        return self._entries.get(print_)

    def knows_none(self, prints: Sequence[int]) -> bool:
        """Whether all are new: the usual case of a push, in one check."""
        return self._entries.keys().isdisjoint(prints)

    def candidates(self, print_: int) -> Iterator[int]:
        """Offsets that may have the transaction id, newest first."""
        offset = self._entries.get(print_)
        if offset is not None:
            yield offset
            yield from reversed(self._twins.get(print_, ()))

    def add(self, first_offset: int, prints: "array[int]") -> None:
        """Index new messages at consecutive offsets."""
        entries, count, before = self._entries, len(prints), len(self._entries)
        if not entries.keys().isdisjoint(prints):
            # A collision, or an id reused after its window: the older message must still be found.
            for place, print_ in enumerate(prints):
                if print_ in entries:
                    self._twins.setdefault(print_, []).append(entries[print_])
                entries[print_] = first_offset + place
            return
        entries.update(zip(prints, range(first_offset, first_offset + count), strict=True))
        if len(entries) != before + count:  # two of these messages collide
            for offset, print_ in enumerate(prints, first_offset):
                if entries[print_] != offset:
                    self._twins.setdefault(print_, []).append(offset)

    def expire(self, cutoff_us: int, most: int) -> bool:
        """Remove entries older than the window, and above the limit, oldest first.

        Looks at ``most`` messages; returns whether there may be more to remove.
        """
        log = self._log
        over = len(self._entries) - self.limit
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
        log.drop_dead(stop)
        return stop < wanted

    def rebuild(self) -> None:
        """Rebuild the index from the log's column, after a restart."""
        self._entries.clear()
        self._twins.clear()
        for first_offset, prints in self._log.fingerprint_runs(self.floor):
            self.add(first_offset, prints)

    def forget(self, print_: int, offset: int) -> None:
        """Remove the entry of this message; its id may be used again."""
        twins = self._twins.get(print_)
        if twins is None:
            if self._entries.get(print_) == offset:
                del self._entries[print_]
            return
        if self._entries[print_] == offset:
            self._entries[print_] = twins.pop()
        elif offset in twins:
            twins.remove(offset)
        if not twins:
            del self._twins[print_]

"""What a lake consists of in any table format: files, positions, and changes of both.

Owns: the values passed between jobs, writers and table formats, and the interface a format implements.
Must not touch: files, Spark, the broker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

import pyarrow as pa

from holtmq.spark.errors import HoltSparkError

# A column's lowest and highest value in a file, as integers (times in microseconds).
Bounds: TypeAlias = "dict[str, tuple[int, int]]"

QUEUE_IDS: Final = 1 << 14  # a message's id contains 14 bits of its queue's number


class LakeMoved(HoltSparkError):
    """Another writer changed the lake since this one read it; nothing was added."""


class UnfitTable(HoltSparkError):
    """The lake cannot be used that way; the text says why."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file: its path in the lake, and the bounds of its rows, to skip it by."""

    path: str
    size: int
    rows: int
    partition: Mapping[str, str]
    bounds: Bounds = field(default_factory=dict)

    def may_hold(self, column: str, low: int, high: int) -> bool:
        """Whether the file may contain a row with ``low <= column <= high``."""
        known = self.bounds.get(column)
        return known is None or (known[0] <= high and low <= known[1])


@dataclass(frozen=True, slots=True)
class Position:
    """Where the lake ends for one key: the first offset that is not in it.

    ``seen`` is the queue's end when the position was written and ``waiting`` the messages in between:
    retention leaves holes, so fewer of them later means that messages were lost.
    """

    next: int
    seen: int = 0
    waiting: int = 0

    def expected(self, head: int) -> int:
        """How many messages must be stored between here and the queue's current end."""
        seen = max(self.seen, self.next)
        return self.waiting + max(0, head - seen)

    def to_json(self) -> "int | list[int]":
        whole = self.seen <= self.next and not self.waiting
        return self.next if whole else [self.next, self.seen, self.waiting]

    @classmethod
    def from_json(cls, value: object) -> "Position":
        match value:
            case int():
                return cls(value, value)
            case [int(following), int(seen), int(waiting)]:
                return cls(following, seen, waiting)
        raise UnfitTable(f"{value!r} is not a position of a lake")


@dataclass(frozen=True, slots=True)
class Change:
    """One commit, applied as a whole or not at all."""

    add: Sequence[DataFile] = ()
    remove: Sequence[DataFile] = ()
    positions: Mapping[str, Position] = field(default_factory=dict)
    note: Mapping[str, str] = field(default_factory=dict)
    rearranged: bool = False  # the added files contain the same rows as the removed ones


class Table(Protocol):
    """A table format: Parquet with a log of its own, Delta Lake, Iceberg.

    An object is at one version. ``commit`` succeeds only from the newest version and then moves to its own;
    ``refresh`` moves to the newest.
    """

    format: str
    in_file: tuple[str, ...]  # partition columns that are also stored in the data files

    @property
    def version(self) -> int: ...

    @property
    def rows(self) -> int: ...

    def refresh(self) -> None: ...

    def position(self, key: str) -> Position | None: ...

    def files(self) -> list[DataFile]: ...

    def schema(self) -> pa.Schema: ...

    def commit(self, change: Change) -> None: ...

    def evolve(self, columns: Sequence[pa.Field]) -> None:
        """Add columns at the end."""

    def upkeep(self, keep_seconds: float) -> int:
        """Delete what no version of the last ``keep_seconds`` needs; return how many data files."""


def position_key(queue: str, number: int) -> str:
    """A queue that is deleted and recreated starts at offset 0 again: its number tells the two apart."""
    return f"{queue}#{number % QUEUE_IDS}"


def check_partitions(root: str, has: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse to write into a table that is partitioned by other columns: this job did not create it."""
    if list(has) != list(wanted):
        raise UnfitTable(
            f"the table {root} is partitioned by {', '.join(has) or 'nothing'}, and this job writes one "
            f"by {', '.join(wanted) or 'nothing'}: use another folder"
        )

"""Pops that wait for a message of an ephemeral queue, in the order in which they came.

Owns: the lines. Must not touch: what they wait for. Only the first of a line is woken: it wakes the next one
if it leaves something, so that a message for five thousand of them wakes one.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Place(NamedTuple):
    """A waiting pop."""

    partition: str | None  # None: any
    group: str
    number: int


class WaitingPops:
    """The waiting pops of one queue, by partition and group."""

    __slots__ = ("_count", "_lines", "_number", "_present")

    def __init__(self) -> None:
        self._lines: dict[str | None, dict[str, OrderedDict[int, Callable[[], None]]]] = {}
        self._present: dict[str | None, int] = {}  # how many wait or were woken, by partition
        self._count = 0
        self._number = 0

    def __len__(self) -> int:
        """How many wait or were woken and have not left."""
        return self._count

    def at(self, partition: str) -> bool:
        """Whether any names this partition."""
        return partition in self._present

    def add(self, group: str, partition: str | None, wake: Callable[[], None]) -> Place:
        """Join the end of the line."""
        self._number += 1
        self._count += 1
        self._present[partition] = self._present.get(partition, 0) + 1
        self._lines.setdefault(partition, {}).setdefault(group, OrderedDict())[self._number] = wake
        return Place(partition, group, self._number)

    def remove(self, place: Place) -> None:
        """Leave, woken or not. Each place is removed once."""
        partition, group, number = place
        self._count -= 1
        self._present[partition] -= 1
        if not self._present[partition]:
            del self._present[partition]
        lines = self._lines.get(partition)
        if lines is not None and group in lines:
            lines[group].pop(number, None)
            self._clear(partition, group)

    def wake(self, partition: str | None, group: str) -> None:
        """Wake the first that waits for this."""
        lines = self._lines.get(partition)
        if lines is not None and group in lines:
            _, wake = lines[group].popitem(last=False)
            self._clear(partition, group)
            wake()

    def wake_groups(self, partition: str | None) -> None:
        """Wake the first of each group."""
        groups: Iterable[str] = self._lines.get(partition, ())
        for group in list(groups):
            self.wake(partition, group)

    def _clear(self, partition: str | None, group: str) -> None:
        lines = self._lines[partition]
        if not lines[group]:
            del lines[group]
            if not lines:
                del self._lines[partition]

"""A state at one moment, whose records are made later.

Owns: what a part of the node hands to a checkpoint and reads again, and making long records some rows at a
time. Must not touch: what the records mean. The checkpoint's thread makes them while the state changes, so
whatever can change was copied at the moment. Each call of the encoder is short: it holds the interpreter, and
so the event loop.
"""

from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple, TypeVar

import msgspec

StateRecord = tuple[int, bytes]  # kind and payload of a record that another part of the node folds
PORTION: Final = 500  # rows encoded at once: less than a millisecond
_POSITIONS: Final = 16_384  # in one array: to sort it takes the interpreter for 4 ms

_Row = TypeVar("_Row")
_encode: Final = msgspec.msgpack.Encoder().encode
_ARRAY_32: Final = Struct(">BI")


class Captured(NamedTuple):
    """Both may be iterated in another thread, once."""

    records: Iterable[StateRecord]  # they hold the whole state
    live: Iterable["array[int]"] = ()  # the journal positions that it refers to, in any order


class StatePart:
    """A part of the node with its own state in the same journal: it folds and captures its record kinds."""

    kinds: tuple[int, ...] = ()

    def fold(self, position: int, kind: int, payload: bytes) -> None:
        """Apply one record, after a commit or at start-up."""
        raise NotImplementedError

    def capture(self) -> Captured:
        """The whole state as it is now."""
        raise NotImplementedError


def array_of(count: int) -> bytes:
    """The head of a msgpack array with up to 15 items, which follow."""
    return bytes((0x90 | count,))


def portions(rows: Iterable[_Row], size: int = PORTION) -> Iterator[list[_Row]]:
    """The rows, some at a time."""
    left = iter(rows)
    while some := list(islice(left, size)):
        yield some


def packed(rows: Iterable[_Row], size: int = PORTION) -> bytes:
    """One msgpack array of the rows, encoded some at a time."""
    count, parts = 0, [b""]
    for some in portions(rows, size):
        count += len(some)
        parts.append(_encode(some)[1 if len(some) < 16 else 3 :])  # without the size of this portion
    parts[0] = _ARRAY_32.pack(0xDD, count)
    return b"".join(parts)


def positions(rows: Iterable[int]) -> Iterator["array[int]"]:
    """Journal positions in arrays that are sorted quickly."""
    left = iter(rows)
    while some := array("Q", islice(left, _POSITIONS)):
        yield some

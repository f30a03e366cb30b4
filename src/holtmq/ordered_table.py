"""Objects by a key of several names, always in the order of their keys, and found by their first names.

Owns: the order. Must not touch: what is kept. To sort 100,000 keys, or to look up as many objects for a list,
takes 50 ms and more, and nobody else is served meanwhile; to add one among them takes 30 µs.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=tuple[str, ...])
V = TypeVar("V")


class OrderedTable(Generic[K, V]):
    """The objects of one kind. ``key_of`` returns the key of one, which does not change."""

    __slots__ = ("_by_key", "_in_order", "_key_of")

    def __init__(self, key_of: Callable[[V], K], given: Iterable[V] = ()) -> None:
        self._key_of = key_of
        self._by_key = {key_of(one): one for one in given}
        self._in_order = [self._by_key[key] for key in sorted(self._by_key)]

    def __len__(self) -> int:
        return len(self._in_order)

    def __contains__(self, key: K) -> bool:
        return key in self._by_key

    def get(self, key: K) -> V | None:
        """The object with this key."""
        return self._by_key.get(key)

    def put(self, value: V) -> None:
        """Add an object, or replace the one with its key."""
        key = self._key_of(value)
        at = bisect_left(self._in_order, key, key=self._key_of)
        if key in self._by_key:
            self._in_order[at] = value
        else:
            self._in_order.insert(at, value)
        self._by_key[key] = value

    def remove(self, key: K) -> bool:
        """Remove an object; return whether there was one."""
        if key not in self._by_key:
            return False
        del self._in_order[bisect_left(self._in_order, key, key=self._key_of)], self._by_key[key]
        return True

    def remove_under(self, *names: str) -> list[V]:
        """Remove the objects whose keys begin with these names; return them."""
        first, last = self._range(names)
        gone = self._in_order[first:last]
        del self._in_order[first:last]
        self._forget(gone)
        return gone

    def remove_at(self, place: int, name: str) -> list[V]:
        """The same for those whose keys have this name in this place."""
        gone = [one for key, one in self._by_key.items() if key[place] == name]
        if gone:
            numbers = set(map(id, gone))  # faster than to make and compare the keys again
            self._in_order = [one for one in self._in_order if id(one) not in numbers]
            self._forget(gone)
        return gone

    def under(self, *names: str) -> list[V]:
        """The objects whose keys begin with these names; without any, all objects."""
        first, last = self._range(names)
        return self._in_order[first:last]

    def _range(self, names: tuple[str, ...]) -> tuple[int, int]:
        if not names:
            return 0, len(self._in_order)
        count, key_of = len(names), self._key_of

        def beginning(one: V) -> tuple[str, ...]:
            return key_of(one)[:count]

        first = bisect_left(self._in_order, names, key=beginning)
        return first, bisect_right(self._in_order, names, lo=first, key=beginning)

    def _forget(self, gone: list[V]) -> None:
        if len(gone) > len(self._in_order):  # to remove 100,000 one by one takes longer
            self._by_key = {self._key_of(one): one for one in self._in_order}
            return
        for one in gone:
            del self._by_key[self._key_of(one)]

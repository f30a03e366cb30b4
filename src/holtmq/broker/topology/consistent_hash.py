"""Consistent hashing: maps a key to one of several weighted members; few keys move when members change.

Owns: the hash ring and the parsing of a weight. Must not touch: exchanges and messages. The ring depends
only on names and weights, never on ``hash()``, so that keys map to the same members after a restart.

The ring is cut into arcs of equal length. A new member appends its points to their arcs, a removed member is
only marked, and an arc is put in order at its next lookup: no change and no lookup touches the whole ring.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from hashlib import blake2b
from itertools import compress
from typing import Final, Generic, TypeVar

from holtmq.broker.errors import Conflict

T = TypeVar("T")

# Points per unit of weight. With 64, the busiest of ten equal members gets about a fifth more than its
# share; the ring of ten members has 640 points.
_POINTS: Final = 64
_POINTS_PER_DIGEST: Final = 8  # of 8 bytes, the highest first
_ARCS: Final = 256
_SHIFT: Final = 64 - 8  # from a point to its arc
# The points of a binding are computed at once: 1,000 is 64,000 points, 20 ms.
MAX_WEIGHT: Final = 1_000
# Of all bindings of an exchange: 3.2 million points, 50 MB.
MAX_TOTAL_WEIGHT: Final = 50_000


class _Place:
    """Where the points of its members lie. All of them can be removed at once."""

    __slots__ = ("is_removed", "members", "name", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.members = 0
        self.weight = 0  # of its members
        self.is_removed = False


class _Member(Generic[T]):
    __slots__ = ("is_removed", "member", "place", "weight")

    def __init__(self, place: _Place, weight: int, member: T) -> None:
        self.place = place
        self.weight = weight
        self.member = member
        self.is_removed = False


class _Arc(Generic[T]):
    """The points of one part of the ring, and the member of each."""

    __slots__ = ("is_sorted", "owners", "points", "removals")

    def __init__(self, removals: int) -> None:
        self.points = array("Q")
        self.owners: list[_Member[T]] = []
        self.is_sorted = True
        self.removals = removals  # of the ring, when the points of removed members were last deleted here


class HashRing(Generic[T]):
    """Members on a ring."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}  # with at least one member each
        self._members: dict[
            object, _Member[T]
        ] = {}  # and those of removed places that ``remove`` did not see
        self._arcs: dict[int, _Arc[T]] = {}
        self._removals = 0
        self._removed_points = 0  # that are still in arcs
        self._swept = 0  # the next arc of ``_sweep``
        self.weight = 0  # of all members

    def add(self, identity: object, place: str, weight: int, member: T) -> None:
        """``place`` alone sets where the points lie: a new weight adds or removes some, moves none."""
        self.remove(identity)
        self._sweep(weight * _POINTS)
        there = self._places.get(place)
        if there is None:
            there = self._places[place] = _Place(place)
        there.members += 1
        there.weight += weight
        added = self._members[identity] = _Member(there, weight, member)
        self.weight += weight
        arcs, removals = self._arcs, self._removals
        by_arc: list[list[int]] = [[] for _ in range(_ARCS)]
        for point in _points_of(place, weight):
            by_arc[point >> _SHIFT].append(point)
        for number, points in enumerate(by_arc):
            if points:
                arc = arcs.get(number)
                if arc is None:
                    arc = arcs[number] = _Arc(removals)
                arc.points.extend(points)
                arc.owners += [added] * len(points)
                arc.is_sorted = False

    def remove(self, identity: object) -> None:
        """Remove a member, if it is there."""
        gone = self._members.pop(identity, None)
        if gone is not None and not gone.place.is_removed:
            gone.is_removed = True
            gone.place.members -= 1
            gone.place.weight -= gone.weight
            if not gone.place.members:
                del self._places[gone.place.name]
            self._note_removed(gone.weight)
        if not self._members:
            self._arcs.clear()
            self._removed_points = 0

    def remove_place(self, place: str) -> None:
        """Remove all members of a place at once, however many. Then ``clear_up``, and ``remove`` each."""
        gone = self._places.pop(place, None)
        if gone is not None:
            gone.is_removed = True
            self._note_removed(gone.weight)

    def remove_all(self) -> None:
        """``remove_place`` for every place."""
        for place in list(self._places):
            self.remove_place(place)

    def clear_up(self) -> Iterator[int]:
        """Delete the points of removed members, if they are more than the others.

        Each step is one arc, and yields how many points it had.
        """
        if self._removed_points <= self.weight * _POINTS:
            return
        for number in range(_ARCS):
            arc = self._arcs.get(number)
            if arc is not None and arc.removals != self._removals:
                yield len(arc.owners)
                self._delete_removed(arc)

    def _note_removed(self, weight: int) -> None:
        self.weight -= weight
        self._removals += 1
        self._removed_points += weight * _POINTS

    def owner(self, key: str) -> T | None:
        """The member that a key maps to; None when there are no members."""
        point = int.from_bytes(blake2b(_bytes(key), digest_size=8).digest(), "big")
        number = point >> _SHIFT
        arc = self._arcs.get(number)
        if arc is not None:
            if arc.removals != self._removals or not arc.is_sorted:
                self._put_in_order(arc)
            at = bisect_right(arc.points, point)
            if at < len(arc.owners):
                return arc.owners[at].member
        if not self._places:
            return None
        return self._first_after(number)

    def _first_after(self, number: int) -> T:
        """The owner of the first point of the arcs after this one, round the ring."""
        while True:
            number = (number + 1) % _ARCS
            arc = self._arcs.get(number)
            if arc is not None:
                self._put_in_order(arc)
                if arc.owners:
                    return arc.owners[0].member

    def _put_in_order(self, arc: _Arc[T]) -> None:
        if arc.removals != self._removals:
            self._delete_removed(arc)
        if arc.is_sorted:
            return
        points, owners = arc.points, arc.owners
        order = sorted(range(len(points)), key=points.__getitem__)
        if len(set(points)) < len(points):
            # Ties are broken by place, not by order of arrival, which may differ after a restart.
            order.sort(key=lambda at: (points[at], owners[at].place.name))
        arc.points = array("Q", [points[at] for at in order])
        arc.owners = [owners[at] for at in order]
        arc.is_sorted = True

    def _delete_removed(self, arc: _Arc[T]) -> None:
        arc.removals = self._removals
        kept = [not (owner.is_removed or owner.place.is_removed) for owner in arc.owners]
        removed = kept.count(False)
        if removed:
            arc.points = array("Q", compress(arc.points, kept))
            arc.owners = list(compress(arc.owners, kept))
            self._removed_points -= removed

    def _sweep(self, coming: int) -> None:
        """Delete points of removed members before new ones come: without lookups they would pile up."""
        passed = 0
        for number in range(self._swept, self._swept + _ARCS):
            if not self._removed_points or passed >= 2 * coming:
                break
            self._swept = (number + 1) % _ARCS
            arc = self._arcs.get(number % _ARCS)
            if arc is not None and arc.removals != self._removals:
                passed += len(arc.owners)
                self._delete_removed(arc)


def parse_weight(routing_key: str) -> int:
    """A binding's weight: a positive integer in text."""
    if not (routing_key.isascii() and routing_key.isdigit()) or not 1 <= int(routing_key) <= MAX_WEIGHT:
        raise Conflict(
            f"The binding key must be an integer: '{routing_key}' is not a weight from 1 to {MAX_WEIGHT}"
        )
    return int(routing_key)


def _points_of(place: str, weight: int) -> array[int]:
    suffix = b"/" + _bytes(place)
    blocks = range(weight * _POINTS // _POINTS_PER_DIGEST)
    digests = b"".join([blake2b(b"%d%b" % (block, suffix)).digest() for block in blocks])
    points = array("Q", digests)
    if sys.byteorder == "little":
        points.byteswap()
    return points


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")

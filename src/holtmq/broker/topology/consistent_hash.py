"""Consistent hashing: maps a key to one of several weighted members; few keys move when members change.

Owns: the hash ring and the parsing of a weight. Must not touch: exchanges and messages. The ring depends
only on names and weights, never on ``hash()``, so that keys map to the same members after a restart.
"""

from bisect import bisect_right
from hashlib import blake2b
from typing import Generic, TypeVar

from holtmq.broker.errors import Conflict

T = TypeVar("T")

# Points per unit of weight. With 64, the busiest of ten equal members gets about a fifth more than its
# share; the ring of ten members has 640 points, one bisect of ten steps.
_POINTS = 64
_POINTS_PER_DIGEST = 8
# A ring grows with its weights, so they are bounded: 1,000 is 64,000 points, 4 MB and 0.2 s to build.
MAX_WEIGHT = 1_000


class HashRing(Generic[T]):
    """Members on a ring. Rebuilt at the first lookup after a change, since changes come in runs."""

    def __init__(self) -> None:
        self._members: dict[object, tuple[str, int, T]] = {}
        self._points: list[int] = []
        self._owners: list[T] = []
        self._stale = False

    def add(self, identity: object, place: str, weight: int, member: T) -> None:
        """``place`` alone sets where the points lie: a new weight adds or removes some, moves none."""
        self._members[identity] = (place, weight, member)
        self._stale = True

    def remove(self, identity: object) -> None:
        if self._members.pop(identity, None) is not None:
            self._stale = True

    def owner(self, key: str) -> T | None:
        """The member that a key maps to; None when there are no members."""
        if self._stale:
            self._rebuild()
        if not self._points:
            return None
        point = int.from_bytes(blake2b(_bytes(key), digest_size=8).digest(), "big")
        return self._owners[bisect_right(self._points, point) % len(self._owners)]

    def _rebuild(self) -> None:
        members = list(self._members.values())
        # Ties are broken by place, not by order of arrival, which may differ after a restart.
        ring = sorted(
            (point, place, at)
            for at, (place, weight, _) in enumerate(members)
            for point in _points_of(place, weight)
        )
        self._points = [point for point, _, _ in ring]
        self._owners = [members[at][2] for _, _, at in ring]
        self._stale = False


def parse_weight(routing_key: str) -> int:
    """A binding's weight: a positive integer in text."""
    if not (routing_key.isascii() and routing_key.isdigit()) or not 1 <= int(routing_key) <= MAX_WEIGHT:
        raise Conflict(
            f"The binding key must be an integer: '{routing_key}' is not a weight from 1 to {MAX_WEIGHT}"
        )
    return int(routing_key)


def _points_of(place: str, weight: int) -> list[int]:
    points: list[int] = []
    for block in range(weight * _POINTS // _POINTS_PER_DIGEST):
        digest = blake2b(_bytes(f"{block}/{place}"), digest_size=8 * _POINTS_PER_DIGEST).digest()
        points += [int.from_bytes(digest[at : at + 8], "big") for at in range(0, len(digest), 8)]
    return points


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")

"""How each type of exchange finds the bindings for a message.

Owns: one index per type. Must not touch: what a binding leads to.
"""

from __future__ import annotations

import random
import zlib
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final, Generic, Protocol

from holtmq.broker.errors import Conflict
from holtmq.broker.topology.consistent_hash import MAX_TOTAL_WEIGHT, HashRing, parse_weight
from holtmq.broker.topology.destinations import Identity, Q, Table
from holtmq.broker.topology.equivalence import shown
from holtmq.broker.topology.exchange_kinds import ExchangeKind
from holtmq.broker.topology.headers_match import HeadersPattern, comparable
from holtmq.broker.topology.topic_trie import TopicTrie

if TYPE_CHECKING:
    from holtmq.broker.topology.exchanges import Binding, Exchange

# By the id() of the destination, and there by binding. By its name, what is left of a deleted queue would
# hide a new one.
_Candidates = dict[int, dict[Identity, tuple[HeadersPattern, "Binding[Q]"]]]
_SORTED_MAX: Final = 10_000  # about 3 ms
_COMPARED: Final = 100  # patterns that are compared at once
_POINTS_CLEARED: Final = (
    20  # points of a hash ring that are looked at in the time that it takes to remove a binding
)
_destination: Final = attrgetter("destination")
_sequence: Final = attrgetter("sequence")
HASH_PROPERTIES: Final = ("message_id", "correlation_id", "timestamp")


class BindingIndex(Protocol[Q]):
    """How one exchange type finds its bindings."""

    def add(self, binding: Binding[Q]) -> None: ...

    def remove(self, binding: Binding[Q]) -> None: ...

    def match(self, routing_key: str, headers: Table, properties: Table) -> Iterable[Binding[Q]]:
        """The bindings for a message; several may have one destination."""
        ...


class _DirectIndex(Generic[Q]):
    def __init__(self) -> None:
        self._by_key: dict[str, dict[Identity, Binding[Q]]] = {}

    def add(self, binding: Binding[Q]) -> None:
        self._by_key.setdefault(binding.routing_key, {})[binding.identity] = binding

    def remove(self, binding: Binding[Q]) -> None:
        same_key = self._by_key[binding.routing_key]
        del same_key[binding.identity]
        if not same_key:
            del self._by_key[binding.routing_key]

    def match(self, routing_key: str, headers: Table, properties: Table) -> Iterable[Binding[Q]]:
        return self._by_key.get(routing_key, {}).values()


class _FanoutIndex(Generic[Q]):
    def __init__(self) -> None:
        self._all: dict[Identity, Binding[Q]] = {}

    def add(self, binding: Binding[Q]) -> None:
        self._all[binding.identity] = binding

    def remove(self, binding: Binding[Q]) -> None:
        del self._all[binding.identity]

    def match(self, routing_key: str, headers: Table, properties: Table) -> Iterable[Binding[Q]]:
        return self._all.values()


class TopicIndex(Generic[Q]):
    def __init__(self) -> None:
        self.trie: TopicTrie[Binding[Q]] = TopicTrie()

    def add(self, binding: Binding[Q]) -> None:
        self.trie.add(binding.routing_key, binding.identity, binding)

    def remove(self, binding: Binding[Q]) -> None:
        self.trie.remove(binding.routing_key, binding.identity)

    def match(self, routing_key: str, headers: Table, properties: Table) -> Iterable[Binding[Q]]:
        return in_order(self.trie.match(routing_key))


class HeadersIndex(Generic[Q]):
    """Compares only patterns that want one of the message's headers with its value, and those that cannot be
    found by a value: a message that fits one of 100,000 bindings must not be compared with all. Of the
    bindings to one destination, those after the first that fits are not compared either."""

    def __init__(self) -> None:
        self._by_pair: dict[tuple[str, object] | None, _Candidates[Q]] = {}  # None: not found by a value
        self.compared = 0  # patterns, for the last part

    @staticmethod
    def work_of(binding: Binding[Q]) -> int:
        """How many bindings with a few arguments take as long to add or remove."""
        return 1 + len(binding.arguments) // 2

    def add(self, binding: Binding[Q]) -> None:
        identity, pattern = binding.identity, HeadersPattern.from_arguments(binding.arguments)
        for pair in pattern.pairs() or (None,):
            candidates = self._by_pair.setdefault(pair, {})
            candidates.setdefault(id(binding.destination), {})[identity] = (pattern, binding)

    def remove(self, binding: Binding[Q]) -> None:
        identity, destination = binding.identity, id(binding.destination)
        for pair in HeadersPattern.from_arguments(binding.arguments).pairs() or (None,):
            candidates = self._by_pair[pair]
            del candidates[destination][identity]
            if not candidates[destination]:
                del candidates[destination]
                if not candidates:
                    del self._by_pair[pair]

    def match(self, routing_key: str, headers: Table, properties: Table) -> Iterable[Binding[Q]]:
        return in_order([binding for part in self.match_in_parts(headers) for binding in part])

    def match_in_parts(self, headers: Table) -> Iterator[list[Binding[Q]]]:
        """``match``, of some candidates at a time. Bindings may be added and removed meanwhile."""
        pairs: list[tuple[str, object] | None] = [None]
        pairs += [
            (name, known) for name, value in headers.items() if (known := comparable(value)) is not None
        ]
        part: list[Binding[Q]] = []
        compared = 0
        for pair in pairs:
            candidates = self._by_pair.get(pair)
            if candidates is None:
                continue
            for bindings in list(candidates.values()):
                for pattern, binding in list(bindings.values()):
                    compared += pattern.work
                    if pattern.matches(headers):
                        part.append(binding)
                        break
                    if compared >= _COMPARED:
                        self.compared = compared
                        yield part
                        part, compared = [], 0
                if compared >= _COMPARED:
                    self.compared = compared
                    yield part
                    part, compared = [], 0
        self.compared = compared
        yield part


class ChoosingIndex(ABC, Generic[Q]):
    """Chooses one of all bindings, so those of a deleted destination must be removed at once.

    What is removed at once is removed again by ``remove``, in steps, which must be short then.
    """

    @abstractmethod
    def remove_destination(self, destination: tuple[bool, str]) -> None:
        """Remove the bindings to one destination; there may be 100,000."""

    @abstractmethod
    def remove_all(self) -> None:
        """Remove all bindings: the exchange is deleted."""

    def clear_up(self) -> Iterator[None]:
        """Free what was removed at once; a step takes as long as the removal of a binding."""
        yield from ()


class _RandomIndex(ChoosingIndex[Q]):
    """Chooses one destination per message at random."""

    def __init__(self) -> None:
        # Sorted by these keys: no message and no change has to sort them all.
        self._keys: list[tuple[bool, str, str, int]] = []
        self._sorted: list[Binding[Q]] = []

    def add(self, binding: Binding[Q]) -> None:
        key = _sort_key(binding)
        at = bisect_left(self._keys, key)
        self._keys.insert(at, key)
        self._sorted.insert(at, binding)

    def remove(self, binding: Binding[Q]) -> None:
        at = bisect_left(self._keys, _sort_key(binding))
        if at < len(self._sorted) and self._sorted[at] is binding:
            del self._keys[at], self._sorted[at]

    def remove_destination(self, destination: tuple[bool, str]) -> None:
        first = bisect_left(self._keys, (*destination, "", 0))
        last = bisect_right(self._keys, destination, lo=first, key=itemgetter(0, 1))
        del self._keys[first:last], self._sorted[first:last]

    def remove_all(self) -> None:
        self._keys.clear()
        self._sorted.clear()

    def match(self, routing_key: str, headers: Table, properties: Table) -> Iterable[Binding[Q]]:
        return (self._choice(self._sorted, routing_key),) if self._sorted else ()

    def _choice(self, bindings: list[Binding[Q]], routing_key: str) -> Binding[Q]:
        return random.choice(bindings)


class _ModulusIndex(_RandomIndex[Q]):
    """Chooses one destination per message by the hash of its key, modulo the number of bindings."""

    def _choice(self, bindings: list[Binding[Q]], routing_key: str) -> Binding[Q]:
        # Not by hash(): keys must map to the same bindings after a restart.
        return bindings[zlib.crc32(routing_key.encode("utf-8", "surrogateescape")) % len(bindings)]


class HashIndex(ChoosingIndex[Q]):
    """Chooses one destination per message by the hash of its key, of a header or of a property."""

    def __init__(self, arguments: Table) -> None:
        header, hashed_property = arguments.get("hash-header"), arguments.get("hash-property")
        if header is not None and hashed_property is not None:
            raise Conflict("hash-header and hash-property are mutually exclusive")
        if header is not None and not isinstance(header, str):
            raise Conflict(f"Invalid hash-header {shown(header)}: expected the name of a header")
        if hashed_property is not None and hashed_property not in HASH_PROPERTIES:
            raise Conflict(
                f"Unsupported property: {shown(hashed_property)}; expected {', '.join(HASH_PROPERTIES)}"
            )
        self._header = header
        self._property = hashed_property if isinstance(hashed_property, str) else None
        self._ring: HashRing[Binding[Q]] = HashRing()

    def add(self, binding: Binding[Q]) -> None:
        identity = binding.identity
        self._ring.add(identity, _place(identity[:2]), parse_weight(binding.routing_key), binding)

    def remove(self, binding: Binding[Q]) -> None:
        self._ring.remove(binding.identity)

    def remove_destination(self, destination: tuple[bool, str]) -> None:
        self._ring.remove_place(_place(destination))

    def remove_all(self) -> None:
        self._ring.remove_all()

    def clear_up(self) -> Iterator[None]:
        for points in self._ring.clear_up():
            yield from repeat(None, points // _POINTS_CLEARED)

    def refuse_excess(self, routing_key: str) -> None:
        """Raise Conflict if one more binding with this key would make the ring too large."""
        weight = parse_weight(routing_key)
        if self._ring.weight + weight > MAX_TOTAL_WEIGHT:
            raise Conflict(
                f"a weight of {weight} is too much: the weights of this x-consistent-hash exchange are "
                f"{self._ring.weight} in all, and {MAX_TOTAL_WEIGHT} is the limit; use smaller weights in "
                "the same proportions"
            )

    def match(self, routing_key: str, headers: Table, properties: Table) -> Iterable[Binding[Q]]:
        hashed = routing_key
        if self._header is not None:
            hashed = shown(headers.get(self._header))
        elif self._property is not None:
            hashed = shown(properties.get(self._property))
        owner = self._ring.owner(hashed)
        return () if owner is None else (owner,)


def _sort_key(binding: Binding[Q]) -> tuple[bool, str, str, int]:
    return binding.to_exchange, binding.destination.name, binding.routing_key, binding.sequence


def _place(destination: tuple[bool, str]) -> str:
    to_exchange, name = destination
    return ("exchange " if to_exchange else "queue ") + name


def make_index(kind: ExchangeKind, arguments: Table) -> BindingIndex[Q]:
    match kind:
        case ExchangeKind.FANOUT | ExchangeKind.RECENT_HISTORY:
            return _FanoutIndex()
        case ExchangeKind.TOPIC:
            return TopicIndex()
        case ExchangeKind.HEADERS:
            return HeadersIndex()
        case ExchangeKind.CONSISTENT_HASH:
            return HashIndex(arguments)
        case ExchangeKind.RANDOM:
            return _RandomIndex()
        case ExchangeKind.MODULUS_HASH:
            return _ModulusIndex()
        case _:
            return _DirectIndex()


def in_order(bindings: list[Binding[Q]]) -> list[Binding[Q]]:
    """Sort into the order of binding, unless there are so many that it would take long."""
    if len(bindings) <= _SORTED_MAX:
        bindings.sort(key=_sequence)
    return bindings


def destinations_of(bindings: Iterable[Binding[Q]]) -> list[Q | Exchange[Q]]:
    """The destinations, each once, in the order of their oldest bindings. There may be 100,000."""
    destinations = list(map(_destination, bindings))
    if len(destinations) > 1:
        # By id(), since a queue class may define its own equality.
        return list(dict(zip(map(id, destinations), destinations, strict=True)).values())
    return destinations

"""How each type of exchange finds the bindings for a message.

Owns: one index per type. Must not touch: what a binding leads to.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Generic, Protocol

from holtmq.broker.errors import Conflict
from holtmq.broker.topology.consistent_hash import HashRing, parse_weight
from holtmq.broker.topology.destinations import Identity, Q, Table
from holtmq.broker.topology.equivalence import shown
from holtmq.broker.topology.exchange_kinds import Kind
from holtmq.broker.topology.headers_match import HeadersPattern
from holtmq.broker.topology.topic_trie import TopicTrie

if TYPE_CHECKING:
    from holtmq.broker.topology.exchanges import Binding

HASH_PROPERTIES: Final = ("message_id", "correlation_id", "timestamp")


class BindingIndex(Protocol[Q]):
    """How one exchange type finds its bindings."""

    def add(self, binding: Binding[Q]) -> None: ...

    def remove(self, binding: Binding[Q]) -> None: ...

    def match(self, routing_key: str, headers: Table, properties: Table) -> Iterable[Binding[Q]]: ...


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
        # The trie returns values in trie order; restore the order of binding.
        return sorted(self.trie.match(routing_key), key=_bound_at)


class _HeadersIndex(Generic[Q]):
    def __init__(self) -> None:
        self._all: dict[Identity, tuple[HeadersPattern, Binding[Q]]] = {}

    def add(self, binding: Binding[Q]) -> None:
        self._all[binding.identity] = (HeadersPattern.from_arguments(binding.arguments), binding)

    def remove(self, binding: Binding[Q]) -> None:
        del self._all[binding.identity]

    def match(self, routing_key: str, headers: Table, properties: Table) -> Iterable[Binding[Q]]:
        return [binding for pattern, binding in self._all.values() if pattern.matches(headers)]


class _RandomIndex(Generic[Q]):
    """Chooses one destination per message at random."""

    def __init__(self) -> None:
        self._all: dict[Identity, Binding[Q]] = {}
        self._drawn: list[Binding[Q]] | None = None

    def add(self, binding: Binding[Q]) -> None:
        self._all[binding.identity] = binding
        self._drawn = None

    def remove(self, binding: Binding[Q]) -> None:
        del self._all[binding.identity]
        self._drawn = None

    def match(self, routing_key: str, headers: Table, properties: Table) -> Iterable[Binding[Q]]:
        if self._drawn is None:
            self._drawn = sorted(self._all.values(), key=_place)
        return (self._choice(self._drawn, routing_key),) if self._drawn else ()

    def _choice(self, bindings: list[Binding[Q]], routing_key: str) -> Binding[Q]:
        return random.choice(bindings)


class _ModulusIndex(_RandomIndex[Q]):
    """Chooses one destination per message by the hash of its key, modulo the number of bindings."""

    def _choice(self, bindings: list[Binding[Q]], routing_key: str) -> Binding[Q]:
        # Not by hash(): keys must map to the same bindings after a restart.
        return bindings[zlib.crc32(routing_key.encode("utf-8", "surrogateescape")) % len(bindings)]


class _HashIndex(Generic[Q]):
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
        place = ("exchange " if binding.to_exchange else "queue ") + binding.destination.name
        self._ring.add(binding.identity, place, parse_weight(binding.routing_key), binding)

    def remove(self, binding: Binding[Q]) -> None:
        self._ring.remove(binding.identity)

    def match(self, routing_key: str, headers: Table, properties: Table) -> Iterable[Binding[Q]]:
        hashed = routing_key
        if self._header is not None:
            hashed = shown(headers.get(self._header))
        elif self._property is not None:
            hashed = shown(properties.get(self._property))
        owner = self._ring.owner(hashed)
        return () if owner is None else (owner,)


def make_index(kind: Kind, arguments: Table) -> BindingIndex[Q]:
    match kind:
        case Kind.FANOUT | Kind.RECENT_HISTORY:
            return _FanoutIndex()
        case Kind.TOPIC:
            return TopicIndex()
        case Kind.HEADERS:
            return _HeadersIndex()
        case Kind.CONSISTENT_HASH:
            return _HashIndex(arguments)
        case Kind.RANDOM:
            return _RandomIndex()
        case Kind.MODULUS_HASH:
            return _ModulusIndex()
        case _:
            return _DirectIndex()


def _place(binding: Binding[Q]) -> tuple[bool, str, str]:
    return binding.identity[:3]


def _bound_at(binding: Binding[Q]) -> int:
    return binding.sequence

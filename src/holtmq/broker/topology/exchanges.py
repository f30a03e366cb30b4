"""Exchanges and bindings: from a routing key and headers to the destinations of one exchange.

Owns: what makes two bindings or two declarations the same. How a type finds its bindings is in
``binding_indexes.py``.
Must not touch: queues (anything with a ``name`` will do), messages, permissions. Routing across several
exchanges is in ``routing.py``.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import Final, Generic, Union

from holtmq.broker.errors import Conflict
from holtmq.broker.figures.rings import Ring
from holtmq.broker.topology.binding_indexes import (
    BindingIndex,
    ChoosingIndex,
    HashIndex,
    HeadersIndex,
    TopicIndex,
    destinations_of,
    in_order,
    make_index,
)
from holtmq.broker.topology.destinations import Identity, Q, Table
from holtmq.broker.topology.equivalence import (
    argument_difference,
    field_difference,
    frozen,
    shown,
    type_name,
)
from holtmq.broker.topology.exchange_kinds import PREDECLARED, ExchangeKind, delayed_kind
from holtmq.broker.topology.recent_history import LENGTH_ARGUMENT, RecentHistory
from holtmq.broker.topology.topic_trie import TopicTrie

# RabbitMQ compares only the first. The others change how an exchange routes, so a difference is refused too.
_COMPARED_ARGUMENTS: Final = (
    "alternate-exchange",
    "x-delayed-type",
    "hash-header",
    "hash-property",
    LENGTH_ARGUMENT,
)

_PART: Final = 1_000  # bindings of a route that are looked at in one go: less than a millisecond


@dataclass(frozen=True, slots=True)
class Binding(Generic[Q]):
    """One binding from an exchange to a queue or to another exchange."""

    source: str
    destination: Union[Q, "Exchange[Q]"]
    routing_key: str
    arguments: Table = field(default_factory=dict, hash=False)
    sequence: int = field(default=0, compare=False)  # order of binding

    @property
    def to_exchange(self) -> bool:
        return isinstance(self.destination, Exchange)

    @property
    def identity(self) -> Identity:
        """What makes two bindings the same: destination, routing key and arguments."""
        return (
            self.to_exchange,
            self.destination.name,
            self.routing_key,
            frozen(self.arguments) if self.arguments else (),
        )


class Exchange(Generic[Q]):
    """An exchange and its bindings. Created by ``make_exchange``, which validates the arguments."""

    __slots__ = (
        "_bindings",
        "_by_destination",
        "_index",
        "_next_sequence",
        "_noticed",
        "_version",
        "arguments",
        "auto_delete",
        "durable",
        "gone",
        "history",
        "inner_kind",
        "internal",
        "kind",
        "more_copies",
        "name",
        "needs_headers",
        "needs_properties",
        "published",
        "ring",
        "varies",
    )

    def __init__(
        self,
        name: str,
        kind: ExchangeKind,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Table,
    ) -> None:
        self.name = name
        self.kind = kind
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments
        self.inner_kind = delayed_kind(arguments) if kind is ExchangeKind.DELAYED else kind
        hashed = self.inner_kind is ExchangeKind.CONSISTENT_HASH
        # Whether a route depends on more than the routing key; then callers must not cache it by key.
        self.needs_headers = self.inner_kind is ExchangeKind.HEADERS or (
            hashed and "hash-header" in arguments
        )
        self.needs_properties = hashed and "hash-property" in arguments
        self.history = RecentHistory(arguments) if self.inner_kind is ExchangeKind.RECENT_HISTORY else None
        # For each message, even with equal keys and headers; or each message must be seen, not only its key.
        self.varies = self.inner_kind in (ExchangeKind.RANDOM, ExchangeKind.RECENT_HISTORY)
        self._index: BindingIndex[Q] = make_index(self.inner_kind, arguments)
        self._bindings: dict[Identity, Binding[Q]] = {}
        self._by_destination: dict[int, dict[Identity, Binding[Q]]] = {}  # by the id() of the destination
        # By id(): destinations that are deleted, and to which bindings may be left. Those count no more.
        # All exchanges of a vhost share it: very many may lead to one destination.
        self.gone: dict[int, Q | Exchange[Q]] = {}
        self._noticed: frozenset[int] = frozenset()  # of these: the index and the version are up to date
        self._next_sequence = 0
        self._version = 0
        self.published = 0  # messages from publishers; counted per run of publishes
        self.more_copies = 0  # copies in queues minus messages: most messages enter one queue
        self.ring: Ring | None = None  # published and routed, once it was used

    def __repr__(self) -> str:
        return f"Exchange({self.name!r}, {self.kind.value})"

    @property
    def routed(self) -> int:
        """Copies that entered queues, of the messages from publishers."""
        return self.published + self.more_copies

    @property
    def binding_count(self) -> int:
        """How many bindings it is the source of."""
        if not self.gone:
            return len(self._bindings)
        return len(self._bindings) - sum(len(self._by_destination[number]) for number in self._left_over())

    @property
    def is_default(self) -> bool:
        return self.name == ""

    @property
    def is_delayed(self) -> bool:
        """A message with a positive ``x-delay`` waits here before it is routed."""
        return self.kind is ExchangeKind.DELAYED

    @property
    def is_unused(self) -> bool:
        """It is the source of no binding; an auto-delete exchange is deleted when this becomes true."""
        return not self.binding_count

    @property
    def is_abandoned(self) -> bool:
        """It is an auto-delete exchange whose last destinations are gone, and will be deleted."""
        return self.auto_delete and bool(self._bindings) and self.is_unused

    @property
    def version(self) -> int:
        """Changes with every change of the bindings that count."""
        self._notice()
        return self._version

    @property
    def alternate_name(self) -> str | None:
        """The alternate exchange from its own arguments; without one, a policy may set it."""
        name = self.arguments.get("alternate-exchange")
        return name if isinstance(name, str) else None

    def bind(
        self, destination: Union[Q, "Exchange[Q]"], routing_key: str, arguments: Table | None = None
    ) -> bool:
        """Add a binding; False when it exists. Conflict when this exchange type cannot use it."""
        self._notice()
        binding = Binding(self.name, destination, routing_key, dict(arguments or {}), self._next_sequence)
        identity = binding.identity
        known = self._bindings.get(identity)
        if known is not None:
            if not self.is_gone(known.destination):
                return False
            del self._by_destination[id(known.destination)][identity]
            self._drop(identity, known)  # of a deleted queue with the same name
        self._index.add(binding)  # raises before anything is changed
        self._next_sequence += 1
        self._version += 1
        self._bindings[identity] = binding
        self._by_destination.setdefault(id(destination), {})[identity] = binding
        return True

    def refuse_excess(self, destination: Union[Q, "Exchange[Q]"], routing_key: str, arguments: Table) -> None:
        """Raise Conflict if one more binding like this would be too much for this exchange."""
        if isinstance(self._index, HashIndex) and not self.is_bound(destination, routing_key, arguments):
            self._notice()
            self._index.refuse_excess(routing_key)

    def unbind(
        self, destination: Union[Q, "Exchange[Q]"], routing_key: str, arguments: Table | None = None
    ) -> bool:
        """Remove a binding; False when there was none."""
        identity = Binding(self.name, destination, routing_key, arguments or {}).identity
        binding = self._bindings.get(identity)
        if binding is None or self.is_gone(binding.destination):
            return False
        self._drop(identity, binding)
        siblings = self._by_destination[id(binding.destination)]
        del siblings[identity]
        if not siblings:
            del self._by_destination[id(binding.destination)]
        return True

    def remove_left_over(self, destination: Union[Q, "Exchange[Q]"]) -> Iterator[None]:
        """Remove the bindings to a destination that is gone, one per step."""
        number = id(destination)  # unique: this generator holds the destination
        self._notice()
        bindings = self._by_destination.get(number, {})
        if isinstance(self._index, ChoosingIndex):
            yield from self._index.clear_up()
        while bindings:
            identity, binding = bindings.popitem()
            if self._bindings.get(identity) is binding:  # else ``dismantle`` has removed it
                self._drop(identity, binding)
            yield from repeat(None, self._work_of(binding))
        self._by_destination.pop(number, None)
        self._noticed -= {number}

    def _left_over(self) -> AbstractSet[int]:
        return self.gone.keys() & self._by_destination.keys()  # it walks over the smaller one

    def _notice(self) -> None:
        """Stop choosing destinations that are gone, and drop cached routes to them."""
        for number in self._left_over() - self._noticed if self.gone else ():
            self._noticed |= {number}
            self._version += 1
            if isinstance(self._index, ChoosingIndex):
                self._index.remove_destination(key_of(self.gone[number]))

    def _drop(self, identity: Identity, binding: Binding[Q]) -> None:
        self._version += 1
        self._index.remove(binding)
        del self._bindings[identity]

    def dismantle(self) -> Iterator[None]:
        """Remove all bindings of a deleted exchange, one per step."""
        if isinstance(self._index, ChoosingIndex):
            self._index.remove_all()
            yield from self._index.clear_up()
        while self._bindings:
            _, binding = self._bindings.popitem()
            self._index.remove(binding)
            yield from repeat(None, self._work_of(binding))
        while self._by_destination:
            _, bindings = self._by_destination.popitem()
            while bindings:
                bindings.popitem()
                yield

    def destinations(self) -> Iterator[Union[Q, "Exchange[Q]"]]:
        """The destinations of its bindings. These may change meanwhile."""
        for bindings in list(self._by_destination.values()):
            for binding in islice(bindings.values(), 1):
                yield binding.destination

    def is_gone(self, destination: Union[Q, "Exchange[Q]"]) -> bool:
        """Whether the destination is deleted and its bindings are not all removed yet."""
        return id(destination) in self.gone

    def is_bound(self, destination: Union[Q, "Exchange[Q]"], routing_key: str, arguments: Table) -> bool:
        """Whether this binding exists."""
        binding = self._bindings.get(Binding(self.name, destination, routing_key, arguments).identity)
        return binding is not None and not self.is_gone(binding.destination)

    def leads_to(self, destination: Union[Q, "Exchange[Q]"]) -> bool:
        """Whether any binding has this destination."""
        return id(destination) in self._by_destination

    @property
    def destination_count(self) -> int:
        """How many destinations it has."""
        return len(self._by_destination)

    def bindings(self) -> Iterable[Binding[Q]]:
        """Every binding, oldest first."""
        if not (gone := self.gone):
            return self._bindings.values()
        return [binding for binding in self._bindings.values() if id(binding.destination) not in gone]

    def bindings_to(self, destination: Union[Q, "Exchange[Q]"]) -> list[Binding[Q]]:
        """The bindings to one destination, oldest first."""
        if self.is_gone(destination):
            return []
        return list(self._by_destination.get(id(destination), {}).values())

    def route(
        self, routing_key: str, headers: Table | None = None, properties: Table | None = None
    ) -> list[Union[Q, "Exchange[Q]"]]:
        """The destinations for this message, each once, in the order they were first bound.

        The default exchange has no bindings: ``routing.route`` looks its queue up by name.
        """
        return self._attached(destinations_of(self._match(routing_key, headers or {}, properties or {})))

    def route_in_parts(
        self, routing_key: str, headers: Table, properties: Table | None
    ) -> Iterator[list[Union[Q, "Exchange[Q]"]]]:
        """``route``, in as many parts as take long; a destination may be in several of them.

        The bindings may change between two parts.
        """
        if isinstance(self._index, HeadersIndex):
            for part in self._index.match_in_parts(headers):
                yield self._attached(destinations_of(in_order(part)))
            return
        found = list(self._match(routing_key, headers, properties or {}))
        for start in range(0, len(found) or 1, _PART):
            yield self._attached(destinations_of(found[start : start + _PART]))

    def _match(self, routing_key: str, headers: Table, properties: Table) -> Iterable[Binding[Q]]:
        self._notice()
        return self._index.match(routing_key, headers, properties)

    @property
    def compared(self) -> int:
        """How many bindings were compared with a message for the last part of ``route_in_parts``."""
        return self._index.compared if isinstance(self._index, HeadersIndex) else 0

    def _work_of(self, binding: "Binding[Q]") -> int:
        return self._index.work_of(binding) if isinstance(self._index, HeadersIndex) else 1

    def _attached(self, destinations: list[Union[Q, "Exchange[Q]"]]) -> list[Union[Q, "Exchange[Q]"]]:
        if gone := self.gone:
            return [destination for destination in destinations if id(destination) not in gone]
        return destinations

    @property
    def topics(self) -> TopicTrie[Binding[Q]] | None:
        """The patterns of a topic exchange."""
        return self._index.trie if isinstance(self._index, TopicIndex) else None


def key_of(destination: Q | Exchange[Q]) -> tuple[bool, str]:
    """Whether it is an exchange, and its name."""
    return isinstance(destination, Exchange), destination.name


def make_exchange(
    name: str,
    kind: str | ExchangeKind,
    durable: bool = True,
    auto_delete: bool = False,
    internal: bool = False,
    arguments: Table | None = None,
) -> Exchange[Q]:
    """Create an exchange. Raises Conflict for an unknown type or an invalid argument."""
    try:
        known = ExchangeKind(kind)
    except ValueError:
        raise Conflict(f"unknown exchange type '{kind}'") from None
    arguments = dict(arguments or {})
    alternate = arguments.get("alternate-exchange")
    if alternate is not None and not isinstance(alternate, str):
        raise Conflict(
            f"invalid arg 'alternate-exchange' for exchange '{name}': "
            f"{shown(alternate)} is of type '{type_name(alternate)}', not the name of an exchange"
        )
    return Exchange(name, known, durable, auto_delete, internal, arguments)


def predeclared_exchanges() -> list[Exchange[Q]]:
    """The exchanges every vhost starts with."""
    return [make_exchange(name, kind, internal=internal) for name, kind, internal in PREDECLARED]


def equivalence_error(existing: Exchange[Q], requested: Exchange[Q], vhost: str) -> str | None:
    """RabbitMQ's error text for the first difference of a redeclaration, or None."""
    thing = f"exchange '{existing.name}' in vhost '{vhost}'"
    return (
        field_difference("type", thing, requested.kind.value, existing.kind.value)
        or field_difference("durable", thing, requested.durable, existing.durable)
        or field_difference("auto_delete", thing, requested.auto_delete, existing.auto_delete)
        or field_difference("internal", thing, requested.internal, existing.internal)
        or argument_difference(_COMPARED_ARGUMENTS, thing, requested.arguments, existing.arguments)
    )

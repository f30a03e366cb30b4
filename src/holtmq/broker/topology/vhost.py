"""One virtual host: its exchanges, queues and bindings, and what may be declared.

Owns: the topology and its rules (reserved names, equivalence, exclusivity, use, auto-delete). Must not
touch: the journal and messages; ``broker.py`` journals the changes.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Final, TypeAlias

from holtmq.broker.errors import AccessRefused, Conflict, NotFound, ResourceLocked
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.exchanges import (
    Binding,
    Exchange,
    equivalence_error,
    make_exchange,
    predeclared_exchanges,
)
from holtmq.broker.topology.queue_arguments import QueueDeclaration
from holtmq.broker.topology.queue_arguments import equivalence_error as queue_equivalence_error
from holtmq.broker.topology.routing import RouteResult, RouteWalk, route
from holtmq.broker.topology.targets import ExchangeTargets, QueueSet, QueueSets
from holtmq.broker.turn_limits import TurnLimits

Table: TypeAlias = Mapping[str, object]
QueueExchange: TypeAlias = Exchange[Queue]
QueueBinding: TypeAlias = Binding[Queue]
# Removes the bindings of a deleted queue or exchange, one per step; there may be 100,000. It yields the
# auto-delete exchanges that led to it: the caller deletes those that are abandoned, and journals that the
# others, if durable, are not.
Removal: TypeAlias = Iterator[QueueExchange | None]

_LOCKED: Final = (
    "cannot obtain exclusive access to locked queue '{}' in vhost '{}'. It could be originally declared on "
    "another connection or the exclusive property value does not match that of the original declaration."
)


class VHost:
    """The exchanges and queues of one tenant.

    ``version`` changes with everything that a cached route depends on. ``rules_version`` changes only with
    exchanges, permissions and policies, not with queues and bindings, which change much more often.
    """

    __slots__ = (
        "__weakref__",
        "_gone",
        "_queue_sets",
        "_sources",
        "_targets",
        "alternate_by_policy",
        "deleted",
        "exchanges",
        "name",
        "queues",
        "rules_version",
        "version",
        "widest",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = 1
        self.rules_version = 1
        self.widest = TurnLimits().copies  # a message for more queues is placed in steps
        self._targets: dict[str, ExchangeTargets] = {}
        self._queue_sets = QueueSets()
        self.exchanges: dict[str, QueueExchange] = {}
        self.queues: dict[str, Queue] = {}
        self.deleted = False
        self._gone: dict[int, Queue | QueueExchange] = {}  # by id(): deleted, and bindings to them are left
        predeclared: list[QueueExchange] = predeclared_exchanges()
        for exchange in predeclared:
            self._add_exchange(exchange)
        self.alternate_by_policy: Callable[[QueueExchange], str | None] = _no_alternate
        # Destination, by id() -> exchanges bound to it; a deleted exchange is removed from it in steps.
        self._sources: dict[int, dict[QueueExchange, None]] = {}

    def exchange(self, name: str) -> QueueExchange:
        """The exchange of this name. Raises NotFound."""
        found = self.find_exchange(name)
        if found is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self.name}'")
        return found

    def find_exchange(self, name: str) -> QueueExchange | None:
        """The exchange of this name. One that is about to be deleted, since it is unused, does not exist."""
        found = self.exchanges.get(name)
        return None if found is None or found.is_abandoned else found

    def abandoned_exchanges(self) -> list[QueueExchange]:
        """The exchanges that are about to be deleted, since they are unused."""
        return [found for found in self.exchanges.values() if found.is_abandoned] if self._gone else []

    def queue(self, name: str, owner: object | None = None) -> Queue:
        """The queue of this name. Raises ResourceLocked when it is exclusive to another than ``owner``."""
        found = self.queues.get(name)
        if found is None:
            raise NotFound(f"no queue '{name}' in vhost '{self.name}'")
        if found.owner is not None and found.owner is not owner:
            raise ResourceLocked(_LOCKED.format(name, self.name))
        return found

    def route(
        self,
        exchange: QueueExchange,
        routing_key: str,
        headers: Table | None = None,
        properties: Table | None = None,
        delay_served: bool = False,
        widest: int = sys.maxsize,
    ) -> RouteResult[Queue]:
        """The queues that a message reaches from this exchange, unless there are more than ``widest``."""
        return route(
            exchange,
            routing_key,
            headers,
            self.queues.get,
            self.alternate_of,
            properties,
            delay_served,
            widest,
        )

    def route_of_key(self, exchange: QueueExchange, routing_key: str) -> RouteResult[Queue]:
        """The queues that a message reaches by its key, unless they are very many."""
        return route(
            exchange, routing_key, None, self.queues.get, self.alternate_of, None, False, self.widest
        )

    def walk(
        self,
        exchange: QueueExchange,
        routing_key: str,
        headers: Table,
        properties: Table | None = None,
        delay_served: bool = False,
    ) -> RouteWalk[Queue]:
        """``route`` in parts, for a message that may reach very many queues."""
        return RouteWalk(
            exchange, routing_key, headers, self.queues.get, self.alternate_of, properties, delay_served
        )

    def targets_of(self, exchange: QueueExchange) -> ExchangeTargets:
        """The up-to-date lookup by key of one exchange."""
        found = self._targets.get(exchange.name)
        if found is None:
            found = self._targets[exchange.name] = ExchangeTargets(self, exchange)
        found.refresh()
        return found

    def queue_set(self, queues: tuple[Queue, ...]) -> QueueSet:
        """The shared set of these queues."""
        return self._queue_sets.of(queues)

    def rules_changed(self) -> None:
        """Invalidate cached routes after a change of exchanges, permissions or policies."""
        self.version += 1
        self.rules_version += 1
        self._queue_sets.clear()

    def declare_exchange(
        self, name: str, kind: str, durable: bool, auto_delete: bool, internal: bool, arguments: Table
    ) -> bool:
        """Create an exchange; False when an equivalent one exists."""
        existing = self.exchanges.get(name)
        if existing is None:
            refuse_reserved("exchange", name)
        requested: QueueExchange = make_exchange(name, kind, durable, auto_delete, internal, arguments)
        if existing is not None:
            difference = equivalence_error(existing, requested, self.name)
            if difference:
                raise Conflict(difference)
            return False
        self._add_exchange(requested)
        self.rules_changed()
        return True

    def _add_exchange(self, exchange: QueueExchange) -> None:
        exchange.gone = self._gone
        self.exchanges[exchange.name] = exchange

    def delete_exchange(self, name: str, if_unused: bool = False) -> Removal:
        """Remove an exchange with all bindings from and to it."""
        refuse_default(name)
        if name.startswith("amq."):
            raise AccessRefused(f"deletion of system exchange '{name}' in vhost '{self.name}' not allowed")
        doomed = self.exchanges.get(name)
        if doomed is None:
            return iter(())
        if if_unused and not doomed.is_unused:
            raise Conflict(f"exchange '{name}' in vhost '{self.name}' in use")
        del self.exchanges[name]
        self._targets.pop(name, None)
        self.rules_changed()
        return chain(self._detached(doomed), self._dismantled(doomed))

    def _detached(self, destination: Queue | QueueExchange) -> Removal:
        """Remove the bindings to a destination that is deleted. From now on they count no more."""
        sources = self._sources.pop(id(destination), {})
        if not sources:
            return iter(())
        self._gone[id(destination)] = destination
        return self._left_over(destination, sources)

    def _left_over(self, destination: Queue | QueueExchange, sources: dict[QueueExchange, None]) -> Removal:
        lasts = destination.durable if isinstance(destination, Exchange) else destination.persisted
        while sources:  # not kept: those that are deleted must not all be freed at the end
            source, _ = sources.popitem()
            yield source if source.is_abandoned or (lasts and source.auto_delete) else None
            yield from source.remove_left_over(destination)
        del self._gone[id(destination)]

    def _dismantled(self, doomed: QueueExchange) -> Removal:
        """Remove the bindings from an exchange that is deleted."""
        for destination in doomed.destinations():
            self._sources.get(id(destination), {}).pop(doomed, None)
            yield None
        yield from doomed.dismantle()

    def dismantled(self) -> Iterator[None]:
        """Free what is in a vhost that is deleted: to free 100,000 exchanges at once takes long."""
        for exchange in list(self.exchanges.values()):
            yield from exchange.dismantle()
        for names in (self.queues, self._sources, self.exchanges):
            while names:
                names.popitem()
                yield

    def check_redeclared(self, name: str, received: QueueDeclaration, owner: object | None) -> Queue | None:
        """The existing queue of this name, or None. Raises Conflict if it is not equivalent."""
        existing = self.queues.get(name)
        if existing is None:
            return None
        self.queue(name, owner)
        current = QueueDeclaration(
            existing.durable, existing.owner is not None, existing.auto_delete, existing.arguments
        )
        difference = queue_equivalence_error(name, self.name, current, received)
        if difference:
            if current.exclusive != received.exclusive:
                raise ResourceLocked(_LOCKED.format(name, self.name))
            raise Conflict(difference)
        return existing

    def add_queue(self, queue: Queue) -> None:
        """Add a queue; the default exchange routes to it from now on."""
        self.queues[queue.name] = queue
        self.version += 1

    def remove_queue(self, queue: Queue) -> Removal:
        """Remove a queue and the bindings to it."""
        del self.queues[queue.name]
        queue.deleted = True
        self.version += 1
        self._queue_sets.clear()
        if "" in self._targets:
            self._targets[""].forget_queue(queue.name)
        return self._detached(queue)

    def destination(self, name: str, to_exchange: bool, owner: object | None = None) -> Queue | QueueExchange:
        """The queue or exchange that a binding leads to."""
        return self.exchange(name) if to_exchange else self.queue(name, owner)

    def bind(
        self,
        source: QueueExchange,
        destination: Queue | QueueExchange,
        routing_key: str,
        arguments: Table,
    ) -> bool:
        """Add a binding; False when it exists."""
        if not source.bind(destination, routing_key, arguments):
            return False
        self._sources.setdefault(id(destination), {})[source] = None
        self.version += 1
        return True

    def unbind(
        self,
        source: QueueExchange,
        destination: Queue | QueueExchange,
        routing_key: str,
        arguments: Table,
    ) -> bool:
        """Remove a binding; False when there was none."""
        if not source.unbind(destination, routing_key, arguments):
            return False
        if not source.leads_to(destination):
            del self._sources[id(destination)][source]
        self.version += 1
        return True

    def is_bound(
        self, source: str, destination: str, routing_key: str, arguments: Table, to_exchange: bool
    ) -> bool:
        """Whether this binding exists; False also when the source or destination does not exist."""
        exchange = self.find_exchange(source)
        where = self.find_exchange(destination) if to_exchange else self.queues.get(destination)
        if exchange is None or where is None:
            return False
        return exchange.is_bound(where, routing_key, arguments)

    def bindings_to(self, destination: Queue | QueueExchange) -> Iterator[QueueBinding]:
        """The bindings to a queue or an exchange, by source. They may change meanwhile."""
        for source in list(self._sources.get(id(destination), ())):
            if self.exchanges.get(source.name) is source:
                yield from source.bindings_to(destination)

    def alternate_of(self, exchange: QueueExchange) -> QueueExchange | None:
        """The exchange for messages that match no binding of this one, or None."""
        name = exchange.alternate_name or self.alternate_by_policy(exchange)
        return self.find_exchange(name) if name else None


def refuse_reserved(what: str, name: str) -> None:
    """Raise AccessRefused for names that begin with ``amq.``: they are reserved."""
    if name.startswith("amq."):
        raise AccessRefused(f"{what} name '{name}' contains reserved prefix 'amq.*'")


def refuse_default(exchange: str) -> None:
    """Raise AccessRefused for the default exchange, which cannot be declared, deleted or bound."""
    if not exchange:
        raise AccessRefused("operation not permitted on the default exchange")


def _no_alternate(exchange: QueueExchange) -> str | None:
    return None

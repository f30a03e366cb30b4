"""The trial run of an import of definitions, on an in-memory broker with the objects that the document names.

Owns: which objects these are, their copies, and what the outcome for a binding depends on. Must not touch:
the document's order and texts, the real broker's state.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from holtmq.broker.broker import Broker
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.topology.exchanges import Exchange
from holtmq.broker.topology.pending_bindings import End
from holtmq.broker.topology.vhost import VHost
from holtmq.http.management.wire import BindingIn
from holtmq.journal import MemoryJournal
from holtmq.journal.encoded_batch import EncodedBatch

_OTHERS: Final = object()  # the owner of every exclusive queue in a rehearsal

Name = tuple[str, str]  # vhost, name


@dataclass(slots=True)
class Names:
    """What a document names."""

    exchanges: set[Name]
    queues: set[Name]
    ends: set[End] = field(default_factory=set)  # of bindings

    def add(self, binding: BindingIn) -> None:
        """Add both ends of a binding."""
        vhost, to_exchange = binding.vhost, binding.destination_type == "exchange"
        self.ends.add((vhost, True, binding.source))
        self.ends.add((vhost, to_exchange, binding.destination))
        self.exchanges.add((vhost, binding.source))
        (self.exchanges if to_exchange else self.queues).add((vhost, binding.destination))


class ChangesJournal(MemoryJournal):
    """Keeps the records that are appended, as they will be in the real journal, once there is a ``batch``."""

    def __init__(self) -> None:
        super().__init__()
        self.batch: EncodedBatch | None = None

    def append(self, kind: int, payload: bytes) -> int:
        if self.batch is None:
            return super().append(kind, payload)
        return self.batch.add(kind, payload)


def traits(stage: Broker, names: Names) -> dict[End, tuple[object, bool]]:
    """What decides whether bindings are accepted and journalled. Raises NotFound if an end is missing."""
    found: dict[End, tuple[object, bool]] = {}
    for end in names.ends:
        vhost, is_exchange, name = end
        where = stage.vhost(vhost).destination(name, is_exchange)
        if isinstance(where, Exchange):
            found[end] = (where.kind, where.inner_kind), where.durable
        else:
            found[end] = None, where.persisted
    return found


def stamp(broker: Broker) -> object:
    """Changes with everything that can decide whether a part is refused."""
    vhosts = {vhost.name: (vhost.version, vhost.rules_version) for vhost in broker.vhosts.values()}
    types = {vhost.name: vhost.default_queue_type for vhost in broker.users.vhosts()}
    return vhosts, types, {user.name for user in broker.users.users()}, dict(broker.limits.of_vhosts)


def rehearsal(broker: Broker, names: Names) -> tuple[Broker, ChangesJournal]:
    """An in-memory broker with copies of the objects that the document names, and its journal."""
    journal = ChangesJournal()
    stage = Broker(journal, max_priority=broker.max_priority, dialect=broker.dialect)
    stage.attach(PartitionedService(journal))
    for user in broker.users.users():
        stage.access.put_user(user)
    for vhost in broker.vhosts.values():
        stage.put_vhost(vhost.name)
        _copy_exchanges(stage, vhost, [name for where, name in names.exchanges if where == vhost.name])
        _copy_queues(stage, vhost, [name for where, name in names.queues if where == vhost.name])
        limits = broker.limits.of_vhosts.get(vhost.name, {})
        most = limits.get("max-queues", -1)
        if most >= 0:  # the rehearsal has fewer queues: lower the limit by those it lacks
            absent = len(vhost.queues) - len(stage.vhost(vhost.name).queues)
            stage.access.set_vhost_limits(vhost.name, {"max-queues": max(0, most - absent)})
        # After the copies, which have the types that they were declared with.
        if (named := broker.users.vhost(vhost.name)) is not None:
            stage.access.set_vhost_settings(vhost.name, named.default_queue_type)
    return stage, journal


def _copy_exchanges(stage: Broker, vhost: VHost, names: Iterable[str]) -> None:
    for name in names:
        exchange = vhost.exchanges.get(name)
        if exchange is not None and not name.startswith("amq.") and name:
            stage.vhost(vhost.name).declare_exchange(
                name,
                exchange.kind.value,
                exchange.durable,
                exchange.auto_delete,
                exchange.internal,
                exchange.arguments,
            )


def _copy_queues(stage: Broker, vhost: VHost, names: Iterable[str]) -> None:
    for name in names:
        queue = vhost.queues.get(name)
        if queue is not None:
            stage.declare_queue(
                stage.vhost(vhost.name),
                name,
                durable=queue.durable,
                exclusive=queue.owner is not None,
                auto_delete=queue.auto_delete,
                arguments=queue.arguments,
                owner=_OTHERS,
                any_name=True,
            )

"""The trial run of an import of definitions, on an in-memory broker with the objects that the document names.

Owns: which objects these are, and their copies. Must not touch: the document's order and texts, the real
broker's state. Copies are made in steps: each is of the moment of its step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from holtmq.broker.broker import Broker
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.topology.vhost import VHost
from holtmq.http.management.definitions_document import Definitions
from holtmq.journal import MemoryJournal

_OTHERS: Final = object()  # the owner of every exclusive queue in a rehearsal


class _ForgettingJournal(MemoryJournal):
    """Nothing reads what a rehearsal journals."""

    def append(self, kind: int, payload: bytes) -> int:
        return super().append(kind, b"")


@dataclass(slots=True)
class _Names:
    """What a document names in one vhost."""

    exchanges: set[str] = field(default_factory=set)
    queues: set[str] = field(default_factory=set)


def empty_stage(broker: Broker) -> Broker:
    """An in-memory broker that follows the same rules."""
    journal = _ForgettingJournal()
    stage = Broker(journal, max_priority=broker.max_priority, dialect=broker.dialect)
    stage.attach(PartitionedService(journal))
    return stage


def copy_named(broker: Broker, given: Definitions, stage: Broker) -> Iterator[None]:
    """Copy the objects that the document names."""
    granted = chain((one.user for one in given.permissions), (one.user for one in given.topic_permissions))
    for name in granted:
        if (user := broker.users.user(name)) is not None:
            stage.access.put_user(user)
        yield
    names: dict[str, _Names] = {}
    yield from _collect(names, given)
    for name, named in names.items():
        vhost = broker.vhosts.get(name)
        if vhost is not None:
            yield from _copy(broker, vhost, named, stage)


def dismantle(stage: Broker) -> Iterator[None]:
    """Free what is on the stage. A broker refers to itself: it would stay until a full garbage collection,
    which would then free everything at once."""
    stage.long_changes.abandon()  # policies that are being applied
    stage.flow.dirty.clear()
    stage.flow.used.clear()
    while stage.queues_by_id:
        stage.queues_by_id.popitem()
        yield
    for vhost in stage.vhosts.values():
        yield from vhost.dismantled()


def _collect(names: dict[str, _Names], given: Definitions) -> Iterator[None]:
    def of(vhost: str) -> _Names:
        return names.setdefault(vhost, _Names())

    for part in (given.permissions, given.topic_permissions, given.parameters, given.policies):
        for row in part:
            of(row.vhost)
            yield
    for vhost in given.vhosts:
        of(vhost.name)
        yield
    for exchange in given.exchanges:
        of(exchange.vhost).exchanges.add(exchange.name)
        yield
    for queue in given.queues:
        of(queue.vhost).queues.add(queue.name)
        yield
    for binding in given.bindings:
        named = of(binding.vhost)
        named.exchanges.add(binding.source)
        ends = named.exchanges if binding.destination_type == "exchange" else named.queues
        ends.add(binding.destination)
        yield


def _copy(broker: Broker, vhost: VHost, names: _Names, stage: Broker) -> Iterator[None]:
    stage.put_vhost(vhost.name)
    copy = stage.vhost(vhost.name)
    for name in names.exchanges:
        _copy_exchange(copy, vhost, name)
        yield
    for name in names.queues:
        _copy_queue(stage, copy, vhost, name)
        yield
    most = broker.limits.of_vhosts.get(vhost.name, {}).get("max-queues", -1)
    if most >= 0:  # the rehearsal has fewer queues: lower the limit by those it lacks
        absent = len(vhost.queues) - len(copy.queues)
        stage.access.set_vhost_limits(vhost.name, {"max-queues": max(0, most - absent)})
    # After the copies, which have the types that they were declared with.
    if (known := broker.users.vhost(vhost.name)) is not None:
        stage.access.set_vhost_settings(vhost.name, known.default_queue_type)


def _copy_exchange(copy: VHost, vhost: VHost, name: str) -> None:
    exchange = vhost.exchanges.get(name)
    if exchange is not None and not name.startswith("amq.") and name:
        copy.declare_exchange(
            name,
            exchange.kind.value,
            exchange.durable,
            exchange.auto_delete,
            exchange.internal,
            exchange.arguments,
        )


def _copy_queue(stage: Broker, copy: VHost, vhost: VHost, name: str) -> None:
    queue = vhost.queues.get(name)
    if queue is not None:
        stage.declare_queue(
            copy,
            name,
            durable=queue.durable,
            exclusive=queue.owner is not None,
            auto_delete=queue.auto_delete,
            arguments=queue.arguments,
            owner=_OTHERS,
            any_name=True,
        )

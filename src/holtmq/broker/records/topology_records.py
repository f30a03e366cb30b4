"""The records of exchanges, queues and bindings in a checkpoint, kept while none of them changes.

Owns: these records. Must not touch: other parts of a checkpoint. Encoding 20,000 queues takes 70 ms, and most
checkpoints find the same topology as the one before. So it is done at most once, in the checkpoint's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from holtmq.broker.records.change_log import ChangeLog
from holtmq.broker.records.changes import (
    AnyChange,
    BindingPut,
    ExchangeDeleted,
    QueuePaused,
    QueuePut,
    encode_change,
    pack_table,
)
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.exchange_changes import exchange_put
from holtmq.broker.topology.exchanges import Exchange
from holtmq.broker.topology.long_changes import LongChanges
from holtmq.broker.topology.vhost import VHost


class TopologyRecords:
    """Captures the topology of all vhosts, at most once per change of it."""

    __slots__ = ("_change_log", "_changes", "_last", "_long_changes", "_vhosts")

    def __init__(self, vhosts: Mapping[str, VHost], change_log: ChangeLog, long_changes: LongChanges) -> None:
        self._vhosts = vhosts
        self._change_log = change_log
        self._long_changes = long_changes
        self._last = CapturedTopology((), None)
        self._changes = -1  # how many changes there had been

    def captured(self) -> CapturedTopology:
        """The topology as it is now."""
        changes = self._change_log.changes
        if changes != self._changes or self._long_changes:  # these remove bindings after their record
            self._last = CapturedTopology(self._vhosts.values(), self._last)
            self._changes = -1 if self._long_changes else changes
        return self._last


class CapturedTopology:
    """The topology at one moment. ``encoded`` is called in the checkpoint's thread, and only there.

    Of exchanges, queues and bindings it uses what never changes.
    """

    __slots__ = ("_before", "_encoded", "_queues", "_vhosts")

    def __init__(self, vhosts: Iterable[VHost], before: CapturedTopology | None) -> None:
        self._vhosts = [_CapturedVhost(vhost) for vhost in vhosts]
        self._before: CapturedTopology | None = before
        if before is not None and before._encoded is None:  # it was not needed in the end
            self._before = before._before
        self._encoded: list[bytes] | None = None
        self._queues: dict[int, bytes] = {}  # by id, which no other queue gets: these records never change

    def encoded(self) -> list[bytes]:
        """Each exchange, queue, pause and binding that a restart must find, in an order that can be read."""
        if self._encoded is None:
            before = {} if self._before is None else self._before._queues
            encoded: list[bytes] = []
            for vhost in self._vhosts:
                encoded += map(encode_change, vhost.exchange_puts())
                for queue in vhost.queues:
                    record = before.get(queue.id)
                    if record is None:
                        record = encode_change(vhost.queue_put(queue))
                    self._queues[queue.id] = record
                    encoded.append(record)
                encoded += map(encode_change, vhost.pauses)
                encoded += map(encode_change, vhost.binding_puts())
                encoded += map(encode_change, vhost.deletions)
            self._before, self._vhosts = None, []
            self._encoded = encoded
        return self._encoded


class _CapturedVhost:
    __slots__ = ("_bindings", "_exchanges", "_name", "deletions", "pauses", "queues")

    def __init__(self, vhost: VHost) -> None:
        self._name = vhost.name
        self._exchanges = list(vhost.exchanges.values())
        self._bindings = [
            (exchange, list(exchange.bindings())) for exchange in self._exchanges if exchange.durable
        ]
        self.queues = [queue for queue in vhost.queues.values() if queue.persisted]
        # A restart must find that these are to be deleted, and what their deletion leaves unused.
        self.deletions = [
            ExchangeDeleted(vhost.name, exchange.name)
            for exchange in vhost.abandoned_exchanges()
            if exchange.durable
        ]
        self.pauses = [
            QueuePaused(queue.id, pause.since_ms, pause.by, pause.reason)
            for queue in self.queues
            if not queue.is_stream and (pause := queue.paused) is not None
        ]

    def exchange_puts(self) -> Iterator[AnyChange]:
        for exchange in self._exchanges:
            if exchange.durable and not exchange.is_default:
                yield exchange_put(self._name, exchange)

    def queue_put(self, queue: Queue) -> AnyChange:
        packed = pack_table(dict(queue.arguments))  # type: ignore[arg-type]
        return QueuePut(self._name, queue.name, queue.id, queue.auto_delete, packed)

    def binding_puts(self) -> Iterator[AnyChange]:
        for exchange, bindings in self._bindings:
            for binding in bindings:
                where = binding.destination
                if where.durable if isinstance(where, Exchange) else where.persisted:
                    yield BindingPut(
                        self._name,
                        exchange.name,
                        where.name,
                        binding.to_exchange,
                        binding.routing_key,
                        pack_table(dict(binding.arguments)),  # type: ignore[arg-type]
                    )

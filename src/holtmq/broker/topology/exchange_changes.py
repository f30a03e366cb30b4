"""Exchanges and bindings: each change with its journal record.

Owns: these. Must not touch: queues beyond their bindings, messages.
"""

from collections.abc import Iterator
from itertools import repeat
from typing import Final

from holtmq.broker.records.change_log import ChangeLog
from holtmq.broker.records.changes import (
    BindingDeleted,
    BindingPut,
    ExchangeDeleted,
    ExchangePut,
    pack_table,
)
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.exchanges import Exchange
from holtmq.broker.topology.long_changes import LongChanges
from holtmq.broker.topology.vhost import QueueExchange, Removal, VHost, refuse_default
from holtmq.wire.tables import FieldTable

_DELETION: Final = 10  # bindings that are removed in the time that it takes to delete an exchange


class ExchangeChanges:
    """The exchanges and bindings of a broker."""

    def __init__(self, log: ChangeLog, long_changes: LongChanges) -> None:
        self._log = log
        self._long_changes = long_changes

    def declare(
        self,
        vhost: VHost,
        name: str,
        kind: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: FieldTable | None = None,
    ) -> bool:
        """Create an exchange, or check that the existing one is equivalent. True if journalled."""
        refuse_default(name)
        arguments = arguments or {}
        existing = vhost.exchanges.get(name)
        if existing is not None and existing.is_abandoned:
            self.delete(vhost, name)
        if durable and name not in vhost.exchanges:
            self._log.refuse_if_failed()
        if not vhost.declare_exchange(name, kind, durable, auto_delete, internal, arguments) or not durable:
            return False
        self._log.record(exchange_put(vhost.name, vhost.exchanges[name]))
        return True

    def delete(self, vhost: VHost, name: str, if_unused: bool = False) -> bool:
        """Delete an exchange and all bindings from and to it. True if journalled."""
        exchange = vhost.exchanges.get(name)
        self.complete(vhost, self._deleted(vhost, name, if_unused))
        return exchange is not None and exchange.durable

    def _deleted(self, vhost: VHost, name: str, if_unused: bool = False) -> Removal:
        exchange = vhost.exchanges.get(name)
        durable = exchange is not None and exchange.durable
        if durable:
            self._log.refuse_if_failed()
        removal = vhost.delete_exchange(name, if_unused)
        if durable:
            self._log.record(ExchangeDeleted(vhost.name, name))
        return removal

    def complete(self, vhost: VHost, removal: Removal) -> None:
        """Remove the bindings of what was deleted, and the auto-delete exchanges that are unused now."""
        self._long_changes.add(self._steps(vhost, removal))

    def _steps(self, vhost: VHost, removal: Removal) -> Iterator[None]:
        """The deletion of an exchange may leave others unused: those are deleted before it goes on."""
        removals = [removal]
        while removals:
            for source in removals[-1]:
                if source is not None and self._may_change(vhost, source):
                    if source.is_abandoned:
                        removals.append(self._deleted(vhost, source.name))
                        yield from repeat(None, _DELETION)
                        break
                    if source.durable:
                        # It may be left with bindings that a restart does not know: that must not delete it.
                        self._log.record(exchange_put(vhost.name, source))
                yield
            else:
                removals.pop()

    def _may_change(self, vhost: VHost, exchange: QueueExchange) -> bool:
        known = not vhost.deleted and vhost.exchanges.get(exchange.name) is exchange
        return known and not self._log.has_failed

    def bind(
        self,
        vhost: VHost,
        source: str,
        destination: str,
        routing_key: str,
        arguments: FieldTable | None = None,
        *,
        to_exchange: bool = False,
        owner: object | None = None,
    ) -> bool:
        """Bind a queue or exchange. True if journalled."""
        refuse_default(source)
        if to_exchange:
            refuse_default(destination)
        exchange = vhost.exchange(source)  # first, as in RabbitMQ: if both are missing, it is named
        where = vhost.destination(destination, to_exchange, owner)
        arguments = arguments or {}
        exchange.refuse_excess(where, routing_key, arguments)
        lasting = _lasts(exchange, where)
        if lasting and self._log.has_failed and not exchange.is_bound(where, routing_key, arguments):
            self._log.refuse_if_failed()
        if not vhost.bind(exchange, where, routing_key, arguments) or not lasting:
            return False
        self._log.record(
            BindingPut(vhost.name, source, destination, to_exchange, routing_key, pack_table(arguments))
        )
        return True

    def unbind(
        self,
        vhost: VHost,
        source: str,
        destination: str,
        routing_key: str,
        arguments: FieldTable | None = None,
        *,
        to_exchange: bool = False,
        owner: object | None = None,
    ) -> bool:
        """Remove a binding; no error when there is none. True if journalled."""
        refuse_default(source)
        if to_exchange:
            refuse_default(destination)
        arguments = arguments or {}
        if not vhost.is_bound(source, destination, routing_key, arguments, to_exchange):
            return False
        where = vhost.destination(destination, to_exchange, owner)
        exchange = vhost.exchange(source)
        lasting = _lasts(exchange, where)
        if lasting:
            self._log.refuse_if_failed()
        vhost.unbind(exchange, where, routing_key, arguments)
        if lasting:
            self._log.record(
                BindingDeleted(
                    vhost.name, source, destination, to_exchange, routing_key, pack_table(arguments)
                )
            )
        if exchange.auto_delete and exchange.is_unused:
            self.delete(vhost, source)
        return lasting


def exchange_put(vhost: str, exchange: QueueExchange) -> ExchangePut:
    """The record of a durable exchange."""
    return ExchangePut(
        vhost,
        exchange.name,
        exchange.kind.value,
        exchange.auto_delete,
        exchange.internal,
        pack_table(dict(exchange.arguments)),  # type: ignore[arg-type]
    )


def _lasts(source: QueueExchange, destination: Queue | QueueExchange) -> bool:
    return source.durable and (
        destination.durable if isinstance(destination, Exchange) else destination.persisted
    )

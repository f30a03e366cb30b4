"""Pushes of one message each, from many connections: what arrives in one turn of the loop is stored as one.

Owns: the requests that wait for the end of this turn, and their answers. A commit costs as much as several
of its messages, and its price is shared. Must not touch: how pushes are decided; each is still answered for
itself, and one that is refused does not concern the others.
"""

import asyncio
from collections.abc import Callable

from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.http.engine.exchange import Exchange
from holtmq.http.queues.rendering import buffered_results, push_results
from holtmq.journal.interface import Journal


class SinglePushes:
    """Those of this turn."""

    def __init__(self, service: PartitionedService, journal: Journal, clock: Callable[[], float]) -> None:
        self._service = service
        self._journal = journal
        self._clock = clock
        self._exchanges: list[Exchange] = []
        self._items: list[PushItem] = []

    def add(self, exchange: Exchange, item: PushItem) -> None:
        """Store this with the others, and answer it."""
        if not self._items:
            asyncio.get_running_loop().call_soon(self.store)
        self._exchanges.append(exchange)
        self._items.append(item)

    def store(self) -> None:
        """Store what was added so far."""
        exchanges, items = self._exchanges, self._items
        if not items:
            return
        self._exchanges, self._items = [], []
        if len(items) > 1:
            try:
                self._push(exchanges, items)
                return
            except Exception:  # nothing was stored: whose fault it is shows when each is pushed for itself
                pass
        for exchange, item in zip(exchanges, items, strict=True):
            try:
                self._push([exchange], [item])
            except Exception as error:
                exchange.fail(error)

    def _push(self, exchanges: list[Exchange], items: list[PushItem]) -> None:
        results = self._service.push(items, self._clock(), one_each=True)
        queues = self._service.store.by_number
        for place, (exchange, item) in enumerate(zip(exchanges, items, strict=True)):
            if results is None:
                answer = buffered_results([item])
            else:
                answer = push_results([item], results[place : place + 1], queues)
            exchange.answer_when_durable(self._journal, 201, answer)

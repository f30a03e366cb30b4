"""Pushes of one message each: those that arrive in one iteration of the event loop are committed together.

Owns: the requests of this iteration, and their answers. A commit costs as much as several messages, so it is
shared. Must not touch: how pushes are decided; each is answered separately, and a refused one does not affect
the others.
"""

import asyncio
from collections.abc import Callable

from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.http.engine.exchange import Exchange
from holtmq.http.queues.rendering import buffered_results, push_results
from holtmq.journal.interface import Journal


class SinglePushes:
    """The single pushes of this loop iteration."""

    def __init__(self, service: PartitionedService, journal: Journal, clock: Callable[[], float]) -> None:
        self._service = service
        self._journal = journal
        self._clock = clock
        self._exchanges: list[Exchange] = []
        self._items: list[PushItem] = []

    def add(self, exchange: Exchange, item: PushItem) -> None:
        """Store the item with the others at the end of this iteration, and answer it."""
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
            except Exception:  # nothing was stored: push each one separately to find the faulty one
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

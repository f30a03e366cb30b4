"""Pushes of one message each: those that arrive in one iteration of the event loop are committed together.

Owns: the requests of this iteration, and their answers. A commit costs as much as several messages, so it is
shared. Must not touch: how pushes are decided; each is answered separately, and a refused one does not affect
the others.
"""

import asyncio
import logging
from collections.abc import Callable

from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.http.engine.request import HttpRequest
from holtmq.http.queues.rendering import buffered_elements, push_elements
from holtmq.journal.interface import Journal, JournalFailed

log = logging.getLogger(__name__)


class SinglePushes:
    """The single pushes of this loop iteration."""

    def __init__(self, service: PartitionedService, journal: Journal, clock: Callable[[], float]) -> None:
        self._service = service
        self._journal = journal
        self._clock = clock
        self._requests: list[HttpRequest] = []
        self._items: list[PushItem] = []

    def add(self, request: HttpRequest, item: PushItem) -> None:
        """Store the item with the others at the end of this iteration, and answer it."""
        if not self._items:
            asyncio.get_running_loop().call_soon(self.store)
        self._requests.append(request)
        self._items.append(item)

    def store(self) -> None:
        """Store what was added so far."""
        requests, items = self._requests, self._items
        if not items:
            return
        self._requests, self._items = [], []
        if len(items) > 1:
            try:
                self._push(requests, items)
                return
            except Exception:  # nothing was stored: push each one separately to find the faulty one
                pass
        for request, item in zip(requests, items, strict=True):
            try:
                self._push([request], [item])
            except Exception as error:
                request.fail(error)

    def _push(self, requests: list[HttpRequest], items: list[PushItem]) -> None:
        results = self._service.push(items, self._clock(), one_each=True)
        first = [0] * len(items)  # each is the first item of its request
        if results is None:
            elements = buffered_elements(first, items)
        else:
            elements = push_elements(first, items, results, self._service.store.by_number)

        def durable(failed: JournalFailed | None) -> None:
            for request, element in zip(requests, elements, strict=True):
                try:
                    if failed is not None:
                        request.fail(failed)
                    else:
                        request.answer(201, b"[%b]" % element)
                except Exception:  # a bug in one answer must not keep the others from being sent
                    log.exception("a push was not answered")

        self._journal.on_durable(durable)

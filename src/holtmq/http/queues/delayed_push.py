"""Pushes with ``delaySeconds``: messages that enter their partition when they are due.

Owns: reading the delay, and the answer to such a push. Must not touch: how timed messages wait and fire
(``extras/timers.py``); until then they are listed and can be cancelled like any other timer of their queue.
"""

import hashlib
from typing import Final
from uuid import uuid4

from holtmq.broker.partitioned.captured import StateRecord
from holtmq.broker.partitioned.commands.pushing import decide_push
from holtmq.broker.partitioned.extras.timers import Timed, TimedChange
from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.log.identifiers import partition_id, promised_id
from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.wire import iso_ms, quoted, quoted_or_null

KEY_PREFIX: Final = "push/"
_KEY_MAX: Final = 512  # bytes, as for every timer
_LONGEST: Final = 366 * 86_400  # seconds


def delay_of(seconds: float | None) -> float:
    """The delay in seconds; 0 for none."""
    if not seconds:
        return 0
    if not 0 < seconds <= _LONGEST:
        raise Refusal(400, f"delaySeconds must be from 0 to {_LONGEST}, not {seconds:g}")
    return seconds


class DelayedPushes:
    """The delayed items of one request; ``records`` is what to write to the journal for all of them."""

    def __init__(self, service: PartitionedService, now: float) -> None:
        self._service = service
        self._now = now
        self._put: dict[tuple[str, str], Timed] = {}

    def add(self, item: PushItem, seconds: float) -> tuple[str, bool, str | None]:
        """Add an item; return its message id, whether it is a duplicate, and its partition's id if known."""
        service, body = self._service, item.body
        key = _key(item.partition, body.transaction_id)
        queue = service.store.queues.get(item.queue)
        where = None
        if queue is not None and item.partition in queue.indexes:
            where = partition_id(queue.number, queue.indexes[item.partition])
            pair = (item.partition, body.transaction_id)
            decision = decide_push(queue, [pair], self._now, False)
            if decision.duplicates:
                (offset,) = decision.offsets
                return queue.id_of(offset, queue.log.created_us(offset)), True, where
        waiting = self._put.get((item.queue, key)) or service.timed.get(item.queue, key)
        if waiting is not None:
            return waiting.message_id, True, where
        due_us = micros(self._now + seconds)
        timer = Timed(
            item.queue,
            key,
            item.partition,
            body.transaction_id,
            body.payload,
            due_us,
            promised_id(due_us, uuid4().int),
            body.producer,
            trace_id=body.trace_id,
        )
        self._put[item.queue, key] = service.timed.seal(timer)
        return timer.message_id, False, where

    def element(self, index: int, item: PushItem, seconds: float) -> bytes:
        """Add an item; return its element of a push answer."""
        message_id, duplicate, where = self.add(item, seconds)
        name = quoted(item.body.transaction_id)
        deliver_at = "" if duplicate else f',"deliverAt":"{iso_ms(micros(self._now + seconds))}"'
        return (
            f'{{"index":{index},"status":"{"duplicate" if duplicate else "queued"}","transaction_id":{name},'
            f'"message_id":"{message_id}","partition_id":{quoted_or_null(where)},'
            f'"trace_id":{quoted_or_null(item.body.trace_id)},"queueName":{quoted(item.queue)}{deliver_at}}}'
        ).encode()

    @property
    def records(self) -> list[StateRecord]:
        """The records that store the items, for the commit of the request."""
        return self._service.timed.record(TimedChange(list(self._put.values())))


def _key(partition: str, transaction_id: str) -> str:
    """The timer key: one per transaction id and partition, so that a second such push is a duplicate."""
    key = f"{KEY_PREFIX}{partition}/{transaction_id}"
    raw = key.encode()
    return key if len(raw) <= _KEY_MAX else KEY_PREFIX + hashlib.blake2b(raw, digest_size=32).hexdigest()

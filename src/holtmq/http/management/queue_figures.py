"""Management API: what RabbitMQ tells about a queue's use and where its messages are.

Owns: these fields of a queue's row. Must not touch: state; nothing is read from disk for a list.
"""

from datetime import datetime
from typing import Final

from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.queue_options import QueueType
from holtmq.broker.work.priority_levels import Levels
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.engine.context import NODE
from holtmq.http.engine.endpoints import Call
from holtmq.http.management.idleness import idle
from holtmq.wire.properties import PROPERTIES_AT, decode_properties

_CAPACITY_SECONDS: Final = 10


def use_of(call: Call, queue: Queue, unacked_bytes: int) -> dict[str, object]:
    """The fields of one queue."""
    if not isinstance(queue, WorkQueue):
        return {"readers": {NODE: len(queue.consumers)}}
    now = call.context.clock()
    used = queue.used_ms / 1000 if queue.figures.used is None else queue.figures.used
    capacity = consumer_capacity(queue, int(now))
    in_memory = queue.store.in_memory
    bytes_in_memory = queue.bytes * in_memory // len(queue) if in_memory else 0  # by the mean size
    row: dict[str, object] = {
        **idle(used, now),
        **_consumer_tags(call, queue),
        "consumer_capacity": capacity,
        "consumer_utilisation": capacity,
        "messages_ram": in_memory + queue.unacked,
        "message_bytes_ram": bytes_in_memory + unacked_bytes,
    }
    if queue.options.queue_type is QueueType.QUORUM:
        return row
    return {
        **row,
        "messages_ready_ram": in_memory,
        "messages_unacknowledged_ram": queue.unacked,
        "messages_paged_out": len(queue) - in_memory,
        "message_bytes_paged_out": queue.bytes - bytes_in_memory,
        "head_message_timestamp": _head_timestamp(queue),
    }


def consumer_capacity(queue: WorkQueue, second: int) -> float:
    """The share of the last seconds at whose end nothing waited for a consumer."""
    if not queue.consumers:
        return 0.0
    if queue.figures.depth is None:
        return 1.0 if not len(queue) else 0.0
    depths = queue.figures.depth.by_second(second)[-_CAPACITY_SECONDS:]
    return round(sum(1 for depth in depths if not depth) / len(depths), 3)


def _consumer_tags(call: Call, queue: WorkQueue) -> dict[str, object]:
    """The tags of an exclusive consumer and of the single active one."""
    active = alone = None
    if queue.exclusive_consumer or queue.options.single_active_consumer:
        for one in call.context.clients.consumers_of(queue.vhost, queue.name):
            if one.activity_status == "single_active":
                active = one.consumer_tag
            if one.exclusive:
                alone = one.consumer_tag
            if active or alone:  # a queue has one of them
                break
    return {"single_active_consumer_tag": active, "exclusive_consumer_tag": alone}


def _head_timestamp(queue: WorkQueue) -> int | None:
    """The property ``timestamp`` of the oldest ready message, if it has one and is in memory."""
    store = queue.store
    fifos = [fifo for _, fifo in store.by_level(highest_first=True)] if isinstance(store, Levels) else [store]
    head = next((fifo for fifo in fifos if len(fifo)), None)
    if head is None or not head.ready:
        return None
    found = decode_properties(head.ready[0].header, PROPERTIES_AT).timestamp
    return int(found.timestamp()) if isinstance(found, datetime) else found

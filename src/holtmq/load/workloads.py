"""The workloads by name: what is declared, sent, consumed, acked and confirmed.

Owns: their definition as values. Must not touch: how they are run or reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from holtmq.wire.tables import FieldValue


class Mode(Enum):
    """What a round of the workload consists of."""

    FLOW = "flow"  # publish and consume at once, as fast as possible
    PUBLISH = "publish"  # publish with confirms, no consumer
    PACED = "paced"  # publish at a fixed rate, measure every message's latency
    DEEP = "deep"  # publish a backlog, then drain it
    OPEN = "open"  # publish regardless of the consumers, then wait for them; both are measured


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of work. Without confirms, ``backlog`` bounds what is published and not yet consumed."""

    name: str
    about: str
    mode: Mode = Mode.FLOW
    body_bytes: int = 16
    publishers: int = 1
    queues: int = 1
    consumers_per_queue: int = 1
    prefetch: int = 0  # 0: consume without acks
    ack_every: int = 1  # 1: an ack for each message; n: one with `multiple` for every n
    window: int = 0  # publishes that may await their confirm; 0: no confirms
    backlog: int = 10_000
    durable: bool = False  # durable queue, persistent messages
    priorities: int = 0
    exchange_kind: str = ""  # empty: the default exchange
    routing_keys: int = 1
    other_bindings: int = 0
    rate: int = 0  # messages a second, for PACED
    messages: int = 0  # for DEEP
    distinct: int = (
        0  # how many messages differ in ids, time and headers before they repeat; 0: all are equal
    )
    varied_sizes: bool = False  # bodies of 20 to ``body_bytes`` bytes
    churn: int = 0  # queues declared, bound and deleted a second, during the traffic
    queue_arguments: dict[str, FieldValue] = field(default_factory=dict)
    small: bool = True  # counts as a small-message workload in the summary


_VARIED: Final = Workload(
    "varied-sizes",
    "unique ids and bodies of 20 to 600 bytes, one routing key",
    mode=Mode.OPEN,
    body_bytes=600,
    varied_sizes=True,
    distinct=150_000,
    prefetch=1000,
    backlog=0,
    exchange_kind="topic",
)
_MIXED: Final = replace(
    _VARIED, name="mixed-keys", about="the same with 100,000 routing keys in turn", routing_keys=100_000
)

_ALL: Final = (
    replace(
        _VARIED,
        name="unique-ids",
        about="unique ids, bodies of 200 bytes, one routing key",
        body_bytes=200,
        varied_sizes=False,
    ),
    _VARIED,
    _MIXED,
    replace(
        _MIXED,
        name="mixed-keys-durable",
        about="the same, persistent, confirms with window 5,000",
        durable=True,
        window=5000,
    ),
    replace(_MIXED, name="mixed-keys-20", about="mixed keys to 20 queues with a consumer each", queues=20),
    replace(
        _MIXED,
        name="topology-churn",
        about="mixed keys, while 100 queues a second are declared, bound and deleted",
        churn=100,
    ),
    Workload(
        "backlog-16",
        "500,000 equal messages of 16 bytes waiting",
        mode=Mode.OPEN,
        prefetch=1000,
        backlog=500_000,
    ),
    Workload(
        "backlog-64k",
        "4,000 messages of 64 KiB waiting",
        mode=Mode.OPEN,
        body_bytes=65536,
        prefetch=1000,
        backlog=4000,
        small=False,
    ),
    Workload("auto-ack", "transient, consumed without acks"),
    Workload("manual-ack", "transient, prefetch 1,000, an ack for each message", prefetch=1000),
    Workload(
        "manual-ack-multiple",
        "transient, prefetch 1,000, one ack for every 100",
        prefetch=1000,
        ack_every=100,
    ),
    Workload(
        "transient-confirms",
        "transient, confirms with window 5,000, prefetch 1,000",
        prefetch=1000,
        window=5000,
    ),
    Workload(
        "durable-confirms",
        "persistent, confirms with window 5,000, prefetch 1,000",
        prefetch=1000,
        window=5000,
        durable=True,
    ),
    Workload(
        "durable-publish",
        "persistent, confirms with window 5,000, no consumer",
        mode=Mode.PUBLISH,
        window=5000,
        durable=True,
    ),
    Workload(
        "durable-window-1",
        "persistent, one publisher that waits for each confirm, no consumer",
        mode=Mode.PUBLISH,
        window=1,
        durable=True,
        small=False,
    ),
    Workload(
        "durable-window-1-consumed",
        "the same with a consumer that acks",
        window=1,
        prefetch=1000,
        durable=True,
        small=False,
    ),
    Workload(
        "stream-confirms",
        "persistent, to a stream, confirms with window 5,000, no consumer",
        mode=Mode.PUBLISH,
        window=5000,
        durable=True,
        queue_arguments={"x-queue-type": "stream"},
        small=False,
    ),
    Workload(
        "priority-10",
        "ten priority levels in turn, prefetch 1,000",
        prefetch=1000,
        priorities=10,
        queue_arguments={"x-max-priority": 10},
    ),
    Workload("fanout-5", "a fanout exchange with 5 queues, without acks", queues=5, exchange_kind="fanout"),
    Workload(
        "topic-1000",
        "a topic exchange with 1,000 other bindings, 100 routing keys, prefetch 1,000",
        prefetch=1000,
        exchange_kind="topic",
        routing_keys=100,
        other_bindings=1000,
    ),
    Workload(
        "ten-by-ten",
        "10 publishers and 10 consumers on one queue, prefetch 1,000",
        publishers=10,
        consumers_per_queue=10,
        prefetch=1000,
    ),
    Workload("body-64k", "bodies of 64 KiB, without acks", body_bytes=65536, backlog=200, small=False),
    Workload("latency", "2,000 messages a second, without acks", mode=Mode.PACED, rate=2000, small=False),
    Workload(
        "deep",
        "1,000,000 persistent messages published, then drained",
        mode=Mode.DEEP,
        prefetch=1000,
        ack_every=100,
        window=5000,
        durable=True,
        messages=1_000_000,
        small=False,
    ),
)

WORKLOADS: Final[dict[str, Workload]] = {workload.name: workload for workload in _ALL}

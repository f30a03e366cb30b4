"""HTTP workers on work queues: whatever AMQP clients have published there, a pop hands it out."""

from __future__ import annotations

import pytest

from holtmq.broker.broker import Broker
from holtmq.broker.message import make_address
from holtmq.broker.partitioned.acknowledgment import AckStatus
from holtmq.broker.work_door import WorkDoor
from holtmq.broker.work_queue import WorkQueue
from holtmq.journal import MemoryJournal
from holtmq.wire.properties import Properties, encode_header, encode_properties

PLAIN = encode_properties(Properties(delivery_mode=2))
# Flags for headers and delivery mode; a table with one value, of a type that does not exist.
NONSENSE = b"\x30\x00" + b"\x00\x00\x00\x05" + b"\x03abc\x01" + b"\x02"


@pytest.fixture
def broker() -> Broker:
    broker = Broker(MemoryJournal())
    broker.put_vhost("/")
    broker.declare_queue(broker.vhost("/"), "jobs", durable=True)
    return broker


def publish(broker: Broker, body: bytes, properties: bytes = PLAIN) -> None:
    header = encode_header(len(body), properties)
    route = broker.resolve(broker.vhost("/"), "", "jobs", make_address("", "jobs"))
    broker.flow.publish(route, broker.flow.traits.of(header), header, body)
    broker.flow.turn()


def queue_of(broker: Broker) -> WorkQueue:
    return broker.vhost("/").queues["jobs"]


@pytest.mark.parametrize(
    ("body", "properties"),
    [(b"[" * 100_000, PLAIN), (b"1", NONSENSE), (b"\xff", PLAIN)],
    ids=["nested without end", "headers that are none", "bytes"],
)
def test_a_message_that_makes_no_sense_is_handed_out_with_those_around_it(
    broker: Broker, body: bytes, properties: bytes
) -> None:
    publish(broker, b'"before"')
    publish(broker, body, properties)
    publish(broker, b'"after"')
    door, queue = WorkDoor(broker), queue_of(broker)

    found = door.pop(queue, "lease", 10, 60, auto_ack=False)
    for message in found:
        assert door.settle(queue, message.transaction_id, "lease", AckStatus.COMPLETED) is None

    assert len(found) == 3
    assert (len(queue.store), queue.unacked) == (0, 0)


def test_a_lease_that_is_over_leaves_no_timer_behind(broker: Broker) -> None:
    door, queue = WorkDoor(broker), queue_of(broker)
    publish(broker, b"1")
    (message,) = door.pop(queue, "lease", 1, 300, auto_ack=False)

    for _ in range(10):
        assert door.extend("lease", 300) is not None
    held = len(broker.flow.timers)
    assert door.settle(queue, message.transaction_id, "lease", AckStatus.COMPLETED) is None

    assert (held, len(broker.flow.timers)) == (1, 0)

"""HTTP workers on work queues: whatever AMQP clients have published there, a pop hands it out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from holtmq.broker.broker import Broker
from holtmq.broker.flow import Flow
from holtmq.broker.message import make_address
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus, AckVerdict
from holtmq.broker.work import timed_leases
from holtmq.broker.work.leases import Lease
from holtmq.broker.work.timed_leases import TimedLeases, WorkMessage
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal import MemoryJournal
from holtmq.testing.views import work_queue
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
    broker.flow.publishing.publish(route, broker.flow.publish_properties.of(header), header, body)
    broker.flow.turn()


def queue_of(broker: Broker) -> WorkQueue:
    return work_queue(broker, "jobs")


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
    door, queue = TimedLeases(broker), queue_of(broker)

    found = door.pop(queue, "lease", 10, 60, auto_ack=False)
    for message in found:
        assert (
            door.settle(queue, message.transaction_id, "lease", AckStatus.COMPLETED)
            is AckVerdict.ACKNOWLEDGED
        )

    assert len(found) == 3
    assert (len(queue.store), queue.unacked) == (0, 0)


def test_a_lease_that_is_over_leaves_no_timer_behind(broker: Broker) -> None:
    door, queue = TimedLeases(broker), queue_of(broker)
    publish(broker, b"1")
    (message,) = door.pop(queue, "lease", 1, 300, auto_ack=False)
    broker.flow.now_ms += 50
    broker.flow.tick()  # the delivery is marked

    for _ in range(10):
        assert door.extend("lease", 300) is not None
    held = len(broker.flow.timers)
    assert door.settle(queue, message.transaction_id, "lease", AckStatus.COMPLETED) is AckVerdict.ACKNOWLEDGED

    assert (held, len(broker.flow.timers)) == (1, 0)


class Watched(dict[str, Any]):
    """Loans that tell how many of them were asked for."""

    looks = 0

    def items(self) -> Any:
        self.looks += len(self)
        return super().items()

    def get(self, name: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(name, default)


def test_an_ack_without_a_lease_looks_at_the_loans_that_may_be_meant_alone(broker: Broker) -> None:
    door, queue = TimedLeases(broker), queue_of(broker)
    loans = door._loans = Watched()
    for number in range(50):
        door.push(queue, [(f"t{number}", b"1")])
        assert len(door.pop(queue, f"lease{number}", 1, 60, auto_ack=False)) == 1
    loans.looks = 0

    assert door.settle(queue, "nobody's", "", AckStatus.COMPLETED) is AckVerdict.NOT_FOUND
    assert door.settle(queue, "t30", "", AckStatus.COMPLETED) is AckVerdict.ACKNOWLEDGED
    assert door.settle(queue, "t30", "", AckStatus.COMPLETED) is AckVerdict.NOT_FOUND

    assert loans.looks <= 3
    assert queue.unacked == 49


def test_an_ack_without_a_lease_means_the_oldest_loan_with_a_message_of_that_id(broker: Broker) -> None:
    door, queue = TimedLeases(broker), queue_of(broker)
    door.push(queue, [("same", b"1"), ("same", b"2"), ("same", b"3"), ("other", b"4")])
    door.pop(queue, "first", 2, 60, auto_ack=False)
    door.pop(queue, "second", 2, 90, auto_ack=False)

    def settle(lease_id: str) -> AckVerdict:
        return door.settle(queue, "same", lease_id, AckStatus.COMPLETED)

    assert settle("") is AckVerdict.ACKNOWLEDGED
    assert settle("second") is AckVerdict.ACKNOWLEDGED
    broker.flow.now_ms += 60_000
    broker.flow.tick()  # the first loan ends, and with it what is left of it
    assert settle("") is AckVerdict.NOT_FOUND
    assert [m.payload for m in door.pop(queue, "third", 9, 60, auto_ack=False)] == [b"2"]
    assert settle("") is AckVerdict.ACKNOWLEDGED
    assert door.settle(queue, "other", "", AckStatus.COMPLETED) is AckVerdict.ACKNOWLEDGED
    assert (door._held, door._loans, queue.unacked) == ({}, {}, 0)


def test_very_many_waiting_pops_are_served_in_turns(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_leases, "SERVED_AT_ONCE", 3)
    door, queue = TimedLeases(broker), queue_of(broker)
    served: list[WorkMessage] = []
    for number in range(8):
        door.wait(queue, f"lease-{number}", 1, 60, False, served.extend, lambda: None)
    with_each = []

    for number in range(8):
        publish(broker, b"%d" % number)
        with_each.append(len(served))
    while broker.flow.timers.next_due() is not None and len(served) < 8:
        before = len(served)
        broker.flow.tick()
        broker.flow.turn()
        assert len(served) - before <= 3

    assert with_each == [1, 2, 3, 3, 3, 3, 3, 3]
    assert [message.payload for message in served] == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize("each", [1, 5])
def test_very_many_expired_loans_return_in_steps_and_none_is_moved_often(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, each: int
) -> None:
    monkeypatch.setattr(timed_leases, "RETURNED_AT_ONCE", 10)
    monkeypatch.setattr(timed_leases, "_LOAN", 2)
    bodies = [b"%d" % number for number in range(100)]
    for body in bodies:
        publish(broker, body)
    door, queue = TimedLeases(broker), queue_of(broker)
    for number in range(100 // each):
        assert len(door.pop(queue, f"lease-{number}", each, 60, auto_ack=False)) == each
    sizes: list[int] = []
    release = Flow.release

    def count(flow: Flow, leases: Iterable[Lease], failed: bool = False) -> None:
        some = list(leases)
        sizes.append(len(some))
        release(flow, some, failed)

    monkeypatch.setattr(Flow, "release", count)

    broker.flow.now_ms += 61_000
    door.extend("lease-7", 60)  # it may be renewed until it is returned
    while (due := broker.flow.timers.next_due()) is not None and due * 1000 <= broker.flow.now_ms:
        broker.flow.tick()
    broker.flow.turn()

    assert sum(sizes) == len(queue) == 100 - each
    assert max(sizes) <= 10 + each
    assert len(sizes) <= 20
    kept = [b"%d" % number for number in range(7 * each, 8 * each)]
    found = [message.payload for message in door.pop(queue, "all", 100, 60, auto_ack=False)]
    assert found == [body for body in bodies if body not in kept]

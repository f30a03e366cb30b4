"""Streams keep what their limits allow: ``x-max-age`` and ``x-max-length-bytes``, by argument or policy."""

from __future__ import annotations

import pytest

from holtmq.broker.broker import Broker
from holtmq.broker.message import make_address
from holtmq.broker.partitioned.commands import stream_limits
from holtmq.broker.partitioned.log.bodies import BodyCache
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.records.recovery import recover
from holtmq.journal import MemoryJournal
from holtmq.journal.interface import RecordUnreadable, Recovery
from holtmq.wire.properties import Properties, encode_header, encode_properties

START_MS = 1_700_000_000_000


class Node:
    """A broker with one stream, and its clock."""

    def __init__(self, **arguments: object) -> None:
        self.service = PartitionedService(MemoryJournal())
        self.broker = Broker(self.service.journal)
        self.broker.attach(self.service).follow()
        self.broker.put_vhost("/")
        self.broker.flow.now_ms = START_MS
        named = {"x-queue-type": "stream"} | {
            "x-" + key.replace("_", "-"): value for key, value in arguments.items()
        }
        self.broker.declare_queue(self.broker.vhost("/"), "log", durable=True, arguments=named)

    def publish(self, *bodies: bytes) -> None:
        broker = self.broker
        for body in bodies:
            header = encode_header(len(body), encode_properties(Properties()))
            route = broker.resolve(broker.vhost("/"), "", "log", make_address("", "log"))
            broker.flow.publishing.publish(route, broker.flow.publish_properties.of(header), header, body)
        broker.journal.flush()
        broker.flow.turn()

    def wait(self, seconds: float) -> None:
        self.broker.flow.now_ms += int(seconds * 1000)

    def retain(self) -> int:
        """Until there is nothing more to do; how many steps that took."""
        steps = 1
        while self.service.retain(self.broker.flow.now_ms / 1000):
            steps += 1
            assert steps < 1000
        return steps

    def kept(self) -> list[bytes]:
        log = self.service.store.queues["log"]
        return [body.payload for body in self.service.store.bodies(list(log.live_positions()))]


@pytest.mark.parametrize(
    ("age", "seconds"),
    [("10s", 10), ("1m", 60), ("2h", 7200), ("1D", 86400), ("1M", 30 * 86400), ("1Y", 365 * 86400)],
)
def test_messages_older_than_the_max_age_go(age: str, seconds: int) -> None:
    node = Node(max_age=age)
    node.publish(b"1")
    node.wait(2)
    node.publish(b"2")

    node.wait(seconds - 2)
    node.retain()
    assert node.kept() == [b"1", b"2"]

    node.wait(1)
    node.retain()
    assert node.kept() == [b"2"]


def test_the_oldest_messages_go_when_a_stream_is_too_large() -> None:
    node = Node(max_length_bytes=30)
    node.publish(*(b"%d" % (10**9 + n) for n in range(10)))  # ten bytes each

    node.retain()

    assert node.kept() == [b"1000000007", b"1000000008", b"1000000009"]
    node.publish(b"%d" % (10**19))
    node.retain()
    assert node.kept() == [b"1000000009", b"%d" % (10**19)]


def test_a_message_that_cannot_be_read_is_set_aside_and_the_limit_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(max_length_bytes=30)
    node.publish(*(b"%d" % (10**9 + n) for n in range(10)))
    store = node.service.store
    store.cache = BodyCache(0)
    rotten = list(store.queues["log"].live_positions())[8]
    read = node.service.journal.read

    def damaged(position: int, kind: int | None = None) -> tuple[int, bytes]:
        if position == rotten:
            raise RecordUnreadable("planted", position, "the checksum does not match", 10)
        return read(position, kind)

    monkeypatch.setattr(node.service.journal, "read", damaged)

    node.retain()

    assert node.kept() == [b"1000000006", b"1000000007", b"1000000009"]
    assert [entry.position for entry in store.damage.rows] == [rotten]


def test_the_newest_message_stays_whatever_its_size() -> None:
    node = Node(max_length_bytes=5)
    node.publish(b"1", b"1234567")

    node.retain()

    assert node.kept() == [b"1234567"]


def test_a_policy_limits_a_stream_and_the_stricter_limit_holds() -> None:
    node = Node(max_length_bytes=50)
    node.publish(*(b"%d" % (10**9 + n) for n in range(10)))
    node.broker.policy_changes.put("/", "small", "^log$", {"max-length-bytes": 20, "max-age": "5s"})

    node.retain()
    assert len(node.kept()) == 2

    node.broker.policy_changes.delete("/", "small")
    node.publish(*(b"%d" % (10**9 + n) for n in range(10)))
    node.wait(6)
    node.retain()
    assert len(node.kept()) == 5

    node.broker.policy_changes.put("/", "large", "^log$", {"max-length-bytes": 1000})
    node.publish(b"1")
    node.retain()
    assert len(node.kept()) == 5


def test_messages_are_weighed_in_bounded_steps_also_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_limits, "STEP_MESSAGES", 4)
    node = Node(max_length_bytes=200)
    node.publish(*(b"%d" % (10**9 + n) for n in range(30)))
    records, _ = snapshot(node.broker, node.service.store)
    journal = node.service.journal

    after = object.__new__(Node)
    after.service = PartitionedService(journal)
    after.service.store.cache = BodyCache(0)  # so that everything is read from the journal
    after.broker = Broker(journal)
    after.broker.attach(after.service)
    after.broker.flow.now_ms = START_MS
    recover(after.broker, Recovery(records, iter(()), 1), after.service.store)

    assert after.retain() > 5
    assert after.kept() == [b"%d" % (10**9 + n) for n in range(10, 30)]


def test_a_group_reads_on_behind_what_its_stream_let_go() -> None:
    node = Node(max_length_bytes=20)
    node.publish(*(b"%d" % (10**9 + n) for n in range(4)))
    node.retain()
    node.publish(b"%d" % (10**9 + 4))
    node.retain()

    assert node.kept() == [b"1000000003", b"1000000004"]


def test_a_deleted_stream_leaves_no_limit_behind() -> None:
    node = Node(max_length_bytes=20)
    node.publish(b"1")
    node.broker.delete_queue(node.broker.vhost("/"), "log")

    node.retain()

    assert not node.service.has_retention

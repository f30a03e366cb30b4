"""One damaged message in an old part of the log: it is set aside, its queue goes on, and it is told."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pika
import pytest
from click.testing import CliRunner, Result

from alert_rules import firing
from holtmq.broker.damage import DamageList
from holtmq.broker.work import damage_review
from holtmq.cli import main as holt_command
from holtmq.cli.journal import journal as command
from holtmq.config import Config, Journal, Limits
from holtmq.journal import disk
from holtmq.journal.interface import RecordUnreadable
from holtmq.journal.memory import MemoryJournal
from holtmq.testing import TestBroker
from holtmq.testing.views import work_queue
from holtmq.verify.http_workload import place_of
from holtmq.verify.intake_workload import DYING, IntakeWorkload
from holtmq.verify.record import make_body
from holtmq.verify.workload import Ports

BODIES = [f"message {number} ".encode() * 3 for number in range(5)]


def holt(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


class Node:
    """A broker whose folder is damaged while it is down."""

    def __init__(self, folder: Path, config: Config | None = None) -> None:
        self.folder = folder
        self.broker = TestBroker(folder, config=config).start()

    def stop(self) -> None:
        self.broker.stop()

    @property
    def channel(self) -> pika.adapters.blocking_connection.BlockingChannel:
        return pika.BlockingConnection(pika.URLParameters(self.broker.amqp_url)).channel()

    def call(self, method: str, path: str, body: object = None, **params: Any) -> Any:
        url = self.broker.http_url + path
        answer = httpx.request(method, url, json=body, params=params, auth=("guest", "guest"), timeout=60)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def publish(self, queue: str, **arguments: object) -> None:
        channel = self.channel
        channel.confirm_delivery()
        channel.queue_declare(queue, durable=True, arguments=arguments)
        for body in BODIES:
            channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
        channel.connection.close()

    def checkpoint(self) -> None:
        """Make one and wait for it, with all that it deletes."""
        before = self.broker.call(lambda node: node.journal.stats().checkpoints)
        self.broker.call(lambda node: node.checkpoints.make())
        while self.broker.call(lambda node: node.journal.stats().checkpoints) == before:
            pass

    def segments_with(self, text: bytes) -> list[Path]:
        """The files that hold a message, damaged or not."""
        return [file for file in self.folder.glob("*.seg") if text[2:] in file.read_bytes()]

    def hurt(self, text: bytes) -> None:
        """Behind a checkpoint, so that a start does not read it; one bit. The second time undoes it."""
        self.checkpoint()  # complete: a stop may come before its file is in place
        self.broker.stop()
        file, *_ = self.segments_with(text)
        data = bytearray(file.read_bytes())
        data[data.find(text[2:]) - 1] ^= 1
        file.write_bytes(data)
        self.broker.start()

    def repair(self) -> str:
        self.broker.stop()
        done = holt("repair", self.folder, "--yes")
        assert done.exit_code == 0, done.output
        self.broker.start()
        return done.output


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "data")
    yield node
    node.stop()


@pytest.fixture
def small_segments(tmp_path: Path) -> Iterator[Node]:
    limits = Limits(memory_high_watermark=1.0, disk_free_min_bytes=0)
    node = Node(tmp_path / "data", Config(limits=limits, journal=Journal(segment_bytes=4096)))
    yield node
    node.stop()


def drained(channel: pika.adapters.blocking_connection.BlockingChannel, queue: str) -> list[bytes]:
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2])
    channel.connection.close()
    return found


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 4}, {"x-queue-type": "quorum"}])
def test_a_work_queue_goes_on_without_it(node: Node, arguments: dict[str, object]) -> None:
    node.publish("work", **arguments)
    node.hurt(BODIES[2])

    assert drained(node.channel, "work") == [*BODIES[:2], *BODIES[3:]]

    health = node.call("GET", "/health")
    (row,) = node.call("GET", "/api/v1/system/damaged")["messages"]
    assert health["status"] == "degraded"
    assert "1 message cannot be read and was set aside" in health["reason"]
    assert (row["where"], row["vhost"], row["queue"]) == ("queue", "/", "work")
    assert row["size"] > len(BODIES[2])
    assert "checksum" in row["reason"]
    metrics = httpx.get(f"{node.broker.http_url}/metrics/prometheus").text
    assert "holt_messages_unreadable 1.0" in metrics


def test_it_is_a_finding_and_the_alert_fires(node: Node) -> None:
    node.publish("work")
    node.hurt(BODIES[2])
    drained(node.channel, "work")

    said = CliRunner().invoke(holt_command, ["stuck", "--url", node.broker.http_url])
    overview = node.call("GET", "/api/v1/dashboard/overview")
    metrics = httpx.get(f"{node.broker.http_url}/metrics", headers={"accept": "text/plain"}).text

    (finding,) = overview["findings"]
    assert finding["rule"] == "damage"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(finding["since"] / 1000))
    assert (said.exit_code, said.output) == (
        1,
        f"bad   node: 1 message cannot be read and is set aside; since {since}\n",
    )
    assert firing(metrics) == {("HoltMQUnreadableMessages",)}
    node.repair()
    assert node.call("GET", "/api/v1/dashboard/attention")["findings"] == []


def test_a_queue_goes_on_behind_a_bad_sector(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.publish("work")
    node.broker.call(lambda running: running.checkpoints.make())
    node.broker.restart()
    file = next(path for path in node.folder.glob("*.seg") if BODIES[2] in path.read_bytes())
    bad, size = file.read_bytes().index(BODIES[2]), 10
    really_pread = os.pread

    def pread(fd: int, count: int, offset: int) -> bytes:
        if offset < bad + size and bad < offset + count and os.readlink(f"/proc/self/fd/{fd}") == str(file):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return really_pread(fd, count, offset)

    monkeypatch.setattr(disk, "_BLOCK", 4)  # the whole queue is in one real sector
    monkeypatch.setattr(os, "pread", pread)

    assert drained(node.channel, "work") == [*BODIES[:2], *BODIES[3:]]
    assert node.call("GET", "/health")["status"] == "degraded"


def test_consumers_get_the_others(node: Node) -> None:
    node.publish("work")
    node.hurt(BODIES[0])

    channel = node.channel
    got = []
    for method, _, body in channel.consume("work", inactivity_timeout=60):
        assert method is not None
        got.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(got) == 4:
            break
    channel.connection.close()

    assert got == BODIES[1:]


def test_it_stays_listed_over_restarts_and_checkpoints_until_a_repair_settles_it(node: Node) -> None:
    node.publish("work")
    node.hurt(BODIES[2])
    listed = holt("damaged", node.folder, "--json")
    assert listed.exit_code == 1
    assert json.loads(listed.output.splitlines()[0])["name"] == "work"
    drained(node.channel, "work")

    since = node.broker.call(lambda running: running.broker.flow.damage.since_ms)
    assert since is not None
    node.broker.clock.advance(hours=1)
    node.broker.call(lambda running: running.checkpoints.make())
    node.broker.restart()
    assert node.call("GET", "/health")["status"] == "degraded"
    node.broker.call(lambda running: running.checkpoints.make())
    node.broker.crash_and_restart()
    assert node.call("GET", "/health")["status"] == "degraded"
    assert [one["since"] for one in node.call("GET", "/api/v1/dashboard/attention")["findings"]] == [since]

    assert "Give up" in node.repair()

    assert node.call("GET", "/health")["status"] == "healthy"
    assert drained(node.channel, "work") == []
    node.broker.restart()
    assert drained(node.channel, "work") == []
    assert node.broker.call(lambda running: running.broker.flow.damage.dropped) == 0  # not met again
    assert node.call("GET", "/api/v1/system/damaged")["messages"] == []
    assert holt("check", node.folder).exit_code == 0


def test_it_is_delivered_when_it_can_be_read_again(node: Node) -> None:
    node.publish("work")
    node.hurt(BODIES[2])
    assert drained(node.channel, "work") == [*BODIES[:2], *BODIES[3:]]

    node.hurt(BODIES[2])  # as if the file had been restored

    assert drained(node.channel, "work") == [BODIES[2]]
    assert node.call("GET", "/health")["status"] == "healthy"


def test_a_queue_that_is_deleted_takes_its_entries_along(node: Node) -> None:
    node.publish("work")
    node.hurt(BODIES[2])
    drained(node.channel, "work")

    channel = node.channel
    channel.queue_delete("work")
    channel.connection.close()

    assert node.call("GET", "/health")["status"] == "healthy"


def test_each_queue_that_a_message_was_in_is_listed(node: Node) -> None:
    channel = node.channel
    channel.confirm_delivery()
    for queue in ("one", "two", "three"):
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "amq.fanout")
    for body in BODIES:
        channel.basic_publish("amq.fanout", "", body, pika.BasicProperties(delivery_mode=2))
    channel.connection.close()
    node.hurt(BODIES[2])

    for queue in ("one", "two", "three"):
        assert drained(node.channel, queue) == [*BODIES[:2], *BODIES[3:]]

    node.broker.restart()
    rows = node.call("GET", "/api/v1/system/damaged")["messages"]
    assert sorted(row["queue"] for row in rows) == ["one", "three", "two"]
    assert len({row["position"] for row in rows}) == 1
    node.repair()
    assert node.call("GET", "/health")["status"] == "healthy"


def test_a_message_that_was_delivered_from_memory_is_no_longer_missed(node: Node) -> None:
    node.publish("work")
    stored = node.broker.call(lambda running: [*work_queue(running.broker, "work").store.positions()])
    position = [position for run in stored for position in run][2]
    error = RecordUnreadable("found by the scrub", position, "found by the scrub")
    node.broker.call(
        lambda running: damage_review.note_unreadable(
            running.broker.work_queues(), running.broker.flow.damage, error
        )
    )
    assert node.call("GET", "/health")["status"] == "degraded"
    assert drained(node.channel, "work") == BODIES

    node.hurt(BODIES[2])

    assert node.call("GET", "/health")["status"] == "healthy"


def push(node: Node) -> None:
    items = [
        {"queue": "log", "payload": body.decode(), "transactionId": f"t{number}"}
        for number, body in enumerate(BODIES)
    ]
    node.call("POST", "/api/v1/push", {"items": items})


def test_a_partitioned_queue_goes_on_and_every_group_passes_it_over(node: Node) -> None:
    push(node)
    node.hurt(BODIES[2])

    for group in ("one", "two"):
        options = {"consumerGroup": group, "batch": 10, "subscriptionMode": "all"}
        messages = node.call("GET", "/api/v1/pop/queue/log", **options)["messages"]
        assert [row["transactionId"] for row in messages] == ["t0", "t1", "t3", "t4"]

    (row,) = node.call("GET", "/api/v1/system/damaged")["messages"]
    assert (row["where"], row["queue"], row["offset"]) == ("partitioned queue", "log", 2)
    assert node.call("GET", "/health")["status"] == "degraded"
    node.repair()
    assert node.call("GET", "/health")["status"] == "healthy"


def test_no_checkpoint_drops_the_bytes_of_what_was_set_aside(small_segments: Node) -> None:
    """The queue has no place for it any more: only the list of damaged messages refers to them."""
    node = small_segments
    node.call("POST", "/api/v1/push", {"items": [{"queue": "log", "payload": BODIES[2].decode()}]})
    node.hurt(BODIES[2])
    options = {"consumerGroup": "one", "batch": 10, "subscriptionMode": "all"}
    assert node.call("GET", "/api/v1/pop/queue/log", **options) is None
    (segment,) = node.segments_with(BODIES[2])

    for _ in range(4):  # a segment without a live record is deleted when neither of two checkpoints needs it
        node.call("POST", "/api/v1/push", {"items": [{"queue": "passing", "payload": "x" * 5000}]})
        node.call("DELETE", "/api/v1/resources/queues/passing")
        node.checkpoint()

    assert node.broker.call(lambda running: running.journal.stats().deleted_segments) > 0
    assert node.segments_with(BODIES[2]) == [segment]
    assert len(node.call("GET", "/api/v1/system/damaged")["messages"]) == 1
    node.hurt(BODIES[2])  # as if the file had been restored
    assert node.call("GET", "/health")["status"] == "healthy"


def test_a_range_says_that_a_row_is_gone(node: Node) -> None:
    import pyarrow as pa

    push(node)
    node.hurt(BODIES[2])

    url = f"{node.broker.http_url}/api/v1/ranges/log/rows"
    answer = httpx.get(url, params={"columns": "payload"}, auth=("guest", "guest"), timeout=60)

    rows, gone = [], 0
    with pa.ipc.open_stream(answer.content) as stream:
        while True:
            try:
                batch, metadata = stream.read_next_batch_with_custom_metadata()
            except StopIteration:
                break
            rows += batch["payload"].to_pylist()
            gone = int(metadata["gone"])
    assert [json.loads(row).encode() for row in rows] == [*BODIES[:2], *BODIES[3:]]
    assert gone == 1


def test_a_stream_consumer_gets_the_others(node: Node) -> None:
    node.publish("events", **{"x-queue-type": "stream"})
    node.hurt(BODIES[2])

    channel = node.channel
    channel.basic_qos(prefetch_count=10)
    got = []
    arguments = {"x-stream-offset": "first"}
    for method, _, body in channel.consume("events", inactivity_timeout=60, arguments=arguments):
        assert method is not None
        got.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(got) == 4:
            break
    channel.connection.close()

    assert got == [*BODIES[:2], *BODIES[3:]]


def test_a_dead_letter_is_listed_without_its_content(node: Node) -> None:
    push(node)
    options = {"consumerGroup": "one", "batch": 3, "subscriptionMode": "all"}
    messages = node.call("GET", "/api/v1/pop/queue/log", **options)["messages"]
    acks = [
        {**{key: row[key] for key in ("transactionId", "partitionId", "leaseId")}, "status": "dlq"}
        for row in messages
    ]
    node.call("POST", "/api/v1/ack/batch", {"acknowledgments": acks, "consumerGroup": "one"})
    node.hurt(BODIES[2])

    letters = node.call("GET", "/api/v1/dlq")["messages"]

    assert sorted(row["transactionId"] for row in letters) == ["t0", "t1", "unreadable"]
    assert node.call("GET", "/health")["status"] == "degraded"


def test_the_spool_goes_on_without_it(node: Node) -> None:
    node.call("POST", "/api/v1/system/maintenance", {"enabled": True})
    push(node)
    node.hurt(BODIES[2])

    node.call("POST", "/api/v1/system/maintenance", {"enabled": False})

    options = {"consumerGroup": "one", "batch": 10, "subscriptionMode": "all"}
    messages = node.call("GET", "/api/v1/pop/queue/log", **options)["messages"]
    assert [row["transactionId"] for row in messages] == ["t0", "t1", "t3", "t4"]
    (row,) = node.call("GET", "/api/v1/system/damaged")["messages"]
    assert (row["where"], row["queue"]) == ("spool", "log")


def test_a_delayed_message_that_cannot_be_read_keeps_nothing_else_waiting(node: Node) -> None:
    channel = node.channel
    channel.confirm_delivery()
    channel.exchange_declare(
        "later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
    )
    channel.queue_declare("work", durable=True)
    channel.queue_bind("work", "later")
    for body in BODIES:
        properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 60_000})
        channel.basic_publish("later", "", body, properties)
    channel.connection.close()
    node.hurt(BODIES[2])

    node.broker.clock.advance(minutes=2)

    assert sorted(drained(node.channel, "work")) == [*BODIES[:2], *BODIES[3:]]
    (row,) = node.call("GET", "/api/v1/system/damaged")["messages"]
    assert row["where"] == "delayed"

    node.hurt(BODIES[2])  # as if the file had been restored

    assert drained(node.channel, "work") == [BODIES[2]]
    assert node.call("GET", "/health")["status"] == "healthy"


def test_the_durability_check_counts_such_a_dead_letter_as_lost(node: Node) -> None:
    door, ports = IntakeWorkload(), Ports(node.broker.amqp_port, node.broker.http_port)
    asyncio.run(door.prepare(ports))
    name = door.record.next_name(place_of(DYING, "north"), "mortal")
    body = make_body(name, 50)
    item = {"queue": DYING, "partition": "north", "payload": body.decode(), "transactionId": name}
    node.call("POST", "/api/v1/push", {"items": [item]})
    door.record.confirm(name)
    (row,) = node.call("GET", f"/api/v1/pop/queue/{DYING}", batch=1)["messages"]
    ack = {**{key: row[key] for key in ("transactionId", "partitionId", "leaseId")}, "status": "dlq"}
    node.call("POST", "/api/v1/ack/batch", {"acknowledgments": [ack]})
    node.hurt(body)

    found = asyncio.run(door.read(Ports(node.broker.amqp_port, node.broker.http_port)))

    assert door.record.compare(found).lost == [name]


def test_an_entry_of_an_older_version_has_no_time_and_then_none_is_claimed() -> None:
    damage = DamageList(MemoryJournal())
    damage.now_ms = lambda: 5
    damage.note("queue", "/", "new", RecordUnreadable("x", 8, "x"))
    assert damage.since_ms == 5

    damage.fold(msgspec.msgpack.encode([["queue", "/", "old", 4, 0, "x", None]]))

    assert [row.found_ms for row in damage.rows] == [5, None]
    assert damage.since_ms is None

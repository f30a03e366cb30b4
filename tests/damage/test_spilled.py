"""A disk that fails under the transient messages that memory has no room for: what is lost is told.

Transient messages may be lost; but the loss is counted and named, nothing durable is touched, and the queue
goes on.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from holtmq.broker.work import spilling_fifo
from holtmq.broker.work.paging import MessagePager
from holtmq.config import Config, Limits
from holtmq.journal.spill_file import SpillFile
from holtmq.node import Node
from holtmq.testing import TestBroker

DEPTH = 60
PERSISTENT = range(0, DEPTH, 5)


class SpillDisk:
    """``os.pread`` and ``os.pwrite``, which fail on command for files of the spill."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reads = self.writes = ""  # "EIO", "ENOSPC", "short" or "flipped"
        self.failed = 0
        self._pread, self._pwrite = os.pread, os.pwrite
        patch.setattr(os, "pread", self.pread)
        patch.setattr(os, "pwrite", self.pwrite)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = self._pread(fd, size, offset)
        if not self.reads or not _is_spill(fd):
            return data
        self.failed += 1
        if self.reads == "short":
            return b""
        if self.reads == "flipped":
            return bytes([data[0] ^ 1]) + data[1:]
        raise OSError(getattr(errno, self.reads), os.strerror(getattr(errno, self.reads)))

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        if self.writes and _is_spill(fd):
            self.failed += 1
            raise OSError(getattr(errno, self.writes), os.strerror(getattr(errno, self.writes)))
        return self._pwrite(fd, data, offset)


def _is_spill(fd: int) -> bool:
    return "/spill-" in os.readlink(f"/proc/self/fd/{fd}")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SpillDisk:
    for name, value in (("HEAD_MAX", 8), ("HEAD_KEEP", 4), ("TAIL_MAX", 4), ("RUN", 10)):
        monkeypatch.setattr(spilling_fifo, name, value)
    return SpillDisk(monkeypatch)


@pytest.fixture
def broker(disk: SpillDisk, tmp_path: Path) -> Iterator[TestBroker]:
    limits = Limits(memory_high_watermark=1.0, disk_free_min_bytes=0)
    with TestBroker(tmp_path / "data", config=Config(limits=limits)) as broker:
        broker.call(lambda node: spill_all(node, tmp_path))
        yield broker


def spill_all(node: Node, folder: Path) -> None:
    """Into files, as a node does that is no test."""
    node.broker.flow.memory.limit = -1
    node.broker.flow.pager = MessagePager(node.journal, SpillFile(folder))


def publish(broker: TestBroker, **arguments: object) -> None:
    """Every fifth message is persistent, and all are confirmed."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.queue_declare("deep", durable=True, arguments=arguments)
    channel.confirm_delivery()
    for number in range(DEPTH):
        mode = 2 if number in PERSISTENT else 1
        channel.basic_publish("", "deep", b"%d" % number, pika.BasicProperties(delivery_mode=mode))
    connection.close()


def drained(broker: TestBroker) -> list[int]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    found = []
    while (got := channel.basic_get("deep", auto_ack=True))[0] is not None:
        found.append(int(got[2]))
    connection.close()
    return found


def get(broker: TestBroker, path: str) -> Any:
    return httpx.get(broker.http_url + path, auth=("guest", "guest"), timeout=60).json()


@pytest.mark.parametrize("fault", ["EIO", "short", "flipped"])
@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 3}], ids=["plain", "levels"])
def test_the_queue_goes_on_and_says_what_is_lost(
    broker: TestBroker, disk: SpillDisk, fault: str, arguments: dict[str, object]
) -> None:
    publish(broker, **arguments)
    disk.reads = fault

    found = drained(broker)

    assert disk.failed
    assert found == sorted(found)
    assert set(PERSISTENT) <= set(found)
    health, damaged = get(broker, "/health"), get(broker, "/api/v1/system/damaged")
    assert health["status"] == "degraded"
    assert damaged["count"] == damaged["found"] == DEPTH - len(found)
    (row,) = damaged["messages"]
    assert (row["where"], row["vhost"], row["queue"]) == ("spilled", "/", "deep")
    assert row["messages"] == DEPTH - len(found) > 20
    assert row["size"] == sum(len(str(number)) for number in set(range(DEPTH)) - set(found))
    assert row["reason"]
    disk.reads = ""
    publish(broker, **arguments)
    assert drained(broker) == list(range(DEPTH))
    (listed,) = get(broker, "/api/queues")
    assert (listed["messages"], listed["message_bytes"]) == (0, 0)


def test_after_a_restart_the_durable_ones_are_whole(broker: TestBroker, disk: SpillDisk) -> None:
    publish(broker)
    disk.reads = "EIO"
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    while channel.basic_get("deep", auto_ack=False)[0] is not None:  # the spill fails, nothing is settled
        pass
    assert disk.failed
    connection.close()
    broker.crash_and_restart()

    assert drained(broker) == list(PERSISTENT)
    assert get(broker, "/health")["status"] == "healthy"


@pytest.mark.parametrize("fault", ["ENOSPC", "EIO"])
def test_what_cannot_be_written_stays_in_memory(broker: TestBroker, disk: SpillDisk, fault: str) -> None:
    disk.writes = fault

    publish(broker)

    assert disk.failed
    assert drained(broker) == list(range(DEPTH))
    assert get(broker, "/health")["status"] == "healthy"


def test_a_purge_removes_the_entry(broker: TestBroker, disk: SpillDisk) -> None:
    publish(broker)
    disk.reads = "EIO"
    drained(broker)
    assert get(broker, "/health")["status"] == "degraded"

    answer = httpx.delete(f"{broker.http_url}/api/queues/%2F/deep/contents", auth=("guest", "guest"))

    assert answer.is_success
    assert get(broker, "/health")["status"] == "healthy"


def test_peeking_leaves_out_what_cannot_be_read(broker: TestBroker, disk: SpillDisk) -> None:
    publish(broker)
    disk.reads = "EIO"

    body = {"count": DEPTH, "ackmode": "ack_requeue_true", "encoding": "auto"}
    answer = httpx.post(
        f"{broker.http_url}/api/queues/%2F/deep/get", json=body, auth=("guest", "guest"), timeout=60
    )

    assert disk.failed
    assert answer.status_code == 200, answer.text
    assert set(PERSISTENT) <= {int(row["payload"]) for row in answer.json()}

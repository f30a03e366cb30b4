"""Full disks, crash loops and rot: what a node does about them by itself."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from holtmq import node as nodes
from holtmq.config import Amqp, Config, Data, Http, Journal, Limits
from holtmq.journal import FileJournal, JournalOptions, open_journal
from holtmq.journal.disk import Disk, OsDisk, OsFile
from holtmq.journal.fake_disk import FakeDisk
from holtmq.node import Node
from holtmq.upkeep import scrubber

KIND = 18


class FillingDisk(OsDisk):
    """A disk that has no room for another file while ``full`` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.full = threading.Event()
        self.code = errno.ENOSPC
        self.refusals = 0
        self.refused = threading.Event()  # twice: the journal has noticed the first time by then

    def open(self, name: str, *, create: bool = False, write: bool = False) -> OsFile:
        if create and ".seg" in name and self.full.is_set():
            self.refusals += 1
            if self.refusals > 1:
                self.refused.set()
            raise OSError(self.code, os.strerror(self.code))
        return super().open(name, create=create, write=write)


async def durable(journal: FileJournal) -> None:
    done = asyncio.get_running_loop().create_future()
    journal.on_durable(lambda failed: done.set_exception(failed) if failed else done.set_result(None))
    await asyncio.wait_for(done, 60)


def opened(disk: Disk) -> FileJournal:
    loop = asyncio.get_running_loop()
    options = JournalOptions(segment_bytes=4096)
    journal, recovery = open_journal(
        "", options, disk=disk, defer=loop.call_soon, notify=loop.call_soon_threadsafe
    )
    recovery.drain()
    return journal


async def test_a_full_disk_is_waited_for_and_nothing_is_lost(tmp_path: Path) -> None:
    disk = FillingDisk(tmp_path)
    disk.code = errno.EDQUOT  # a full quota is no different
    journal = opened(disk)
    first = journal.append(KIND, b"x" * 3000)
    await durable(journal)
    disk.full.set()
    told: list[object] = []

    second = journal.append(KIND, b"y" * 3000)
    journal.on_durable(told.append)
    await asyncio.to_thread(disk.refused.wait, 60)

    assert told == []
    assert "no room" in journal.stalled
    assert journal.failed is None
    assert journal.read(second) == (KIND, b"y" * 3000)
    disk.full.clear()
    await durable(journal)
    assert told == [None]
    assert journal.stalled == ""
    assert journal.read_many([first, second]) == [(KIND, b"x" * 3000), (KIND, b"y" * 3000)]
    await asyncio.to_thread(journal.close)


async def test_a_record_larger_than_the_empty_segment_waits_for_room() -> None:
    disk = FakeDisk(capacity=20_000)
    journal = opened(disk)

    large = journal.append(KIND, b"x" * 30_000)
    told: list[object] = []
    journal.on_durable(told.append)
    while not journal.stalled and journal.failed is None:
        await asyncio.sleep(0.01)

    assert (told, journal.failed) == ([], None)
    assert "no room" in journal.stalled
    disk.capacity = None
    await durable(journal)
    assert told == [None]
    assert journal.read(large) == (KIND, b"x" * 30_000)
    await asyncio.to_thread(journal.close)


async def test_a_journal_that_waits_for_room_can_be_closed(tmp_path: Path) -> None:
    disk = FillingDisk(tmp_path)
    journal = opened(disk)
    kept = journal.append(KIND, b"kept")
    await durable(journal)
    disk.full.set()
    journal.append(KIND, b"y" * 5000)
    told: list[object] = []
    journal.on_durable(told.append)
    await asyncio.to_thread(disk.refused.wait, 60)

    await asyncio.to_thread(journal.close)

    assert journal.failed is not None
    assert told == [journal.failed]
    again, recovery = open_journal(tmp_path)
    assert [position for position, _, _ in recovery.records] == [kept]
    again.close()


def config(folder: Path, **limits: int) -> Config:
    return Config(
        data=Data(dir=folder),
        amqp=Amqp(host=("127.0.0.1",), port=0),
        http=Http(host=("127.0.0.1",), port=0),
        journal=Journal(segment_bytes=65536),
        limits=Limits(memory_high_watermark=1.0, **limits),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


async def test_the_alarm_comes_while_there_is_room_for_two_more_segments(folder: Path) -> None:
    free = os.statvfs(folder.parent)
    node = Node(config(folder, disk_free_min_bytes=free.f_bavail * free.f_frsize * 2))
    await node.start()

    node.alarms.check()

    assert node.amqp.alarm == "low on disk"
    await node.stop(0)


async def test_the_alarm_does_not_wait_for_a_second_to_pass_while_segments_are_filled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_HOUSEKEEPING_SECONDS", 3600)
    node = Node(config(folder, disk_free_min_bytes=1000))
    await node.start()

    def shrinking(_: object) -> SimpleNamespace:
        return SimpleNamespace(f_frsize=1, f_bavail=6 * 65_536 + 1000 - node.journal.end)

    monkeypatch.setattr("holtmq.upkeep.alarms.os.statvfs", shrinking)
    for _ in range(4):
        assert node.amqp.alarm == ""
        node.journal.append(KIND, bytes(60_000))
        await node.settle()

    async with asyncio.timeout(60):
        while not node.amqp.alarm:
            await asyncio.sleep(0)

    assert node.amqp.alarm == "low on disk"
    await node.stop(0)


def long_tail(folder: Path, count: int) -> None:
    journal, recovery = open_journal(folder)
    recovery.drain()
    for _ in range(count):
        journal.append(KIND, b"")
    journal.close()


async def test_after_a_long_replay_the_next_start_is_short(folder: Path) -> None:
    await _start_and_stop(folder)
    long_tail(folder, 25_000)

    first = await _start_and_stop(folder)
    second = await _start_and_stop(folder)

    assert first > 25_000
    assert second < 100


async def _start_and_stop(folder: Path) -> int:
    node = Node(config(folder, disk_free_min_bytes=0))
    await node.start()
    await node.stop(0)
    return node.recovered_records


async def test_the_scrub_finds_rot_and_writes_a_damaged_checkpoint_again(folder: Path) -> None:
    node = Node(config(folder, disk_free_min_bytes=0))
    await node.start()
    node.checkpoints.make()
    await node.settle()
    while node.journal.stats().checkpoints < 1:
        await asyncio.sleep(0)
    (mark,) = folder.glob("*.ckpt")
    data = bytearray(mark.read_bytes())
    data[100] ^= 1
    mark.write_bytes(data)

    assert await node.scrubber.once() == 1

    while node.journal.stats().checkpoints < 2:
        await asyncio.sleep(0)
    await node.settle()
    assert len(list(folder.glob("*.ckpt"))) == 2
    await node.stop(0)


async def test_the_scrub_goes_on_after_a_pass_that_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(config(folder, disk_free_min_bytes=0))
    await node.start()
    passes = 0
    again = asyncio.Event()

    def failing_once(*_: object) -> Iterator[int]:
        nonlocal passes
        passes += 1
        if passes == 1:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        again.set()
        return iter(())

    monkeypatch.setattr(scrubber, "scrub", failing_once)
    monkeypatch.setattr(scrubber, "_PAUSE_SECONDS", 0)
    task = asyncio.create_task(node.scrubber.run(1e9))

    await asyncio.wait_for(again.wait(), 60)

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await node.stop(0)

"""Group commit with a real event loop, a real writer thread and real files."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from queue import SimpleQueue

import pytest

from holtmq.journal import FileJournal, JournalFailed, JournalOptions, open_journal
from holtmq.journal.disk import OsDisk, OsFile
from holtmq.journal.fake_disk import FakeDisk
from holtmq.journal.manifest import read_manifest

OPTIONS = JournalOptions(segment_bytes=64 << 10)


class SlowFile(OsFile):
    """A file whose sync waits for permission."""

    gate: threading.Event
    error: OSError | None = None

    def sync(self) -> None:
        assert self.gate.wait(120)
        if self.error is not None:
            raise self.error
        super().sync()


class SlowDisk(OsDisk):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gate = threading.Event()
        self.gate.set()
        self.error: OSError | None = None
        self.files: list[SlowFile] = []

    def open(self, name: str, *, create: bool = False, write: bool = False) -> OsFile:
        plain = super().open(name, create=create, write=write)
        slow = SlowFile(plain._fd)
        slow.gate = self.gate
        if name.endswith((".seg", ".seg.tmp")):
            self.files.append(slow)
        return slow

    def fail_syncs(self, error: OSError) -> None:
        for file in self.files:
            file.error = error


@asynccontextmanager
async def running(folder: Path, disk: OsDisk | None = None) -> AsyncIterator[FileJournal]:
    loop = asyncio.get_running_loop()
    journal, recovery = open_journal(
        folder, OPTIONS, disk=disk, defer=loop.call_soon, notify=loop.call_soon_threadsafe
    )
    recovery.drain()
    try:
        yield journal
    finally:
        journal.close()


async def durable(journal: FileJournal) -> JournalFailed | None:
    future: asyncio.Future[JournalFailed | None] = asyncio.get_running_loop().create_future()
    journal.on_durable(future.set_result)
    return await asyncio.wait_for(future, 60)


def recovered(folder: Path) -> list[bytes]:
    journal, recovery = open_journal(folder, OPTIONS)
    found = [payload for _, _, payload in recovery.records]
    journal.close()
    return found


async def test_records_of_one_turn_share_one_sync(tmp_path: Path) -> None:
    async with running(tmp_path) as journal:
        for number in range(500):
            journal.append(20, b"%d" % number)

        assert await durable(journal) is None

        assert journal.stats().syncs == 1
        assert journal.durable == journal.end
    assert recovered(tmp_path) == [b"%d" % number for number in range(500)]


async def test_many_turns_during_one_sync_become_one_commit(tmp_path: Path) -> None:
    disk = SlowDisk(tmp_path)
    order: list[int] = []
    async with running(tmp_path, disk) as journal:
        disk.gate.clear()
        for number in range(50):
            journal.append(20, b"%d" % number)
            journal.on_durable(lambda error, number=number: order.append(number))  # type: ignore[misc]
            await asyncio.sleep(0)
        assert order == []
        assert journal.backlog > 0
        disk.gate.set()

        await durable(journal)

        assert order == list(range(50))
        assert journal.stats().commits <= 3


async def test_records_can_be_read_while_their_write_is_in_flight(tmp_path: Path) -> None:
    disk = SlowDisk(tmp_path)
    async with running(tmp_path, disk) as journal:
        disk.gate.clear()
        expected: list[tuple[int, bytes]] = []
        positions: list[int] = []
        for turn in range(5):
            for number in range(40):
                payload = b"%d-%d" % (turn, number) * 100
                positions.append(journal.append(20, payload))
                expected.append((20, payload))
                if number % 7 == 0:
                    assert journal.read(positions[-1]) == expected[-1]
            await asyncio.sleep(0)
        assert journal.read_many(positions) == expected
        disk.gate.set()
        await durable(journal)

        assert journal.read_many(positions) == expected


async def test_reads_and_appends_and_commits_mix(tmp_path: Path) -> None:
    async with running(tmp_path) as journal:
        written: list[tuple[int, bytes]] = []
        for turn in range(300):
            payload = b"%d" % turn * (turn % 50 * 20)
            written.append((journal.append(20, payload), payload))
            if turn % 3 == 0:
                await asyncio.sleep(0)
            if turn % 20 == 0:
                await durable(journal)
            at, payload = written[turn * 7919 % len(written)]
            assert journal.read(at) == (20, payload)
        assert journal.stats().segments > 1
    assert recovered(tmp_path) == [payload for _, payload in written]


async def test_waiting_with_nothing_pending_ends_soon_and_in_order(tmp_path: Path) -> None:
    async with running(tmp_path) as journal:
        order: list[str] = []
        journal.on_durable(lambda error: order.append("idle"))
        journal.append(20, b"")
        journal.on_durable(lambda error: order.append("record"))
        assert order == []

        await durable(journal)

        assert order == ["idle", "record"]


async def test_a_failed_sync_reaches_every_waiter_once(tmp_path: Path) -> None:
    disk = SlowDisk(tmp_path)
    told: list[JournalFailed | None] = []
    async with running(tmp_path, disk) as journal:
        journal.append(20, b"durable")
        assert await durable(journal) is None
        disk.gate.clear()
        disk.fail_syncs(OSError(5, "Input/output error"))
        for _ in range(10):
            journal.append(20, b"doomed")
            journal.on_durable(told.append)
            await asyncio.sleep(0)
        disk.gate.set()

        failure = await durable(journal)

        assert failure is not None
        assert failure is journal.failed
        assert told == [failure] * 10
        with pytest.raises(JournalFailed):
            journal.append(20, b"late")
        assert await durable(journal) is failure


def test_a_group_that_was_never_handed_over_hears_of_the_failure_too(tmp_path: Path) -> None:
    disk = SlowDisk(tmp_path)
    deferred: list[Callable[[], None]] = []
    notified: SimpleQueue[Callable[[], None]] = SimpleQueue()
    journal, recovery = open_journal(tmp_path, OPTIONS, disk=disk, defer=deferred.append, notify=notified.put)
    recovery.drain()
    told: list[JournalFailed | None] = []
    disk.fail_syncs(OSError(5, "Input/output error"))
    journal.append(20, b"handed over")
    journal.on_durable(told.append)
    deferred.pop()()
    report = notified.get(timeout=60)
    journal.append(20, b"still open")
    journal.on_durable(told.append)

    report()

    assert journal.failed is not None
    assert told == [journal.failed] * 2
    journal.close()


def test_a_segment_stays_until_its_successor_is_on_the_disk(tmp_path: Path) -> None:
    disk = SlowDisk(tmp_path)
    deferred: list[Callable[[], None]] = []
    notified: SimpleQueue[Callable[[], None]] = SimpleQueue()
    journal, recovery = open_journal(tmp_path, OPTIONS, disk=disk, defer=deferred.append, notify=notified.put)
    recovery.drain()
    journal.append(20, b"nothing live in here")
    deferred.pop()()
    notified.get(timeout=60)()

    assert journal.checkpoint([(40, b"state")], [])
    written = notified.get(timeout=60)
    disk.gate.clear()
    journal.append(20, b"x" * 100_000)  # needs the next segment; the writer hangs before it makes one
    journal.flush()
    written()
    notified.get(timeout=60)()  # published and reclaimed

    assert journal.stats().checkpoints == 1
    assert journal.stats().deleted_segments == 0
    disk.gate.set()
    journal.close()


async def test_a_checkpoint_runs_beside_the_commits(tmp_path: Path) -> None:
    async with running(tmp_path) as journal:
        positions = array("Q")
        turns = refused = 0
        # A slow machine may need more commits until there were some checkpoints.
        while turns < 200 or journal.stats().checkpoints <= 3:
            for _ in range(20):
                positions.append(journal.append(20, b"%d" % len(positions) * 10))
            if not journal.checkpoint([(40, b"%d" % turns)], [positions[::100]]):
                refused += 1
            turns += 1
            await durable(journal)
        live = positions[::100]
        expected = [(20, b"%d" % number * 10) for number in range(0, len(positions), 100)]

        assert journal.stats().checkpoint_failures == 0
        assert refused + journal.stats().checkpoints >= turns - 1
        assert journal.read_many(live) == expected
    journal, recovery = open_journal(tmp_path, OPTIONS)
    (state,) = recovery.checkpoint
    assert state[0] == 40
    tail = [payload for _, _, payload in recovery.records]
    assert tail == [b"%d" % number * 10 for number in range((int(state[1]) + 1) * 20, len(positions))]
    assert journal.read_many(live) == expected
    journal.close()


async def test_closing_makes_everything_durable_and_tells_the_waiters(tmp_path: Path) -> None:
    told: list[JournalFailed | None] = []
    async with running(tmp_path) as journal:
        for number in range(1000):
            journal.append(20, b"%d" % number)
        journal.on_durable(told.append)
        assert journal.checkpoint([(40, b"state")], [])
        journal.append(20, b"last")
        journal.on_durable(told.append)

    assert told == [None, None]
    opened, recovery = open_journal(tmp_path, OPTIONS)
    assert list(recovery.checkpoint) == [(40, b"state")]
    assert [payload for _, _, payload in recovery.records] == [b"last"]
    assert recovery.clean
    opened.close()


async def test_no_thread_is_left_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())  # another test's broker may be running beside this one

    def names() -> Sequence[str]:
        ours = set(threading.enumerate()) - before
        return [thread.name for thread in ours if thread.name.startswith("holt-journal")]

    async with running(tmp_path) as journal:
        journal.append(20, b"")
        journal.checkpoint([], [])
        assert "holt-journal-writer" in names()

    assert names() == []


async def test_records_nobody_waits_for_are_committed_with_the_next_that_somebody_does(
    tmp_path: Path,
) -> None:
    loop = asyncio.get_running_loop()
    options = JournalOptions(segment_bytes=64 << 10, idle_seconds=3600)
    journal, recovery = open_journal(
        tmp_path, options, defer=loop.call_soon, notify=loop.call_soon_threadsafe, later=loop.call_later
    )
    recovery.drain()

    journal.append(20, b"an acknowledgment")
    await asyncio.sleep(0.02)
    commits_before = journal.stats().commits
    journal.append(20, b"a publish")
    assert await durable(journal) is None

    assert commits_before == 0
    assert journal.stats().commits == 1
    assert journal.durable == journal.end
    journal.close()


async def test_records_nobody_waits_for_are_committed_after_a_while(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    options = JournalOptions(segment_bytes=64 << 10, idle_seconds=0.01)
    journal, recovery = open_journal(
        tmp_path, options, defer=loop.call_soon, notify=loop.call_soon_threadsafe, later=loop.call_later
    )
    recovery.drain()

    journal.append(20, b"an acknowledgment")
    async with asyncio.timeout(60):
        while journal.durable != journal.end:
            await asyncio.sleep(0.005)

    assert journal.stats().commits == 1
    journal.close()


async def test_who_waits_in_a_turn_that_fills_a_segment_waits_for_all_of_the_turn(tmp_path: Path) -> None:
    """The loop's turn ends with records that what was appended before relies on: acks, for instance."""
    loop = asyncio.get_running_loop()
    first_synced = threading.Event()

    def notify(collect: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(collect)
        first_synced.set()

    disk = SlowDisk(tmp_path)
    journal, recovery = open_journal(tmp_path, OPTIONS, disk=disk, defer=loop.call_soon, notify=notify)
    recovery.drain()
    told: list[JournalFailed | None] = []
    everything = asyncio.Event()
    journal.append(20, b"in the first segment")
    journal.on_durable(told.append)
    journal.append(20, bytes(64 << 10))
    assert first_synced.wait(120)  # without a turn of the loop
    disk.gate.clear()

    for _ in range(10):
        await asyncio.sleep(0)
    assert told == []

    journal.on_durable(lambda _: everything.set())
    disk.gate.set()
    await asyncio.wait_for(everything.wait(), 120)
    assert told == [None]
    await asyncio.to_thread(journal.close)


def test_a_group_that_waited_long_enough_is_completed_by_the_caller_like_any_other() -> None:
    """The timer may fire between a publish and its turn, where the acks before it are written."""
    deferred: list[Callable[[], None]] = []
    timers: list[Callable[[], None]] = []
    disk = FakeDisk()
    journal, recovery = open_journal(
        "",
        disk=disk,
        defer=deferred.append,
        notify=lambda collect: None,
        later=lambda _, action: timers.append(action),
    )
    recovery.drain()
    journal.append(20, b"nobody waits for this")
    deferred.pop()()
    journal.append(20, b"a publish")
    journal.on_durable(lambda error: None)
    (turn,) = deferred

    timers.pop()()
    journal.append(20, b"an ack that came before it")
    turn()

    groups = [waiting.group for waiting in journal._unwritten.in_flight]
    assert len(groups) == 1
    assert b"".join(groups[0].parts).endswith(b"an ack that came before it")
    journal.close()


async def test_the_manifest_knows_the_end_of_the_log_soon_after_the_last_commit(tmp_path: Path) -> None:
    async with running(tmp_path) as journal:
        journal.append(20, bytes(1000))
        assert await durable(journal) is None

        while (known := read_manifest(OsDisk(tmp_path))[0]) is None or known.durable < 1000:
            await asyncio.sleep(0.001)


async def test_the_manifest_follows_commits_that_never_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holtmq.journal.writer_thread._SEAL_AFTER", 3600)
    async with running(tmp_path) as journal:
        noted: set[int] = set()
        while len(noted) < 3:
            journal.append(20, b"one after the other")
            assert await durable(journal) is None
            known = read_manifest(OsDisk(tmp_path))[0]
            noted.add(0 if known is None else known.durable)

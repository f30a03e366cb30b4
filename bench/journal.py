"""How much of the disk's own speed the journal passes on, and how fast it comes back.

Group-committed appends against a bare loop that writes and fdatasyncs the same bytes in the same batch sizes,
in turns, in one run and on one file system; then the recovery of a million messages.

    python bench/journal.py [--quick] [--folder DIR]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import uvloop

from holtmq.journal import FileJournal, JournalFailed, JournalOptions, open_journal
from holtmq.journal.checksum import crc32
from holtmq.process import SWITCH_SECONDS

MESSAGE = 20
_KIND = bytes([MESSAGE])
_pack = Struct("<IIB").pack
SEGMENT = 64 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One size of message and of batch: messages a second, the median of the rounds."""

    payload_bytes: int
    batch: int  # messages per turn of the loop
    commit: float  # messages per commit
    journal: float
    bare: float
    ratio: float  # median of the rounds' own ratios: both sides of a round saw the same disk
    framed: float  # the bare loop when it also has to frame and checksum each message
    framed_ratio: float


@dataclass(frozen=True, slots=True)
class Figures:
    rows: list[Row]
    append_ns: float  # one append of 100 bytes, without the disk
    floor_ns: float  # its checksum, its frame and its share of the join alone
    recovered: int
    recovery_seconds: float
    read_back: float  # messages a second through read_many


async def journal_seconds(folder: Path, payload: bytes, batch: int, commits: int) -> tuple[float, int]:
    """Appends in batches; the next one collects while the last one syncs, as in a busy broker.

    Also how many commits that made: batches that wait together share one."""
    loop = asyncio.get_running_loop()
    journal, recovery = open_journal(
        folder, JournalOptions(SEGMENT), defer=loop.call_soon, notify=loop.call_soon_threadsafe
    )
    recovery.drain()
    previous: asyncio.Future[JournalFailed | None] | None = None
    began = time.perf_counter()
    for _ in range(commits):
        append = journal.append
        for _ in range(batch):
            append(MESSAGE, payload)
        done: asyncio.Future[JournalFailed | None] = loop.create_future()
        journal.on_durable(done.set_result)
        await asyncio.sleep(0)  # the turn ends: this batch is handed over, whether or not the last is through
        if previous is not None:
            await previous
        previous = done
    if previous is not None:
        assert await previous is None
    seconds = time.perf_counter() - began
    made = journal.stats().commits
    journal.close()
    shutil.rmtree(folder)
    return seconds, made


def bare_seconds(path: Path, payload: bytes, batch: int, commits: int, *, framed: bool) -> float:
    """The same bytes to a preallocated file: write, fdatasync, next.

    ``framed``: with the messages still to be checksummed, framed and joined, which no journal can leave out.
    """
    record = _pack(len(payload) + 1, crc32(payload, crc32(_KIND, len(payload) + 1)), MESSAGE) + payload
    data = record * batch
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.posix_fallocate(fd, 0, SEGMENT)
    os.fsync(fd)
    began = time.perf_counter()
    at = 0
    for _ in range(commits):
        if at + len(data) > SEGMENT:  # as the journal does: the next segment is a new file
            os.close(fd)
            os.unlink(path)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            os.posix_fallocate(fd, 0, SEGMENT)
            os.fsync(fd)
            at = 0
        if framed:
            parts: list[bytes] = []
            for _ in range(batch):
                length = len(payload) + 1
                parts += (_pack(length, crc32(payload, crc32(_KIND, length)), MESSAGE), payload)
            data = b"".join(parts)
        os.pwrite(fd, data, at)
        os.fdatasync(fd)
        at += len(data)
    seconds = time.perf_counter() - began
    os.close(fd)
    os.unlink(path)
    return seconds


def compare(folder: Path, size: int, batch: int, commits: int, rounds: int) -> Row:
    payload = os.urandom(size)
    ours: list[float] = []
    bare: list[float] = []
    framing: list[float] = []
    merged: list[int] = []
    for _ in range(rounds):
        seconds, made = uvloop.run(journal_seconds(folder / "journal", payload, batch, commits))
        ours.append(batch * commits / seconds)
        # The bare loop gets the batch size that the journal's commits really had.
        together = batch * commits // made
        for framed, rates in ((False, bare), (True, framing)):
            seconds = bare_seconds(folder / "bare", payload, together, made, framed=framed)
            rates.append(together * made / seconds)
        merged.append(together)
    return Row(
        size,
        batch,
        statistics.median(merged),
        statistics.median(ours),
        statistics.median(bare),
        _ratio(ours, bare),
        statistics.median(framing),
        _ratio(ours, framing),
    )


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def append_cost(folder: Path) -> tuple[float, float]:
    journal, recovery = open_journal(folder / "append", JournalOptions(1 << 29))
    recovery.drain()
    payload = os.urandom(100)
    count = 200_000
    began = time.perf_counter()
    for _ in range(count):
        journal.append(MESSAGE, payload)
    append = (time.perf_counter() - began) / count
    journal.flush()
    journal.close()
    parts: list[bytes] = []
    began = time.perf_counter()
    for _ in range(count):
        parts += (_pack(101, crc32(payload, crc32(_KIND, 101)), MESSAGE), payload)
    b"".join(parts)
    floor = (time.perf_counter() - began) / count
    return append * 1e9, floor * 1e9


def recovery_speed(folder: Path, messages: int) -> tuple[float, float]:
    payload = os.urandom(100)
    journal, recovery = open_journal(folder / "recovery", JournalOptions(SEGMENT))
    recovery.drain()
    positions: list[int] = []
    for number in range(messages):
        position = journal.append(MESSAGE, payload)
        if number % 10 == 0:
            positions.append(position)
        if number % 2000 == 0:
            journal.flush()
    journal.close()
    began = time.perf_counter()
    journal, recovery = open_journal(folder / "recovery", JournalOptions(SEGMENT))
    assert recovery.drain() == messages
    seconds = time.perf_counter() - began
    read_back = _read_speed(journal, positions)
    journal.close()
    return seconds, read_back


def _read_speed(journal: FileJournal, positions: list[int]) -> float:
    began = time.perf_counter()
    for first in range(0, len(positions), 2000):
        journal.read_many(positions[first : first + 2000])
    return len(positions) / (time.perf_counter() - began)


def measure(folder: Path, *, quick: bool = False) -> Figures:
    rounds = 3 if quick else 7
    budget = 60_000 if quick else 200_000
    rows = [
        compare(folder, size, batch, max(min(budget // batch, 400), 20), rounds)
        for size in (100, 1024)
        for batch in (2000, 500, 50)
    ]
    append, floor = append_cost(folder)
    messages = 200_000 if quick else 1_000_000
    seconds, read_back = recovery_speed(folder, messages)
    return Figures(rows, append, floor, messages, seconds, read_back)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a look")
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to write; default: a temporary folder"
    )
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_SECONDS)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        figures = measure(Path(name), quick=options.quick)
    print(f"{'payload':>8} {'batch':>6} {'commit':>7} {'journal/s':>12} {'bare/s':>12} {'ratio':>6}", end="")
    print(f" {'framed/s':>12} {'ratio':>6}")
    for row in figures.rows:
        print(
            f"{row.payload_bytes:>8} {row.batch:>6} {row.commit:>7.0f} "
            f"{row.journal:>12,.0f} {row.bare:>12,.0f} {row.ratio:>6.2f} "
            f"{row.framed:>12,.0f} {row.framed_ratio:>6.2f}"
        )
    print(
        f"append, 100 bytes: {figures.append_ns:.0f} ns, of which checksum and join {figures.floor_ns:.0f} ns"
    )
    rate = figures.recovered / figures.recovery_seconds
    print(f"recovery: {figures.recovered:,} messages in {figures.recovery_seconds:.2f} s, {rate:,.0f}/s")
    print(f"read back, every tenth message, runs of 2000: {figures.read_back:,.0f}/s")


if __name__ == "__main__":
    main()

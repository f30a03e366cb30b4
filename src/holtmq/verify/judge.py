"""The judge: starts a broker, lets clients work, kills it, cuts its power, and holds it to its word.

Owns: the plan of rounds (from the seed), the broker's process, the news from its disk, the report.
Must not touch: the broker's insides. What was synced is known from the pipe, never from asking it.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO, Final

from holtmq.verify.client import Gone
from holtmq.verify.durable_image import DurableImage
from holtmq.verify.record import Findings, Record
from holtmq.verify.report import Percentiles, Report
from holtmq.verify.watched_disk import What, decode_event
from holtmq.verify.workload import QUEUES, Watch, declare_queues, purge, read_queues, work_until_death

_LONGEST_ROUND: Final = 3.0
_START_SECONDS: Final = 60.0
_PURGE_ABOVE: Final = 4_000
_EXAMPLES: Final = 5
_PIPE_BYTES: Final = 1 << 20
# Where a round may end besides "at any moment", and up to the how-many-th such event. The rare ones come
# with new segments and checkpoints.
_BOUNDARIES: Final = (
    (What.WRITING, 200),
    (What.WRITTEN, 200),
    (What.SYNCED, 200),
    (What.CREATED, 2),
    (What.RENAMED, 2),
    (What.NAMES_SYNCED, 2),
)
_OPENING_BOUNDARIES: Final = (What.CREATED, What.WRITING, What.WRITTEN, What.SYNCED, What.NAMES_SYNCED)


@dataclass(frozen=True, slots=True)
class Options:
    """What to verify, and how hard."""

    rounds: int = 50
    seed: int = 0
    folder: Path | None = None
    round_seconds: float = 0.5  # mean time until a kill at a random moment
    segment_bytes: int = 256 << 10
    sync: str = "always"
    stop_at_failure: bool = False
    command: tuple[str, ...] = (sys.executable, "-m", "holtmq.verify.subject")


@dataclass(slots=True)
class _News:
    """What the broker's disk has told, over all its lives."""

    image: DurableImage = field(default_factory=DurableImage)
    batch_bytes: list[float] = field(default_factory=list)

    def read(self, pipe: int) -> None:
        """Until the last writer's end is closed, which is when the broker is dead."""
        with os.fdopen(pipe, "rb") as news:
            for line in news:
                event = decode_event(line)
                self.image.note(event)
                if event.what is What.WRITING:
                    self.batch_bytes.append(event.stop - event.start)


class _Subject:
    """One life of the broker."""

    def __init__(self, process: subprocess.Popen[bytes], reader: threading.Thread, errors: IO[bytes]) -> None:
        self._process = process
        self._reader = reader
        self._errors = errors
        self.port = 0
        self.recovery_seconds = 0.0
        self.refusal = ""

    async def ready(self) -> bool:
        """Wait until it listens; False when it died or refused before that."""
        assert self._process.stdout is not None
        async with asyncio.timeout(_START_SECONDS):
            line = (await asyncio.to_thread(self._process.stdout.readline)).decode()
        if line.startswith("ready"):
            _, port, _, seconds, _ = line.split()
            self.port, self.recovery_seconds = int(port), float(seconds)
            return True
        self.refusal = line.removeprefix("refused ").strip()
        if not self.refusal:
            await asyncio.to_thread(self._process.wait)
            self._errors.seek(0)
            last = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
            self.refusal = f"status {self._process.returncode} {last}".strip()
        return False

    def die_at(self, what: What, count: int) -> None:
        """Let it kill itself at a boundary."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"die {what.value} {count}\n".encode())
            self._process.stdin.flush()

    def kill(self) -> None:
        """Without mercy."""
        self._process.kill()

    def terminate(self) -> None:
        """In good order."""
        self._process.send_signal(signal.SIGTERM)

    async def is_dead(self) -> None:
        """Wait for its end, and until the last of its news is in."""
        await asyncio.to_thread(self._process.wait)
        await asyncio.to_thread(self._reader.join)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Judge:
    """One verification."""

    def __init__(self, options: Options, on_round: Callable[[Report], None] = lambda report: None) -> None:
        self._options = options
        self._on_round = on_round
        self._random = Random(options.seed)
        self._record = Record()
        self._watch = Watch()
        self._news = _News()
        self._findings = Findings()
        self._recoveries: list[float] = []
        self._working_seconds = 0.0
        self._working_syncs = 0
        self._report = Report(seed=options.seed, folder="", file_system="")

    async def run(self) -> Report:
        """All rounds; the report."""
        began = time.perf_counter()
        with contextlib.ExitStack() as stack:
            folder = self._options.folder
            if folder is None:
                folder = Path(
                    stack.enter_context(tempfile.TemporaryDirectory(prefix="holt-verify-", dir="."))
                )
            else:
                # Of its own: the folder may hold something that is not ours to break.
                folder.mkdir(parents=True, exist_ok=True)
                folder = Path(
                    stack.enter_context(tempfile.TemporaryDirectory(prefix="holt-verify-", dir=folder))
                )
            self._folder = folder.resolve()
            self._report.folder = str(self._folder.parent)
            self._report.file_system = file_system_of(self._folder)
            for number in range(self._options.rounds):
                if not await self._round(number):
                    break
            else:
                await self._last_look()
        self._summarise(time.perf_counter() - began)
        return self._report

    # -- one round -------------------------------------------------------------------------------

    async def _round(self, number: int) -> bool:
        """Recover, compare, work, die, lose. False when there is no point in another."""
        random = self._random
        if number and random.random() < 0.15:
            await self._die_while_opening()
        async with self._life() as subject:
            if not await self._recovered(subject):
                return False
            if number == 0:
                await declare_queues(subject.port)
            else:
                await self._compare(subject.port)
            if self._options.stop_at_failure and not self._findings.is_clean:
                return False
            syncs, began = self._news.image.syncs, time.perf_counter()
            await self._work(subject, number)
            self._working_seconds += time.perf_counter() - began
        self._working_syncs += self._news.image.syncs - syncs
        self._aftermath(number)
        self._report.rounds += 1
        self._count()
        self._on_round(self._report)
        return True

    async def _work(self, subject: _Subject, number: int) -> None:
        random = self._random
        longest = _LONGEST_ROUND
        if number % 2:
            what, most = _BOUNDARIES[(number // 2) % len(_BOUNDARIES)]
            subject.die_at(what, random.randint(1, most))
        else:
            longest = min(longest, random.expovariate(1 / self._options.round_seconds) + 0.02)
        timer = asyncio.get_running_loop().call_later(longest, subject.kill)
        try:
            await work_until_death(subject.port, self._record, self._watch, random)
        finally:
            timer.cancel()

    def _aftermath(self, number: int) -> None:
        """In turn: only killed; all that was unsynced is lost; some of it, by the dice."""
        if number % 3 == 0:
            self._report.kills += 1
            return
        self._report.power_cuts += 1
        dice = None if number % 3 == 1 else self._random
        self._report.bytes_cut += self._news.image.cut(self._folder, dice)

    async def _die_while_opening(self) -> None:
        boundary = self._random.choice(_OPENING_BOUNDARIES), 1 + int(self._random.random() < 0.3)
        async with self._life(boundary) as subject:
            if await subject.ready():
                return  # it opened with fewer such events than that
        self._report.deaths_in_recovery += 1
        if self._random.random() < 0.5:
            self._report.bytes_cut += self._news.image.cut(self._folder, self._random)

    async def _last_look(self) -> None:
        """After the last death; and once more after a stop in good order."""
        for _ in range(2):
            async with self._life() as subject:
                if not await self._recovered(subject):
                    return
                await self._compare(subject.port)
                subject.terminate()
                await subject.is_dead()

    async def _recovered(self, subject: _Subject) -> bool:
        if await subject.ready():
            self._recoveries.append(subject.recovery_seconds * 1000)
            return True
        self._report.refused_starts += 1
        self._report.examples.append(f"the broker did not start: {subject.refusal}")
        return False

    async def _compare(self, port: int) -> None:
        try:
            found = await read_queues(port)
        except Gone as error:
            self._report.refused_starts += 1
            self._report.examples.append(f"the queues could not be read after a recovery: {error}")
            return
        self._findings.add(self._record.compare(found))
        for queue in QUEUES:
            if len(found[queue]) > _PURGE_ABOVE:
                await purge(port, queue)
                self._record.purged(queue)

    # -- the broker's process --------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _life(self, boundary: tuple[What, int] | None = None) -> AsyncIterator[_Subject]:
        news, write_end = os.pipe()
        with contextlib.suppress(OSError):  # more room, so that the broker never waits for the judge
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        options = self._options
        arguments = [str(self._folder), str(write_end), str(options.segment_bytes), options.sync]
        if boundary is not None:
            arguments += [boundary[0].value, str(boundary[1])]
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [*options.command, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                pass_fds=(write_end,),
            )
            os.close(write_end)
            reader = threading.Thread(target=self._news.read, args=(news,), name="verify-news", daemon=True)
            reader.start()
            subject = _Subject(process, reader, errors)
            try:
                yield subject
            finally:
                subject.kill()
                await subject.is_dead()

    # -- the report ------------------------------------------------------------------------------

    def _count(self) -> None:
        report, findings, record = self._report, self._findings, self._record
        report.confirmed, report.transactions, report.acks = record.confirmed, record.committed, record.acked
        report.lost, report.undone_acks = len(findings.lost), len(findings.undone)
        report.order_violations, report.torn_transactions = len(findings.disordered), len(findings.torn)
        report.damaged, report.duplicates = len(findings.damaged), self._watch.duplicates

    def _summarise(self, seconds: float) -> None:
        self._count()
        report, findings = self._report, self._findings
        for label, names in (
            ("lost", findings.lost),
            ("undone ack", findings.undone),
            ("out of order", findings.disordered),
            ("torn transaction", findings.torn),
            ("damaged", findings.damaged),
        ):
            report.examples += [f"{label}: {name}" for name in names[:_EXAMPLES]]
        report.seconds = seconds
        report.fsyncs_per_second = self._working_syncs / max(self._working_seconds, 1e-9)
        report.confirms_per_fsync = report.confirmed / max(self._working_syncs, 1)
        report.batch_bytes = Percentiles.of(self._news.batch_bytes)
        report.confirm_ms = Percentiles.of([value * 1000 for value in self._watch.confirm_seconds])
        report.recovery_ms = Percentiles.of(self._recoveries)


def file_system_of(folder: Path) -> str:
    """Type of the file system, or "unknown"."""
    best, found = "", "unknown"
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
            _, mount, kind, *_ = line.split(" ")
            if folder.is_relative_to(mount) and len(mount) > len(best):
                best, found = mount, kind
    return found

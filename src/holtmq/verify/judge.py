"""The judge: starts a broker, lets clients work, kills it, cuts its power, and checks what it confirmed.

Owns: the rounds, the comparison after each recovery, the report. Must not touch: the broker's internals.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from holtmq.verify.amqp_workload import AmqpWorkload
from holtmq.verify.http_workload import HttpWorkload
from holtmq.verify.intake_workload import IntakeWorkload
from holtmq.verify.kernel_watch import Strace
from holtmq.verify.plan import Boundary, Ending, ending_of, opening_boundary, segment_bytes_of
from holtmq.verify.process import News, Subject, life
from holtmq.verify.record import Findings
from holtmq.verify.report import Percentiles, Report, WorkloadReport
from holtmq.verify.workload import Gone, Workload, in_time

# Chosen anew after each recovery. Purging some queues next to others leaves segments that are mostly dead.
_PURGE_ABOVE: Final = (300, 1_000, 4_000)
_EXAMPLES: Final = 5


@dataclass(frozen=True, slots=True)
class Options:
    """What to verify, and how long."""

    rounds: int = 50
    seed: int = 0
    folder: Path | None = None
    round_seconds: float = 0.5  # mean time until a kill at a random moment
    segment_bytes: int = 256 << 10
    sync: str = "always"
    observe: bool = True  # trace the broker's sync calls from outside, where that works
    stop_at_failure: bool = False
    patience_seconds: float = 600.0  # for all queues to be read after a recovery
    command: tuple[str, ...] = (sys.executable, "-m", "holtmq.verify.subject")


class _Case:
    """One workload and its findings."""

    def __init__(self, workload: Workload, report: WorkloadReport) -> None:
        self.workload = workload
        self.report = report
        self.findings = Findings()

    def count(self) -> None:
        """Update the report."""
        report, findings, record, watch = (
            self.report,
            self.findings,
            self.workload.record,
            self.workload.watch,
        )
        report.confirmed, report.transactions, report.acks = record.confirmed, record.committed, record.acked
        report.lost, report.undone_acks = len(findings.lost), len(findings.undone)
        report.order_violations = len(findings.disordered) + len(watch.disordered)
        report.torn_transactions, report.damaged = len(findings.torn), len(findings.damaged)
        report.duplicates, report.refused = watch.duplicates, len(watch.refusals)

    def examples(self, name: str) -> list[str]:
        """A few examples of each kind of broken promise."""
        findings = self.findings
        kinds = (
            ("lost", findings.lost),
            ("undone ack", findings.undone),
            ("out of order", findings.disordered + self.workload.watch.disordered),
            ("torn transaction", findings.torn),
            ("damaged", findings.damaged),
            ("refused", self.workload.watch.refusals),
        )
        return [f"{kind}: {one} ({name})" for kind, names in kinds for one in names[:_EXAMPLES]]


class Judge:
    """One verification."""

    def __init__(self, options: Options, on_round: Callable[[Report], None] = lambda report: None) -> None:
        self._options = options
        self._on_round = on_round
        self._random = Random(options.seed)
        self._news = News()
        self._recoveries: list[float] = []
        self._strace = Strace.find() if options.observe else Strace(why_not="not asked for")
        self._working_seconds = 0.0
        self._working_syncs = 0
        self._report = Report(seed=options.seed, folder="", file_system="")
        intake = IntakeWorkload()
        # This order: the intake workload ends maintenance before anything else is read.
        self._cases = (
            _Case(intake, self._report.intake),
            _Case(AmqpWorkload(), self._report.amqp),
            _Case(HttpWorkload(), self._report.http),
        )
        self._report.stages = intake.stages

    async def run(self) -> Report:
        """Run all rounds; return the report."""
        began = time.perf_counter()
        # In a folder of its own: the given folder may hold data that must not be damaged.
        parent = self._options.folder or Path()
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="holt-verify-", dir=parent) as folder:
            self._folder = Path(folder).resolve()
            self._report.folder = str(self._folder.parent)
            self._report.file_system = file_system_of(self._folder)
            for number in range(self._options.rounds):
                if not await self._round(number):
                    break
            else:
                await self._last_look()
        self._summarise(time.perf_counter() - began)
        return self._report

    async def _round(self, number: int) -> bool:
        """Recover, compare, work, die, lose data. False when another round makes no sense."""
        random = self._random
        if number and random.random() < 0.15:
            await self._die_while_opening(number)
        async with self._life(number) as subject:
            if not await self._recovered(subject):
                return False
            if number == 0:
                await self._with_patience(self._prepare(subject), "the queues could not be created")
            else:
                await self._compare(subject)
            if self._options.stop_at_failure and not self._is_clean():
                return False
            syncs, began = self._news.image.syncs, time.perf_counter()
            await self._work(subject, ending_of(number, self._options.round_seconds, random))
            self._working_seconds += time.perf_counter() - began
        self._working_syncs += self._news.image.syncs - syncs
        self._aftermath(number)
        self._report.rounds += 1
        self._count()
        self._on_round(self._report)
        return True

    async def _work(self, subject: Subject, ending: Ending) -> None:
        if ending.boundary is not None:
            subject.die_at(ending.boundary)
        left = ending.promises

        def promised() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                subject.kill()

        for case in self._cases:
            case.workload.watch.on_promise = promised
        timer = asyncio.get_running_loop().call_later(ending.seconds, subject.kill)
        try:
            seeds = [Random(self._random.random()) for _ in self._cases]
            await asyncio.gather(
                *[
                    case.workload.work(subject.ports, seed)
                    for case, seed in zip(self._cases, seeds, strict=True)
                ]
            )
        finally:
            timer.cancel()

    def _aftermath(self, number: int) -> None:
        """In turn: only killed; all unsynced data lost; some of it lost at random."""
        if number % 3 == 0:
            self._report.kills += 1
            return
        self._report.power_cuts += 1
        dice = None if number % 3 == 1 else self._random
        self._report.bytes_cut += self._news.image.cut(self._folder, dice)

    async def _die_while_opening(self, number: int) -> None:
        async with self._life(number, opening_boundary(self._random)) as subject:
            if await subject.ready():
                return  # opening made fewer such events than that
        self._report.deaths_in_recovery += 1
        if self._random.random() < 0.5:
            self._report.bytes_cut += self._news.image.cut(self._folder, self._random)

    async def _last_look(self) -> None:
        """Compare after the last kill, and again after a clean shutdown."""
        for _ in range(2):
            async with self._life(0) as subject:
                if not await self._recovered(subject):
                    return
                await self._compare(subject)
                await self._with_patience(self._stop(subject), "the broker did not stop")

    async def _recovered(self, subject: Subject) -> bool:
        if await subject.ready():
            self._recoveries.append(subject.recovery_seconds * 1000)
            return True
        self._report.refused_starts += 1
        self._report.examples.append(f"the broker did not start: {subject.refusal}")
        return False

    async def _compare(self, subject: Subject) -> None:
        await self._with_patience(self._read(subject), "the queues could not be read after a recovery")

    async def _with_patience(self, work: Awaitable[None], failure: str) -> None:
        try:
            async with in_time(self._options.patience_seconds):
                await work
        except (Gone, msgspec.DecodeError) as error:
            self._report.refused_starts += 1
            self._report.examples.append(f"{failure}: {error}")

    async def _prepare(self, subject: Subject) -> None:
        for case in self._cases:
            await case.workload.prepare(subject.ports)

    async def _read(self, subject: Subject) -> None:
        most = self._random.choice(_PURGE_ABOVE)
        for case in self._cases:
            case.findings.add(case.workload.record.compare(await case.workload.read(subject.ports)))
            await case.workload.finish_reading(subject.ports, most)

    async def _stop(self, subject: Subject) -> None:
        subject.terminate()
        await subject.is_dead()

    @contextlib.asynccontextmanager
    async def _life(self, number: int, boundary: Boundary | None = None) -> AsyncIterator[Subject]:
        options = self._options
        segment_bytes = segment_bytes_of(number, options.segment_bytes)
        arguments = [str(self._folder), str(segment_bytes), options.sync]
        strace = self._strace if self._strace.path else None
        async with life(options.command, arguments, self._news, boundary, strace) as subject:
            yield subject

    def _is_clean(self) -> bool:
        self._count()
        return self._report.passed

    def _count(self) -> None:
        self._report.syncs = self._news.syncs
        self._report.unseen_syncs = len(self._news.unseen_syncs)
        self._report.not_observed = self._strace.why_not
        for case in self._cases:
            case.count()

    def _summarise(self, seconds: float) -> None:
        self._count()
        report, news = self._report, self._news
        for case, name in zip(self._cases, ("other ways in", "AMQP", "HTTP"), strict=True):
            report.examples += case.examples(name)
            case.report.confirm_ms = Percentiles.of(
                [value * 1000 for value in case.workload.watch.confirm_seconds]
            )
        unseen = self._news.unseen_syncs
        report.examples += [f"reported as synced, never asked of the kernel: {n}" for n in unseen[:_EXAMPLES]]
        report.seconds = seconds
        report.checkpoints, report.compactions = news.checkpoints, news.compactions
        report.removed_segments = news.removed_segments
        report.fsyncs_per_second = self._working_syncs / max(self._working_seconds, 1e-9)
        report.confirms_per_fsync = report.confirmed / max(self._working_syncs, 1)
        report.batch_bytes = Percentiles.of(news.batch_bytes)
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

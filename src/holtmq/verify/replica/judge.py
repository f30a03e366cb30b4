"""The judge of failover: two nodes, clients of AMQP and HTTP, one fault after the other, an outside record.

Owns: the rounds and the verdict. Must not touch: the nodes' insides. Who owns the log is asked at /ready, as
a load balancer does.
"""

import asyncio
import contextlib
import math
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import uuid4

from holtmq.verify.amqp_workload import AmqpWorkload
from holtmq.verify.http_workload import HttpWorkload
from holtmq.verify.record import Findings
from holtmq.verify.replica.ends import ENDS, End, why_ended
from holtmq.verify.replica.faults import FOR_USERS, LATER, Fault, plan
from holtmq.verify.replica.nodes import Commits, NodeProcess, first_ready, unless_ready
from holtmq.verify.replica.proxy import Proxy, Weather
from holtmq.verify.replica.report import ReplicaReport
from holtmq.verify.workload import Gone, Ports, Workload, in_time

if TYPE_CHECKING:
    from holtmq.journal.replica.store import LogStore

T = TypeVar("T")
_OWNER_SECONDS: Final = 60.0
_HANDOVER_SECONDS: Final = 600.0  # when asked to, an owner serves until the other's copy is complete
_TRIES: Final = 4
_PURGE_ABOVE: Final = (300, 1_000, 4_000)
_FAULTS_OF_A_LIFE: Final = 3  # at most; then the owner is killed, and everything is read at the next one
_CLOCK_SECONDS: Final = 3600.0
_LOOK_SECONDS: Final = 0.2
_DEDUP_SECONDS: Final = 86_400
_SERVE: Final = (sys.executable, "-m", "holtmq", "serve")


@dataclass(frozen=True, slots=True)
class Options:
    """What to verify, and how hard."""

    url: str
    rounds: int = 30
    seed: int = 0
    folder: Path | None = None
    faults: tuple[Fault, ...] = FOR_USERS
    takeover_after: float = 1.0
    segment_bytes: int = 64 << 10
    stop_at_failure: bool = False
    command: Sequence[str] = _SERVE
    most_before: int = 300  # answers before a fault, at most
    far_behind: int = 2_000  # answers while a standby is cut off
    patience_seconds: float = 300.0  # for creating the queues, for reading them after a takeover
    end_seconds: float = 40.0  # how long an owner that was replaced may take to end
    set_clock: Callable[[str, float], None] | None = None  # offset of a node's clock; for Fault.CLOCK
    restart_postgres: Callable[[], None] | None = None
    fail_over_postgres: Callable[[], str] | None = None  # returns the new address
    first: int = 0  # so many faults of the seed are left to other runs
    seconds: float = math.inf  # no owner's life begins after that time


class ReplicaJudge:
    """One verification."""

    def __init__(
        self, options: Options, on_round: Callable[[ReplicaReport], None] = lambda report: None
    ) -> None:
        self._options = options
        self._url = options.url  # of PostgreSQL, as it is now
        self._on_round = on_round
        self._random = Random(options.seed)
        self._workloads: tuple[Workload, ...] = (AmqpWorkload(), HttpWorkload())
        self._findings = Findings()
        self._promises = 0
        self._offsets: dict[str, float] = {}  # of the nodes' clocks
        self._commits = Commits(0, 0)  # of the present owner
        self._restarts: set[asyncio.Task[None]] = set()
        self.log_name = f"verify-{uuid4().hex[:12]}"
        self.report = ReplicaReport(seed=options.seed)
        for workload in self._workloads:
            workload.watch.on_promise = self._promised

    def _promised(self) -> None:
        self._promises += 1

    async def run(self) -> ReplicaReport:
        """All rounds; the report."""
        began = time.perf_counter()
        parent = self._options.folder or Path()
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="holt-verify-", dir=parent) as folder:
            async with self._cluster(Path(folder)):
                try:
                    await self._rounds()
                except Gone as error:  # a node that hung is a finding, too
                    self._fail(str(error))
        self.report.seconds = time.perf_counter() - began
        self.report.fill(self._findings, self._workloads)
        return self.report

    @contextlib.asynccontextmanager
    async def _cluster(self, folder: Path) -> AsyncIterator[None]:
        options = self._options
        self._proxies = [Proxy(options.url), Proxy(options.url)]
        self._nodes: list[NodeProcess] = []
        for number, proxy in enumerate(self._proxies):
            await proxy.start()
            settings = {
                "HOLT_JOURNAL_REPLICA": proxy.url,
                "HOLT_JOURNAL_REPLICA_NAME": self.log_name,
                "HOLT_JOURNAL_TAKEOVER_AFTER": str(options.takeover_after),
                # A commit through the proxy takes longer than polling usually lasts; both ways shall be used.
                "HOLT_JOURNAL_REPLICA_BUSY_POLL": "0.01",
                "HOLT_JOURNAL_SEGMENT_BYTES": str(options.segment_bytes),
                "HOLT_JOURNAL_CHECKPOINT_BYTES": str(4 * options.segment_bytes),
                "HOLT_HTTP_MAX_BATCH": "1000000",
                "HOLT_QUEUE_RETENTION_INTERVAL_MS": "200",
                "HOLT_QUEUE_EVICTION_INTERVAL_MS": "200",
                # Pushes are repeated with their ids, while clocks jump by hours.
                "HOLT_QUEUE_DEDUP_WINDOW_SECONDS": str(_DEDUP_SECONDS),
                "HOLT_LIMITS_MEMORY_HIGH_WATERMARK": "1.0",
                "HOLT_LIMITS_DISK_FREE_MIN_BYTES": "0",
            }
            name = f"node-{number + 1}"
            self._nodes.append(NodeProcess(name, folder / name, options.command, settings))
        try:
            await asyncio.gather(*[node.start() for node in self._nodes])
            yield
        finally:
            for task in self._restarts:
                task.cancel()
            await asyncio.gather(*self._restarts, return_exceptions=True)
            for node in self._nodes:
                node.send(signal.SIGCONT)
                await node.kill()
            for proxy in self._proxies:
                await proxy.stop()

    async def _rounds(self) -> None:
        owner = await self._ready()
        async with in_time(self._options.patience_seconds, "creating the queues"):
            for workload in self._workloads:
                await workload.prepare(owner.ports)
        options, deadline = self._options, time.monotonic() + self._options.seconds
        faults = plan(options.faults, options.first + options.rounds, self._random)[options.first :]
        while self.report.rounds < len(faults) and time.monotonic() < deadline:
            owner = await self._ready()
            if self.report.rounds:
                await self._compare(owner)
            if self._options.stop_at_failure and not self.report.passed:
                return
            await self._life(owner, faults[self.report.rounds :])
        await self._compare(await self._ready())

    async def _life(self, owner: NodeProcess, faults: Sequence[Fault]) -> None:
        """One owner, from fault to fault, until another node is in charge."""
        other = next(node for node in self._nodes if node is not owner)
        proxy = self._proxies[self._nodes.index(owner)]
        await asyncio.gather(*self._restarts)  # a takeover needs a node that can
        self._clients = self._work(owner)
        try:
            for fault in faults[:_FAULTS_OF_A_LIFE]:
                await self._some_promises(self._random.randint(1, self._options.most_before))
                self._commits = await owner.commits() or self._commits
                began = await self._suffer(fault, owner, other, proxy)
                self._note(fault)
                if fault in ENDS or await self._ready() is not owner:
                    break
                if self._clients.done():  # it had sent them away
                    self._clients = self._work(owner)
                await self._some_promises(20)  # it goes on
            else:
                began = time.perf_counter()
                owner.send(signal.SIGKILL)
            await self._ready(other if fault is not Fault.BOTH else None)
            self.report.add_takeover(fault, time.perf_counter() - began)
            await self._end_of(owner, fault)
            await self._judge_end(owner, other, fault)
        finally:
            proxy.change(Weather.FAIR)
            async with asyncio.timeout(_OWNER_SECONDS):
                await self._clients
            for workload in self._workloads:
                workload.record.fenced = False
            self.report.add_commits(self._commits.all, self._commits.polled)
            self._commits = Commits(0, 0)
        self._restart(owner)

    def _note(self, fault: Fault) -> None:
        report = self.report
        report.rounds += 1
        report.last_fault = fault
        report.faults[fault] = report.faults.get(fault, 0) + 1
        self.report.fill(self._findings, self._workloads)
        self._on_round(report)

    def _work(self, node: NodeProcess) -> "asyncio.Future[list[None]]":
        """All clients at this node, until each has lost its connection."""
        seeds = [Random(self._random.random()) for _ in self._workloads]
        return asyncio.gather(
            *[workload.work(node.ports, seed) for workload, seed in zip(self._workloads, seeds, strict=True)]
        )

    async def _some_promises(self, count: int) -> None:
        """Until the clients got so many more answers. A broker that gives none for long is stuck."""
        wanted, last = self._promises + count, self._promises
        deadline = time.monotonic() + _OWNER_SECONDS
        while self._promises < wanted and not self._clients.done():
            if self._promises != last:
                last, deadline = self._promises, time.monotonic() + _OWNER_SECONDS
            if time.monotonic() > deadline:
                self._fail("no answer for a minute, though a node is ready")
                return
            await asyncio.sleep(0.005)

    async def _suffer(self, fault: Fault, owner: NodeProcess, other: NodeProcess, proxy: Proxy) -> float:
        """Inject the fault; return when it happened, or when a takeover became possible."""
        began = time.perf_counter()
        await self._inject(fault, owner, other, proxy)
        return time.perf_counter() if fault in LATER else began

    async def _inject(self, fault: Fault, owner: NodeProcess, other: NodeProcess, proxy: Proxy) -> None:
        random, wait = self._random, self._options.takeover_after
        match fault:
            case Fault.KILL:
                owner.send(signal.SIGKILL)
            case Fault.DISK_LOST:
                await owner.kill()
                owner.lose_disk()
            case Fault.BOTH:
                owner.send(signal.SIGKILL)
                other.send(signal.SIGKILL)
                await asyncio.gather(owner.ended(_OWNER_SECONDS), other.ended(_OWNER_SECONDS))
                await asyncio.gather(owner.start(), other.start())
            case Fault.FREEZE:
                owner.send(signal.SIGSTOP)
                await self._ready(other)
                self._fence()
                owner.send(signal.SIGCONT)
            case Fault.CUT | Fault.NO_ANSWERS | Fault.NO_QUESTIONS:
                proxy.change(Weather[fault.name])
                await self._ready(other)
                self._fence()
                proxy.change(Weather.FAIR)
            case Fault.BLIP:
                proxy.change(Weather.CUT)
                await asyncio.sleep(random.random() * wait / 4)
                proxy.change(Weather.FAIR)
            case Fault.ANSWER_LOST:
                proxy.cut_at_answer()
            case Fault.SLOW:
                proxy.change(Weather.SLOW, random.random() * wait / 10)
                await self._some_promises(5)
                proxy.change(Weather.FAIR)
            case Fault.FAR_BEHIND:
                away = self._proxies[self._nodes.index(other)]
                away.change(Weather.CUT)
                await self._some_promises(self._options.far_behind)
                away.change(Weather.FAIR)
            case Fault.SWITCHOVER:
                await asyncio.to_thread(self._ask, lambda store: store.promote(other.name))
                await self._until(lambda: unless_ready(owner))
            case Fault.CLOCK:
                self._offsets[owner.name] = random.choice((-_CLOCK_SECONDS, _CLOCK_SECONDS))
                self._set_clocks(None)
                await self._some_promises(20)
                self._offsets[other.name] = random.choice((-_CLOCK_SECONDS, 0, _CLOCK_SECONDS))
                self._set_clocks(None)
            case Fault.POSTGRES_KILLED:
                assert self._options.restart_postgres is not None
                await asyncio.to_thread(self._options.restart_postgres)
            case Fault.POSTGRES_FAILOVER:
                assert self._options.fail_over_postgres is not None
                url = await asyncio.to_thread(self._options.fail_over_postgres)
                self._url = url
                for each in self._proxies:
                    each.aim(url)

    def _set_clocks(self, seconds: float | None) -> None:
        """Set all clocks to this offset from the real time, or (None) to where their faults have put them."""
        if self._options.set_clock is not None:
            for node in self._nodes:
                offset = self._offsets.get(node.name, 0.0) if seconds is None else seconds
                self._options.set_clock(node.name, offset)

    def _fence(self) -> None:
        """Another node is ready: what is sent to the old owner from now on must never be confirmed."""
        for workload in self._workloads:
            workload.record.fenced = True

    def _ask(self, question: "Callable[[LogStore], T]") -> T:
        """Ask PostgreSQL, past the proxies."""
        from holtmq.journal.replica.session import Session
        from holtmq.journal.replica.store import LogStore

        store = LogStore(Session(self._url, 10.0, "verify"), self.log_name)
        try:
            store.open(create=False)
            return question(store)
        finally:
            store.session.close()

    async def _end_of(self, owner: NodeProcess, fault: Fault) -> None:
        """The old owner notices that it was replaced, and ends by itself."""
        if fault is Fault.BOTH:
            return
        deadline = time.monotonic() + self._options.end_seconds
        while not await owner.ended(_LOOK_SECONDS):
            confirms = any(workload.record.confirmed_behind_fence for workload in self._workloads)
            if confirms or time.monotonic() > deadline:
                self._fail(f"the old owner lived on after: {fault}")
                await owner.kill()
                return

    async def _judge_end(self, owner: NodeProcess, other: NodeProcess, fault: Fault) -> None:
        """Why the old owner is gone. One that gives up although it still owns the log breaks a promise."""
        if fault is Fault.BOTH:
            return
        owners = await asyncio.to_thread(self._ask, lambda store: store.owners())
        end = why_ended(fault, owner.was_killed, owner.ended_at, owner.knows_successor, owners, other.name)
        self.report.add_end(fault, end, is_expected=end is ENDS.get(fault, End.KILLED))
        if end is End.NEEDLESS:
            said = [line for line in owner.log if '"critical"' in line or '"error"' in line][-1:]
            self.report.examples.append(f"the owner ended without need after: {fault} {' '.join(said)}")

    def _restart(self, node: NodeProcess) -> None:
        if not node.is_alive:
            task = asyncio.create_task(node.start(), name=f"restart of {node.name}")
            self._restarts.add(task)
            task.add_done_callback(self._restarts.discard)

    async def _ready(self, wanted: NodeProcess | None = None) -> NodeProcess:
        """Wait until this node, or any, is ready."""
        return await self._until(lambda: first_ready(self._nodes if wanted is None else [wanted]))

    async def _until(self, look: Callable[[], Awaitable[NodeProcess | None]]) -> NodeProcess:
        """Wait until this finds a node. While clients get answers, no node hangs."""
        began = answered_at = time.monotonic()
        promises = self._promises
        while (now := time.monotonic()) < min(answered_at + _OWNER_SECONDS, began + _HANDOVER_SECONDS):
            if promises != self._promises:
                promises, answered_at = self._promises, now
            node = await look()
            if node is not None:
                return node
            await asyncio.sleep(0.02)
        logs = "\n".join(f"{node.name}: {line}" for node in self._nodes for line in list(node.log)[-12:])
        raise Gone(f"no node was ready after {_OWNER_SECONDS:.0f} s\n{logs}")

    async def _compare(self, owner: NodeProcess) -> None:
        most = self._random.choice(_PURGE_ABOVE)
        for workload in self._workloads:
            # What a fast clock has delayed is due in an hour: the reading's clock is ahead of every other.
            self._set_clocks(2 * _CLOCK_SECONDS)
            try:
                async with in_time(self._options.patience_seconds):
                    found = await self._read(workload, owner)
            except Gone as error:  # for instance: a queue or an exchange that was confirmed is gone
                self._fail(f"what was confirmed could not be read: {error}")
                continue
            finally:
                self._set_clocks(None)
            self._findings.add(workload.record.compare(found))
            async with in_time(self._options.patience_seconds, "a purge"):
                await self._again(lambda ports, workload=workload: workload.finish_reading(ports, most))  # type: ignore[misc]
        self.report.fill(self._findings, self._workloads)

    async def _read(self, workload: Workload, owner: NodeProcess) -> dict[str, list[bytes]]:
        """Everything that waits. On a busy machine a node may send its reader away for a moment."""
        for _ in range(_TRIES - 1):
            try:
                return await workload.read(owner.ports)
            except Gone:
                # What was leased for reading goes back first.
                await self._again(lambda ports: workload.finish_reading(ports, sys.maxsize))
                owner = await self._ready()
        return await workload.read(owner.ports)

    async def _again(self, step: Callable[[Ports], Awaitable[None]]) -> None:
        """Do this at whichever node is ready, and once more if that node sends us away."""
        for _ in range(_TRIES - 1):
            try:
                await step((await self._ready()).ports)
                return
            except Gone:
                continue
        await step((await self._ready()).ports)

    def _fail(self, text: str) -> None:
        self.report.troubles += 1
        self.report.examples.append(text)

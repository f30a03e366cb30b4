"""Many simulated histories, on as many processes as there are cores, and what they add up to.

Owns: the seeds' way to the processes, the sums, the report. Must not touch: what a history is.
"""

import logging
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from simulation.promises import BrokenPromise
from simulation.schedule import History, simulate

_PORTION: Final = 20  # histories of one task: a few seconds
_FINDINGS_MAX: Final = 20  # so many broken promises are enough to stop
_SAY_EVERY: Final = 60.0


@dataclass(slots=True)
class Total:
    """Sums over histories."""

    histories: int = 0
    steps: int = 0
    crashes: int = 0
    power_cuts: int = 0
    checkpoints: int = 0
    compactions: int = 0
    deletions: int = 0
    confirmed: int = 0
    read_back: int = 0
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def take(self, history: History) -> None:
        """One more."""
        self.histories += 1
        self.steps += history.steps
        self.crashes += history.crashes
        self.power_cuts += history.power_cuts
        self.checkpoints += history.checkpoints
        self.compactions += history.compactions
        self.deletions += history.deletions
        self.confirmed += history.confirmed
        self.read_back += history.read_back

    def add(self, other: "Total") -> None:
        """Those of another process."""
        self.histories += other.histories
        self.steps += other.steps
        self.crashes += other.crashes
        self.power_cuts += other.power_cuts
        self.checkpoints += other.checkpoints
        self.compactions += other.compactions
        self.deletions += other.deletions
        self.confirmed += other.confirmed
        self.read_back += other.read_back
        self.findings += other.findings

    def report(self, first: int) -> str:
        """A table for people, and for ``docs/reliability.md``; every finding below it."""
        per_second = self.histories / max(self.seconds, 0.001)
        rows = {
            "schedules (seeds)": f"{self.histories:,} ({first} to {first + self.histories - 1})",
            "steps": f"{self.steps:,}",
            "crashes": f"{self.crashes:,}",
            "of these power cuts": f"{self.power_cuts:,}",
            "checkpoints": f"{self.checkpoints:,}",
            "segments compacted": f"{self.compactions:,}",
            "segments deleted": f"{self.deletions:,}",
            "answers that promised something": f"{self.confirmed:,}",
            "messages read back and compared": f"{self.read_back:,}",
            "broken promises": f"{len(self.findings):,}",
            "time": f"{self.seconds:,.0f} s ({per_second:.1f} schedules a second)",
        }
        table = ["| simulation | |", "|---|---:|", *(f"| {name} | {value} |" for name, value in rows.items())]
        return "\n".join([*table, *self.findings])


def soak(
    seeds: Iterator[int], steps: int, minutes: float | None, workers: int, say: Callable[[str], object]
) -> Total:
    """Run the histories of ``seeds`` until they or the minutes are used up, or too much was found."""
    began = said = time.monotonic()
    total = Total()
    ends = None if minutes is None else began + 60 * minutes
    # Spawned, not forked: a history must not depend on what this process has done before.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        running: set[Future[Total]] = set()
        while True:
            now = time.monotonic()
            may_start = (ends is None or now < ends) and len(total.findings) < _FINDINGS_MAX
            while may_start and len(running) < 2 * workers:
                portion = list(islice(seeds, _PORTION))
                if not portion:
                    break
                running.add(pool.submit(run_portion, portion, steps, ends))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                portion_total = future.result()
                total.add(portion_total)
                for finding in portion_total.findings:
                    say(finding)  # at once: a long run may be ended before its report
            if now - said >= _SAY_EVERY:
                said = now
                say(f"{total.histories:,} schedules, {len(total.findings)} broken promises so far")
    total.seconds = time.monotonic() - began
    return total


def run_portion(seeds: list[int], steps: int, ends: float | None) -> Total:
    """In a process of the pool. The clock is the machine's, the same for all of them."""
    logging.disable(logging.CRITICAL)  # the journal reports every fault that was asked for
    total = Total()
    for seed in seeds:
        if ends is not None and time.monotonic() >= ends:
            break
        try:
            total.take(simulate(seed, steps))
        except BrokenPromise as broken:
            total.histories += 1
            total.findings.append(str(broken))
    return total

"""The same workload on one or two brokers, in alternating rounds, and the summary of the rounds.

Owns: the order of rounds and how they become one figure. Must not touch: the printing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Protocol, TypeVar

from holtmq.load.errors import LoadError
from holtmq.load.http_stage import HttpTarget
from holtmq.load.http_workloads import HttpWorkload
from holtmq.load.link import Address, Link
from holtmq.load.measuring import Percentiles, Round
from holtmq.load.processes import listener_pid
from holtmq.load.rounds import run_round
from holtmq.load.workloads import Workload


@dataclass(frozen=True, slots=True)
class Target:
    """A broker under load."""

    label: str
    address: Address
    pid: int | None

    @classmethod
    def at(cls, url: str, pid: int | None = None, tls_ca: str = "") -> Target:
        """Connect once, to check that the broker is up and to learn its name."""
        address = Address.parse(url, tls_ca)
        link = Link(address)
        label = link.product or str(address)
        link.close()
        return cls(label, address, pid if pid is not None else listener_pid(address))


class Labelled(Protocol):
    @property
    def label(self) -> str: ...


L = TypeVar("L", bound=Labelled)
T = TypeVar("T", Target, HttpTarget)
W = TypeVar("W", Workload, HttpWorkload)


@dataclass(frozen=True, slots=True)
class Figures:
    """One broker on one workload: the median of its rounds."""

    label: str
    rounds: int
    rate: float
    lowest_rate: float
    highest_rate: float
    load_cpu_share: float
    cpu_us_per_message: float | None
    resident_mb: float | None
    latency_us: Percentiles | None
    confirm_us: Percentiles | None
    publish_rate: float | None
    request_rate: float | None = None

    @classmethod
    def of(cls, label: str, rounds: Sequence[Round]) -> Figures:
        rates = [one.rate for one in rounds]
        return cls(
            label,
            len(rounds),
            median(rates),
            min(rates),
            max(rates),
            median(one.load_cpu_share for one in rounds),
            _median([one.cpu_us_per_message for one in rounds]),
            _median([one.resident_mb for one in rounds]),
            _percentiles([one.latency_us for one in rounds]),
            _percentiles([one.confirm_us for one in rounds]),
            _median([one.publish_rate for one in rounds]),
            _median([one.request_rate for one in rounds]),
        )


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One workload on every target. ``failures`` lists rounds that could not be measured, with the reason."""

    workload: str
    about: str
    figures: list[Figures]
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def speed_ratio(self) -> float | None:
        """The first broker's rate divided by the second's."""
        if len(self.figures) != 2:
            return None
        return self.figures[0].rate / self.figures[1].rate

    @property
    def cpu_ratio(self) -> float | None:
        """The first broker's CPU time per message divided by the second's."""
        if len(self.figures) != 2:
            return None
        ours, theirs = (one.cpu_us_per_message for one in self.figures)
        return ours / theirs if ours is not None and theirs else None


def compare(
    targets: Sequence[Target],
    workload: Workload,
    *,
    rounds: int,
    seconds: float,
    warm_up: float,
    on_round: Callable[[Target, Workload], None] = lambda target, workload: None,
) -> ComparedRun:
    """Run the workload on each target in alternation, ``rounds`` times.

    Alternating, because a machine's speed drifts: a minute for one and then a minute for the other would
    measure the machine.
    """
    return take_turns(
        targets,
        workload,
        rounds,
        on_round,
        lambda target: run_round(target.address, workload, seconds, warm_up, target.pid),
    )


def take_turns(
    targets: Sequence[L],
    workload: W,
    rounds: int,
    on_round: Callable[[L, W], None],
    run: Callable[[L], Round],
) -> ComparedRun:
    """Run one round on each target, then the next on each; a round that fails is recorded."""
    seen: dict[str, list[Round]] = {target.label: [] for target in targets}
    failures = []
    for _ in range(rounds):
        for target in targets:
            on_round(target, workload)
            try:
                seen[target.label].append(run(target))
            except LoadError as error:
                failures.append(f"{target.label}: {error}")
    figures = [Figures.of(label, of) for label, of in seen.items() if of]
    return ComparedRun(workload.name, workload.about, figures, seen, failures)


def distinct(targets: Sequence[T]) -> list[T]:
    """Give the targets distinct labels: two brokers of one product are told apart by address."""
    labels = [target.label for target in targets]
    return [
        replace(target, label=f"{target.label} at {target.address}")
        if labels.count(target.label) > 1
        else target
        for target in targets
    ]


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _percentiles(of: Sequence[Percentiles | None]) -> Percentiles | None:
    known = [one for one in of if one is not None]
    if not known:
        return None
    return Percentiles(
        median(one.p50 for one in known),
        median(one.p99 for one in known),
        median(one.p999 for one in known),
        sum(one.samples for one in known),
    )

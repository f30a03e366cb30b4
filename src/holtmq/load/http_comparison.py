"""The same work on one or several brokers, in turn.

Owns: the order of rounds. Must not touch: how several rounds become one figure, and the printing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from holtmq.load.comparison import Figures, Outcome
from holtmq.load.http_rounds import Contender, run_http_round
from holtmq.load.http_stage import HttpTarget
from holtmq.load.http_workloads import HttpWorkload
from holtmq.load.link import LoadError
from holtmq.load.rounds import Round


def compare_http(
    contenders: Sequence[Contender],
    workload: HttpWorkload,
    *,
    rounds: int,
    seconds: float,
    warm_up: float,
    on_round: Callable[[Contender, HttpWorkload], None] = lambda contender, workload: None,
) -> Outcome:
    """Run the workload on each contender that has a counterpart of it, in turn, ``rounds`` times over."""
    able = [contender for contender in contenders if contender.runs(workload)]
    seen: dict[str, list[Round]] = {contender.label: [] for contender in able}
    failures = []
    for _ in range(rounds):
        for contender in able:
            on_round(contender, workload)
            try:
                seen[contender.label].append(run_http_round(contender, workload, seconds, warm_up))
            except LoadError as error:
                failures.append(f"{contender.label}: {error}")
    figures = [Figures.of(label, of) for label, of in seen.items() if of]
    return Outcome(workload.name, workload.about, figures, seen, failures)


def distinct_http(targets: Sequence[HttpTarget]) -> list[HttpTarget]:
    """The targets with labels that differ: two brokers of one product are told apart by address."""
    labels = [target.label for target in targets]
    return [
        replace(target, label=f"{target.label} at {target.address}")
        if labels.count(target.label) > 1
        else target
        for target in targets
    ]

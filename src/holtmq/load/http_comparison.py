"""The same workload on one or more brokers with the HTTP interface or an equivalent, in alternating rounds.

Owns: which brokers take part. Must not touch: the order of rounds, how they become one figure, printing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holtmq.load.comparison import ComparedRun, take_turns
from holtmq.load.http_rounds import Contender, run_http_round
from holtmq.load.http_workloads import HttpWorkload


def compare_http(
    contenders: Sequence[Contender],
    workload: HttpWorkload,
    *,
    rounds: int,
    seconds: float,
    warm_up: float,
    on_round: Callable[[Contender, HttpWorkload], None] = lambda contender, workload: None,
) -> ComparedRun:
    """Run the workload on each contender that has an equivalent, in alternation, ``rounds`` times."""
    able = [contender for contender in contenders if contender.runs(workload)]
    return take_turns(
        able,
        workload,
        rounds,
        on_round,
        lambda contender: run_http_round(contender, workload, seconds, warm_up),
    )

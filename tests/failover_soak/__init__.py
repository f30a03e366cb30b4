"""The long form of the failover check: its own PostgreSQL is killed and fails over, and clocks jump.

Owns: what the long form and the test of the same name share. Must not touch: the verdict, which is that of
``holtmq.verify.replica``.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from failover_soak.odd_node import set_clock
from holtmq.verify.replica.faults import Fault
from holtmq.verify.replica.judge import Options
from postgres import Pair

TAKEOVER_AFTER = 1.0
_ODD_NODE = str(Path(__file__).with_name("odd_node.py"))


def odd(oddity: str, *arguments: str) -> tuple[str, ...]:
    """The command of a node that breaks a promise on purpose, or whose clock jumps."""
    return sys.executable, _ODD_NODE, oddity, *arguments, "serve"


def every_fault(pair: Pair, folder: Path, faults: int, seed: int) -> Options:
    """All kinds of faults, on these two servers."""
    return Options(
        pair.url,
        rounds=faults,
        seed=seed,
        folder=folder,
        faults=tuple(Fault),
        takeover_after=TAKEOVER_AFTER,
        command=odd("jumping_clock", str(folder)),
        set_clock=partial(set_clock, folder),
        restart_postgres=pair.restart,
        fail_over_postgres=pair.fail_over,
    )

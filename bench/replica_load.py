"""Publish durable messages with confirms, until so many are confirmed or the broker is gone.

Owns: one publisher in a process of its own. Must not touch: figures.
Run as ``python -m bench.replica_load URL COUNT``.
"""

from __future__ import annotations

import sys

from holtmq.load.engine import Engine
from holtmq.load.errors import LoadError
from holtmq.load.link import Address
from holtmq.load.stage import Stage
from holtmq.load.workloads import Mode, Workload


def main(url: str, count: int) -> int:
    """Exit status 0 in either case: a broker that was killed is what is measured."""
    workload = Workload("fill", "", Mode.PUBLISH, body_bytes=16, durable=True, window=5000)
    try:
        stage = Stage.build(Address.parse(url), workload)
        engine = Engine(stage.publishers(), [], 0)
        engine.limit = count
        engine.run(lambda: engine.confirmed >= count)
    except (LoadError, OSError):
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))

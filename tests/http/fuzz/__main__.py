"""The long form: ``python tests/http/fuzz --minutes 10 [--first SEED]``."""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_run import config, run

from holtmq.testing import TestBroker


def main() -> None:
    """Until the time is up; stops at the first finding, with its seed."""
    parser = argparse.ArgumentParser(description="Random requests to every HTTP route")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--first", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.minutes * 60
    counts: Counter[int] = Counter()
    seed = arguments.first
    while time.monotonic() < deadline:
        with TestBroker(config=config()) as broker:
            counts.update(run(broker, range(seed, seed + 2000)))
        seed += 2000
    print(f"{counts.total()} requests, seeds {arguments.first} to {seed - 1}: {dict(sorted(counts.items()))}")


if __name__ == "__main__":
    main()

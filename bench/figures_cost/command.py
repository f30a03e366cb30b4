"""What counting costs: processor instructions a message with the broker's figures and without them.

Owns: running both under valgrind, and the table. Must not touch: what is counted and replayed. The number of
instructions does not depend on what else the machine does: CPU time did, by more than the goal. It says
nothing about caches and branches; the figures touch little memory.

    python -m bench.figures_cost [--messages 1000] [--only TEXT]
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import msgspec
from bench.figures_cost.replay import Child
from rich.console import Console
from rich.table import Table

GOAL: Final = 0.02
_MISSING: Final = "valgrind is not installed; on Debian: apt-get install valgrind"
_COUNT: Final = re.compile(r"I\s+refs:\s+([\d,]+)")


@dataclass(frozen=True, slots=True)
class Counted:
    """What a message of one stream takes."""

    instructions: float  # a message
    digests: tuple[int, ...]  # of what clients received


def count(sizes: tuple[int, int], only: str, *, with_figures: bool) -> dict[str, Counted]:
    """Instructions a message of each stream; the start of the process is in neither of both sizes."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise SystemExit(_MISSING)
    replay = [sys.executable, "-m", "bench.figures_cost.replay", *map(str, sizes)]
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory(prefix="holt-bench-") as folder, ExitStack() as stack:
        kept: list[str] = []
        if not with_figures:
            kept = [stack.enter_context(tempfile.TemporaryDirectory(prefix="holt-bench-"))]
            subprocess.run([*replay, "no stream: compile", *kept], env=env, check=True)
        tool = ("--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
        done = subprocess.run(
            [valgrind, *tool, f"--log-file={folder}/%p", *replay, only, *kept],
            env=env,
            stdout=subprocess.PIPE,
            check=True,
        )
        children = [msgspec.json.decode(line, type=Child) for line in done.stdout.splitlines()]
        for child in children:
            if child.counted != (child.messages if with_figures else 0):
                raise SystemExit(f"the figures of '{child.stream}' say {child.counted} messages")
        found: dict[str, Counted] = {}
        for small, large in zip(children[::2], children[1::2], strict=True):
            more = _instructions(folder, large.pid) - _instructions(folder, small.pid)
            found[small.stream] = Counted(more / (sizes[1] - sizes[0]), (small.digest, large.digest))
    return found


def _instructions(folder: str, pid: int) -> int:
    text = Path(folder, str(pid)).read_text()
    found = _COUNT.search(text)
    if found is None:
        raise SystemExit(f"valgrind has counted nothing: {text[-500:]}")
    return int(found[1].replace(",", ""))


@click.command()
@click.option(
    "--messages", default=1_000, show_default=True, help="Of the smaller size; the larger has three times."
)
@click.option("--only", default="", help="Streams whose name contains this.")
def main(messages: int, only: str) -> None:
    """Print instructions a message with and without the figures, and what the figures add."""
    sizes = messages, 3 * messages
    ours, bare = (count(sizes, only, with_figures=which) for which in (True, False))
    table = Table("stream", "with, instructions a message", "without", "cost")
    missed = False
    for name, one in ours.items():
        other = bare[name]
        if one.digests != other.digests:
            raise SystemExit(f"'{name}': the clients got something else without the figures")
        cost = one.instructions / other.instructions - 1
        missed = missed or cost > GOAL
        mark = " !" if cost > GOAL else ""
        table.add_row(name, f"{one.instructions:,.0f}", f"{other.instructions:,.0f}", f"{cost:.2%}{mark}")
    Console(width=120).print(table)
    raise SystemExit(int(missed))

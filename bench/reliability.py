"""``make reliability``: everything we claim about reliability, tried anew, as one table.

Owns: the choice of what runs, and the rows. Must not touch: how anything is tried; each part is a command of
its own, which prints more. A part that did not run, or did not come to its end, is a row that says so.

    python -m bench.reliability [--scale 1.0] [--part NAME]... [--folder DIR]
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from bench import stalls

_ROOT: Final = Path(__file__).parents[1]
_ROW: Final = re.compile(r"^\| (?P<name>[^|]+) \| (?P<value>[^|]+) \|$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what was tried, how often, and how it ended."""

    what: str
    tried: str
    ended: str
    good: bool = True


NOT_MEASURED: Final = "not measured"


def simulation(scale: float, _: Path) -> list[Row]:
    """Ten minutes."""
    found = _output(["-m", "simulation", "--first", str(int(time.time())), "--minutes", f"{10 * scale:g}"])
    rows = {match["name"]: match["value"] for match in _ROW.finditer(found)}
    broken = rows["broken promises"]
    schedules = rows["schedules (seeds)"].partition(" ")[0]
    return [
        Row("simulated schedules, with compaction", schedules, f"{broken} broken promises", broken == "0"),
        Row(
            "simulated crashes, with power cuts", rows["crashes"], f"{rows['of these power cuts']} power cuts"
        ),
        Row(
            "segments compacted and deleted under them",
            rows["segments compacted"],
            f"{rows['segments deleted']} deleted; {rows['messages read back and compared']} reads back",
        ),
    ]


def verify(scale: float, folder: Path) -> list[Row]:
    """A hundred rounds on the disk of the folder."""
    rounds = max(1, int(100 * scale))
    found = json.loads(
        _output(["-m", "holtmq", "verify", "--json", "--rounds", str(rounds), "--folder", str(folder)])
    )
    doors = [found[door] for door in ("amqp", "http", "intake")]
    kinds = ("lost", "undone_acks", "torn_transactions", "damaged", "order_violations")
    broken = sum(door[kind] for door in doors for kind in kinds)
    confirmed = sum(door["confirmed"] for door in doors)
    seen = found["not_observed"] or f"{found['syncs'] - found['unseen_syncs']:,} of {found['syncs']:,} seen"
    return [
        Row(
            f"kills and power cuts of a real process ({found['file_system']})",
            f"{found['kills']} + {found['power_cuts']}",
            f"{broken} of {confirmed:,} promises broken; syncs: {seen}",
            not broken and not found["unseen_syncs"],
        )
    ]


def damage(scale: float, _: Path) -> list[Row]:
    """Two hundred."""
    found = _output(["-m", "damage", "--cases", str(max(1, int(200 * scale)))], may_fail=True)
    cells = next(line for line in found.splitlines() if line.startswith("| all |")).strip("| ").split(" | ")
    tried, whole, said, refused, silent, wedged = cells[1:]
    ended = f"{whole} whole, {said} said so, {refused} refused, {silent} silent, {wedged} wedged"
    return [Row("damages to a data folder", tried, ended, silent == wedged == "0")]


def fuzz(scale: float, _: Path) -> list[Row]:
    """Five minutes of random requests to every route."""
    found = _output([str(_ROOT / "tests/http/fuzz"), "--minutes", f"{5 * scale:g}"])
    counted = re.search(r"^(\d+) requests, .*: (\{.*\})$", found, re.MULTILINE)
    assert counted is not None, found
    errors = ast.literal_eval(counted[2]).get(500, 0)
    return [Row("random HTTP requests", f"{int(counted[1]):,}", f"{errors} answered with 500", not errors)]


def worst_stalls(scale: float, _: Path) -> list[Row]:
    """All requests of ``bench.stalls``."""
    rows = []
    for name in stalls.REQUESTS:
        count, worst, _all = stalls.measure(name, scale)
        rows.append(Row(f"stall: {name}", f"{count:,}", f"{worst:.0f} ms of CPU", worst <= stalls.GOAL_MS))
    return rows


def memory(scale: float, _: Path) -> list[Row]:
    """A queue of a million messages."""
    count = max(10_000, int(1_000_000 * scale))
    found = _output(["-m", "bench.deep_queue", "--messages", str(count)], may_fail=True)
    peak = re.search(r"^peak RSS of all +([\d,]+) MB, (\w+)", found, re.MULTILINE)
    assert peak is not None, found
    return [Row("messages in one queue: memory", f"{count:,}", f"peak RSS {peak[1]} MB", peak[2] == "under")]


PARTS: Final[dict[str, tuple[str, Callable[[float, Path], list[Row]]]]] = {
    "simulation": ("simulated schedules", simulation),
    "verify": ("kills and power cuts of a real process", verify),
    "damage": ("damages to a data folder", damage),
    "fuzz": ("random HTTP requests", fuzz),
    "stalls": ("worst stall of the event loop", worst_stalls),
    "memory": ("memory", memory),
}


def _output(arguments: list[str], *, may_fail: bool = False) -> str:
    paths = [str(_ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode > may_fail:
        raise RuntimeError(
            f"{' '.join(arguments)} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
        )
    return done.stdout


@click.command()
@click.option("--scale", default=1.0, show_default=True, help="How much of each: 0.1 is a tenth.")
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)), help="Only this one.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path(), help="On the disk to verify.")
def main(scale: float, parts: tuple[str, ...], folder: Path) -> None:
    """Try everything and print one table; the status is 1 if a row is not good."""
    rows: list[Row] = []
    for name, (what, run) in PARTS.items():
        if parts and name not in parts:
            rows.append(Row(what, "", NOT_MEASURED))
            continue
        click.echo(f"{name} …", err=True)
        try:
            rows += run(scale, folder.resolve())
        except Exception as error:  # one part that breaks must not cost the others
            click.echo(f"{name}: {error!r}", err=True)
            rows.append(Row(what, "", f"{NOT_MEASURED}: {error!r}"[:200], good=False))
    click.echo("| | tried | how it ended | good |\n|---|---:|---|---|")
    for row in rows:
        good = "" if row.ended == NOT_MEASURED else "yes" if row.good else "**no**"
        click.echo(f"| {row.what} | {row.tried} | {row.ended} | {good} |")
    sys.exit(any(not row.good for row in rows))


if __name__ == "__main__":
    main()

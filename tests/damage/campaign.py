"""Damage done to a data folder on purpose, and how each case ends.

Owns: the kinds of damage, the verdict on what clients then got, and the table. Must not touch: the broker. It
is a process that runs on the damaged folder, and clients drain it.

Three ends are good. WHOLE: everything that was confirmed is there, byte for byte. SAID: something is missing,
and the node says so (``/health`` and the list of damaged messages, or a repair before it). REFUSED: the node
does not start and names the place; then ``holt journal check`` gives the same verdict, ``repair`` makes it
start, and what is missing then was said before. SILENT (missing or changed without a word) and WEDGED (a
traceback, an error or no answer for a client) are faults.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from random import Random
from typing import Final

from click.testing import CliRunner

from holtmq.cli import main

from .folder import ROUNDS, BrokerHere, BrokerProcess, DidNotStart, Found, Promise, fill, read_back

_PAGE: Final = 4096
_REPAIR_SECONDS: Final = 120


class End(Enum):
    """How a case ended."""

    WHOLE = "whole"
    SAID = "said so"
    REFUSED = "refused"
    SILENT = "silent"
    WEDGED = "wedged"


@dataclass(slots=True)
class Case:
    """One damage and its end."""

    seed: int
    kind: str
    what: str = ""
    end: End = End.WHOLE
    repaired: str = ""  # after a refusal: how it is after the repair
    notes: list[str] = field(default_factory=list)
    in_process: bool = False

    def __str__(self) -> str:
        notes = "".join(f"\n    {note}" for note in self.notes)
        return f"{self.seed}: {self.kind} ({self.what}): {self.end.value} {self.repaired}{notes}"


def flip_bit(folder: Path, random: Random) -> str:
    return _change(folder, random, 1, lambda old: bytes([old[0] ^ 1 << random.randrange(8)]))


def change_bytes(folder: Path, random: Random) -> str:
    return _change(folder, random, random.randrange(2, 200), lambda old: random.randbytes(len(old)))


def zero_page(folder: Path, random: Random) -> str:
    file = _used_file(folder, random)
    page = random.randrange(max(_used(file) // _PAGE, 1))
    data = bytearray(file.read_bytes())
    piece = data[page * _PAGE : (page + 1) * _PAGE]
    data[page * _PAGE : (page + 1) * _PAGE] = bytes(len(piece))
    file.write_bytes(data)
    return f"{file.name} page {page}"


def truncate(folder: Path, random: Random) -> str:
    file = _used_file(folder, random)
    size = random.randrange(_used(file))
    with file.open("r+b") as opened:
        opened.truncate(size)
    return f"{file.name} to {size}"


def delete(folder: Path, random: Random) -> str:
    file = _any_file(folder, random)
    file.unlink()
    return file.name


def swap(folder: Path, random: Random) -> str:
    suffix = random.choice((".seg", ".ckpt"))
    one, other = random.sample(sorted(folder.glob(f"*{suffix}")), 2)
    one_data, other_data = one.read_bytes(), other.read_bytes()
    one.write_bytes(other_data)
    other.write_bytes(one_data)
    return f"{one.name} and {other.name}"


def old_checkpoint(folder: Path, random: Random) -> str:
    """As after a restore of some files from an older copy."""
    older, newest = sorted(folder.glob("*.ckpt"))
    match random.randrange(3):
        case 0:
            newest.write_bytes(older.read_bytes())
            return "the older one under the newest one's name"
        case 1:
            newest.unlink()
            return "only the older one is left"
        case _:
            older.unlink()
            hurt = bytearray(newest.read_bytes())
            hurt[random.randrange(len(hurt))] ^= 4
            newest.write_bytes(hurt)
            return "the older one is gone, the newest is damaged"


KINDS: Final[dict[str, Callable[[Path, Random], str]]] = {
    "bit": flip_bit,
    "bytes": change_bytes,
    "zeroed page": zero_page,
    "truncation": truncate,
    "deleted file": delete,
    "swapped files": swap,
    "old checkpoint": old_checkpoint,
}
_WEIGHTS: Final = {"bit": 4, "bytes": 2, "zeroed page": 2, "truncation": 2}


def _change(folder: Path, random: Random, size: int, change: Callable[[bytes], bytes]) -> str:
    file = _used_file(folder, random)
    data = bytearray(file.read_bytes())
    at = random.randrange(_used(file))
    data[at : at + size] = change(bytes(data[at : at + size]))
    file.write_bytes(data)
    return f"{file.name} offset {at}, {size} bytes"


def _any_file(folder: Path, random: Random) -> Path:
    return random.choice(sorted(path for path in folder.iterdir() if path.name != "lock"))


def _used_file(folder: Path, random: Random) -> Path:
    """Segments most of the time: that is where most bytes are."""
    files = sorted(folder.glob("*.seg")) if random.random() < 0.7 else [_any_file(folder, random)]
    return random.choice(files)


def _used(file: Path) -> int:
    """Up to the last byte that was written: what lies behind it in a preallocated segment means nothing."""
    return max(len(file.read_bytes().rstrip(b"\0")), 1)


@dataclass(frozen=True, slots=True)
class Bases:
    """Undamaged folders, and what was promised of each."""

    folders: list[tuple[Path, Promise]]

    @classmethod
    def written(cls, scratch: Path, rounds: int = ROUNDS) -> Bases:
        """One whose broker was killed, one whose broker was stopped."""
        made = []
        for name, kill in (("killed", True), ("stopped", False)):
            folder = scratch / name
            folder.mkdir()
            made.append((folder, fill(folder, kill=kill, rounds=rounds)))
        return cls(made)


def run_case(
    seed: int, bases: Bases, scratch: Path, kind: str | None = None, *, in_process: bool = False
) -> Case:
    """Damage a copy, start a broker on it (``holt serve``, or ``in_process``), drain it, judge."""
    random = Random(seed)
    names = [name for name in KINDS for _ in range(_WEIGHTS.get(name, 1))]
    case = Case(seed, kind or random.choice(names), in_process=in_process)
    source, promise = bases.folders[random.randrange(len(bases.folders))]
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        case.what = f"{source.name}: {KINDS[case.kind](folder, random)}"
        _judge_start(case, folder, promise)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return case


def _judge_start(case: Case, folder: Path, promise: Promise) -> None:
    try:
        case.end = _drain(case, folder, promise)
    except DidNotStart as exc:
        text = str(exc)
        if "Traceback" in text or "cannot start" not in text:
            case.end = End.WEDGED
            case.notes.append(text[-2000:])
            return
        case.end = End.REFUSED
        _judge_repair(case, folder, promise)


def _judge_repair(case: Case, folder: Path, promise: Promise) -> None:
    checked = _holt(case, "check", folder)
    if checked.returncode != 1 or "does not start" not in checked.stdout:
        case.end = End.WEDGED
        case.notes.append(f"the check does not agree: {checked.stdout[-800:]}{checked.stderr[-800:]}")
        return
    repaired = _holt(case, "repair", folder, "--yes")
    if repaired.returncode != 0:
        if "from a backup" in repaired.stderr:
            case.repaired = "cannot be repaired"
        else:
            case.end = End.WEDGED
            case.notes.append(f"repair: {repaired.stdout[-800:]}{repaired.stderr[-1500:]}")
        return
    try:
        end = _drain(case, folder, promise, said=repaired.stdout)
    except DidNotStart as exc:
        case.end = End.WEDGED
        case.notes.append(f"no start after the repair: {str(exc)[-1500:]}")
        return
    case.repaired = f"repaired: {end.value}"
    if end in (End.SILENT, End.WEDGED):
        case.end = end


def _holt(case: Case, verb: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    if case.in_process:
        done = CliRunner().invoke(main, ["journal", verb, str(folder), *options])
        return subprocess.CompletedProcess([verb], done.exit_code, done.stdout, done.stderr)
    command = [sys.executable, "-m", "holtmq", "journal", verb, str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=_REPAIR_SECONDS, check=False)


def _drain(case: Case, folder: Path, promise: Promise, said: str = "") -> End:
    try:
        broker = BrokerHere(folder) if case.in_process else BrokerProcess(folder)
    except TimeoutError as exc:
        case.notes.append(str(exc))
        return End.WEDGED
    try:
        found = read_back(broker)
    except Exception as exc:
        case.notes.append(f"a client: {exc!r}")
        case.notes += broker.log[-8:]
        return End.WEDGED
    finally:
        broker.kill()
    return _verdict(case, promise, found, broker.log, said)


def _verdict(case: Case, promise: Promise, found: Found, log: list[str], said: str) -> End:
    if any("Traceback" in line for line in log):
        case.notes += [line for line in log if "Traceback" in line][:3]
        return End.WEDGED
    missing = {place: _missing(wanted, found.messages[place]) for place, wanted in promise.items()}
    changed = [
        (place, name)
        for place, wanted in promise.items()
        for name, body in found.messages[place].items()
        if name in wanted and wanted[name] != body
    ]
    if changed:
        case.notes.append(f"changed: {changed[:5]}")
        return End.SILENT
    if not any(missing.values()):
        return End.WHOLE
    if "Give up" in said or any("given up" in line for line in log):
        return End.SAID
    if found.health["status"] == "degraded" and all(
        len(names) <= _listed(found, place) for place, names in missing.items()
    ):
        return End.SAID
    case.notes.append(f"missing: { {place: sorted(names)[:5] for place, names in missing.items() if names} }")
    return End.SILENT


def _listed(found: Found, place: str) -> int:
    """How many messages of a place the node says it cannot read. A dead letter's is one of its queue."""
    queue = "log" if place == "letters" else place
    return sum(row["queue"].endswith(queue) for row in found.damaged)


def _missing(wanted: dict[str, str], got: dict[str, str]) -> set[str]:
    return wanted.keys() - got.keys()


def table(cases: Iterable[Case]) -> str:
    """How many of each kind of damage ended how, as Markdown."""
    counted = Counter((case.kind, case.end) for case in cases)
    kinds = [kind for kind in KINDS if any(kind == one for one, _ in counted)]
    lines = [
        "| damage | tried | " + " | ".join(end.value for end in End) + " |",
        "|---|---:|" + "---:|" * len(End),
    ]
    for kind in [*kinds, "all"]:
        counts = [
            sum(n for (one, e), n in counted.items() if e is end and kind in (one, "all")) for end in End
        ]
        lines.append(f"| {kind} | {sum(counts)} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines)

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

from .folder import FANNED, ROUNDS, BrokerHere, BrokerProcess, DidNotStart, Found, Promise, fill, read_back
from .places import Announced, Hurt, Message, Places

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
class Base:
    """An undamaged folder, what was promised of it, and where it has it."""

    folder: Path
    promise: Promise
    places: Places


@dataclass(frozen=True, slots=True)
class Bases:
    """Undamaged folders."""

    folders: list[Base]

    @classmethod
    def written(cls, scratch: Path, rounds: int = ROUNDS) -> Bases:
        """One whose broker was killed, one whose broker was stopped."""
        made = []
        for name, kill in (("killed", True), ("stopped", False)):
            folder = scratch / name
            folder.mkdir()
            promise = fill(folder, kill=kill, rounds=rounds)
            made.append(Base(folder, promise, Places.of(folder)))
        return cls(made)


def run_case(
    seed: int, bases: Bases, scratch: Path, kind: str | None = None, *, in_process: bool = False
) -> Case:
    """Damage a copy, start a broker on it (``holt serve``, or ``in_process``), drain it, judge."""
    random = Random(seed)
    names = [name for name in KINDS for _ in range(_WEIGHTS.get(name, 1))]
    case = Case(seed, kind or random.choice(names), in_process=in_process)
    base = bases.folders[random.randrange(len(bases.folders))]
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        shutil.copytree(base.folder, folder, dirs_exist_ok=True)
        case.what = f"{base.folder.name}: {KINDS[case.kind](folder, random)}"
        _judge_start(case, folder, base)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return case


def _judge_start(case: Case, folder: Path, base: Base) -> None:
    hurt = base.places.compared_with(folder)
    try:
        case.end = _drain(case, folder, base, hurt)
    except DidNotStart as exc:
        text = str(exc)
        if "Traceback" in text or "cannot start" not in text:
            case.end = End.WEDGED
            case.notes.append(text[-2000:])
            return
        case.end = End.REFUSED
        _judge_repair(case, folder, base, hurt)


def _judge_repair(case: Case, folder: Path, base: Base, hurt: Hurt) -> None:
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
        end = _drain(case, folder, base, hurt, said=repaired.stdout)
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


def _drain(case: Case, folder: Path, base: Base, hurt: Hurt, said: str = "") -> End:
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
    return _verdict(case, base, hurt, found, broker.log, said)


def _verdict(case: Case, base: Base, hurt: Hurt, found: Found, log: list[str], said: str) -> End:
    if any("Traceback" in line for line in log):
        case.notes += [line for line in log if "Traceback" in line][:3]
        return End.WEDGED
    promise = base.promise
    changed = [
        (place, name)
        for place, got in found.messages.items()
        for name, body in got.items()
        if not _is_genuine(place, name, body) or promise[place].get(name, body) != body
    ]
    missing = [
        (place, name)
        for place, wanted in promise.items()
        for name in wanted
        if name not in found.messages[place]
    ]
    faults: list[tuple[str, object]] = [("changed", message) for message in changed]
    if said:
        faults += _unannounced(base.places, missing, found, Announced.by(said))
    else:
        faults += [("not listed", message) for message in missing if not _is_listed(base, found, message)]
    faults += [("readable", message) for message in missing if hurt.is_readable(message)]
    if missing and not said and found.health["status"] != "degraded":
        faults.append(("not degraded", found.health["status"]))
    if said and found.health["status"] != "healthy":
        faults.append(("not settled by the repair", found.health))
    if faults:
        case.notes.append(f"{len(faults)} of {len(missing)} missing: {faults[:6]}")
        case.notes += said.splitlines()[:12]
        return End.SILENT
    return End.SAID if missing else End.WHOLE


def _unannounced(
    places: Places, missing: list[Message], found: Found, announced: Announced
) -> list[tuple[str, object]]:
    """Where a repair lost something else than it said."""
    faults: list[tuple[str, object]] = [
        ("not announced", message)
        for message in missing
        if not any(position in announced for position in places.needs(message))
    ]
    faults += [
        ("given up, but there", (place, name))
        for place, got in found.messages.items()
        for name in got
        if places.body.get((place, name), -1) in announced
    ]
    return faults


def _is_genuine(place: str, name: str, body: str) -> bool:
    """Whether a message that came back says that it is the one of this name in this place."""
    if place == "letters":
        place = "log"
    prefix = name if place == "staged" else f"{'fanned' if place in FANNED else place} {name}"
    return body == prefix or body.startswith(f"{prefix} ")


def _is_listed(base: Base, found: Found, message: Message) -> bool:
    """Whether the node names the message as one it cannot read. A dead letter's is one of its queue."""
    place = "log" if message[0] == "letters" else message[0]
    position = base.places.body[message]
    return any(row["queue"].endswith(place) and row["position"] == position for row in found.damaged)


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

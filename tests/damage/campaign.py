"""Damage done to a data folder on purpose, and how each case ends.

Owns: the verdict on what clients then got, and the table. Must not touch: the broker. It is a process that
runs on the damaged folder, and clients drain it. In some cases it runs, goes on over the next checkpoint, is
killed and started again before that.

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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from random import Random
from typing import Final

from click.testing import CliRunner

from holtmq.cli import main

from .brokers import BrokerHere, BrokerProcess, DidNotStart
from .folder import AFTERWARDS, FANNED, LETTERS, ROUNDS, STATE, Found, Promise, fill, go_on, read_back
from .kinds import IN_PLACE, KINDS, WEIGHTS, Donors
from .places import Announced, Hurt, Message, Places

_REPAIR_SECONDS: Final = 120
_GOES_ON: Final = 0.4
_WHILE_RUNNING: Final = 0.3


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
    goes_on: bool = False  # the broker is killed after some work, and started again
    while_running: bool = False  # the damage happens beside a running broker, and a scrub looks for it

    def __str__(self) -> str:
        notes = "".join(f"\n    {note}" for note in self.notes)
        return f"{self.seed}: {self.kind} ({self.what}): {self.end.value} {self.repaired}{notes}"


@dataclass(frozen=True, slots=True)
class Base:
    """An undamaged folder, what was promised of it, and where it has it."""

    folder: Path
    promise: Promise
    places: Places
    donors: Donors

    def including(self, added: dict[str, str]) -> Base:
        """With what was published after the damage."""
        return replace(self, promise={**self.promise, AFTERWARDS: added})


@dataclass(frozen=True, slots=True)
class Bases:
    """Undamaged folders."""

    folders: list[Base]

    @classmethod
    def written(cls, scratch: Path, rounds: int = ROUNDS) -> Bases:
        """One whose broker was killed, one whose broker was stopped."""
        made = []
        foreign = scratch / "foreign"
        foreign.mkdir()
        fill(foreign, kill=True, rounds=min(rounds, 3), letter="f")
        for name, kill in (("killed", True), ("stopped", False)):
            folder, older = scratch / name, scratch / f"older-{name}"
            folder.mkdir()
            promise = fill(folder, kill=kill, rounds=rounds, older=older)
            made.append(Base(folder, promise, Places.of(folder), Donors(older, foreign)))
        return cls(made)


def run_case(
    seed: int, bases: Bases, scratch: Path, kind: str | None = None, *, in_process: bool = False
) -> Case:
    """Damage a copy, start a broker on it (``holt serve``, or ``in_process``), drain it, judge."""
    random = Random(seed)
    names = [name for name in KINDS for _ in range(WEIGHTS.get(name, 1))]
    case = Case(seed, kind or random.choice(names), in_process=in_process, goes_on=random.random() < _GOES_ON)
    case.while_running = case.kind in IN_PLACE and random.random() < _WHILE_RUNNING
    base = bases.folders[random.randrange(len(bases.folders))]
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        shutil.copytree(base.folder, folder, dirs_exist_ok=True)
        running = _started(case, folder) if case.while_running else None
        case.what = f"{base.folder.name}: {KINDS[case.kind](folder, random, base.donors)}"
        if running is None or _scrub_sees(case, folder, base, running):
            _judge_start(case, folder, base)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return case


def _scrub_sees(case: Case, folder: Path, base: Base, running: BrokerHere | BrokerProcess) -> bool:
    """Whether a scrub beside the running broker, which is killed then, sees damage in a closed segment."""
    last = max(path.name for path in base.folder.glob("*.seg"))
    records, hurt = base.places.records, base.places.compared_with(folder)
    closed = [at for at in hurt.harmed if records[at].file != last]
    scrubbed = _holt(case, "scrub", folder)
    running.kill()
    if scrubbed.returncode not in (0, 1) or (closed and scrubbed.returncode == 0):
        case.end = End.WEDGED
        case.notes.append(f"scrub: {scrubbed.stdout[-500:]}{scrubbed.stderr[-500:]}")
        return False
    case.what += ", while a broker runs"
    return True


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
    log: list[str] = []
    added: dict[str, str] = {}
    try:
        broker = _started(case, folder)
        if case.goes_on:
            with _killed_after(case, broker, log):
                added = go_on(broker)
            broker = _started_again(case, folder)
        with _killed_after(case, broker, log):
            found = read_back(broker)
    except (TimeoutError, _Wedged) as exc:
        case.notes.append(str(exc))
        return End.WEDGED
    return judge(case, base.including(added), hurt, found, log, said)


class _Wedged(Exception):
    """A client got an error, or a broker that had started does not start again."""


@contextmanager
def _killed_after(case: Case, broker: BrokerHere | BrokerProcess, log: list[str]) -> Iterator[None]:
    try:
        yield
    except Exception as exc:
        case.notes += broker.log[-8:]
        raise _Wedged(f"a client: {exc!r}") from exc
    finally:
        broker.kill()
        log += broker.log


def _started(case: Case, folder: Path) -> BrokerHere | BrokerProcess:
    return BrokerHere(folder) if case.in_process else BrokerProcess(folder)


def _started_again(case: Case, folder: Path) -> BrokerHere | BrokerProcess:
    try:
        return _started(case, folder)
    except DidNotStart as exc:
        raise _Wedged(f"no second start: {str(exc)[-1500:]}") from exc


def judge(case: Case, base: Base, hurt: Hurt, found: Found, log: list[str], said: str) -> End:
    """How a case ended. ``said``: what a repair announced; ``log``: of the brokers."""
    if any("Traceback" in line for line in log):
        case.notes += [line for line in log if "Traceback" in line][:3]
        return End.WEDGED
    promise = base.promise
    changed = [
        (place, name)
        for place, got in found.messages.items()
        for name, body in got.items()
        if not _is_genuine(place, name, body) or promise.get(place, {}).get(name, body) != body
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
        if place not in STATE and places.body.get((place, name), -1) in announced
    ]
    return faults


def _is_genuine(place: str, name: str, body: str) -> bool:
    """Whether a message that came back says that it is the one of this name in this place."""
    place = LETTERS.get(place, place)
    prefix = f"{'fanned' if place in FANNED else place} {name}"
    return body == prefix or body.startswith(f"{prefix} ")


def _is_listed(base: Base, found: Found, message: Message) -> bool:
    """Whether the node names the message as one it cannot read. A dead letter's is one of its queue."""
    place = "log" if message[0] == "letters" else message[0]
    position = base.places.body.get(message)
    if place == "late":
        return any(row["where"] == "delayed" and row["position"] == position for row in found.damaged)
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

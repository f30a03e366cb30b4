"""``holt journal check | damaged | dump | repair | scrub``: the operator's tools for a data folder.

Owns: arguments, texts and exit statuses. Must not touch: the formats; ``holtmq.journal`` does the work.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click
import msgspec

from holtmq.broker.records.changes import Kind
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.records.rehearsal import live_positions, rehearse
from holtmq.broker.work import damage_review
from holtmq.journal import JournalError, JournalLocked
from holtmq.journal.checkpoint import position_of
from holtmq.journal.disk import OsDisk
from holtmq.journal.dumping import Listed, dump
from holtmq.journal.inspection import CheckReport, Fold, Where, check, view
from holtmq.journal.interface import RecordUnreadable
from holtmq.journal.manifest import NAME as MANIFEST
from holtmq.journal.names import put_names_right, wrong_names
from holtmq.journal.records import KIND_NAMES
from holtmq.journal.recovery import TailWalk, survey
from holtmq.journal.repair import RepairPlan, apply_repair, describe, plan_repair
from holtmq.journal.scrub import Rot, scrub
from holtmq.journal.segment import base_of
from holtmq.journal.viewing import ViewingJournal

_DAMAGED = 1
_ROUNDS = 3  # of a repair; the second gives up messages that showed only when the broker started
_FOLDER = click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))

kind_names: dict[int, str] = {**KIND_NAMES, **{int(kind): kind.name for kind in Kind}}


@click.group()
def journal() -> None:
    """Inspect and repair a journal folder."""


@journal.command("check")
@_FOLDER
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check_command(folder: Path, as_json: bool) -> None:
    """Tell whether a broker would start on FOLDER, and verify every checksum in it.

    It runs the code that a broker runs at its start. Exit status 1 when the broker would not start, or when
    something is damaged.
    """
    disk = _disk(folder)
    owner = _owner(disk)
    report = check(disk, _fold(disk))
    if as_json:
        click.echo(json.dumps(_as_json(report, owner), indent=2))
    else:
        _print(report, owner)
    sys.exit(_DAMAGED if report.problems or report.refusal else 0)


@journal.command("damaged")
@_FOLDER
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
def damaged_command(folder: Path, as_json: bool) -> None:
    """List the messages in FOLDER that cannot be read: queue, position, size, reason.

    A broker sets them aside and continues. Exit status 1 when there are any.
    """
    disk = _disk(folder)
    try:
        found = survey(disk)
        view_of = ViewingJournal(disk)
        broker, service = rehearse(view_of, view(disk, found, TailWalk(disk, found)))
    except JournalError as exc:
        raise click.ClickException(str(exc)) from None
    report = check(disk, lambda _: snapshot(broker, service.store)[1])
    lost = [
        RecordUnreadable(problem.text, problem.position, problem.text, problem.size)
        for problem in report.problems
        if problem.where in (Where.RECORD, Where.SEGMENT)
    ]
    absent = "the file that should hold it is cut short"
    lost += [RecordUnreadable(absent, at, absent) for segment in report.segments for at in segment.absent]
    for error in lost:
        service.store.note_rot(error)
        damage_review.note_unreadable(broker.work_queues(), broker.flow.damage, error)
    rows = broker.flow.damage.rows
    for row in rows:
        if as_json:
            click.echo(json.dumps(msgspec.structs.asdict(row)))
        else:
            name = row.name if row.offset is None else f"{row.name} offset {row.offset}"
            click.echo(
                f"{row.where} {row.vhost} {name}  position {row.position}  {row.size} bytes  {row.reason}"
            )
    if rows:
        click.echo(f"{len(rows)} messages. `holt journal repair {folder}` gives them up.", err=True)
    sys.exit(_DAMAGED if rows else 0)


@journal.command("scrub")
@_FOLDER
@click.option("--rate", default=0.0, help="Limit in megabytes per second; 0: no limit.")
def scrub_command(folder: Path, rate: float) -> None:
    """Read and verify every closed file in FOLDER; a broker may be running on it.

    Exit status 1 when something is damaged.
    """
    disk = _disk(folder)
    owner = _owner(disk)
    bases = [base for base in map(base_of, disk.list()) if base is not None]
    read = found = 0
    for step in scrub(disk, max(bases, default=None) if owner is not None else None):
        if isinstance(step, Rot):
            found += 1
            click.echo(f"DAMAGE in {step.name} at position {step.position}, {step.size} bytes: {step.reason}")
            continue
        read += step
        if rate > 0:
            time.sleep(step / (rate * 1e6))
    left_out = " The file that the running broker writes to was left out." if owner is not None else ""
    click.echo(f"{read} bytes read, {found} damaged places.{left_out}")
    sys.exit(_DAMAGED if found else 0)


@journal.command("dump")
@_FOLDER
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per record.")
@click.option("--kind", "kinds", type=int, multiple=True, help="Only this kind; may be repeated.")
@click.option("--from", "first", type=int, default=0, help="Only positions from here on.")
@click.option("--payload", is_flag=True, help="Show the payload too (hexadecimal).")
def dump_command(folder: Path, as_json: bool, kinds: tuple[int, ...], first: int, payload: bool) -> None:
    """List the records in FOLDER: file, position, kind, size."""
    disk = _disk(folder)
    report = check(disk)
    for record in dump(disk, report):
        if kinds and record.kind not in kinds:
            continue
        if record.position is not None and record.position < first:
            continue
        click.echo(_line(record, as_json, payload))
    if report.too_new:
        raise click.ClickException(report.refusal)
    if report.problems:
        click.echo(f"{len(report.problems)} places could not be read: see `holt journal check`.", err=True)
        sys.exit(_DAMAGED)


@journal.command("repair")
@_FOLDER
@click.option("--yes", is_flag=True, help="Do it. Without this, only say what would be done and lost.")
def repair_command(folder: Path, yes: bool) -> None:
    """Repair FOLDER so that a broker starts on it, by giving up what cannot be read.

    The bytes that are replaced are kept in files that end in .removed.
    """
    disk = _disk(folder)
    try:
        disk.lock()
    except JournalLocked as exc:
        raise click.ClickException(str(exc)) from None
    except JournalError as exc:
        raise click.ClickException(str(exc)) from None
    try:
        renames = wrong_names(disk)
        for wrong, right in renames:
            click.echo(f"Rename {wrong} to {right}: that is what its header says it is.")
        if renames and yes:
            put_names_right(disk, renames)
        elif renames:
            click.echo("Nothing was changed. Run again with --yes to do this; the rest is looked at then.")
            sys.exit(_DAMAGED)
        repaired = 0
        while (plan := _announced_plan(disk)).needed:
            if repaired == _ROUNDS:
                raise click.ClickException(f"still damaged after {repaired} repairs, see above")
            if not yes:
                click.echo("Nothing was changed. Run again with --yes to do this.")
                if plan.report.refusal:
                    click.echo("Messages of queues that no file holds show only when that is done.")
                sys.exit(_DAMAGED)
            for name in apply_repair(disk, plan):
                click.echo(f"Kept: {folder / name}")
            repaired += 1
        torn = plan.report.torn
        if repaired or renames:
            click.echo("Done: a broker starts on it.")
        elif torn is not None:
            click.echo(
                f"Nothing to repair. A torn tail of {torn.dropped_bytes} bytes that was never durable will "
                "be cut at the next start."
            )
        else:
            click.echo("Nothing to repair.")
    except OSError as exc:
        raise click.ClickException(f"{exc}. The repair is not finished: run it again") from None
    finally:
        disk.unlock()


def _announced_plan(disk: OsDisk) -> RepairPlan:
    """Plan a repair and print it. Raises if there is none."""
    plan = plan_repair(disk, _fold(disk))
    report = plan.report
    if report.too_new or (report.refusal and not plan.needed and not plan.hopeless):
        raise click.ClickException(report.refusal)
    for line in describe(plan):
        click.echo(line)
    if plan.hopeless:
        raise click.ClickException("restore the files named above from a backup, then check again")
    return plan


def _disk(folder: Path) -> OsDisk:
    """The files of FOLDER; exits if there is no journal, before a lock is left in the wrong folder."""
    names = [entry.name for entry in folder.iterdir()]
    if not any(
        name == MANIFEST or base_of(name) is not None or position_of(name) is not None for name in names
    ):
        raise click.ClickException(f"there is no journal in {folder}: name the data folder of a broker")
    return OsDisk(folder)


def _fold(disk: OsDisk) -> Fold:
    """Replay the records as a broker does, so that the check accepts and refuses what a broker would."""
    return lambda recovery: live_positions(ViewingJournal(disk), recovery)


def _owner(disk: OsDisk) -> str | None:
    """The process that has the journal open, if any: its last records may then look torn."""
    try:
        disk.lock()
    except JournalLocked as exc:
        return str(exc).partition(": ")[0]  # without the advice to stop it: reading is no reason
    except JournalError:  # a folder that can only be read, such as a mounted backup
        return None
    disk.unlock()
    return None


def _line(record: Listed, as_json: bool, payload: bool) -> str:
    name = kind_names.get(record.kind)
    if as_json:
        fields: dict[str, object] = {
            "file": record.source,
            "position": record.position,
            "kind": record.kind,
            "name": name,
            "size": len(record.payload),
        }
        if payload:
            fields["payload"] = record.payload.hex()
        return json.dumps(fields)
    position = "checkpoint" if record.position is None else str(record.position)
    text = f"{record.source}  {position:>16}  {name or record.kind!s:>12}  {len(record.payload):>10}"
    return f"{text}  {record.payload.hex()}" if payload else text


def _as_json(report: CheckReport, owner: str | None) -> dict[str, object]:
    return {
        "folder": report.folder,
        "starts": not report.refusal,
        "refusal": report.refusal,
        "warnings": report.warnings,
        "writer": report.writer,
        "owner": owner,
        "records": report.records,
        "checkpoint": report.checkpoint,
        "checkpoint_records": report.checkpoint_records,
        "clean": report.clean,
        "torn_bytes": report.torn.dropped_bytes if report.torn else 0,
        "segments": [
            {
                "file": segment.name,
                "base": segment.base,
                "end": segment.end,
                "size": segment.size,
                "compacted": segment.compacted,
                "records": segment.records,
            }
            for segment in report.segments
        ],
        "problems": [
            {
                "where": problem.where.value,
                "file": problem.name,
                "offset": problem.offset,
                "position": problem.position,
                "size": problem.size,
                "text": problem.text,
            }
            for problem in report.problems
        ],
    }


def _print(report: CheckReport, owner: str | None) -> None:
    if owner is not None:
        click.echo(f"Note: {owner}, whose last records may still be on their way.")
    for segment in report.segments:
        kind = "compacted" if segment.compacted else "plain"
        click.echo(
            f"{segment.name}  {kind:<9}  {segment.records:>10} records  {segment.size:>12} bytes  "
            f"positions {segment.base} to {segment.end}"
        )
    if report.checkpoint is None:
        click.echo("No checkpoint: a start replays the whole log.")
    else:
        click.echo(f"Checkpoint at position {report.checkpoint} with {report.checkpoint_records} records.")
    if report.torn is not None:
        click.echo(
            f"Torn tail: {report.torn.dropped_bytes} bytes at position {report.torn.position} that were "
            "never durable; the next start cuts them off."
        )
    for warning in report.warnings:
        click.echo(f"WARNING: {warning}")
    for problem in report.problems:
        size = f", {problem.size} bytes" if problem.size else ""
        click.echo(
            f"DAMAGE in {problem.name or report.folder} at offset {problem.offset} "
            f"(position {problem.position}{size}): {problem.text}"
        )
    if report.refusal:
        click.echo(f"A broker does not start on it: {report.refusal}")
    elif report.problems:
        click.echo("A broker starts on it, and sets aside the messages that it cannot read.")
    if report.problems:
        count = "1 problem" if len(report.problems) == 1 else f"{len(report.problems)} problems"
        click.echo(f"{count}. `holt journal repair {report.folder}` says what can be done.")
    elif not report.refusal:
        click.echo(f"{report.records} records, no damage.")

"""Cutting damage away, after putting aside what is cut.

Owns: the plan (what would be lost) and its execution. Nothing is thrown away: removed bytes go to side files
that end in ``.removed``. Must not touch: a journal that has an owner, and undamaged parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from .compaction import write_compacted
from .disk import Disk, File
from .inspection import CheckReport, Problem, Salvage, SegmentReport, Where, check, read_one, salvage
from .records import BadRecord
from .segment import HEADER_SIZE, read_header, read_index

REMOVED: Final = ".removed"
_COPY: Final = 1 << 20


@dataclass(slots=True)
class Loss:
    """What a step costs, in words an operator can act on."""

    readable: int = 0  # whole records that go with the cut
    readable_bytes: int = 0
    first: int | None = None
    last: int | None = None


@dataclass(slots=True)
class RepairPlan:
    report: CheckReport
    cut: Problem | None = None  # the tail ends here
    aside: list[str] = field(default_factory=list)  # files to put aside whole
    rewrite: list[str] = field(default_factory=list)  # segments to rewrite without their damaged records
    lost: Loss = field(default_factory=Loss)
    lost_bodies: list[Problem] = field(default_factory=list)
    hopeless: list[Problem] = field(default_factory=list)

    @property
    def needed(self) -> bool:
        return bool(self.cut or self.aside or self.rewrite)


def plan_repair(disk: Disk) -> RepairPlan:
    """What would be done about the problems that ``check`` finds. Changes nothing."""
    report = check(disk)
    plan = RepairPlan(report)
    whole_log = bool(report.segments) and report.segments[0].base == 0
    compacted = any(segment.compacted for segment in report.segments)
    for problem in report.problems:
        if problem.where is Where.TAIL:
            plan.cut = plan.cut or problem
        elif problem.where is Where.BODIES:
            plan.lost_bodies.append(problem)
            if problem.name not in plan.rewrite:
                plan.rewrite.append(problem.name)
        elif problem.where is Where.CHECKPOINT and (
            report.checkpoint is not None or (whole_log and not compacted)
        ):
            plan.aside.append(problem.name)  # an older one, or the log from its very start, takes its place
        else:
            _judge_unknown(plan, problem)
    if plan.cut is not None:
        _count_loss(disk, plan, plan.cut)
    return plan


def _judge_unknown(plan: RepairPlan, problem: Problem) -> None:
    """A segment whose header is gone can be cut off as a whole when the log before it is there."""
    report = plan.report
    before = [segment for segment in report.segments if segment.base < problem.position]
    if problem.where is Where.UNKNOWN and problem.position > report.tail_start and before:
        last = before[-1]
        if last.end == problem.position:
            offset = last.end - last.base + HEADER_SIZE
            plan.cut = plan.cut or Problem(Where.TAIL, last.name, offset, last.end, problem.text)
            return
    plan.hopeless.append(problem)


def _count_loss(disk: Disk, plan: RepairPlan, cut: Problem) -> None:
    (damaged,) = [segment for segment in plan.report.segments if segment.name == cut.name]
    for segment in plan.report.segments:
        if segment.base > damaged.base:
            plan.aside.append(segment.name)
        if segment.base < damaged.base or segment.header is None:
            continue
        file = disk.open(segment.name)
        try:
            for position, _, payload in _readable(file, segment, plan.report):
                if position >= cut.position:
                    plan.lost.readable += 1
                    plan.lost.readable_bytes += len(payload)
                    plan.lost.first = position if plan.lost.first is None else plan.lost.first
                    plan.lost.last = position
        finally:
            file.close()


def _readable(file: File, segment: SegmentReport, report: CheckReport) -> Iterator[tuple[int, int, bytes]]:
    assert segment.header is not None
    if segment.header.compacted:
        table = read_index(file, segment.header, report.folder)
        for position, offset in zip(table.positions, table.offsets, strict=True):
            try:
                yield position, *read_one(file, offset)
            except BadRecord:
                continue
        return
    stop = None if segment is report.segments[-1] else segment.base + segment.size - HEADER_SIZE
    yield from salvage(file, segment.header, segment.base, stop, Salvage(segment.base))


def apply_repair(disk: Disk, plan: RepairPlan) -> list[str]:
    """Do what the plan says; the names of the side files. The caller owns the lock."""
    kept: list[str] = []
    for name in plan.rewrite:
        kept.append(_rewrite(disk, plan, name))
    cut = plan.cut
    # From the back: a crash on the way leaves a log that is shorter or still damaged, never one with a hole.
    for name in sorted(plan.aside, reverse=True):
        side = _free_name(disk, name + REMOVED)
        disk.rename(name, side)
        disk.sync_dir()
        kept.append(side)
    if cut is not None:
        kept.append(_cut(disk, cut))
    return kept


def _cut(disk: Disk, cut: Problem) -> str:
    file = disk.open(cut.name, write=True)
    try:
        side = _copy(disk, file, cut.offset, f"{cut.name}.from-{cut.offset}{REMOVED}")
        file.truncate(cut.offset)
        file.sync()
    finally:
        file.close()
    return side


def _rewrite(disk: Disk, plan: RepairPlan, name: str) -> str:
    (segment,) = [segment for segment in plan.report.segments if segment.name == name]
    file = disk.open(name)
    try:
        side = _copy(disk, file, 0, name + REMOVED)
        header = read_header(file, segment.base, disk.folder)
        end = header.end if header.compacted else segment.end
        write_compacted(disk, header, end, _readable(file, segment, plan.report))
    finally:
        file.close()
    return side


def _copy(disk: Disk, file: File, offset: int, name: str) -> str:
    """Durably copy a file from an offset on; the name the copy got."""
    name = _free_name(disk, name)
    copy = disk.open(name, create=True)
    try:
        at = 0
        while data := file.pread(_COPY, offset + at):
            copy.pwrite([data], at)
            at += len(data)
        copy.sync()
    finally:
        copy.close()
    disk.sync_dir()
    return name


def _free_name(disk: Disk, wanted: str) -> str:
    """Never over an older side file: that one may hold the only copy of something."""
    names = set(disk.list())
    if wanted not in names:
        return wanted
    return next(name for number in range(2, 10_000) if (name := f"{wanted}.{number}") not in names)


def describe(plan: RepairPlan) -> list[str]:
    """The plan in sentences, for the operator to say yes to."""
    lines: list[str] = []
    if plan.cut is not None:
        lost = plan.lost
        lines.append(
            f"Cut the log at position {plan.cut.position} ({plan.cut.name}, offset {plan.cut.offset}): "
            f"{plan.cut.text}."
        )
        span = f", positions {lost.first} to {lost.last}" if lost.readable else ""
        lines.append(
            f"Lost with it: the damaged record, and {lost.readable} records behind it that are still "
            f"readable ({lost.readable_bytes} bytes{span})."
        )
    lines += [f"Put aside the whole file {name}." for name in plan.aside]
    for name in plan.rewrite:
        positions = [str(problem.position) for problem in plan.lost_bodies if problem.name == name]
        lines.append(
            f"Rewrite {name} without its damaged records. Bodies of waiting messages are lost at or behind "
            f"position {', '.join(positions)}."
        )
    lines += [f"Cannot repair {problem.name}: {problem.text}" for problem in plan.hopeless]
    return lines

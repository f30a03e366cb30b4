"""Repairs a damaged folder so that a broker starts on it, after saying what will be lost.

Owns: the plan and its execution. What cannot be read is given up in place, so that no position changes; no
readable record is lost. Replaced bytes are kept in side files that end in ``.removed``. Must not touch: a
journal that another process has open, and undamaged parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from .checkpoint import Checkpoint, position_of, verify_checkpoint
from .disk import Disk, File
from .dropped import Dropped, read_dropped, write_dropped
from .inspection import CheckReport, Fold, Problem, SegmentReport, Where, check
from .manifest import Manifest
from .mending import Damage, mend
from .names import REMOVED, free_name
from .records import MARKER_SIZE
from .segment import HEADER_SIZE, SegmentHeader, create_segment, segment_name

_COPY: Final = 1 << 20


@dataclass(slots=True)
class RepairPlan:
    """The steps of a repair, in the order in which they are done."""

    report: CheckReport
    aside: list[str] = field(default_factory=list)  # files to put aside whole
    headers: list[SegmentReport] = field(default_factory=list)  # segments whose header is written again
    mended: list[SegmentReport] = field(default_factory=list)  # plain segments with unreadable stretches
    begins: int | None = None  # create a segment here: the one that held the start of the tail is gone
    dropped: list[tuple[int, int]] = field(default_factory=list)
    hopeless: list[Problem] = field(default_factory=list)

    @property
    def needed(self) -> bool:
        return not self.hopeless and bool(self.report.problems or self.mended or self.begins is not None)


def plan_repair(disk: Disk, fold: Fold | None = None) -> RepairPlan:
    """Plan the repair of the problems that ``check`` finds. Changes nothing."""
    report = check(disk, fold)
    plan = RepairPlan(report)
    if report.too_new or report.unopened:
        return plan  # nothing is known to be lost
    mark = None if report.checkpoint is None else verify_checkpoint(disk, report.checkpoint)
    usable = [segment for segment in report.segments if segment.header is not None]
    for problem in report.problems:
        if problem.where is Where.CHECKPOINT:
            if not _can_do_without(report, mark):
                plan.hopeless.append(problem)
            elif problem.name:
                plan.aside.append(problem.name)
        elif problem.where is Where.SEGMENT:
            _give_up_segment(plan, problem, usable)
        elif problem.where is Where.STRAY:
            plan.aside.append(problem.name)
    plan.headers = [segment for segment in usable if segment.header_damaged]
    plan.mended = [segment for segment in usable if segment.damages and not segment.compacted]
    plan.dropped += [
        (damage.position, damage.position + damage.size) for segment in usable for damage in segment.damages
    ]
    plan.dropped += [(at, at + 1) for segment in usable for at in segment.absent]
    if not plan.hopeless:
        _close_gaps(plan, usable)
    marks = [at for at in map(position_of, disk.list()) if at is not None]
    for segment in plan.mended:
        segment.damages = [piece for damage in segment.damages for piece in _split(damage, sorted(marks))]
    return plan


def _split(damage: Damage, marks: list[int]) -> list[Damage]:
    """Split at checkpoint positions: a start reads from there, so a record has to begin there."""
    cuts = [at for at in marks if damage.position < at < damage.position + damage.size]
    firsts = [damage.position, *cuts]
    stops = [*cuts, damage.position + damage.size]
    return [
        Damage(first, stop - first, damage.reason, damage.batch)
        for first, stop in zip(firsts, stops, strict=True)
    ]


def _can_do_without(report: CheckReport, mark: Checkpoint | None) -> bool:
    """Whether another checkpoint is whole, or the whole log is there from position 0."""
    if mark is not None:
        return True
    segments = report.segments
    return bool(segments) and segments[0].base == 0 and not any(segment.compacted for segment in segments)


def _give_up_segment(plan: RepairPlan, problem: Problem, usable: list[SegmentReport]) -> None:
    if any(segment.name == problem.name for segment in plan.report.segments):
        plan.aside.append(problem.name)
    following = [segment.base for segment in usable if segment.base > problem.position]
    stop = following[0] if following else max(plan.report.known_end, plan.report.tail_start)
    if stop > problem.position:
        plan.dropped.append((problem.position, stop))


def _close_gaps(plan: RepairPlan, usable: list[SegmentReport]) -> None:
    """Plan to close gaps: from the checkpoint to its durable end, the log must have none."""
    report = plan.report
    start, gone = report.tail_start, set(plan.aside)
    chain = [segment for segment in usable if segment.name not in gone]
    holder = [segment for segment in chain if segment.base <= start and not segment.compacted]
    first = holder[-1] if holder else None
    tail = [segment for segment in chain if segment.base > start]
    if first is None or (first.end < start and not _reaches(first, tail)):
        end = tail[0].base if tail else max(report.known_end, start)
        if first is None or end > first.end:
            plan.begins = start
            if end > start:
                plan.dropped.append((start, end))
    elif first.end < start:
        _extend(plan, first, start)
    joined = tail if first is None or plan.begins is not None else [first, *tail]
    for index, segment in enumerate(joined):
        last = index + 1 == len(joined)
        end = max(report.known_end, segment.end, start) if last else joined[index + 1].base
        if end > segment.end:
            _extend(plan, segment, end)


def _reaches(segment: SegmentReport, tail: list[SegmentReport]) -> bool:
    return not tail and segment.end > segment.base


def _extend(plan: RepairPlan, segment: SegmentReport, end: int) -> None:
    """The log after this segment is missing up to ``end``: plan a LOST record over it."""
    last = segment.damages[-1] if segment.damages else None
    if last is not None and last.position + last.size == segment.end and last.batch is None:
        segment.damages[-1] = Damage(last.position, end - last.position, last.reason)
    else:
        segment.damages.append(Damage(segment.end, end - segment.end, "the log that was here is missing"))
    plan.dropped.append((segment.end, end))
    segment.end = end
    if segment not in plan.mended:
        plan.mended.append(segment)


def apply_repair(disk: Disk, plan: RepairPlan) -> list[str]:
    """Carry out the plan; return the names of the side files. The caller holds the lock.

    After a crash in the middle, the folder is still damaged and can be repaired.
    """
    kept: list[str] = []
    dropped = Dropped([*read_dropped(disk).stretches, *plan.dropped])
    if dropped:
        write_dropped(disk, dropped)
    for name in plan.aside:
        side = free_name(disk, name + REMOVED)
        disk.rename(name, side)
        disk.sync_dir()
        kept.append(side)
    for segment in plan.headers:
        assert segment.header is not None
        kept.append(_write_header(disk, segment.name, segment.header))
    for segment in plan.mended:
        kept.append(_mend(disk, segment))
    report = plan.report
    if plan.begins is not None:
        _begin_tail(disk, plan, plan.begins)
    gone = set(plan.aside)
    bases = [segment.base for segment in report.segments if segment.name not in gone]
    if plan.begins is not None:
        bases.append(plan.begins)
    ends = [segment.end for segment in report.segments if segment.name not in gone]
    manifest = Manifest(disk, 0)
    manifest.begin(max(bases, default=0), min(report.known_end, max(ends, default=0)), report.checkpoint or 0)
    manifest.close()
    return kept


def _begun_until(plan: RepairPlan, start: int) -> int:
    """Where the segment that ``begins`` at ``start`` ends."""
    return next((stop for first, stop in plan.dropped if first == start), start)


def _begin_tail(disk: Disk, plan: RepairPlan, start: int) -> None:
    end = _begun_until(plan, start)
    header = SegmentHeader(start, 0, disk.random_bytes(MARKER_SIZE))
    file = create_segment(disk, header, end - start)
    try:
        if end > start:
            mend(file, header, [Damage(start, end - start, "the log that was here is missing")])
        file.sync()
    finally:
        file.close()


def _write_header(disk: Disk, name: str, header: SegmentHeader) -> str:
    file = disk.open(name, write=True)
    try:
        side = _copy(disk, file, 0, HEADER_SIZE, f"{name}.header{REMOVED}")
        file.pwrite([header.encode()], 0)
        file.sync()
    finally:
        file.close()
    return side


def _mend(disk: Disk, segment: SegmentReport) -> str:
    assert segment.header is not None
    file = disk.open(segment.name, write=True)
    try:
        first, last = segment.damages[0], segment.damages[-1]
        offset = first.position - segment.base + HEADER_SIZE
        size = last.position + last.size - first.position
        side = _copy(disk, file, offset, size, f"{segment.name}.from-{offset}{REMOVED}")
        mend(file, segment.header, segment.damages)
        file.sync()
    finally:
        file.close()
    return side


def _copy(disk: Disk, file: File, offset: int, size: int, name: str) -> str:
    """Durably copy a stretch of a file; return the name of the copy."""
    name = free_name(disk, name)
    copy = disk.open(name, create=True)
    try:
        at = 0
        while at < size and (data := file.pread(min(_COPY, size - at), offset + at)):
            copy.pwrite([data], at)
            at += len(data)
        copy.sync()
    finally:
        copy.close()
    disk.sync_dir()
    return name


def describe(plan: RepairPlan) -> list[str]:
    """The plan in sentences, for the operator to confirm."""
    lines = [f"Put aside the whole file {name}." for name in plan.aside]
    lines += [f"Write the header of {segment.name} again." for segment in plan.headers]
    for segment in plan.report.segments:
        for damage in segment.damages:
            where = f"at position {damage.position} ({segment.name})"
            lines.append(f"Give up {damage.size} bytes {where}: {damage.reason}.")
        if segment.absent:
            positions = ", ".join(map(str, segment.absent))
            count = len(segment.absent)
            lines.append(
                f"Give up {count} messages at positions {positions} ({segment.name}): no file holds them."
            )
    for problem in plan.report.problems:
        if problem.where is Where.SEGMENT:
            stretches = [stop for first, stop in plan.dropped if first == problem.position]
            until = f" to {stretches[0]}" if stretches else ""
            lines.append(
                f"Give up what {problem.name} held, positions {problem.position}{until}: {problem.text}."
            )
        elif problem.where is Where.STRAY:
            lines.append(f"{problem.name} does not belong here: {problem.text}.")
        elif problem.where is Where.MANIFEST:
            lines.append(f"Write the manifest again: {problem.text}.")
    if plan.begins is not None:
        stop = _begun_until(plan, plan.begins)
        if stop > plan.begins:
            lines.append(f"Give up positions {plan.begins} to {stop}: no file holds them.")
        lines.append(f"Begin the log anew in {segment_name(plan.begins)}.")
    lines += [f"Cannot repair {problem.name or 'the folder'}: {problem.text}" for problem in plan.hopeless]
    if not plan.hopeless and plan.needed:
        lines.append("Everything else stays as it is: no record that can be read is dropped.")
    return lines

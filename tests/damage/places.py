"""Where an undamaged folder keeps each promised message, and what damage did to those places.

Owns: the records that each message depends on, whether a damaged copy still holds their bytes, and the
stretches that a repair announces. Must not touch: the verdict.

A message needs its body's record. As long as the log after the older checkpoint is replayed it also needs the
records that made it visible: the events of a push, the staging and the commit of a batch, the ack that made
it a dead letter. Rows and timers are state: after the checkpoint they need only their record in the log, and
before it none.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holtmq.broker.partitioned.commands.staging_records import decode_publication
from holtmq.broker.partitioned.events import Acked, Pushed, decode_all
from holtmq.broker.records.changes import Kind
from holtmq.journal.disk import OsDisk
from holtmq.journal.dumping import dump
from holtmq.journal.inspection import SegmentReport, check
from holtmq.journal.records import FRAME_SIZE
from holtmq.journal.segment import HEADER_SIZE

from .folder import FANNED, letter_at

Message = tuple[str, str]  # place, name

_BODY: Final = re.compile(
    rb"(plain|levels|solid|events|fanned|log|staged|late|doomed|rows|timers) (\d+-\d+(?:-\d+)?)"
)
_SAID: Final = (
    re.compile(r"^Give up (?P<size>\d+) bytes at position (?P<first>\d+) ", re.MULTILINE),
    re.compile(r"^Give up what \S+ held, positions (?P<first>\d+) to (?P<stop>\d+):", re.MULTILINE),
    re.compile(r"^Give up positions (?P<first>\d+) to (?P<stop>\d+):", re.MULTILINE),
    re.compile(r"^Give up \d+ messages at positions (?P<all>[\d, ]+) ", re.MULTILINE),
)
_WHOLE_FILE: Final = re.compile(r"^Give up what (\S+) held", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Record:
    """The bytes of one record."""

    file: str
    offset: int
    size: int


@dataclass(slots=True)
class Places:
    """The records of one undamaged folder."""

    folder: Path
    records: dict[int, Record] = field(default_factory=dict)  # by position
    body: dict[Message, int] = field(default_factory=dict)
    others: dict[Message, set[int]] = field(default_factory=dict)
    compacted: frozenset[str] = frozenset()  # names of segments

    @classmethod
    def of(cls, folder: Path) -> Places:
        """Read the whole folder."""
        places = cls(folder)
        disk = OsDisk(folder)
        report = check(disk)
        segments = {segment.name: segment for segment in report.segments}
        places.compacted = frozenset(name for name, segment in segments.items() if segment.compacted)
        loose: list[Message] = []
        at_position: dict[int, Message] = {}
        for record in dump(disk, report):
            position, payload = record.position, record.payload
            if position is None:
                continue
            offset = _offset(segments[record.source], position)
            places.records[position] = Record(record.source, offset, FRAME_SIZE + len(payload))
            made_visible: list[Message] = []
            match record.kind:
                case Kind.MESSAGE | Kind.PARTITIONED_BODY | Kind.DELAYED | Kind.KEYED | Kind.TIMED:
                    for message in _named(payload):
                        places.body[message] = position
                        places.others.setdefault(message, set())
                        at_position[position] = message
                        if record.kind == Kind.PARTITIONED_BODY:
                            loose.append(message)
                case Kind.PARTITIONED:
                    for _, event in decode_all(payload):
                        if isinstance(event, Pushed):
                            made_visible, loose = loose, []
                        elif isinstance(event, Acked):
                            made_visible = [
                                ("letters", letter_at(filed.position)) for filed in event.dead_letters
                            ]
                        for message in made_visible:
                            places.others.setdefault(message, set()).add(position)
                        made_visible = []
                case Kind.STAGED:
                    made_visible, loose = loose, []
                case Kind.STAGE_COMMITTED:
                    bodies = array("Q", decode_publication(payload).positions)
                    made_visible = [at_position[at] for at in bodies if at in at_position]
            for message in made_visible:
                places.others[message].add(position)
        for place, name in list(places.body):
            if place == "log":
                places.body["letters", name] = places.body[place, name]
                places.others.setdefault(("letters", name), set()).update(places.others[place, name])
        return places

    def needs(self, message: Message) -> set[int]:
        """Positions of the records without which a message may be missing."""
        return {*self.others.get(message, ()), *([self.body[message]] if message in self.body else [])}

    def compared_with(self, damaged: Path) -> Hurt:
        """What a damaged copy has lost."""
        files = {file.name: file.read_bytes() for file in damaged.glob("*.seg") if file.is_file()}
        harmed: set[int] = set()
        lost_maps: set[str] = set()
        for name in {record.file for record in self.records.values()}:
            whole = (self.folder / name).read_bytes()
            hurt = next((data for data in files.values() if data == whole), files.get(name, b""))
            inside = {at: record for at, record in self.records.items() if record.file == name}
            for at, record in inside.items():
                stretch = slice(record.offset, record.offset + record.size)
                if hurt[stretch] != whole[stretch]:
                    harmed.add(at)
            first = min(record.offset for record in inside.values())
            end = max(record.offset + record.size for record in inside.values())
            if hurt[:first] != whole[:first] or (name in self.compacted and hurt[end:] != whole[end:]):
                lost_maps.add(name)
        return Hurt(self, frozenset(harmed), frozenset(lost_maps))


@dataclass(frozen=True, slots=True)
class Hurt:
    """A damaged copy, as it was before a broker or a repair touched it."""

    places: Places
    harmed: frozenset[int]  # positions of records whose bytes are not what they were
    lost_maps: frozenset[str]  # segments that do not say any more where their records are

    def is_readable(self, message: Message) -> bool:
        """Whether everything that a message needs is still there."""
        return not any(
            at in self.harmed or self.places.records[at].file in self.lost_maps
            for at in self.places.needs(message)
        )


def _offset(segment: SegmentReport, position: int) -> int:
    if segment.held is None:
        return position - segment.base + HEADER_SIZE
    offset = segment.held.offset_of(position)
    assert offset is not None
    return offset


def _named(payload: bytes) -> list[Message]:
    named: list[Message] = []
    for found in _BODY.finditer(payload):
        place, name = found[1].decode(), found[2].decode()
        if place == "doomed":  # until it is dead-lettered, under the same name; the last one counts
            place = "dead"
        named += [(one, name) for one in FANNED] if place == "fanned" else [(place, name)]
    return named


@dataclass(frozen=True, slots=True)
class Announced:
    """What a repair says that it gives up."""

    stretches: list[tuple[int, int]]
    files: list[str]  # of which nothing can be read

    @classmethod
    def by(cls, text: str) -> Announced:
        """Read the repair's output."""
        stretches: list[tuple[int, int]] = []
        for pattern in _SAID:
            for found in pattern.finditer(text):
                said = found.groupdict()
                if "all" in said:
                    stretches += [(int(at), int(at) + 1) for at in said["all"].split(",")]
                    continue
                first = int(said["first"])
                stretches.append((first, first + int(said["size"]) if "size" in said else int(said["stop"])))
        return cls(stretches, _WHOLE_FILE.findall(text))

    def __contains__(self, position: int) -> bool:
        return any(first <= position < stop for first, stop in self.stretches)

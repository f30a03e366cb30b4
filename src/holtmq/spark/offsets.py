"""A query's position in each queue: the JSON that Spark stores in the checkpoint.

Owns: the JSON of offsets, and resolving earliest, latest, times and numbers against what the broker has.
Must not touch: the broker itself, Spark.

A queue is named ``orders#7``: 7 is the broker's number for it, so a deleted and recreated queue is not
mistaken for the old one. The value is the next offset to read. A bare number says that there are no holes:
every offset of the batch had a row, and every later one is expected. Retention works by partition and leaves
holes; then the value is ``[next, rows, seen, waiting, first]``: the batch's rows, how many messages were
waiting up to ``seen`` when it was planned, and where the batch began. Fewer later means that retention
overtook the query.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from holtmq.spark.errors import DataLoss, InvalidOption
from holtmq.spark.offset_bounds import EARLIEST, LATEST, Bound

GROUP: Final = "#group:"  # in reports, not in checkpoints: the group that mirrors the query
OffsetJson: TypeAlias = "dict[str, int | list[int]]"


@dataclass(frozen=True, slots=True)
class Head:
    """What the broker has of one queue: messages ``first`` to ``next - 1``, ``live`` of them stored."""

    name: str
    number: int
    first: int
    next: int
    live: int

    @property
    def key(self) -> str:
        return f"{self.name}#{self.number}"


@dataclass(frozen=True, slots=True)
class Mark:
    """A position in one queue; see above. ``first`` is None where it must come from the previous offset."""

    next: int
    rows: int
    seen: int
    waiting: int
    first: int | None = None

    def expected(self, head: int) -> int:
        """How many messages must be stored between here and the queue's current end."""
        return self.waiting + max(0, head - self.seen)


def queue_of(key: str) -> str:
    """The queue's name in an offset's key."""
    return key.rpartition("#")[0]


def encode_marks(start: Mapping[str, object], marks: Mapping[str, Mark]) -> OffsetJson:
    """Encode marks as the checkpoint's JSON after ``start``; a bare number where that is enough."""
    encoded: OffsetJson = {}
    for key, mark in marks.items():
        first = mark.next if mark.first is None else mark.first
        whole = mark.rows == mark.next - first and mark.waiting == mark.seen - mark.next
        if whole and (key in start or mark.first is None):
            encoded[key] = mark.next
        else:
            encoded[key] = [mark.next, mark.rows, mark.seen, mark.waiting, first]
    return encoded


def decode_marks(encoded: Mapping[str, object], start: Mapping[str, Mark] | None = None) -> dict[str, Mark]:
    """Decode ``encode_marks``; ``start``, the previous offset, is needed to know where a batch began."""
    marks: dict[str, Mark] = {}
    for key, value in encoded.items():
        match value:
            case int() if not isinstance(value, bool):
                first = start[key].next if start and key in start else value
                marks[key] = Mark(value, value - first, value, 0, first)
            case [int(at), int(rows), int(seen), int(waiting), int(first)]:
                marks[key] = Mark(at, rows, seen, waiting, first)
            case _:
                raise InvalidOption(f"the checkpoint holds {value!r} for {key}: not an offset of this source")
    return marks


def resolve(bound: Bound, heads: Iterable[Head], times: Mapping[str, int], option: str) -> dict[str, int]:
    """The offset where each queue starts or ends. ``times`` has the offset of a timestamp, by queue name."""
    named = dict(bound.offsets) or dict(bound.timestamps_us)
    found: dict[str, int] = {}
    names = set()
    for head in heads:
        names.add(head.name)
        if bound.timestamp_us is not None or head.name in times:
            wanted = times[head.name]
        elif bound.word is not None:
            wanted = bound.word
        elif head.name in named:
            wanted = named[head.name]
        else:
            raise InvalidOption(
                f"option {option}: it names no offset for queue {head.name}; every queue needs one"
            )
        if wanted == EARLIEST:
            wanted = head.first
        elif wanted == LATEST:
            wanted = head.next
        found[head.key] = wanted
    strangers = sorted(named.keys() - names)
    if strangers:
        raise InvalidOption(
            f"option {option}: it names {', '.join(strangers)}, which this query does not read"
        )
    return found


def check_inside(
    offsets: Mapping[str, int], heads: Iterable[Head], option: str, fail: bool
) -> dict[str, int]:
    """Clamp the user's offsets to what exists; raise instead when data loss is an error."""
    inside = dict(offsets)
    for head in heads:
        wanted = offsets[head.key]
        if fail and wanted > head.next:
            raise DataLoss(
                f"{option} is {wanted} for queue {head.name}, which ends at {head.next}: "
                "it was emptied or the offset is of another queue (failOnDataLoss=false reads what there is)"
            )
        if fail and wanted < head.first and head.first > 0:
            raise DataLoss(
                f"{option} is {wanted} for queue {head.name}, whose oldest message is {head.first}: "
                f"{head.first - wanted} are gone (failOnDataLoss=false reads what there is)"
            )
        inside[head.key] = min(max(wanted, head.first), head.next)
    return inside


def describe_gap(queue: str, first: int, stop: int, expected: int, found: int, first_live: int) -> str:
    """The error text of a data loss, with the gap."""
    lost = expected - found
    where = f"offsets {first} to {stop - 1}"
    if first < first_live:
        where = f"offsets {first} to {min(stop, first_live) - 1}" if first_live < stop else where
    return (
        f"retention overtook the query: queue {queue} lost {lost} of {expected} unread messages "
        f"in {where}; the oldest one left is {first_live}. "
        "Start again from a new checkpoint, keep messages longer, let the queue wait for a consumerGroup, "
        "or set failOnDataLoss=false to go on without them"
    )

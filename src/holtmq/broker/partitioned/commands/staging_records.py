"""The data types of staging: rows, parts, attempts, and their journal records.

Owns: the layout of the records. Must not touch: when a part is kept, published or dropped (``staging``).
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from holtmq.broker.errors import Conflict
from holtmq.broker.partitioned.captured import StateRecord, array_of, packed
from holtmq.broker.partitioned.commands.addressing import Addresses
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.records.changes import Kind

Key = tuple[int, int]  # task, attempt
Place = tuple[int, int, int]  # task, attempt, part
_PARTS_AT_ONCE: Final = 8  # encoded: each has 160 kB if it is as long as it may be


class PushesSuspended(Conflict):
    """Pushes are suspended by maintenance; the commit can be retried."""


class StagedRow(NamedTuple):
    queue: str
    partition: str
    body: Body


class Winner(NamedTuple):
    """The attempt of a task whose rows are published, and how many it staged."""

    task: int
    attempt: int
    rows: int


@dataclass(frozen=True, slots=True)
class Committed:
    rows: int
    duplicates: int  # rows whose transaction id was already in the queue
    repeated: bool  # the batch had been committed before; nothing was done


class Header(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The record of a part; names are in a table because rows repeat them."""

    writer: str
    batch: int
    task: int
    attempt: int
    part: int
    staged_us: int
    names: list[str]
    rows: list[tuple[int, int, str]]  # queue, partition (indexes in ``names``), transaction id


class Publication(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    writer: str
    batch: int
    at_us: int
    events: bytes
    positions: bytes
    rest: list[Place] = []  # (task, attempt, part) still to be published


class PieceOfBatch(Publication):
    """One of several records that publish a batch. Older versions do not know the last field, and refuse it:
    they would show a part of the batch."""

    hides: bool = True  # no reader sees the rows before the batch is complete


class AnyPublication(Publication):
    """Decodes both."""

    hides: bool = False


class State(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    committed: dict[str, tuple[int, int]]
    parts: list[tuple[str, int, int, int, int, int, int, bytes]]
    begun: dict[str, tuple[int, list[Place]]] = {}


class HidingState(State):
    """The same while a batch is being published in several records; decodes both."""

    # Writer -> from which offset on its batch is hidden, by number of the queue.
    hidden: dict[str, dict[int, int]] = {}


@dataclass(slots=True)
class StagedPart:
    header: int  # journal position of its record
    positions: "array[int]"  # of its bodies
    staged_us: int
    lost: int = 0  # bodies that a repair gave up; they have a position all the same


@dataclass(slots=True)
class Attempt:
    parts: dict[int, StagedPart] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many there are; a writer must stage again what was lost."""
        return sum(len(part.positions) - part.lost for part in self.parts.values())


@dataclass(slots=True)
class Share:
    """One queue's rows of a batch: (partition, transaction id) of each, and the position of its body."""

    items: list[tuple[str, str]] = field(default_factory=list)
    positions: "array[int]" = field(default_factory=lambda: array("Q"))
    addresses: Addresses | None = None


encode_record: Final = msgspec.msgpack.Encoder().encode
decode_header: Final = msgspec.msgpack.Decoder(Header).decode
decode_publication: Final = msgspec.msgpack.Decoder(AnyPublication).decode
decode_state: Final = msgspec.msgpack.Decoder(HidingState).decode


def state_record(
    committed: dict[str, tuple[int, int]],
    parts: Sequence[tuple[tuple[str, int], Place, StagedPart]],
    begun: dict[str, tuple[int, list[Place]]],
    hidden: dict[str, dict[int, int]],
) -> Iterator[StateRecord]:
    """One ``State``, or ``HidingState``. With very many rows it is long, so it is encoded in portions."""
    rows = (
        (writer, batch, *place, part.header, part.staged_us, part.positions.tobytes())
        for (writer, batch), place, part in parts
    )
    fields = [encode_record(committed), packed(rows, _PARTS_AT_ONCE), encode_record(begun)]
    if hidden:
        fields.append(encode_record(hidden))
    yield int(Kind.STAGING_STATE), b"".join([array_of(len(fields)), *fields])

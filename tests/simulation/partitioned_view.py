"""What the broker holds of its partitioned queues, in the same words as the model holds it.

Owns: reading one side and the other into equal shapes, and saying where they differ. Must not touch: state.
"""

from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from holtmq.broker.partitioned.commands.staging_records import StagedPart, decode_header
from holtmq.broker.partitioned.log.bodies import Body, decode_body
from holtmq.verify.record import make_body
from simulation.partitioned_model import Letter, PartKey, Row, State, Timer
from simulation.world import World

WRITERS: Final = ("spark", "flink")
Aborted = Container[tuple[str, int]]  # (writer, batch)


@dataclass(frozen=True, slots=True)
class QueueView:
    messages: dict[str, tuple[int, tuple[str, ...]]]  # by partition: the first position, ids from there on
    places: dict[tuple[str, str], tuple[int, int, int]]  # (group, partition): cursor, retries, hold
    starts: dict[str, int]
    letters: tuple[Letter, ...]


@dataclass(frozen=True, slots=True)
class View:
    queues: dict[str, QueueView]
    subscriptions: dict[tuple[str, str], tuple[str, int]]
    staged: dict[PartKey, tuple[Row, ...]]
    committed: dict[str, int]
    timers: dict[tuple[str, str], Timer]
    spool: tuple[Row, ...]
    spooling: bool


def expected(state: State, aborted: Aborted) -> View:
    """As the model has it."""
    queues = {
        name: QueueView(
            {part: (held.first, held.ids[held.first :]) for part, held in queue.partitions.items()},
            {
                (group, part): (place.cursor, place.retries, place.hold_us)
                for group in queue.groups
                for part in queue.partitions
                for place in [queue.place(group, part)]
            },
            {group: reader.start_us for group, reader in queue.groups.items()},
            queue.letters,
        )
        for name, queue in state.queues.items()
    }
    staged = {key: rows for key, rows in state.staged.items() if (key[0], key[1]) not in aborted}
    return View(
        queues,
        dict(state.subscriptions),
        staged,
        dict(state.committed),
        dict(state.timers),
        state.spool,
        state.spooling,
    )


def _addresses(world: World, part: StagedPart) -> list[tuple[str, str]]:
    """Queue and partition of each row of a staged part."""
    header = decode_header(world.partitioned.store.journal.read(part.header)[1])
    return [(header.names[queue], header.names[partition]) for queue, partition, _ in header.rows]


def observed(world: World, names: Collection[str], aborted: Aborted) -> View:
    """As the broker has it, of these queues; without what was staged for a batch that was ``aborted``.

    An abort is not journalled: after a crash such rows may be back, under a number that is not used.
    """
    service, name_at = world.partitioned, partial(world.reads.name, world.partitioned)
    store = service.store
    queues = {
        name: QueueView(
            {
                part.name: (
                    part.first,
                    tuple(name_at(queue.log.position(offset)) for offset in part.offsets),
                )
                for part in queue.partitions
            },
            {
                (group.name, part.name): (
                    -1 if (cursor := group.cursor(index)) is None else cursor,
                    group.leases.retries.get(index, 0),
                    group.leases.holds.get(index, 0),
                )
                for group in queue.groups.values()
                for index, part in enumerate(queue.partitions)
            },
            {group.name: group.start_us or 0 for group in queue.groups.values()},
            tuple(
                (x.group, queue.partitions[x.partition].name, x.position, x.retry_count, x.error)
                for x in queue.dead_letters
            ),
        )
        for name, queue in store.queues.items()
        if name in names
    }
    records = {
        (group, scope.queue): (record.mode.value, record.timestamp_us)
        for group, scope, record in store.subscriptions.records()
    }
    staged = {
        (*batch, *place): tuple(
            (*where, name_at(at)) for where, at in zip(_addresses(world, part), part.positions, strict=True)
        )
        for batch, place, part in service.staging.parts()
        if batch not in aborted
    }
    writers = {writer: service.staging.last_batch(writer) for writer in WRITERS}
    timers = {
        (name, timer.key): Timer(timer.partition, timer.transaction_id, timer.due_us, timer.message_id)
        for name in names
        for timer in service.timed.page(name, "", 1000)[0]
    }
    spool = tuple(
        (name, partition, name_at(at)) for name, partition, at in service.spool.waiting() if name in names
    )
    return View(
        queues,
        records,
        staged,
        {writer: batch for writer, batch in writers.items() if batch is not None},
        timers,
        spool,
        service.spool.pushes_spooled,
    )


def bodies_on_disk(world: World, names: Collection[str], aborted: Aborted) -> Iterator[tuple[str, str, Body]]:
    """Where each message of these queues is, its id, and what the disk has there, whatever memory says.

    Messages, dead letters, rows that are staged, messages in the spool; of those that were read before, only
    what the files may have changed since then.
    """
    service = world.partitioned
    where: list[tuple[object, ...]] = []
    positions: list[int] = []
    for name, queue in service.store.queues.items():
        if name in names:
            for part in queue.partitions:
                where += [(name, part.name)] * len(part.offsets)
                positions += [queue.log.position(offset) for offset in part.offsets]
            for letter in queue.dead_letters:
                where.append((name, "letter", letter.number))
                positions.append(letter.journal_position)
    for batch, place, staged in service.staging.parts():
        if batch not in aborted:
            where += [("staged", batch, place)] * len(staged.positions)
            positions += staged.positions
    for name, partition, at in service.spool.waiting():
        if name in names:
            where.append(("spooled", name, partition))
            positions.append(at)
    new = world.reads.unread(_decoded, positions)
    bodies = world.reads.read(service, _decoded, [positions[index] for index in new])
    for index, body in zip(new, bodies, strict=True):
        yield str(where[index]), world.reads.name(service, positions[index]), body


def _decoded(payload: bytes, _position: int) -> Body:
    return decode_body(payload, None)


def payload_of(name: str) -> bytes:
    """JSON, and recognisable."""
    return b'"' + make_body(name, len(name) * 7 % 120) + b'"'


def difference(want: View, got: View) -> str:
    """The first places where two views differ, for people."""
    lines: list[str] = []
    for name, queue in want.queues.items():
        other = got.queues.get(name)
        if other is None:
            return f"queue {name} is missing"
        for label, mine, theirs in (
            ("messages", queue.messages, other.messages),
            ("cursor, retries, hold", queue.places, other.places),
            ("start", queue.starts, other.starts),
        ):
            keys = [*mine, *[key for key in theirs if key not in mine]]
            lines += [
                f"{name} {key} {label}: expected {mine.get(key)}, found {theirs.get(key)}"
                for key in keys
                if mine.get(key) != theirs.get(key)
            ]
        if queue.letters != other.letters:
            lines.append(f"{name} dead letters: expected {queue.letters}, found {other.letters}")
    for label in ("subscriptions", "staged", "committed", "timers", "spool", "spooling"):
        wanted, found = getattr(want, label), getattr(got, label)
        if wanted != found:
            lines.append(f"{label}: expected {wanted}, found {found}")
    return "; ".join(lines[:3])

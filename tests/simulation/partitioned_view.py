"""What the broker holds of its partitioned queues, in the same words as the model holds it.

Owns: reading one side and the other into equal shapes, and saying where they differ. Must not touch: state.
"""

from collections.abc import Container
from dataclasses import dataclass

from holtmq.broker.partitioned.service import PartitionedService
from holtmq.verify.record import make_body
from simulation.partitioned_model import Letter, State


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


def expected(state: State) -> View:
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
    return View(queues, dict(state.subscriptions))


def observed(service: PartitionedService, names: Container[str]) -> View:
    """As the broker has it, of these queues."""
    store = service.store
    queues = {
        name: QueueView(
            {
                part.name: (
                    part.first,
                    tuple(
                        store.read_transaction_id(offset, queue.log.position(offset)) or "?"
                        for offset in part.offsets
                    ),
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
    return View(queues, records)


def damaged_bodies(service: PartitionedService, names: Container[str]) -> list[str]:
    """Messages of these queues whose body is not the one that was pushed under their id."""
    store = service.store
    return [
        body.transaction_id
        for name, queue in store.queues.items()
        if name in names
        for part in queue.partitions
        for body in store.bodies([queue.log.position(offset) for offset in part.offsets])
        if body.payload != payload_of(body.transaction_id)
    ]


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
    if want.subscriptions != got.subscriptions:
        lines.append(f"subscriptions: expected {want.subscriptions}, found {got.subscriptions}")
    return "; ".join(lines[:3])

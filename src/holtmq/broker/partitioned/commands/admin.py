"""Rare commands on partitioned queues: configure, delete, seek, replay, purge, trace.

Owns: these commands, each as one commit, or in steps if it may concern very many
messages. Must not touch: wire names, clocks, the hot commands (see service).
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from holtmq.broker.errors import NotFound
from holtmq.broker.partitioned.commands.replaying import (
    ReplayDecision,
    decide_purge,
    decide_replay,
)
from holtmq.broker.partitioned.commands.retention import decide_clear, ends_of
from holtmq.broker.partitioned.events import (
    NO_QUEUE,
    DeadLettersRemoved,
    MessageDeleted,
    QueueConfigured,
    QueueDeleted,
    QueuePaused,
    QueueResumed,
)
from holtmq.broker.partitioned.extras.traces import Traced
from holtmq.broker.partitioned.groups.group import Group, micros
from holtmq.broker.partitioned.groups.joining import (
    SeekDecision,
    decide_group_deletion,
    decide_move,
    decide_seek,
    decide_starts,
    forget_subscriptions,
)
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetter, LetterFilter
from holtmq.broker.partitioned.pending_commit import PendingCommit
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.queue_config import OptionValue, merge
from holtmq.broker.partitioned.requests import PushResult
from holtmq.broker.partitioned.service import PartitionedService, emptied
from holtmq.broker.partitioned.store import Change
from holtmq.broker.pausing import Pause

_queue: Final = attrgetter("queue")
_QUEUES_AT_ONCE: Final = 200  # of one group: about 2 ms

_LETTERS: Final = 5_000  # dead letters that one step deletes: about 5 ms
_MESSAGES: Final = 20_000  # messages, likewise


def configure(
    service: PartitionedService,
    name: str,
    namespace: str | None,
    task: str | None,
    changes: Mapping[str, OptionValue],
    now: float,
    *,
    replace: bool = False,
) -> PartitionedQueue:
    """Create a queue or change its options; options not given are kept, or reset with ``replace``."""
    store = service.store
    queue = store.queues.get(name)
    current = store.default_config if queue is None or replace else queue.config
    config = merge(current, changes)
    if queue is None:
        store.check_new(name, 0)
        number, created_us = store.next_queue, micros(now)
        event = QueueConfigured(name, namespace or "", task or "", config, created_us)
    else:
        number = queue.number
        namespace = queue.namespace if namespace is None else namespace
        task = queue.task if task is None else task
        event = QueueConfigured(name, namespace, task, config, queue.created_us)
    store.commit([(number, event)])
    return store.by_number[number]


def pause(service: PartitionedService, name: str, pause: Pause) -> None:
    """Deliver nothing of a queue, which is created if it has no message yet."""
    store = service.store
    queue = store.queues.get(name)
    changes: list[Change] = []
    if queue is None:
        queue, configured = store.draft(name, pause.since_ms / 1000)
        changes.append((queue.number, configured))
    store.commit([*changes, (queue.number, QueuePaused(pause))])


def resume(service: PartitionedService, name: str) -> bool:
    """Deliver again; False when the queue was not paused."""
    queue = service.store.queues.get(name)
    if queue is None or queue.paused is None:
        return False
    service.store.commit([(queue.number, QueueResumed())])
    return True


def delete_queue(service: PartitionedService, name: str) -> bool:
    """Delete a queue and the subscription records that name it; return whether it existed."""
    queue = service.store.queues.get(name)
    changes: list[Change] = [(NO_QUEUE, forget_subscriptions(queue=name))]
    groups: list[Group] = []
    if queue is not None:
        changes.append((queue.number, QueueDeleted()))
        groups += queue.groups.values()
    service.store.commit(changes)
    service.free(_columns(groups))
    service.forget_joined()
    service.counters.forget(name)
    return queue is not None


def queue_named(service: PartitionedService, name: str) -> PartitionedQueue:
    queue = service.store.queues.get(name)
    if queue is None:
        raise NotFound("Queue not found")
    return queue


@dataclass(slots=True)
class GroupDeletion:
    partitions: int
    queues: list[str]


def delete_group(
    service: PartitionedService,
    group: str,
    queue_name: str | None,
    *,
    with_records: bool,
    check: Callable[[str], None],
) -> Generator[None, None, GroupDeletion]:
    """Delete a group's cursors and leases, on one queue or on all; ``with_records``: its starts too.

    In steps, some queues in one record; the starts come last. ``check`` raises if a queue must not be
    changed: the group may join others between the steps.
    """
    store = service.store
    only = store.queues.get(queue_name) if queue_name is not None else None
    done = GroupDeletion(0, [])
    for some in _portions(store.queues.values() if queue_name is None else () if only is None else (only,)):
        changes: list[Change] = []
        deleted: list[Group] = []
        for queue in some:
            event, members = decide_group_deletion(queue, group)
            if event is not None and store.by_number.get(queue.number) is queue:
                check(queue.name)
                changes.append((queue.number, event))
                deleted.append(queue.groups[group])
                done.partitions += members
                done.queues.append(queue.name)
        if changes:
            store.commit(changes)
            service.forget_joined()
        yield from emptied(_columns(deleted))
        yield
    if with_records:
        if queue_name is None:
            yield from _checking_records(service, group, check)
        store.commit([(NO_QUEUE, forget_subscriptions(group, queue_name or ""))])
    service.forget_joined()
    yield from store.subscriptions.free()
    return done


def move_subscription(
    service: PartitionedService, group: str, timestamp_us: int, check: Callable[[str], None]
) -> Generator[None, None, int]:
    """Change a group's start position in partitions without a cursor; return how many records it has.

    In steps: the records at once, then some queues at a time. For ``check`` see ``delete_group``.
    """
    store = service.store
    yield from _checking_records(service, group, check)
    moved, count = decide_move(store.subscriptions, group, timestamp_us)
    store.commit([(NO_QUEUE, moved)])
    yield
    service.forget_joined()
    yield
    for some in _portions(store.queues.values()):
        changes: list[Change] = []
        for queue in some:
            starts = decide_starts(queue, group, timestamp_us)
            if starts and store.by_number.get(queue.number) is queue:
                check(queue.name)
                changes += [(queue.number, event) for event in starts]
        if changes:
            store.commit(changes)
        yield
    return count


def _columns(groups: list[Group]) -> Iterator[dict[Any, Any]]:
    while groups:
        yield from groups.pop().leases.columns()


def _checking_records(
    service: PartitionedService, group: str, check: Callable[[str], None]
) -> Generator[None, None, None]:
    """Check the queues of all records, in steps, and in the last one those that were recorded meanwhile."""
    scopes = service.store.subscriptions.scopes
    checked = {""}
    for scope in scopes(group):
        if scope.queue not in checked:
            check(scope.queue)
            checked.add(scope.queue)
        yield
    for name in set(map(_queue, scopes(group))) - checked:
        check(name)


def _portions(queues: Iterable[PartitionedQueue]) -> Iterator[list[PartitionedQueue]]:
    every = list(queues)
    for start in range(0, len(every), _QUEUES_AT_ONCE):
        yield every[start : start + _QUEUES_AT_ONCE]


def seek(
    service: PartitionedService,
    group: str,
    queue_name: str,
    timestamp_us: int | None,
    partition: str | None,
    *,
    offset: int | None = None,
) -> SeekDecision:
    """Move a group's cursors to an offset, to a time, or without either after the newest message."""
    queue = queue_named(service, queue_name)
    decision = decide_seek(queue, group, timestamp_us, partition, offset=offset)
    reader = queue.groups.get(group) if partition is None else None
    replaced = [] if reader is None else reader.leases.columns()
    service.store.commit([(queue.number, event) for event in decision.events])
    service.free(replaced)
    return decision


@dataclass(frozen=True, slots=True)
class Replayed:
    decision: ReplayDecision
    body: Body
    result: PushResult


def replay(
    service: PartitionedService,
    queue: PartitionedQueue,
    number: int,
    now: float,
    target_name: str | None = None,
    partition: str | None = None,
) -> Replayed:
    """Push a dead letter as a message again and remove it, in one step."""
    store = service.store
    pending = PendingCommit(store)
    target = queue if target_name is None else pending.home(target_name, now)
    decision = decide_replay(queue, number, now, target, partition)
    old = store.body(decision.letter.journal_position)
    body = Body(decision.transaction_id, old.payload, old.trace_id, old.producer, old.metadata)
    if decision.push.event is not None:
        pending.push(target, decision.push.event, [body])
    pending.add(queue, [decision.removed])
    pending.write()
    home = store.by_number[target.number]
    offset = decision.push.offsets[0]
    result = PushResult(
        home.number,
        home.indexes[decision.partition],
        offset,
        home.log.created_us(offset),
        bool(decision.push.duplicates),
    )
    return Replayed(decision, body, result)


def purge(
    service: PartitionedService, queue: PartitionedQueue, wanted: LetterFilter
) -> Generator[None, None, int]:
    """Delete matching dead letters, in steps; return how many. A crash in between leaves the rest."""
    count = 0
    letters = list(queue.dead_letters)
    for start in range(0, len(letters), _LETTERS):
        event = decide_purge(queue, letters[start : start + _LETTERS], wanted)
        if service.store.by_number.get(queue.number) is not queue:
            break  # deleted meanwhile
        if event is not None:
            service.store.commit([(queue.number, event)])
            count += len(event.numbers)
        yield
    return count


def delete_message(
    service: PartitionedService,
    queue: PartitionedQueue,
    partition: int,
    transaction_id: str,
    letter: DeadLetter | None = None,
) -> bool:
    """Delete a message and all its dead letters in one step; return whether there were any.

    If the message is gone from the queue, ``letter`` is one of its dead letters (``find_letter``).
    """
    position = queue.find(partition, transaction_id)
    if position is None:
        letters = [] if letter is None else queue.dead_letters.of_message(letter.offset)
    else:
        letters = queue.dead_letters.of_message(queue.offset_of(partition, position))
    changes: list[Change] = []
    if letters:
        changes.append((queue.number, DeadLettersRemoved(tuple(letter.number for letter in letters))))
    if position is not None:
        changes.append((queue.number, MessageDeleted(partition, position)))
    if changes:
        service.store.commit(changes)
    return bool(changes)


def clear(
    service: PartitionedService, queue: PartitionedQueue, partition: str | None
) -> Generator[None, None, int]:
    """Delete the messages that there are, of one partition or of all, in steps; return how many.

    A crash in between leaves the rest.
    """
    count, ends = 0, ends_of(queue, partition)
    while ends and service.store.by_number.get(queue.number) is queue:
        event, gone = decide_clear(queue, ends, _MESSAGES)
        if event is not None:
            service.store.commit([(queue.number, event)])
            count += gone
        yield
    return count


def trace(
    service: PartitionedService,
    queue: int,
    partition: int,
    transaction_id: str,
    group: str,
    event_type: str,
    names: tuple[str, ...],
    data: bytes,
    now: float,
) -> Traced:
    """Attach a trace event to a message; raises NotFound."""
    home = service.store.find(queue, partition)
    if home is None or home.find(partition, transaction_id) is None:
        raise NotFound("Message not found")
    number = service.store.traces.next_number
    event = Traced(number, queue, partition, transaction_id, group, event_type, names, data, micros(now))
    service.store.commit([(NO_QUEUE, event)])
    return event

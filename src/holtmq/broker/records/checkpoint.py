"""A checkpoint: records of the whole current state, so that a restart need not read the log before it.

Owns: the records of a checkpoint and which journal positions they refer to. Must not touch: files;
reading the records back is ``recovery.py``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from itertools import repeat
from struct import Struct
from typing import Final

import msgspec

from holtmq.broker.broker import Broker
from holtmq.broker.jobs.job import encode_job
from holtmq.broker.message import Message
from holtmq.broker.partitioned.store import PartitionedStore
from holtmq.broker.records.changes import (
    AnyChange,
    GlobalParameterPut,
    JobPut,
    Kind,
    ParameterPut,
    PermissionPut,
    PolicyPut,
    TopicPermissionPut,
    UserLimitsPut,
    UserPut,
    VhostLimitsPut,
    VhostPut,
    VhostSettingsPut,
    encode_change,
    pack_table,
)
from holtmq.broker.topology.policies import Policy
from holtmq.broker.work.priority_levels import Levels
from holtmq.broker.work.spilling_fifo import SpillingFifo
from holtmq.broker.work.work_queue import WorkQueue


class QueueState(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The contents of one work queue, in a checkpoint."""

    id: int
    size: int
    expiring: bool
    delivered_upto: int
    levels: dict[int, bytes]
    returned: dict[int, int]


class Counters(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Numbers that must not be reused."""

    seq: int
    last_queue_id: int


class DelayState(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Due times of delayed messages, by position."""

    due_ms: dict[int, int]


_encode: Final = msgspec.msgpack.Encoder().encode
_ONE: Final = Struct("<Q").pack  # as an array on a little-endian machine, in a third of the time


def snapshot(
    broker: Broker, partitioned: PartitionedStore | None = None
) -> tuple[list[tuple[int, bytes]], list[array[int]]]:
    """Records of the whole current state, and the positions that it refers to, in any order."""
    records: list[tuple[int, bytes]] = [
        (Kind.COUNTERS, _encode(Counters(broker.flow.seq, broker.last_queue_id)))
    ]
    records += [(Kind.CHANGE, encode_change(change)) for change in _others(broker)]
    records += zip(repeat(Kind.CHANGE), broker.topology_records.encoded())
    live: list[array[int]] = []
    simple: list[int] = []  # positions of the messages of all simple queues
    leased = _leased(broker)
    kind = int(Kind.QUEUE_STATE)
    for queue in broker.work_queues():  # 2 µs for each of perhaps 100,000, at one moment
        fifo = queue.fifo
        if (
            fifo is None
            or fifo.inbox is not fifo.ready
            or fifo.aside
            or queue.id in leased
            or queue.held_back
            or queue.outcasts.count
        ):
            state = _queue_state(queue, _outstanding(queue, leased.get(queue.id, [])), live)
            if queue.persisted:
                records.append((kind, _encode(state)))
        elif fifo.ready:
            positions = [m.position for m in fifo.ready if m.position and m.persistent]
            simple += positions
            if queue.persisted:
                records.append((kind, _encode(_simple_state(queue, fifo, positions))))
        # Else it is empty, like most queues of a broker with very many; a restart begins with an empty one.
    live.append(array("Q", simple))
    delayed = broker.flow.delayed
    live.append(array("Q", delayed))
    due = {position: due_ms for position, (persistent, due_ms) in delayed.items() if persistent}
    records.append((Kind.DELAY_STATE, _encode(DelayState(due))))
    damaged, kept_aside = broker.flow.damage.dump()
    if kept_aside:
        records.append((Kind.DAMAGED, damaged))
        live.append(kept_aside)
    if partitioned is not None:
        more, kept = partitioned.snapshot()
        records += more
        live += kept
    return records, [positions for positions in live if positions]


def _leased(broker: Broker) -> dict[int, list[Message]]:
    """The messages that consumers hold, by queue."""
    found: dict[int, list[Message]] = {}
    for session in broker.sessions:
        for lease in session.outstanding():
            found.setdefault(lease.queue.id, []).append(lease.message)
    return found


def _outstanding(queue: WorkQueue, leased: list[Message]) -> list[Message]:
    """The messages of a queue that are not in its store."""
    held_back = [message for batch in queue.held_back.values() for message in batch]
    # Not written yet; some (``reject-publish-dlx``) were never in the queue.
    outcasts = [message for _, message in queue.outcasts if message.position]
    return leased + held_back + outcasts


def _queue_state(queue: WorkQueue, outstanding: list[Message], live: list[array[int]]) -> QueueState:
    """What a restart needs of a queue; adds the positions of all its messages to ``live``."""
    store = queue.store
    fifos: dict[int, SpillingFifo] = dict(store.fifos) if isinstance(store, Levels) else {0: store}
    size, expiring = queue.bytes, queue.expiring
    out_by_level: dict[int, list[int]] = {}
    for message in outstanding:
        level = store.level_of(message.priority) if isinstance(store, Levels) else 0
        expiring = expiring or message.expires_ms > 0
        if message.persistent:
            size += len(message.body)
            out_by_level.setdefault(level, []).append(message.position)
            fifos.setdefault(level, SpillingFifo())
    live.append(array("Q", [message.position for message in outstanding if message.position]))
    levels: dict[int, bytes] = {}
    for level, fifo in fifos.items():
        runs = list(fifo.positions())
        live += runs
        size -= fifo.transient_bytes()
        if queue.persisted:
            levels[level] = b"".join(run.tobytes() for run in _with_out(runs, out_by_level.get(level, [])))
    return QueueState(queue.id, size, expiring, queue.delivered_upto, levels, queue.returned)


def _simple_state(queue: WorkQueue, fifo: SpillingFifo, positions: list[int]) -> QueueState:
    """``_queue_state`` of a queue whose messages are all ready and in memory, in a quarter of the time."""
    size = queue.bytes
    if len(positions) < len(fifo.ready):
        size -= fifo.transient_bytes()
    packed = _ONE(positions[0]) if len(positions) == 1 else array("Q", positions).tobytes()
    return QueueState(queue.id, size, queue.expiring, queue.delivered_upto, {0: packed}, queue.returned)


def _with_out(runs: list[array[int]], out: list[int]) -> list[array[int]]:
    """Merge outstanding positions: ahead of the ready ones, or among those that were returned earlier."""
    out.sort()
    merged: list[array[int]] = []
    for run in runs:
        if out and run:
            here = bisect_left(out, run[-1])
            if here:
                merged.append(array("Q", sorted([*out[:here], *run])))
                out = out[here:]
                continue
        merged.append(run)
    merged.append(array("Q", out))
    return merged


def _others(broker: Broker) -> Iterable[AnyChange]:
    """Everything but exchanges, queues and bindings."""
    for named in broker.users.vhosts():
        yield VhostPut(named.name, named.description, list(named.tags))
        if named.default_queue_type or named.protected_from_deletion:
            yield VhostSettingsPut(named.name, named.default_queue_type, named.protected_from_deletion)
    for user in broker.users.users():
        yield UserPut(user.name, user.password_hash, list(user.tags))
    for grant in broker.users.grants():
        rights = grant.permissions
        yield PermissionPut(grant.user, grant.vhost, rights.configure, rights.write, rights.read)
    yield from _runtime(broker)
    for vhost in broker.vhosts.values():
        for book, operator in ((broker.policies, False), (broker.operator_policies, True)):
            for policy in book.in_vhost(vhost.name):
                yield _policy_put(policy, operator)


def _runtime(broker: Broker) -> Iterable[AnyChange]:
    """Topic permissions, limits and parameters."""
    for topic in broker.topic_permissions.all():
        yield TopicPermissionPut(topic.user, topic.vhost, topic.exchange, topic.write, topic.read)
    for vhost, limits in sorted(broker.limits.of_vhosts.items()):
        yield VhostLimitsPut(vhost, limits)
    for user, limits in sorted(broker.limits.of_users.items()):
        yield UserLimitsPut(user, limits)
    for parameter in broker.parameters.all():
        yield ParameterPut(parameter.vhost, parameter.component, parameter.name, parameter.value)
    for name, value in broker.parameters.globals():
        yield GlobalParameterPut(name, value)
    for job in broker.jobs.jobs.values():
        if not job.request.dry_run:
            yield JobPut(job.id, encode_job(job))


def _policy_put(policy: Policy, operator: bool) -> PolicyPut:
    return PolicyPut(
        policy.vhost,
        policy.name,
        policy.pattern.pattern,
        policy.apply_to.value,
        policy.priority,
        pack_table(dict(policy.definition)),  # type: ignore[arg-type]
        operator,
    )

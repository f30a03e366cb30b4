"""A checkpoint: records of the whole current state, so that a restart need not read the log before it.

Owns: the records of a checkpoint and which journal positions they refer to. Must not touch: files;
reading the records back is ``recovery.py``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Final

import msgspec

from holtmq.broker.broker import Broker
from holtmq.broker.jobs.job import encode_job
from holtmq.broker.partitioned.captured import Captured
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
from holtmq.broker.records.queue_copies import QueueCopies
from holtmq.broker.topology.policies import Policy


class Counters(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Numbers that must not be reused."""

    seq: int
    last_queue_id: int


class DelayState(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Due times of delayed messages, by position."""

    due_ms: dict[int, int]


_encode: Final = msgspec.msgpack.Encoder().encode


class Snapshot:
    """The whole state at the moment when this is made, since a checkpoint is the state at one position of the
    log. Work queues may have been copied before, those that have not changed since. Partitioned queues are
    copied later, by ``capture_more``, or before they change.

    When all are, ``live`` and then ``records`` may be called in another thread: they use only what does not
    change.
    """

    __slots__ = (
        "_counters",
        "_delayed",
        "_live",
        "_more",
        "_others",
        "_partitioned",
        "_queues",
        "_store",
        "_topology",
    )

    def __init__(
        self,
        broker: Broker,
        partitioned: PartitionedStore | None = None,
        queues: QueueCopies | None = None,
    ) -> None:
        self._counters = Counters(broker.flow.seq, broker.last_queue_id)
        self._others = _Others(broker)
        self._topology = broker.topology_records.captured()
        self._queues = QueueCopies(broker) if queues is None else queues
        self._queues.complete()
        self._delayed = dict(broker.flow.delayed)
        self._more: list[tuple[int, bytes]] = []
        self._live: list[array[int]] = []
        damaged, kept_aside = broker.flow.damage.dump()
        if kept_aside:
            self._more.append((Kind.DAMAGED, damaged))
            self._live.append(kept_aside)
        self._store = partitioned
        self._partitioned = Captured(()) if partitioned is None else partitioned.begin_capture()

    def capture_more(self, most: int | None = None) -> bool:
        """Copy so many partitioned queues; return whether all are copied."""
        return self._store is None or self._store.capture_more(most)

    def live(self) -> Iterator[array[int]]:
        """The positions that the state refers to, in any order."""
        parts = chain(self._queues.live(), (array("Q", self._delayed),), self._live, self._partitioned.live)
        return (positions for positions in parts if positions)

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Records of the state, in an order that can be read."""
        yield Kind.COUNTERS, _encode(self._counters)
        yield from zip(repeat(Kind.CHANGE), map(encode_change, self._others.changes()))
        yield from zip(repeat(Kind.CHANGE), self._topology.encoded())
        yield from zip(repeat(Kind.QUEUE_STATE), self._queues.states())
        delayed = self._delayed.items()
        due = {position: due_ms for position, (persistent, due_ms) in delayed if persistent}
        yield Kind.DELAY_STATE, _encode(DelayState(due))
        yield from self._more
        yield from self._partitioned.records


def snapshot(
    broker: Broker, partitioned: PartitionedStore | None = None
) -> tuple[list[tuple[int, bytes]], list[array[int]]]:
    """Records of the whole current state, and the positions that it refers to, in any order."""
    taken = Snapshot(broker, partitioned)
    taken.capture_more()
    live = list(taken.live())
    return list(taken.records()), live


class _Others:
    """Everything but exchanges, queues and bindings. There may be 100,000 of each: it is only listed at the
    moment of a checkpoint, and is made into records later, since what is listed does not change."""

    def __init__(self, broker: Broker) -> None:
        self._vhosts = broker.users.vhosts()
        self._users = broker.users.users()
        self._grants = broker.users.grants()
        self._topics = broker.topic_permissions.all()
        self._vhost_limits = list(broker.limits.of_vhosts.items())
        self._user_limits = list(broker.limits.of_users.items())
        self._parameters = broker.parameters.all()
        self._globals = broker.parameters.globals()
        self._jobs = [
            JobPut(job.id, encode_job(job)) for job in broker.jobs.jobs.values() if not job.request.dry_run
        ]
        self._policies = [
            (book.in_vhost(vhost.name), operator)
            for vhost in broker.vhosts.values()
            for book, operator in ((broker.policies, False), (broker.operator_policies, True))
        ]

    def changes(self) -> Iterator[AnyChange]:
        """The records; another thread may ask for them."""
        for named in self._vhosts:
            yield VhostPut(named.name, named.description, list(named.tags))
            if named.default_queue_type or named.protected_from_deletion:
                yield VhostSettingsPut(named.name, named.default_queue_type, named.protected_from_deletion)
        for user in self._users:
            yield UserPut(user.name, user.password_hash, list(user.tags))
        for grant in self._grants:
            rights = grant.permissions
            yield PermissionPut(grant.user, grant.vhost, rights.configure, rights.write, rights.read)
        for topic in self._topics:
            yield TopicPermissionPut(topic.user, topic.vhost, topic.exchange, topic.write, topic.read)
        for vhost, limits in self._vhost_limits:
            yield VhostLimitsPut(vhost, limits)
        for name, limits in self._user_limits:
            yield UserLimitsPut(name, limits)
        for parameter in self._parameters:
            yield ParameterPut(parameter.vhost, parameter.component, parameter.name, parameter.value)
        for name, value in self._globals:
            yield GlobalParameterPut(name, value)
        yield from self._jobs
        for policies, operator in self._policies:
            for policy in policies:
                yield _policy_put(policy, operator)


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

"""Recovery: rebuilds the state by folding over the journal's records.

Owns: what each record does to the state at start-up. Must not touch: files; the journal passes records in.
What a checkpoint consists of is in ``checkpoint.py``.

Over 400 lines: a case for every kind of record and change, over one state.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from typing import Final, assert_never

import msgspec

from holtmq.auth.permissions import Permissions
from holtmq.auth.topic_permissions import TopicPermission
from holtmq.auth.users import Grant, User
from holtmq.broker.broker import Broker
from holtmq.broker.errors import BrokerError
from holtmq.broker.jobs.job import decode_job
from holtmq.broker.message import placed
from holtmq.broker.partitioned.store import PartitionedStore
from holtmq.broker.pausing import Pause
from holtmq.broker.records.changes import (
    AnyChange,
    BindingDeleted,
    BindingPut,
    ExchangeDeleted,
    ExchangePut,
    GlobalParameterDeleted,
    GlobalParameterPut,
    JobDeleted,
    JobPut,
    Kind,
    ParameterDeleted,
    ParameterPut,
    PermissionDeleted,
    PermissionPut,
    PolicyDeleted,
    PolicyPut,
    QueueDeleted,
    QueuePaused,
    QueuePut,
    QueueResumed,
    TopicPermissionDeleted,
    TopicPermissionPut,
    UserDeleted,
    UserLimitsPut,
    UserPut,
    VhostDeleted,
    VhostLimitsPut,
    VhostPut,
    VhostSettingsPut,
    decode_change,
    unpack_table,
)
from holtmq.broker.records.checkpoint import Counters, DelayState
from holtmq.broker.records.message_records import decode_delayed, decode_mark, decode_returned, decode_settled
from holtmq.broker.records.queue_contents import QueueState
from holtmq.broker.records.recovered_queue import RecoveredQueue
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.parameters import Parameter
from holtmq.broker.topology.policies import make_policy
from holtmq.broker.topology.queue_arguments import parse_queue_arguments
from holtmq.broker.topology.queue_options import QueueType
from holtmq.broker.topology.vhost import QueueExchange, Removal, VHost
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal import interface as journal
from holtmq.journal.interface import JournalTooNew, Recovery
from holtmq.journal.versions import PROGRAM

assert sys.byteorder == "little", "journal records hold arrays in little-endian order"


_state_decoder = msgspec.msgpack.Decoder(QueueState)
_counters_decoder = msgspec.msgpack.Decoder(Counters)
_delay_decoder = msgspec.msgpack.Decoder(DelayState)
_PARTITIONED = int(Kind.PARTITIONED)
_MESSAGE: Final = int(Kind.MESSAGE)
_KINDS: Final = frozenset(map(int, Kind))


def recover(broker: Broker, recovery: Recovery, partitioned: PartitionedStore | None = None) -> int:
    """Fold a journal into an empty broker; return the number of records.

    A record that is not understood raises JournalTooNew, since skipping it would lose data. Only after a part
    of the log that a repair has dropped may records refer to missing data; those are skipped and counted.
    """
    fold = Fold(broker, partitioned)
    fold.read(recovery)
    return fold.finish()


# Raised in decoding or applying a record that this version does not understand.
_NOT_UNDERSTOOD: Final = (
    LookupError,
    ValueError,  # includes msgspec's errors
    TypeError,
    AttributeError,
    AssertionError,
    struct.error,
    BrokerError,
)


class Fold:
    """The fold in two steps: a standby reads for days, and calls ``finish`` when it takes over.

    ``read`` may run in another thread, if only that thread touches the broker. ``finish`` appends records, so
    it must run on the event loop's thread.
    """

    def __init__(self, broker: Broker, partitioned: PartitionedStore | None = None) -> None:
        self._broker = broker
        self._partitioned = partitioned
        self._holdings: dict[int, RecoveredQueue] = {}
        self._delayed: dict[int, int] = {}
        # Auto-delete exchanges whose last destination was deleted: a crash may come before they are.
        self._unused: dict[QueueExchange, VHost] = {}
        self._seq = 0  # highest in use; for transient messages known only from marks and counts
        self._count = 0
        self._new_policies: set[str] = set()  # vhosts
        self._mended = False  # a repair has dropped part of the log: later records may refer to it
        self._at = (0, 0)  # position and kind of the record that was not understood

    def read(self, recovery: Recovery) -> None:
        """Fold every record to the end."""
        records = _all_records(recovery)
        while True:
            try:
                self._fold_all(records)
                break
            except _NOT_UNDERSTOOD as error:
                # A repair explains references to what is missing, not a record that cannot be decoded.
                too_new = self._at[1] not in _KINDS or isinstance(error, msgspec.DecodeError)
                if too_new or not self._mended:
                    raise self._refusal(error, recovery) from error
                self._broker.flow.damage.dropped += 1
        loose = None if self._partitioned is None else self._partitioned.loose_bodies.last
        if loose is not None and not self._mended:
            self._at = loose, int(Kind.PARTITIONED_BODY)
            left = ValueError("bodies of messages without the record that they belong to")
            raise self._refusal(left, recovery)

    def _refusal(self, error: Exception, recovery: Recovery) -> JournalTooNew:
        position, kind = self._at
        name = f"{Kind(kind).name} (kind {kind})" if kind in _KINDS else f"of unknown kind {kind}"
        where = f"position {position}" if position else "the checkpoint"
        return JournalTooNew(
            f"the record {name} at {where} is not understood by this version ({PROGRAM}): {error}. "
            f"HoltMQ {recovery.writer} wrote the journal: start that version, or a later one"
        )

    def _fold_all(self, records: Iterator[tuple[int, int, bytes]]) -> None:
        holdings, partitioned = self._holdings, self._partitioned
        seq, count = self._seq, self._count
        position = kind = 0
        try:
            for position, kind, payload in records:
                count += 1
                if kind == _MESSAGE:  # first, since a restart reads millions of these
                    placed_seq, expires_ms, priority, queue_ids, body_size = placed(payload)
                    if placed_seq > seq:
                        seq = placed_seq
                    for queue_id in queue_ids:
                        holding = holdings.get(queue_id)
                        if holding is not None:
                            holding.add(position, priority, expires_ms, body_size)
                elif kind >= _PARTITIONED:  # there may be a million bodies
                    if partitioned is not None:
                        partitioned.fold(position, kind, payload)
                else:
                    self._seq = seq
                    self._fold_one(position, kind, payload)
                    seq = self._seq
        except _NOT_UNDERSTOOD:
            self._at = position, kind
            raise
        finally:
            self._seq, self._count = max(seq, self._seq), count

    def _fold_one(self, position: int, kind: int, payload: bytes) -> None:
        broker, holdings = self._broker, self._holdings
        match kind:
            case Kind.SETTLED:
                queue_id, size, positions = decode_settled(payload)
                if queue_id in holdings:
                    holdings[queue_id].settle(positions, size)
            case Kind.PURGED:
                queue_id, size, positions = decode_settled(payload)
                if queue_id in holdings:
                    holdings[queue_id].keep_only(positions, size)
            case Kind.DELIVERED:
                queue_id, upto = decode_mark(payload)
                self._seq = max(self._seq, upto)
                if queue_id in holdings:
                    holdings[queue_id].delivered_upto = upto
            case Kind.RETURNED:
                for queue_id, returned_seq, times in decode_returned(payload):
                    self._seq = max(self._seq, returned_seq)
                    if queue_id in holdings:
                        holdings[queue_id].returned[returned_seq] = times
            case Kind.CHANGE:
                change = decode_change(payload)
                _apply(broker, change, holdings, self._unused)
                if isinstance(change, PolicyPut | PolicyDeleted):
                    self._new_policies.add(change.vhost)
            case Kind.DELAYED:
                due_ms, _, _, message, _ = decode_delayed(payload)
                self._seq = max(self._seq, message.seq)
                self._delayed[position] = due_ms
            case Kind.DELAY_ENDED:
                self._delayed.pop(int.from_bytes(payload, "little"), None)
            case Kind.QUEUE_STATE:
                state = _state_decoder.decode(payload)
                if state.id in holdings:
                    holdings[state.id].restore(state)
            case Kind.COUNTERS:
                counters = _counters_decoder.decode(payload)
                self._seq, broker.last_queue_id = counters.seq, counters.last_queue_id
            case Kind.DELAY_STATE:
                self._delayed = _delay_decoder.decode(payload).due_ms
            case Kind.DAMAGED:
                broker.flow.damage.fold(payload)
            case Kind.PAGED:
                pass
            case journal.LOST:
                self._mended = True
                broker.flow.damage.dropped += 1 if payload else 0
                if self._partitioned is not None:
                    self._partitioned.mended(position if payload else None)
            case journal.LOST_IN_BATCH:
                broker.flow.damage.dropped += 1
                if self._partitioned is not None:
                    self._partitioned.loose_bodies.add_lost(position)
            case _:
                raise ValueError("no such kind")

    def finish(self) -> int:
        """Fill the queues and schedule delayed messages; return the number of records."""
        broker = self._broker
        broker.flow.seq = self._seq
        if self._partitioned is not None:
            self._partitioned.recovered()
        for vhost in self._new_policies & broker.vhosts.keys():  # at last: each looks at every queue
            for _ in broker.policy_changes.apply_all(broker.vhosts[vhost]):
                pass
        for holding in self._holdings.values():
            holding.finish()
            broker.flow.touch(holding.queue)
            if holding.queue.limited:  # the crash may have come between a message and the drop it caused
                while holding.queue.shed_excess(broker.flow.pager) and not holding.queue.outcasts.is_full:
                    pass
            holding.queue.figures.recovered(holding.queue)
        for exchange, unused_in in self._unused.items():
            if exchange.is_unused:
                broker.exchanges.delete(unused_in, exchange.name)
        broker.flow.delays.resume(self._delayed)
        return self._count


def _all_records(recovery: Recovery) -> Iterator[tuple[int, int, bytes]]:
    for kind, payload in recovery.checkpoint:
        yield 0, kind, payload
    yield from recovery.records


def _apply(
    broker: Broker,
    change: AnyChange,
    holdings: dict[int, RecoveredQueue],
    unused: dict[QueueExchange, VHost],
) -> None:
    match change:
        case VhostPut(name, description, tags):
            broker.add_vhost(name, description, tags)
        case VhostSettingsPut(name, default_queue_type, protected):
            broker.access.apply_vhost_settings(name, default_queue_type, protected)
        case VhostDeleted(name):
            vhost = broker.vhosts.pop(name)
            for queue in vhost.queues.values():
                broker.queues_by_id.pop(queue.id, None)
                holdings.pop(queue.id, None)
            for exchange in vhost.exchanges.values():
                unused.pop(exchange, None)
            broker.users.delete_vhost(name)
            broker.topic_permissions.forget(vhost=name)
            broker.limits.of_vhosts.pop(name, None)
            broker.parameters.forget_vhost(name)
            broker.policies.remove_vhost(name)
            broker.operator_policies.remove_vhost(name)
        case ExchangePut(vhost_name, name, kind, auto_delete, internal, arguments):
            vhost = broker.vhosts[vhost_name]
            vhost.declare_exchange(name, kind, True, auto_delete, internal, unpack_table(arguments))
            unused.pop(vhost.exchanges[name], None)  # it had other bindings, which a crash ends
        case ExchangeDeleted(vhost_name, name):
            vhost = broker.vhosts[vhost_name]
            if (doomed := vhost.exchanges.get(name)) is not None:
                unused.pop(doomed, None)
            _complete(vhost.delete_exchange(name), vhost, unused)
        case QueuePut():
            restored = _restore_queue(broker, change)
            if isinstance(restored, WorkQueue):
                holdings[change.id] = RecoveredQueue(restored)
        case QueueDeleted(queue_id):
            queue = broker.queues_by_id.pop(queue_id)
            holdings.pop(queue_id, None)
            vhost = broker.vhosts[queue.vhost]
            _complete(vhost.remove_queue(queue), vhost, unused)
        case QueuePaused(queue_id, since_ms, by, reason):
            holdings[queue_id].queue.pause(Pause(since_ms, by, reason))
        case QueueResumed(queue_id):
            holdings[queue_id].queue.pause(None)
        case BindingPut(vhost_name, source, destination, to_exchange, key, arguments):
            vhost = broker.vhosts[vhost_name]
            where = vhost.destination(destination, to_exchange)
            vhost.bind(vhost.exchange(source), where, key, unpack_table(arguments))
        case BindingDeleted(vhost_name, source, destination, to_exchange, key, arguments):
            vhost = broker.vhosts[vhost_name]
            where = vhost.destination(destination, to_exchange)
            vhost.unbind(vhost.exchange(source), where, key, unpack_table(arguments))
        case PolicyPut(vhost_name, name, pattern, apply_to, priority, definition, operator):
            policy = make_policy(
                vhost_name,
                name,
                pattern,
                unpack_table(definition),
                apply_to,
                priority,
                operator=operator,
                stored=True,
            )
            (broker.operator_policies if operator else broker.policies).put(policy)
        case PolicyDeleted(vhost_name, name, operator):
            (broker.operator_policies if operator else broker.policies).remove(vhost_name, name)
        case UserPut(name, password_hash, tags):
            broker.users.put_user(User(name, password_hash, tuple(tags)))
        case UserDeleted(name):
            broker.users.delete_user(name)
            broker.topic_permissions.forget(user=name)
            broker.limits.of_users.pop(name, None)
        case PermissionPut(user, vhost_name, configure, write, read):
            broker.users.set_permissions(Grant(user, vhost_name, Permissions(configure, write, read)))
        case PermissionDeleted(user, vhost_name):
            broker.users.clear_permissions(user, vhost_name)
        case TopicPermissionPut(user, vhost_name, exchange, write, read):
            broker.topic_permissions.put(TopicPermission(user, vhost_name, exchange, write, read))
        case TopicPermissionDeleted(user, vhost_name, exchange_or_all):
            broker.topic_permissions.remove(user, vhost_name, exchange_or_all)
        case VhostLimitsPut(vhost_name, limits):
            broker.limits.replace(broker.limits.of_vhosts, vhost_name, limits)
        case UserLimitsPut(user, limits):
            broker.limits.replace(broker.limits.of_users, user, limits)
        case ParameterPut(vhost_name, component, name, value):
            broker.parameters.put(Parameter(vhost_name, component, name, value))
        case ParameterDeleted(vhost_name, component, name):
            broker.parameters.remove(vhost_name, component, name)
        case GlobalParameterPut(name, value):
            broker.parameters.put_global(name, value)
        case GlobalParameterDeleted(name):
            broker.parameters.remove_global(name)
        case JobPut(_, data):
            broker.jobs.adopt(decode_job(data))
        case JobDeleted(number):
            broker.jobs.jobs.pop(number, None)
        case _:
            assert_never(change)


def _complete(removal: Removal, vhost: VHost, unused: dict[QueueExchange, VHost]) -> None:
    """Remove bindings, and note the auto-delete exchanges that are left unused."""
    for exchange in removal:
        # Not what is being deleted itself, which was bound to itself: its name may be another's at the end.
        if exchange is not None and exchange.is_abandoned and vhost.exchanges.get(exchange.name) is exchange:
            unused[exchange] = vhost


def _restore_queue(broker: Broker, change: QueuePut) -> Queue:
    arguments = unpack_table(change.arguments)
    options = parse_queue_arguments(
        change.name, change.vhost, arguments, auto_delete=change.auto_delete, dialect=None
    )
    queue: Queue
    if options.queue_type is QueueType.STREAM and broker.streams is not None:
        queue = broker.streams.make(change.name, change.vhost, change.id, options, dict(arguments))
    else:
        queue = WorkQueue(
            change.name,
            change.vhost,
            change.id,
            options,
            durable=True,
            auto_delete=change.auto_delete,
            arguments=dict(arguments),
            max_levels=broker.max_priority,
            now_ms=broker.flow.now_ms,
            dialect=broker.dialect,
        )
    broker.add_queue(broker.vhosts[change.vhost], queue)
    broker.last_queue_id = max(broker.last_queue_id, change.id)
    return queue

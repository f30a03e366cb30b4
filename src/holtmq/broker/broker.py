"""The broker: commands from the protocol layers, paired with the journal records that make them durable.

Owns: vhosts, queues, the sessions that hold leases. Must not touch: sockets, wire codes, clocks. Users,
exchanges and parameters are in ``topology/``, message flow in ``flow.py``, recovery in ``records/``.

Over 400 lines: the commands on queues share one table of queues, their owners and their sessions.
"""

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec.structs import replace

from holtmq.auth.users import Vhost
from holtmq.broker.dialect import HOLT, Dialect
from holtmq.broker.errors import AccessRefused, Conflict, StillExpiring
from holtmq.broker.figures.client_counts import ClientCounts
from holtmq.broker.flow import Flow
from holtmq.broker.jobs.board import JobBoard
from holtmq.broker.message import Message
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.pause_changes import PauseChanges
from holtmq.broker.policy_changes import PolicyChanges
from holtmq.broker.publish.routes import Route
from holtmq.broker.queue_expiry import QueueExpiry
from holtmq.broker.records.change_log import ChangeLog
from holtmq.broker.records.changes import (
    Kind,
    QueueDeleted,
    QueuePut,
    VhostDeleted,
    VhostPut,
    pack_table,
)
from holtmq.broker.records.message_records import encode_settled
from holtmq.broker.records.topology_records import TopologyRecords
from holtmq.broker.removals import Removals
from holtmq.broker.streams.stream_queue import StreamQueue
from holtmq.broker.streams.vhost_streams import Streams
from holtmq.broker.topology.access_changes import AccessChanges
from holtmq.broker.topology.destinations import Consumer, Queue
from holtmq.broker.topology.exchange_changes import ExchangeChanges
from holtmq.broker.topology.long_changes import LongChanges
from holtmq.broker.topology.parameter_changes import ParameterChanges
from holtmq.broker.topology.policies import alternate_exchange
from holtmq.broker.topology.queue_arguments import QueueDeclaration, parse_queue_arguments
from holtmq.broker.topology.queue_options import QueueOptions, QueueType
from holtmq.broker.topology.vhost import VHost, refuse_reserved
from holtmq.broker.topology.vhosts import VHosts
from holtmq.broker.work.leases import Ledger
from holtmq.broker.work.other_holders import OtherHolders
from holtmq.broker.work.paging import Spill
from holtmq.broker.work.waiting_pop import WaitingPop
from holtmq.broker.work.work_queue import WorkQueue, require_work_queue
from holtmq.journal.interface import Journal
from holtmq.wire.tables import FieldTable


def new_server_name() -> str:
    """A name for a queue that its client does not name."""
    return "amq.gen-" + secrets.token_urlsafe(16)


class Broker:
    """All state of a node, and all rules that change it."""

    def __init__(
        self,
        journal: Journal,
        *,
        max_priority: int = 10,
        cancel_requeue: bool = True,
        dialect: Dialect = HOLT,
        spill: Spill | None = None,
    ) -> None:
        self.journal = journal
        self.vhosts = VHosts()
        self.change_log = ChangeLog(journal)
        self.long_changes = LongChanges()
        self.topology_records = TopologyRecords(self.vhosts, self.change_log, self.long_changes)
        self.access = AccessChanges(self.change_log, self.vhosts, self.long_changes)
        self.exchanges = ExchangeChanges(self.change_log, self.long_changes)
        self.parameter_changes = ParameterChanges(self.change_log, self.vhosts, self.long_changes)
        self.users = self.access.users
        self.topic_permissions = self.access.topic_permissions
        self.limits = self.access.limits
        self.parameters = self.parameter_changes.store
        self.flow = Flow(journal, self.vhosts, spill)
        self._expiry = QueueExpiry(self.flow, lambda queue: self.removals.remove(queue))
        self.policy_changes = PolicyChanges(
            self.change_log, self.vhosts, self.long_changes, self.flow, self._expiry.schedule
        )
        self.policies = self.policy_changes.policies
        self.operator_policies = self.policy_changes.operator_policies
        self.long_changes.later = lambda step: self.flow.at(self.flow.now_ms, step)
        self.flow.delays.in_steps = lambda steps: self.long_changes.add(steps, 1)
        self.jobs = JobBoard(self)
        self.removals = Removals(self)
        self.queues_by_id: dict[int, Queue] = {}
        self.counts = ClientCounts()
        self.other_holders = OtherHolders()
        self.sessions: set[Ledger] = set()  # every holder of leases; a checkpoint includes their messages
        self.max_priority = max_priority
        self.cancel_requeue = cancel_requeue
        self.dialect = dialect
        self.last_queue_id = 0
        self._owned: dict[object, set[Queue]] = {}  # exclusive queues by owning connection
        self.streams: Streams | None = None
        self.pauses = PauseChanges(self.change_log, self.flow, self._streams)

    def put_vhost(self, name: str, description: str = "", tags: Iterable[str] = ()) -> None:
        """Create a vhost with its predeclared exchanges, or change its description and tags."""
        self.removals.complete(name)
        known, wanted = self.users.vhost(name), tuple(tags)
        if known is not None and (
            not (description or wanted) or (known.description, known.tags) == (description, wanted)
        ):
            return
        self.change_log.refuse_if_failed()
        self.add_vhost(name, description, wanted)
        self.change_log.record(VhostPut(name, description, list(wanted)))

    def add_vhost(self, name: str, description: str = "", tags: Iterable[str] = ()) -> VHost:
        """Add a vhost to the state, without a journal record."""
        known = self.users.vhost(name) or Vhost(name)
        self.users.put_vhost(replace(known, description=description, tags=tuple(tags)))
        if name in self.vhosts:
            return self.vhosts[name]
        vhost = self.vhosts[name] = VHost(name)
        vhost.alternate_by_policy = lambda exchange: alternate_exchange(
            None, self.policies.for_exchange(name, exchange.name)
        )
        return vhost

    def vhost(self, name: str) -> VHost:
        """The vhost of this name."""
        return self.vhosts.find(name)

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost and everything in it at once; ``removals`` does it in steps."""
        self.change_log.refuse_if_failed()
        self.removals.delete_vhost(name)
        self.removals.complete(name)

    def expel(self, vhost: str) -> None:
        """Close the connections to a vhost that is being deleted."""
        self.access.on_expelled(f"vhost '{vhost}' is deleted", lambda where, _: where == vhost)

    def forget_vhost(self, name: str) -> None:
        """Delete a vhost that has no queues."""
        vhost = self.vhosts.pop(name)
        vhost.deleted = True
        self.access.forget_vhost(name)
        self.policy_changes.forget_vhost(name)
        self.change_log.record(VhostDeleted(name))
        self.parameter_changes.forget_vhost(name)
        self.long_changes.add(vhost.dismantled())

    def bind(
        self,
        vhost: VHost,
        source: str,
        destination: str,
        routing_key: str,
        arguments: FieldTable | None = None,
        *,
        to_exchange: bool = False,
        owner: object | None = None,
    ) -> bool:
        """Bind a queue or exchange. True if journalled. A queue receives the exchange's recent history."""
        exchange = vhost.exchanges.get(source)
        history = exchange.history if exchange is not None else None
        is_new = history is not None and not vhost.is_bound(
            source, destination, routing_key, arguments or {}, to_exchange
        )
        lasting = self.exchanges.bind(
            vhost,
            source,
            destination,
            routing_key,
            arguments,
            to_exchange=to_exchange,
            owner=owner,
        )
        if history is not None and is_new:
            queues = (
                vhost.route(vhost.exchange(destination), routing_key).queues
                if to_exchange
                else (vhost.queue(destination, owner),)
            )
            self.flow.publishing.recall(vhost, history, queues)
        return lasting

    def declare_queue(
        self,
        vhost: VHost,
        name: str,
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, object] | None = None,
        owner: object | None = None,
        any_name: bool = False,
        server_name: str = "",
    ) -> tuple[Queue, bool]:
        """Return the queue of this name, created if needed, and whether something was journalled.

        ``any_name``: also accept a server-generated name, which begins with ``amq.``. ``server_name``: the
        name of a queue that is declared without one.
        """
        arguments = dict(arguments or {})
        named = self.users.vhost(vhost.name)
        default_type = named.default_queue_type if named is not None else ""
        # As in RabbitMQ, only for queues that every type can be.
        if default_type not in ("", "classic") and durable and not (exclusive or auto_delete):
            arguments.setdefault("x-queue-type", default_type)
        if not name:
            kind = arguments.get("x-queue-type", QueueType.CLASSIC.value)
            if self.dialect.refuse_server_names and kind != QueueType.CLASSIC.value:
                raise Conflict(f"Cannot declare a server-named queue for type {kind}")
            name = server_name or new_server_name()
        else:
            received = QueueDeclaration(durable, exclusive, auto_delete, arguments)
            orphan = vhost.queues.get(name)
            if orphan is not None and self.removals.is_orphan(orphan):
                self._remove_queue(vhost, orphan)
            existing = vhost.check_redeclared(name, received, owner)
            if existing is not None:
                existing.used_ms = self.flow.now_ms
                self.counts.queues_declared += 1
                return existing, False
            if not any_name:
                refuse_reserved("queue", name)
        self.limits.check_queue(vhost.name, name, len(vhost.queues))
        if durable:
            self.change_log.refuse_if_failed()
        options = parse_queue_arguments(
            name,
            vhost.name,
            arguments,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            dialect=self.dialect,
        )
        self.last_queue_id += 1
        queue: Queue
        if options.queue_type is QueueType.STREAM:
            queue = self._streams().make(name, vhost.name, self.last_queue_id, options, arguments)
        else:
            queue = WorkQueue(
                name,
                vhost.name,
                self.last_queue_id,
                options,
                durable=durable,
                auto_delete=auto_delete,
                owner=owner if exclusive else None,
                arguments=arguments,
                max_levels=self.max_priority,
                now_ms=self.flow.now_ms,
                dialect=self.dialect,
            )
        self.add_queue(vhost, queue)
        self.counts.queues_declared += 1
        self.counts.queues_created += 1
        if queue.persisted:
            packed = pack_table(arguments)  # type: ignore[arg-type]
            self.change_log.record(QueuePut(vhost.name, name, queue.id, auto_delete, packed))
        return queue, queue.persisted

    def add_queue(self, vhost: VHost, queue: Queue) -> None:
        """Add a queue to the state, without a journal record."""
        vhost.add_queue(queue)
        self.queues_by_id[queue.id] = queue
        if queue.owner is not None:
            self._owned.setdefault(queue.owner, set()).add(queue)
        self.policy_changes.apply(queue)
        self._expiry.schedule(queue)

    def delete_queue(
        self,
        vhost: VHost,
        name: str,
        *,
        if_unused: bool = False,
        if_empty: bool = False,
        owner: object | None = None,
    ) -> tuple[int, bool]:
        """Delete a queue; return how many messages it had and whether something was journalled."""
        if name not in vhost.queues:
            return 0, False
        queue = vhost.queue(name, owner)
        self.flow.turn()
        if if_unused and queue.consumers:
            raise Conflict(f"queue '{name}' in vhost '{vhost.name}' in use")
        if if_empty and len(queue):
            raise Conflict(f"queue '{name}' in vhost '{vhost.name}' not empty")
        if queue.persisted:
            self.change_log.refuse_if_failed()
        count = len(queue)
        self._remove_queue(vhost, queue)
        return count, queue.persisted

    def attach(self, partitioned: PartitionedService) -> Streams:
        """Connect the partitioned queues, which AMQP sees as streams. Call before recovery."""
        self.streams = self.flow.cross_kind = Streams(self, partitioned)
        self.flow.stream_publishes = self.streams.stream_publishes
        partitioned.store.listeners.append(self.streams.hear)
        partitioned.store.check_new = self.streams.check_new
        self.jobs.partitioned = partitioned
        partitioned.in_steps = lambda steps: self.long_changes.add(steps, 1)
        partitioned.store.damage = self.flow.damage  # one list for everything unreadable
        return self.streams

    def _streams(self) -> Streams:
        if self.streams is None:
            raise Conflict("this broker has no partitioned queues: x-queue-type 'stream' cannot be served")
        return self.streams

    def remove_queue(self, queue: Queue) -> None:
        """Delete a queue without the checks of ``delete_queue``."""
        self._remove_queue(self.vhosts[queue.vhost], queue)

    def _remove_queue(self, vhost: VHost, queue: Queue) -> None:
        if isinstance(queue, WorkQueue) and queue.outcasts:  # rejected in this turn: dead-lettered first
            self.flow.dead_lettering.cast_out(queue)
        self.flow.damage.forget("queue", queue.vhost, queue.name)
        removal = vhost.remove_queue(queue)
        del self.queues_by_id[queue.id]
        self.counts.queues_deleted += 1
        if queue.owner is not None:
            owned = self._owned[queue.owner]
            owned.discard(queue)
            if not owned:
                del self._owned[queue.owner]
        consumers, queue.consumers = queue.consumers, []
        self.long_changes.add(_notifications(queue, consumers))
        if isinstance(queue, WorkQueue):
            queue.active = None
            queue.store.clear()
            self.flow.memory.note(queue, 0)
            self.flow.queue_timers.forget(queue)
        self._expiry.stop(queue)
        self.flow.touch(queue)  # the sampled sums drop it, and the copies of a checkpoint
        if not self.journal.failed:  # else nothing more can be journalled: a restart restores a durable queue
            if queue.persisted:
                self.change_log.record(QueueDeleted(queue.id))
            if isinstance(queue, StreamQueue):
                self._streams().delete(queue)
        self.exchanges.complete(vhost, removal)

    def purge_queue(self, vhost: VHost, name: str, owner: object | None = None) -> tuple[int, bool]:
        """Delete the ready messages of a queue; return how many and whether something was journalled."""
        queue = require_work_queue(vhost.queue(name, owner), "it cannot be purged")
        if queue.persisted:
            self.change_log.refuse_if_failed()
        self.flow.turn()
        outstanding = self.outstanding(queue)
        self.flow.damage.forget("queue", queue.vhost, queue.name)
        count = queue.purge(outstanding)
        self.flow.touch(queue)
        self.flow.memory.note(queue, 0)
        if not count or not queue.persisted:
            return count, False
        survivors = [message for message in outstanding if message.persistent]
        size = sum(len(message.body) for message in survivors)
        positions = sorted(message.position for message in survivors)
        self.journal.append(Kind.PURGED, encode_settled(queue.id, size, positions))
        return count, True

    def work_queues(self) -> Iterator[WorkQueue]:
        """The work queues of all vhosts."""
        return (queue for queue in self.queues_by_id.values() if isinstance(queue, WorkQueue))

    def outstanding(self, queue: WorkQueue) -> list[Message]:
        """Messages of a queue that are not in its store: leased, held back, or not cast out yet."""
        leased = [
            lease.message
            for session in self.sessions
            for lease in session.outstanding()
            if lease.queue is queue
        ]
        held_back = [message for batch in queue.held_back.values() for message in batch]
        return leased + held_back + [message for _, message in queue.outcasts if message.position]

    def drop_exclusive_queues(self, owner: object) -> None:
        """Delete the exclusive queues of a closed connection."""
        if owner in self._owned:
            self.removals.connection_closed(owner)

    def exclusive_queues_of(self, owner: object) -> Collection[Queue]:
        """The queues that are exclusive to a connection now; it changes with them."""
        return self._owned.get(owner, ())

    def consume(self, queue: Queue, consumer: Consumer, exclusive: bool = False) -> None:
        """Add a consumer to a queue."""
        if exclusive and self.dialect.ignore_quorum_exclusive_consumers:
            exclusive = queue.options.queue_type is not QueueType.QUORUM
        alone = exclusive and (queue.consumers or queue.options.single_active_consumer)
        if queue.exclusive_consumer or alone:
            raise AccessRefused(f"queue '{queue.name}' in vhost '{queue.vhost}' in exclusive use")
        queue.add_consumer(consumer)
        queue.exclusive_consumer = exclusive
        queue.used_ms = self.flow.now_ms
        self.flow.touch(queue)

    def cancel(self, queue: Queue, consumer: Consumer) -> None:
        """Remove a consumer; delete an auto-delete queue after its last one."""
        if queue.deleted:
            return
        queue.remove_consumer(consumer)
        self.after_cancel(queue)

    def after_cancel(self, queue: Queue) -> None:
        """Update a queue after a consumer was removed from it."""
        if queue.deleted:
            return
        queue.used_ms = self.flow.now_ms
        # A pop that waits is as little a consumer as basic.get is.
        if queue.auto_delete and all(isinstance(one, WaitingPop) for one in queue.consumers):
            self.removals.remove(queue)
        else:
            self.flow.touch(queue)

    def add_reply_queue(self, vhost: VHost, name: str) -> WorkQueue:
        """Create a queue for direct replies: in memory, deleted with its consumer."""
        self.last_queue_id += 1
        queue = WorkQueue(
            name, vhost.name, self.last_queue_id, QueueOptions(), auto_delete=True, now_ms=self.flow.now_ms
        )
        self.add_queue(vhost, queue)
        return queue

    def get(self, queue: WorkQueue) -> Message | None:
        """Take one message; it counts as unacked until its lease ends. StillExpiring: ask again later."""
        if queue.persisted:  # after a journal failure its ack could not be made durable
            self.change_log.refuse_if_failed()
        self.flow.turn()
        queue.used_ms = self.flow.now_ms
        tries = self.flow.per_turn.expired + 1
        while len(queue) and not queue.paused:
            if not tries:
                raise StillExpiring(f"more messages of queue '{queue.name}' have expired than one turn drops")
            tries -= 1
            taken = queue.take(1, self.flow.now_ms, self.flow.pager)
            self.flow.touch(queue)
            if taken:
                queue.unacked += 1
                if queue.persisted:
                    queue.delivered_upto = max(queue.delivered_upto, taken[0].seq)
                if queue.expiring and queue.options.queue_type is QueueType.CLASSIC:
                    # The answer says how many messages are left: those that expired behind it do not count.
                    # RabbitMQ's quorum queues count them until the next event.
                    queue.expire(self.flow.now_ms, self.flow.pager, self.flow.per_turn.expired)
                return taken[0]
        return None

    def complete(self) -> None:
        """Do what is left to do: the node stops. What waits in the journal goes on when it starts again."""
        self.flow.delays.placings.end()
        if self.journal.failed is None:
            self.long_changes.complete()
        self.flow.complete()

    def resolve(self, vhost: VHost, exchange: str, routing_key: str, address: bytes) -> Route:
        """Return where a publish goes. The result may be cached until the vhost's version changes."""
        found = vhost.exchange(exchange)
        if found.internal:
            raise AccessRefused(f"cannot publish to internal exchange '{exchange}' in vhost '{vhost.name}'")
        return Route(vhost, found, routing_key, address)


def _notifications(queue: Queue, consumers: list[Consumer]) -> Iterator[None]:
    """Tell the consumers of a deleted queue; there may be very many."""
    for consumer in consumers:
        consumer.cancelled(queue)
        yield

"""Partitioned queues among the queues of a vhost: created, found, notified, written and deleted together.

Owns: the pairing of each partitioned queue with its AMQP name, and the single record for changes to both
kinds of queue. Must not touch: what either kind does with messages. A partitioned queue created over HTTP
appears in the default vhost under its own name.
"""

import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Final

from holtmq.broker.errors import Conflict, LimitReached
from holtmq.broker.message import Message
from holtmq.broker.partitioned.captured import StateRecord
from holtmq.broker.partitioned.commands.admin import delete_queue, pause, resume
from holtmq.broker.partitioned.commands.atomic_commit import PartitionedPart, write_together
from holtmq.broker.partitioned.commands.settled_runs import SettledRuns
from holtmq.broker.partitioned.commands.stream_limits import Limits
from holtmq.broker.partitioned.events import QueueConfigured, QueueDeleted, QueueEvent
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.partitioned.store import Change
from holtmq.broker.pausing import Pause
from holtmq.broker.publish.stream_publishes import StreamPublishes
from holtmq.broker.streams.claims import Verdicts, add
from holtmq.broker.streams.prepared_pushes import PreparedPushes
from holtmq.broker.streams.serving import Serving
from holtmq.broker.streams.settling_claims import SettlingClaims
from holtmq.broker.streams.stream_queue import StreamQueue
from holtmq.broker.topology.queue_options import QueueOptions

if TYPE_CHECKING:
    from holtmq.broker.broker import Broker
    from holtmq.broker.topology.vhost import VHost

_DEFAULT_VHOST: Final = "/"
_ARGUMENTS: Final[dict[str, object]] = {"x-queue-type": "stream"}


class Streams:
    """Connects AMQP names and partitioned queues. Call ``follow`` after recovery."""

    def __init__(self, broker: "Broker", service: PartitionedService) -> None:
        self._broker = broker
        self._service = service
        self._by_stored_name: dict[str, StreamQueue] = {}
        self._serving = Serving(service, self._now)
        self._settling = SettlingClaims(service, broker.flow, broker.long_changes)
        self._following = False
        # Ids of messages published by AMQP: unique across restarts without a stored counter.
        self._id_prefix = secrets.token_hex(8)
        self._last_id = 0
        self._verdicts: Verdicts = {}  # of consumers, in the open batch
        self._part: PartitionedPart | None = None  # of the transaction in the open batch
        self.stream_publishes = StreamPublishes(
            broker.flow.pending_publishes, service, self._now, self._new_ids
        )

    def make(
        self, name: str, vhost: str, queue_id: int, options: QueueOptions, arguments: dict[str, object]
    ) -> StreamQueue:
        """Create the AMQP queue for a partitioned queue, which need not exist yet."""
        queue = StreamQueue(
            name,
            vhost,
            queue_id,
            options,
            self._service,
            self._serving,
            self._now,
            self._new_id,
            self._settle,
            self._broker.flow.touch,
            arguments,
            self._broker.dialect,
        )
        self._by_stored_name[queue.stored_as] = queue
        return queue

    def delete(self, queue: StreamQueue) -> None:
        """Delete the log of a queue that was removed from its vhost."""
        self._by_stored_name.pop(queue.stored_as, None)
        self._service.stream_limits.put(queue.stored_as, Limits())
        queue.end()
        if queue.log is not None:
            delete_queue(self._service, queue.log.name)

    def pause(self, queue: StreamQueue, pause_: Pause) -> None:
        """Hand out nothing of the log, over AMQP and HTTP."""
        pause(self._service, queue.stored_as, pause_)

    def resume(self, queue: StreamQueue) -> None:
        """Hand out messages of the log again."""
        resume(self._service, queue.stored_as)

    def place_of(self, stored: str) -> tuple[str, str]:
        """The vhost of a partitioned queue with this stored name, and its name there.

        ``v/q`` is queue ``q`` of vhost ``v`` if that vhost exists.
        """
        if "/" not in stored:
            return _DEFAULT_VHOST, stored
        known = self._by_stored_name.get(stored)
        if known is not None:
            return known.vhost, known.name
        vhosts = self._broker.vhosts
        default = vhosts.get(_DEFAULT_VHOST)
        if default is None or stored not in default.queues:
            at = stored.find("/")
            while at >= 0:
                if stored[:at] in vhosts and stored[:at] != _DEFAULT_VHOST:
                    return stored[:at], stored[at + 1 :]
                at = stored.find("/", at + 1)
        return _DEFAULT_VHOST, stored

    @property
    def pending(self) -> bool:
        """Whether the open batch has more for partitioned queues than what was published."""
        return self._part is not None or bool(self._verdicts)

    def join(self, part: PartitionedPart) -> None:
        """Add a transaction's part for partitioned queues, already checked, to the open batch."""
        self._part = part

    def abandon(self) -> None:
        """Discard what the open batch has for partitioned queues."""
        self._part, self._verdicts = None, {}

    def prepare(self) -> PreparedPushes:
        """For messages that are put on streams with the record of a large transaction."""
        return PreparedPushes(self._service, self._now, self._new_id)

    def write(
        self, batch: Sequence[tuple[int, bytes]], placed: Sequence[tuple[StreamQueue, Message]]
    ) -> list[int]:
        """Write the work queues' records, the messages for streams and what is pending, all or nothing.

        Returns the positions of the work queues' records.
        """
        part, self._part = self._part, None
        verdicts, self._verdicts = self._verdicts, {}
        items = [queue.item_of(message) for queue, message in placed]
        if part is None and not verdicts:
            return self._service.push_with(items, self._now(), batch)
        part = part or PartitionedPart((), (), self._now())
        return write_together(self._service, part, items, self.settled(verdicts), batch)

    def _settle(self, verdicts: Verdicts) -> None:
        if self._broker.flow.in_batch:
            add(self._verdicts, verdicts)
        else:
            self._settling.settle(verdicts)

    @property
    def together(self) -> AbstractContextManager[None]:
        """While this is entered, settlements are gathered."""
        return self._settling

    def settled(self, verdicts: Verdicts) -> SettledRuns:
        """Decide verdicts that are written with the record of a large transaction, now."""
        return self._settling.settled(verdicts)

    def events_record(self, changes: Sequence[Change]) -> StateRecord:
        """The record of changes of partitioned queues."""
        return self._service.store.events_record(changes)

    def follow(self) -> None:
        """After recovery: give every partitioned queue an AMQP name, and follow their events."""
        self._following = True
        for queue in list(self._service.store.queues.values()):
            self._name(queue)

    def hear(self, queue: PartitionedQueue, event: QueueEvent) -> None:
        """Handle an event of a partitioned queue: its AMQP name comes and goes, its consumers are served."""
        if not self._following:
            return
        if isinstance(event, QueueConfigured):
            self._name(queue)
        found = self._by_stored_name.get(queue.name)
        if found is None:
            return
        if isinstance(event, QueueDeleted):
            if not found.deleted:
                self._broker.remove_queue(found)
        elif found.consumers:
            self._broker.flow.touch(found)

    def check_new(self, stored: str, ahead: int) -> None:
        """LimitReached if a queue with this name, ``ahead`` others with it, is one too many for its vhost."""
        vhost = self._home(stored)
        if vhost is not None and self._following:
            try:
                self._broker.limits.check_queue(vhost.name, stored, len(vhost.queues) + ahead)
            except Conflict as full:
                raise LimitReached(str(full)) from None

    def _name(self, queue: PartitionedQueue) -> None:
        vhost = self._home(queue.name)
        if vhost is not None:
            with suppress(Conflict):  # the limit was set when the queue was there: no AMQP name then
                self._broker.declare_queue(vhost, queue.name, durable=True, arguments=_ARGUMENTS)

    def _home(self, stored: str) -> "VHost | None":
        """The vhost in which a queue that was made over HTTP gets a name; None when it has one, or cannot."""
        vhost = self._broker.vhosts.get(_DEFAULT_VHOST)
        if vhost is None or stored in self._by_stored_name or stored in vhost.queues:
            return None
        return None if len(stored.encode()) > 255 or stored.startswith("amq.") else vhost

    def _now(self) -> float:
        return self._broker.flow.now_ms / 1000

    def _new_id(self) -> str:
        self._last_id += 1
        return f"{self._id_prefix}-{self._last_id}"

    def _new_ids(self, count: int) -> list[str]:
        prefix, first = self._id_prefix, self._last_id + 1
        self._last_id += count
        return [f"{prefix}-{number}" for number in range(first, first + count)]

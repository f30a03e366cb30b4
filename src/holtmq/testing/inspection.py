"""Looking into a broker under test, without consuming or changing anything.

Owns: the questions a test may ask. Must not touch: the broker's life; each question is asked on its thread.
"""

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from holtmq.amqp.connection import Connection
from holtmq.amqp.server import AmqpProtocol
from holtmq.broker.streams.stream_queue import StreamQueue
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.testing import partitioned_views, views
from holtmq.testing.faulty_node import FaultyNode
from holtmq.testing.partitioned_views import GroupView, PartitionLeaseView
from holtmq.testing.views import ConnectionView, ConsumerView, ExchangeView, LeaseView, StoredMessage

T = TypeVar("T")

_DEFAULT_VHOST: Final = "/"


class Inspection:
    """What ``TestBroker`` can be asked."""

    def call(self, work: Callable[[FaultyNode], T]) -> T:
        """Run a function on the broker's thread, after everything clients have sent has been taken in."""
        raise NotImplementedError

    def messages(self, queue: str, vhost: str = _DEFAULT_VHOST) -> list[StoredMessage]:
        """What waits in a queue, the next one first. Nothing is consumed.

        Of a partitioned queue: everything it stores, oldest first; headers ``x-partition`` and
        ``x-stream-offset`` say where, ``properties.message_id`` is the transaction id.
        """
        return self.call(lambda node: _messages(node, _queue(node, vhost, queue)))

    def queue_depth(self, queue: str, vhost: str = _DEFAULT_VHOST) -> int:
        """How many messages wait in a queue, or are stored in a partitioned one."""
        return self.call(lambda node: len(_queue(node, vhost, queue)))

    def queues(self, vhost: str = _DEFAULT_VHOST) -> list[str]:
        """Names of all queues, work queues and partitioned ones."""
        return self.call(lambda node: sorted(node.broker.vhost(vhost).queues))

    def unacked(self, queue: str, vhost: str = _DEFAULT_VHOST) -> list[StoredMessage]:
        """What has been delivered from a queue and is not settled."""
        return [lease.message for lease in self.leases(queue, vhost)]

    def leases(self, queue: str | None = None, vhost: str = _DEFAULT_VHOST) -> list[LeaseView]:
        """Every delivery that is not settled, of one queue or of all."""
        return self.call(
            lambda node: [
                lease
                for lease in views.leases(node.broker, _connections(node, vhost))
                if queue is None or lease.queue == queue
            ]
        )

    def consumers(self, queue: str | None = None, vhost: str = _DEFAULT_VHOST) -> list[ConsumerView]:
        """Who consumes, from one queue or from any."""
        return self.call(
            lambda node: [
                consumer
                for consumer in views.consumers(_connections(node, vhost))
                if queue is None or consumer.queue == queue
            ]
        )

    def exchanges(self, vhost: str = _DEFAULT_VHOST) -> dict[str, ExchangeView]:
        """Every exchange by name, with its bindings."""
        return self.call(lambda node: {found.name: found for found in views.exchanges(node.broker, vhost)})

    def dead_letters(self, queue: str | None = None, vhost: str = _DEFAULT_VHOST) -> list[StoredMessage]:
        """Messages that died in this queue (or in any), with their ``deaths``.

        Of a work queue: wherever they wait now. Of a partitioned queue: what its groups gave up on; a
        death there names ``group``, ``error`` and ``partition``, too.
        """

        def look(node: FaultyNode) -> list[StoredMessage]:
            found = [
                message
                for work_queue in node.broker.vhost(vhost).queues.values()
                if not isinstance(work_queue, StreamQueue)
                for message in views.ready_messages(node.broker, work_queue)
                if any(queue is None or death.get("queue") == queue for death in message.deaths)
            ]
            for stream in _streams(node, vhost, queue):
                found += partitioned_views.dead_letters(node.partitioned, stream)
            return found

        return self.call(look)

    def groups(self, queue: str | None = None, vhost: str = _DEFAULT_VHOST) -> list[GroupView]:
        """Every consumer group of one partitioned queue, or of all; who names none is ``__QUEUE_MODE__``."""
        return self.call(
            lambda node: [
                group
                for stream in _streams(node, vhost, queue)
                for group in partitioned_views.groups(node.partitioned, stream)
            ]
        )

    def group_lag(self, queue: str, group: str, vhost: str = _DEFAULT_VHOST) -> int:
        """How many messages of a partitioned queue the group has not settled."""
        for found in self.groups(queue, vhost):
            if found.name == group:
                return found.lag
        raise KeyError(f"there is no group {group!r} on queue {queue!r}")

    def partition_leases(
        self, queue: str | None = None, group: str | None = None, vhost: str = _DEFAULT_VHOST
    ) -> list[PartitionLeaseView]:
        """What workers hold of partitioned queues now: one lease a partition and group."""
        return self.call(
            lambda node: [
                lease
                for stream in _streams(node, vhost, queue)
                for lease in partitioned_views.leases(node.partitioned, stream, node.clock())
                if group is None or lease.group == group
            ]
        )

    def connections(self) -> list[ConnectionView]:
        """Every client that is connected."""
        return self.call(lambda node: [views.connection_view(p) for p in _running(node)])


def _queue(node: FaultyNode, vhost: str, name: str) -> WorkQueue:
    found = node.broker.vhost(vhost).queues.get(name)
    if found is None:
        raise KeyError(f"there is no queue {name!r} in vhost {vhost!r}")
    return found


def _running(node: FaultyNode) -> Iterator[AmqpProtocol]:
    return (protocol for protocol in node.amqp.connections if protocol.connection.is_running)


def _connections(node: FaultyNode, vhost: str) -> Iterator[Connection]:
    return (p.connection for p in _running(node) if p.connection.vhost.name == vhost)


def _messages(node: FaultyNode, queue: WorkQueue) -> list[StoredMessage]:
    if isinstance(queue, StreamQueue):
        return partitioned_views.messages(node.partitioned, queue)
    return views.ready_messages(node.broker, queue)


def _streams(node: FaultyNode, vhost: str, name: str | None) -> list[StreamQueue]:
    """The partitioned queues among all, or the one of this name, if it is one."""
    queues = node.broker.vhost(vhost).queues.values() if name is None else [_queue(node, vhost, name)]
    return [queue for queue in queues if isinstance(queue, StreamQueue)]

"""Inspecting a broker under test, without consuming or changing anything.

Owns: the queries of a test. Must not touch: the broker's life cycle; each query runs on its thread.
"""

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from holtmq.amqp.connection import Connection
from holtmq.amqp.protocol import AmqpProtocol
from holtmq.broker.streams.stream_queue import StreamQueue
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.testing import partitioned_views, views
from holtmq.testing.faulty_node import FaultyNode
from holtmq.testing.partitioned_views import GroupView, PartitionLeaseView
from holtmq.testing.views import ConnectionView, ConsumerView, ExchangeView, LeaseView, StoredMessage

T = TypeVar("T")

_DEFAULT_VHOST: Final = "/"


class Inspection:
    """The queries of ``TestBroker``."""

    def call(self, work: Callable[[FaultyNode], T]) -> T:
        """Run a function on the broker's thread, after everything clients have sent was processed."""
        raise NotImplementedError

    def messages(self, queue: str, vhost: str = _DEFAULT_VHOST) -> list[StoredMessage]:
        """The ready messages of a queue, next one first. Nothing is consumed.

        For a partitioned queue: everything it stores, oldest first; the headers ``x-partition`` and
        ``x-stream-offset`` say where, ``properties.message_id`` is the transaction id.
        """
        return self.call(lambda node: _messages(node, _queue(node, vhost, queue)))

    def queue_depth(self, queue: str, vhost: str = _DEFAULT_VHOST) -> int:
        """How many messages are ready in a queue, or stored in a partitioned one."""
        return self.call(lambda node: len(_queue(node, vhost, queue)))

    def queues(self, vhost: str = _DEFAULT_VHOST) -> list[str]:
        """Names of all queues, both work queues and partitioned ones."""
        return self.call(lambda node: sorted(node.broker.vhost(vhost).queues))

    def unacked(self, queue: str, vhost: str = _DEFAULT_VHOST) -> list[StoredMessage]:
        """Messages delivered from a queue and not settled."""
        return [lease.message for lease in self.leases(queue, vhost)]

    def leases(self, queue: str | None = None, vhost: str = _DEFAULT_VHOST) -> list[LeaseView]:
        """Every unsettled delivery, of one queue or of all."""
        return self.call(
            lambda node: [
                lease
                for lease in views.leases(node.broker, _connections(node, vhost))
                if queue is None or lease.queue == queue
            ]
        )

    def consumers(self, queue: str | None = None, vhost: str = _DEFAULT_VHOST) -> list[ConsumerView]:
        """The consumers of one queue or of all."""
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

        For a work queue: wherever they are now. For a partitioned queue: those its groups failed on; a
        death there also names ``group``, ``error`` and ``partition``.
        """

        def look(node: FaultyNode) -> list[StoredMessage]:
            found = [
                message
                for work_queue in node.broker.vhost(vhost).queues.values()
                if isinstance(work_queue, WorkQueue)
                for message in views.ready_messages(node.broker, work_queue)
                if any(queue is None or death.get("queue") == queue for death in message.deaths)
            ]
            for stream in _streams(node, vhost, queue):
                found += partitioned_views.dead_letters(node.partitioned, stream)
            return found

        return self.call(look)

    def groups(self, queue: str | None = None, vhost: str = _DEFAULT_VHOST) -> list[GroupView]:
        """Every consumer group of one partitioned queue, or of all; the default one is ``__QUEUE_MODE__``."""
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
        """The live leases on partitioned queues: one per partition and group."""
        return self.call(
            lambda node: [
                lease
                for stream in _streams(node, vhost, queue)
                for lease in partitioned_views.leases(node.partitioned, stream, node.clock())
                if group is None or lease.group == group
            ]
        )

    def connections(self) -> list[ConnectionView]:
        """Every connected client."""
        return self.call(lambda node: [views.connection_view(p) for p in _running(node)])


def _queue(node: FaultyNode, vhost: str, name: str) -> Queue:
    found = node.broker.vhost(vhost).queues.get(name)
    if found is None:
        raise KeyError(f"there is no queue {name!r} in vhost {vhost!r}")
    return found


def _running(node: FaultyNode) -> Iterator[AmqpProtocol]:
    return (protocol for protocol in node.amqp.connections if protocol.connection.is_running)


def _connections(node: FaultyNode, vhost: str) -> Iterator[Connection]:
    return (p.connection for p in _running(node) if p.connection.vhost.name == vhost)


def _messages(node: FaultyNode, queue: Queue) -> list[StoredMessage]:
    if isinstance(queue, StreamQueue):
        return partitioned_views.messages(node.partitioned, queue)
    assert isinstance(queue, WorkQueue)
    return views.ready_messages(node.broker, queue)


def _streams(node: FaultyNode, vhost: str, name: str | None) -> list[StreamQueue]:
    """All partitioned queues, or the one with this name, if it is partitioned."""
    queues = node.broker.vhost(vhost).queues.values() if name is None else [_queue(node, vhost, name)]
    return [queue for queue in queues if isinstance(queue, StreamQueue)]

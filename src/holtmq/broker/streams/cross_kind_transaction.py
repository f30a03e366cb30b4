"""One transaction or push over work queues and partitioned queues: one journal record, all or nothing.

Owns: the order: first every check that may refuse, then one write for everything. Must not touch: the rules
of either kind of queue, wire names, clocks.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holtmq.broker.partitioned.commands.atomic_commit import PartitionedPart, check
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.streams.vhost_streams import Streams
from holtmq.broker.work.timed_leases import TimedLeases, WorkAck, WorkPush

if TYPE_CHECKING:
    from holtmq.broker.broker import Broker


class CrossKindTransactions:
    """Runs transactions that change both kinds of queue."""

    def __init__(self, broker: "Broker", service: PartitionedService, leases: TimedLeases) -> None:
        self._broker = broker
        self._service = service
        self._leases = leases

    def transact(self, part: PartitionedPart, pushes: Sequence[WorkPush], acks: Sequence[WorkAck]) -> None:
        """Commit everything and fill in the answers of ``part``; or change nothing and raise a refusal."""
        flow, streams = self._broker.flow, self._broker.streams
        assert streams is not None, "partitioned queues are attached"
        if self._broker.journal.failed is not None:
            raise self._broker.journal.failed
        self._leases.check(pushes, acks)
        check(self._service, part)
        # Nothing is refused from here on, so nothing has to be undone.
        flow.begin()
        try:
            self._write(part, pushes, acks, streams)
        except BaseException:
            streams.abandon()
            if flow.in_batch:
                flow.abort()
            raise

    def _write(
        self, part: PartitionedPart, pushes: Sequence[WorkPush], acks: Sequence[WorkAck], streams: Streams
    ) -> None:
        for push in pushes:
            if push.delay_ms:
                self._leases.push_later(push)
                continue
            (taken,) = self._leases.push(push.queue, [(push.transaction_id, push.payload)])
            assert taken, "a queue that had room a moment ago is full"
        settled = {}
        for ack in acks:
            assert ack.queue is not None
            assert ack.status is not None
            verdict = self._leases.settle(ack.queue, ack.transaction_id, ack.lease_id, ack.status)
            assert verdict.success, verdict
            settled[ack.queue.id] = ack.queue
        streams.join(part)
        self._broker.flow.commit(settled.values())

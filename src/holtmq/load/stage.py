"""A workload's exchange, queues, publishers and consumers on one broker.

Owns: declaring them and deleting them again. Must not touch: the traffic and its measuring.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from holtmq.load.actors import Consumer, Publisher
from holtmq.load.blobs import Blob, layout
from holtmq.load.errors import LoadError
from holtmq.load.link import Address, Link
from holtmq.load.varied_blob import VariedBlob, Variety, binding_key, varied_blob
from holtmq.load.varied_stream import VariedStream
from holtmq.load.workloads import Mode, Workload

_BINDINGS_QUEUE: Final = "holt-load-others"
_EXCHANGE: Final = "holt-load"


@dataclass(slots=True)
class Stage:
    """A workload's exchange and queues on one broker."""

    address: Address
    workload: Workload
    control: Link
    exchange: str = ""
    queues: list[str] = field(default_factory=list)
    _links: list[Link] = field(default_factory=list)

    @classmethod
    def build(cls, address: Address, workload: Workload) -> Stage:
        stage = cls(address, workload, Link(address))
        try:
            stage.declare()
        except BaseException:
            stage.control.close()
            raise
        return stage

    def declare(self) -> None:
        """Delete leftovers and declare everything the workload needs."""
        workload = self.workload
        self.clear()
        self.exchange = _EXCHANGE if workload.exchange_kind else ""
        self.queues = [f"holt-load-{number}" for number in range(workload.queues)]
        if self.exchange:
            self.control.declare_exchange(self.exchange, workload.exchange_kind)
        for number, queue in enumerate(self.queues):
            self.control.declare_queue(queue, durable=workload.durable, arguments=workload.queue_arguments)
            if self.exchange:
                pattern = binding_key(number) if workload.distinct else "load.*.used"
                self.control.bind(queue, self.exchange, pattern)
        if workload.other_bindings:
            self.control.declare_queue(_BINDINGS_QUEUE, durable=False, arguments={})
            for number in range(workload.other_bindings):
                # Half of them share the first word with the published keys: the broker must examine these.
                first = "load" if number % 2 else f"other-{number}"
                self.control.bind(_BINDINGS_QUEUE, self.exchange, f"{first}.*.unused-{number}")

    def publishers(self) -> list[Publisher]:
        return [self._publisher() for _ in range(self.workload.publishers)]

    def _publisher(self) -> Publisher:
        link = self._connect()
        if self.workload.window:
            link.confirm()
        blob = (
            self._varied_blob(link)
            if self.workload.distinct
            else Blob(self.workload, self.exchange, self.queues[0], link.frame_max)
        )
        return Publisher(link, blob, self.workload.window)

    def _varied_blob(self, link: Link) -> VariedBlob:
        return varied_blob(Variety.of(self.workload), self.exchange, link.frame_max)

    def consumers(self) -> list[list[Consumer]]:
        return [
            [
                self._consumer(queue, f"holt-load-consumer-{number}")
                for number in range(self.workload.consumers_per_queue)
            ]
            for queue in self.queues
        ]

    def _consumer(self, queue: str, tag: str) -> Consumer:
        workload = self.workload
        link = self._connect()
        if workload.prefetch:
            link.qos(workload.prefetch)
        varied = VariedStream(tag, self._varied_blob(link)) if workload.distinct else None
        early = link.consume(queue, tag, no_ack=not workload.prefetch)
        consumer = Consumer(
            link,
            None if varied else layout(workload, self.exchange, queue, tag, link.frame_max),
            workload.body_bytes,
            workload.ack_every if workload.prefetch else 0,
            every_latency=workload.mode is Mode.PACED,
            varied=varied,
        )
        consumer.start(early)
        return consumer

    def _connect(self) -> Link:
        link = Link(self.address)
        self._links.append(link)
        return link

    def clear(self) -> None:
        """Delete what this or an interrupted round left."""
        for queue in (*(f"holt-load-{number}" for number in range(self.workload.queues)), _BINDINGS_QUEUE):
            self.control.delete_queue(queue)
        self.control.delete_exchange(_EXCHANGE)

    def close(self) -> None:
        """Close every connection and delete what was declared."""
        for link in self._links:
            link.close()
        with suppress(LoadError):  # the broker is gone; the next round deletes first
            self.clear()
        self.control.close()

"""Where a publish goes, computed once per exchange and key.

Owns: the resolved route, which publishers may cache until their vhost's version changes. Must not touch:
messages in queues.
"""

from typing import Final

from holtmq.broker.publish.publish_properties import PublishProperties
from holtmq.broker.streams.envelopes import Envelope
from holtmq.broker.streams.stream_queue import StreamQueue
from holtmq.broker.topology.targets import durable_ids, splits_transient
from holtmq.broker.topology.vhost import QueueExchange, VHost
from holtmq.broker.work.work_queue import WorkQueue

DECODED: Final = 75  # bytes of properties, in the time of a message whose queues are known by its key
SPECIAL: Final = 4  # times the work of a message whose queues are known by its key
LOOKED_AT: Final = 3  # bindings that are compared with headers in the time of such a message


class Route:
    """An exchange and a routing key; if ``simple``, its queues are the same for every message."""

    __slots__ = (
        "address",
        "durable_ids",
        "envelopes",
        "exchange",
        "is_wide",
        "only_queue",
        "persists",
        "queues",
        "routing_key",
        "simple",
        "streams",
        "version",
        "vhost",
        "work",
        "work_queues",
    )

    def __init__(self, vhost: VHost, exchange: QueueExchange, routing_key: str, address: bytes) -> None:
        self.vhost = vhost
        self.version = vhost.version  # if it has changed, a transaction that kept the route resolves it again
        self.exchange = exchange
        self.routing_key = routing_key
        self.address = address
        result = vhost.route_of_key(exchange, routing_key)
        self.queues = result.queues
        self.envelopes: dict[PublishProperties, Envelope] = {}  # of messages for streams, by their properties
        self.work = 1  # of a message in a transaction, compared with one for a single queue
        # Every message is for very many queues.
        self.is_wide = result.is_wide and not result.depends_on_message
        # Very many queues: each message looks for them in steps.
        if result.is_wide:
            self.work_queues: tuple[WorkQueue, ...] = ()
            self.streams: tuple[StreamQueue, ...] = ()
            self.durable_ids = b""
            self.only_queue: WorkQueue | None = None
            self.persists = self.simple = False
            return
        self.work_queues = tuple(queue for queue in result.queues if isinstance(queue, WorkQueue))
        self.durable_ids = durable_ids(result.queues)
        split = splits_transient(result.queues)
        self.persists = not split and any(queue.always_persists for queue in result.queues)
        # One queue without limits: the common case, enqueued without a loop.
        self.only_queue = (
            self.work_queues[0]
            if len(result.queues) == len(self.work_queues) == 1 and not self.work_queues[0].limited
            else None
        )
        # Otherwise the route depends on the message: headers, a delay, or a queue that may refuse it.
        self.simple = (
            not result.depends_on_message
            and not split
            and len(self.work_queues) == len(result.queues)
            and not any(queue.refuses_when_full for queue in result.queues)
        )
        if not self.simple:
            self.work = SPECIAL + (exchange.binding_count // LOOKED_AT if exchange.needs_headers else 0)
        # If every message goes only to partitioned queues, the messages of one read are pushed together.
        streams = tuple(queue for queue in result.queues if isinstance(queue, StreamQueue))
        streams_only = not result.depends_on_message and len(streams) == len(result.queues)
        self.streams = streams if streams_only else ()

"""Counters: sums never fall, and nothing is counted for ever under the name of what is gone."""

from holtmq.broker.broker import Broker
from holtmq.broker.message import make_address
from holtmq.broker.partitioned.commands.admin import delete_queue
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.journal import MemoryJournal
from holtmq.wire.properties import Properties, encode_header, encode_properties

NOW = 1_800_000_000.0


def test_what_happened_on_a_deleted_queue_stays_in_the_sums() -> None:
    service = PartitionedService(MemoryJournal())
    for name in ("kept", "gone"):
        service.push([PushItem(name, "p", Body("t", b"1"))], NOW)

    delete_queue(service, "gone")

    assert set(service.counters.queues) == {"kept"}
    assert service.counters.total().push_messages == 2


def test_a_stream_deleted_over_amqp_takes_its_counters_along() -> None:
    journal = MemoryJournal()
    broker, service = Broker(journal), PartitionedService(journal)
    broker.attach(service).follow()
    broker.put_vhost("/")
    vhost = broker.vhost("/")
    broker.declare_queue(vhost, "s", durable=True, arguments={"x-queue-type": "stream"})
    header = encode_header(1, encode_properties(Properties(delivery_mode=2)))
    route = broker.resolve(vhost, "", "s", make_address("", "s"))
    broker.flow.publishing.publish(route, broker.flow.publish_properties.of(header), header, b"1")
    assert set(service.counters.queues) == {"s"}

    broker.delete_queue(vhost, "s")

    assert service.counters.queues == {}
    assert service.counters.total().push_messages == 1

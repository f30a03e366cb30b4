"""What Spring AMQP, MassTransit and EasyNetQ declare and send: the same methods, sent with pika.

Each of them has conventions of its own: names, arguments, headers, and how a failed message is kept.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest

from holtmq.testing import TestBroker

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as one:
        yield one


@pytest.fixture
def channel(broker: TestBroker) -> Iterator[Any]:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        yield connection.channel()


def next_message(channel: Any, queue: str) -> tuple[Any, Any, bytes]:
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    assert method is not None, f"queue {queue} is empty"
    return method, properties, body


def handle(channel: Any, queue: str, how: Callable[[Any, Any, bytes], None]) -> None:
    method, properties, body = channel.basic_get(queue)
    assert method is not None, f"queue {queue} is empty"
    how(method, properties, body)


def test_spring_retries_by_dead_letters_and_then_republishes(broker: TestBroker, channel: Any) -> None:
    """A listener rejects, x-death is counted, RepublishMessageRecoverer keeps the exception in headers."""
    channel.confirm_delivery()
    channel.exchange_declare("orders", "topic", durable=True)
    channel.exchange_declare("orders.dlx", "direct", durable=True)
    dead_letters = {"x-dead-letter-exchange": "orders.dlx", "x-dead-letter-routing-key": "orders.retry"}
    channel.queue_declare("orders.in", durable=True, arguments=dead_letters)
    again = {"x-dead-letter-exchange": "orders", "x-dead-letter-routing-key": "o.new", "x-message-ttl": 5000}
    channel.queue_declare("orders.wait", durable=True, arguments=again)
    channel.queue_declare("orders.parking", durable=True)
    channel.queue_bind("orders.in", "orders", "o.*")
    channel.queue_bind("orders.wait", "orders.dlx", "orders.retry")
    for name in ("orders.in", "orders.wait"):  # RabbitAdmin looks at each queue before a container starts
        channel.queue_declare(name, passive=True)
    sent = pika.BasicProperties(
        content_type="application/json",
        content_encoding="UTF-8",
        delivery_mode=2,
        priority=0,
        headers={
            "__TypeId__": "com.shop.Order",
            "spring_listener_return_correlation": "c0ffee",
            "x-received-from": [{"uri": "amqp://other", "exchange": "orders", "redelivered": False}],
        },
    )
    channel.basic_publish("orders", "o.new", b'{"id": 1}', sent, mandatory=True)
    deaths: list[int] = []

    for _ in range(2):

        def reject(method: Any, properties: Any, body: bytes) -> None:
            deaths.append(next((d["count"] for d in properties.headers.get("x-death", ()) if d), 0))
            channel.basic_reject(method.delivery_tag, requeue=False)

        handle(channel, "orders.in", reject)
        channel.queue_declare("orders.wait", passive=True)
        broker.clock.advance(6)
        channel.queue_declare("orders.in", passive=True)

    def recover(method: Any, properties: Any, body: bytes) -> None:
        properties.headers |= {
            "x-exception-stacktrace": "java.lang.IllegalStateException: no\n"
            + "\tat com.shop.Listener\n" * 200,
            "x-exception-message": "no",
            "x-original-exchange": method.exchange,
            "x-original-routingKey": method.routing_key,
        }
        channel.basic_publish("", "orders.parking", body, properties, mandatory=True)
        channel.basic_ack(method.delivery_tag)

    handle(channel, "orders.in", recover)

    assert deaths == [0, 1]
    _, properties, body = next_message(channel, "orders.parking")
    headers = properties.headers
    assert body == b'{"id": 1}'
    assert [(d["queue"], d["reason"], d["count"]) for d in headers["x-death"]] == [
        ("orders.wait", "expired", 2),
        ("orders.in", "rejected", 2),
    ]
    assert headers["x-first-death-queue"] == "orders.in"
    assert headers["x-original-routingKey"] == "o.new"
    assert headers["x-received-from"][0]["uri"] == "amqp://other"
    assert len(headers["x-exception-stacktrace"]) > 4000


def test_springs_anonymous_queue_and_direct_reply(channel: Any) -> None:
    arguments = {"x-queue-master-locator": "client-local"}
    channel.queue_declare("spring.gen-x1", exclusive=True, auto_delete=True, arguments=arguments)
    channel.queue_bind("spring.gen-x1", "amq.fanout")
    answers: list[bytes] = []
    channel.basic_consume(
        "amq.rabbitmq.reply-to", lambda *delivery: answers.append(delivery[3]), auto_ack=True
    )
    asked = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="1")

    channel.basic_publish("amq.fanout", "", b"ping", asked)
    _, properties, _ = next_message(channel, "spring.gen-x1")
    channel.basic_publish("", properties.reply_to, b"pong", pika.BasicProperties(correlation_id="1"))
    channel.queue_declare("spring.gen-x1", passive=True)
    channel.connection.process_data_events(0)

    assert answers == [b"pong"]


def test_masstransit_routes_by_type_and_keeps_faults_and_skipped_messages(
    broker: TestBroker, channel: Any
) -> None:
    """Fanout exchanges bound to each other, a delayed exchange, _error and _skipped."""
    channel.confirm_delivery()
    fanouts = ("Contracts:OrderSubmitted", "Contracts:IOrder", "order-service", "order-service_error")
    for name in (*fanouts, "order-service_skipped"):
        channel.exchange_declare(name, "fanout", durable=True)
    channel.exchange_bind("Contracts:IOrder", "Contracts:OrderSubmitted", "", {})  # an interface of the type
    channel.exchange_bind("order-service", "Contracts:IOrder", "", {})
    quorum = {"x-queue-type": "quorum"}
    for name in ("order-service", "order-service_error", "order-service_skipped"):
        channel.queue_declare(name, durable=True, arguments=quorum)
        channel.queue_bind(name, name, "")
    delayed = {"x-delayed-type": "fanout"}
    channel.exchange_declare("order-service_delay", "x-delayed-message", durable=True, arguments=delayed)
    channel.exchange_bind("order-service", "order-service_delay", "")
    # The queue of the bus itself, which lives as long as its process.
    channel.queue_declare("host_app_bus_x1", auto_delete=True, arguments={"x-expires": 60000})
    channel.exchange_declare("host_app_bus_x1", "fanout", auto_delete=True)
    channel.queue_bind("host_app_bus_x1", "host_app_bus_x1")
    sent = pika.BasicProperties(
        content_type="application/vnd.masstransit+json",
        delivery_mode=2,
        message_id="00000000-0000-0000-0000-000000000001",
        headers={"Content-Type": "application/vnd.masstransit+json", "publishId": "1"},
    )
    channel.basic_publish("Contracts:OrderSubmitted", "", b"{}", sent, mandatory=False)

    def redeliver_later(method: Any, properties: Any, body: bytes) -> None:
        properties.headers |= {"x-delay": 5000, "MT-Redelivery-Count": 1}
        channel.basic_publish("order-service_delay", "", body, properties)
        channel.basic_ack(method.delivery_tag)

    handle(channel, "order-service", redeliver_later)
    assert channel.basic_get("order-service") == (None, None, None)
    broker.clock.advance(6)
    channel.queue_declare("order-service", passive=True)

    def fault(method: Any, properties: Any, body: bytes) -> None:
        assert properties.headers["MT-Redelivery-Count"] == 1
        properties.headers |= {
            "MT-Reason": "fault",
            "MT-Fault-ExceptionType": "System.InvalidOperationException",
        }
        channel.basic_publish("order-service_error", "", body, properties)
        channel.basic_ack(method.delivery_tag)

    handle(channel, "order-service", fault)

    _, properties, _ = next_message(channel, "order-service_error")
    assert properties.headers["MT-Reason"] == "fault"
    assert properties.message_id == sent.message_id
    assert channel.basic_get("order-service_skipped") == (None, None, None)


def test_easynetq_subscribes_and_keeps_errors(broker: TestBroker, channel: Any) -> None:
    """Names with commas and spaces, a consumer argument of old mirrored queues, the default error queue."""
    channel.confirm_delivery()
    kind, queue = "Shop.Order, Shop", "Shop.Order, Shop_billing"
    channel.exchange_declare(kind, "topic", durable=True)
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, kind, "#")
    channel.basic_qos(prefetch_count=50)
    got: list[tuple[Any, Any, bytes]] = []
    arguments = {"x-priority": 0, "x-cancel-on-ha-failover": False}
    channel.basic_consume(queue, lambda _, *delivery: got.append(delivery), arguments=arguments)
    sent = pika.BasicProperties(delivery_mode=2, type=kind, correlation_id="1")

    channel.basic_publish(kind, "", b"{}", sent)
    channel.connection.process_data_events(0)
    ((method, properties, _),) = got
    channel.exchange_declare(f"ErrorExchange_{method.routing_key}", "direct", durable=True)
    channel.queue_declare("EasyNetQ_Default_Error_Queue", durable=True)
    channel.queue_bind("EasyNetQ_Default_Error_Queue", f"ErrorExchange_{method.routing_key}", "")
    error = pika.BasicProperties(delivery_mode=2, type="EasyNetQ.SystemMessages.Error, EasyNetQ")
    channel.basic_publish(f"ErrorExchange_{method.routing_key}", "", b"{}", error)
    channel.basic_ack(method.delivery_tag)

    assert properties.type == kind
    _, kept, _ = next_message(channel, "EasyNetQ_Default_Error_Queue")
    assert kept.type == error.type
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_easynetqs_future_publish_waits_in_a_queue_with_a_time_to_live(
    broker: TestBroker, channel: Any
) -> None:
    channel.exchange_declare("Shop.Later", "topic", durable=True)
    channel.queue_declare("Shop.Later_in", durable=True)
    channel.queue_bind("Shop.Later_in", "Shop.Later", "#")
    waits = {"x-message-ttl": 1000, "x-dead-letter-exchange": "Shop.Later", "x-dead-letter-routing-key": "#"}
    channel.queue_declare("Shop.Later_1s", durable=True, arguments=waits)
    channel.exchange_declare("Shop.Later_1s", "topic", durable=True)
    channel.queue_bind("Shop.Later_1s", "Shop.Later_1s", "#")

    channel.basic_publish("Shop.Later_1s", "k", b"later")
    channel.queue_declare("Shop.Later_1s", passive=True)
    broker.clock.advance(2)
    channel.queue_declare("Shop.Later_in", passive=True)

    method, properties, body = next_message(channel, "Shop.Later_in")
    assert (method.exchange, method.routing_key, body) == ("Shop.Later", "#", b"later")
    assert properties.headers["x-death"][0]["reason"] == "expired"

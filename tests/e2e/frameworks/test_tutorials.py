"""RabbitMQ's seven tutorials with pika; ``make frameworks`` runs them with node's amqplib, too."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from holtmq.testing import TestBroker

pytestmark = pytest.mark.e2e
Open = Callable[[], Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker(clock="real") as one:
        yield one


@pytest.fixture
def channels(broker: TestBroker) -> Iterator[Open]:
    """Each call is a program of its own: a connection with one channel."""
    connections: list[pika.BlockingConnection] = []

    def one() -> Any:
        connections.append(pika.BlockingConnection(pika.URLParameters(broker.amqp_url)))
        return connections[-1].channel()

    yield one
    for connection in connections:
        if connection.is_open:
            connection.close()


def received(channel: Any, queue: str, count: int, auto_ack: bool = True) -> list[tuple[str, str]]:
    """Routing key and body of so many messages."""
    got: list[tuple[str, str]] = []
    for method, _, body in channel.consume(queue, auto_ack=auto_ack, inactivity_timeout=60):
        assert method is not None, f"{len(got)} of {count} messages came"
        got.append((method.routing_key, body.decode()))
        if not auto_ack:
            channel.basic_ack(method.delivery_tag)
        if len(got) == count:
            break
    channel.cancel()
    return got


def test_hello_world(channels: Open) -> None:
    sender, receiver = channels(), channels()
    for channel in (sender, receiver):  # both declare it: either may be started first
        channel.queue_declare("hello")

    sender.basic_publish("", "hello", b"Hello World!")

    assert received(receiver, "hello", 1) == [("hello", "Hello World!")]


def test_work_queues_give_the_task_of_a_dead_worker_to_another(channels: Open) -> None:
    sender, first, second = channels(), channels(), channels()
    sender.queue_declare("task_queue", durable=True)
    for task in ("one.", "two..", "three..."):
        sender.basic_publish("", "task_queue", task.encode(), pika.BasicProperties(delivery_mode=2))
    first.basic_qos(prefetch_count=1)
    held: list[str] = []
    first.basic_consume("task_queue", lambda *delivery: held.append(delivery[3].decode()))
    while not held:
        first.connection.process_data_events(1)

    first.connection.close()  # without an ack

    assert held == ["one."]
    second.basic_qos(prefetch_count=1)
    assert received(second, "task_queue", 3, auto_ack=False) == [
        ("task_queue", task) for task in ("one.", "two..", "three...")
    ]


def test_publish_and_subscribe_reaches_every_subscriber_from_then_on(channels: Open) -> None:
    sender = channels()
    sender.exchange_declare("logs", "fanout")
    sender.basic_publish("logs", "", b"lost: there is no queue yet")
    subscribers = []
    for _ in range(2):
        channel = channels()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "logs")
        subscribers.append((channel, queue))

    sender.basic_publish("logs", "", b"info: Hello")

    assert [received(*one, 1) for one in subscribers] == [[("", "info: Hello")]] * 2


def test_routing_selects_by_severity(channels: Open) -> None:
    sender, receiver = channels(), channels()
    sender.exchange_declare("direct_logs", "direct")
    queue = receiver.queue_declare("", exclusive=True).method.queue
    for severity in ("warning", "error"):
        receiver.queue_bind(queue, "direct_logs", severity)

    for severity in ("info", "warning", "error"):
        sender.basic_publish("direct_logs", severity, b"text")

    assert received(receiver, queue, 2) == [("warning", "text"), ("error", "text")]
    assert receiver.queue_declare(queue, passive=True).method.message_count == 0


def test_topics_select_by_pattern(channels: Open) -> None:
    sender, receiver = channels(), channels()
    sender.exchange_declare("topic_logs", "topic")
    queue = receiver.queue_declare("", exclusive=True).method.queue
    for pattern in ("*.orange.*", "*.*.rabbit", "lazy.#"):
        receiver.queue_bind(queue, "topic_logs", pattern)
    keys = ("quick.orange.rabbit", "lazy.orange.elephant", "quick.brown.fox", "orange", "lazy.brown.fox.male")

    for key in keys:
        sender.basic_publish("topic_logs", key, b"animal")

    wanted = ("quick.orange.rabbit", "lazy.orange.elephant", "lazy.brown.fox.male")  # each once
    assert [key for key, _ in received(receiver, queue, 3)] == list(wanted)
    assert receiver.queue_declare(queue, passive=True).method.message_count == 0


def test_rpc_answers_with_the_correlation_id(channels: Open) -> None:
    server, client = channels(), channels()
    server.queue_declare("rpc_queue")
    server.basic_qos(prefetch_count=1)

    def fibonacci(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        low, high = 0, 1
        for _ in range(int(body)):
            low, high = high, low + high
        answer = pika.BasicProperties(correlation_id=properties.correlation_id)
        channel.basic_publish("", properties.reply_to, str(low).encode(), answer)
        channel.basic_ack(method.delivery_tag)

    server.basic_consume("rpc_queue", fibonacci)
    answers: dict[str, bytes] = {}
    callback = client.queue_declare("", exclusive=True).method.queue
    client.basic_consume(
        callback,
        lambda _, __, properties, body: answers.update({properties.correlation_id: body}),
        auto_ack=True,
    )
    asked = pika.BasicProperties(reply_to=callback, correlation_id="30")

    client.basic_publish("", "rpc_queue", b"30", asked)
    while not answers:
        server.connection.process_data_events(0)
        client.connection.process_data_events(0)

    assert answers == {"30": b"832040"}


def test_publisher_confirms_say_what_arrived(channels: Open) -> None:
    sender = channels()
    queue = sender.queue_declare("", exclusive=True).method.queue
    sender.confirm_delivery()

    for number in range(50):
        sender.basic_publish("", queue, str(number).encode(), mandatory=True)

    assert sender.queue_declare(queue, passive=True).method.message_count == 50
    with pytest.raises(pika.exceptions.UnroutableError):
        sender.basic_publish("", "no-such-queue", b"", mandatory=True)


@pytest.mark.skipif("HOLT_TEST_FRAMEWORKS" not in os.environ, reason="make frameworks runs it")
def test_all_seven_with_amqplib(broker: TestBroker) -> None:
    node = shutil.which("node")
    assert node is not None, "node is not installed"
    program = str(Path(__file__).parent / "node" / "tutorials_program.js")

    done = subprocess.run(
        [node, program, broker.amqp_url], capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "hello": ["Hello World!"],
        "work": ["one.", "one.", "two.."],
        "logs": [["info: Hello"], ["info: Hello"]],
        "direct": ["warning", "error"],
        "topic": ["quick.orange.rabbit", "lazy.brown.fox"],
        "rpc": "832040",
        "confirms": {"confirmed": 50, "returned": "no-such-queue"},
    }

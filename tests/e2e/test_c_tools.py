"""The C client's command line tools: librabbitmq is what many other bindings stand on."""

import shutil
import subprocess

import pika
import pytest
from e2e_support import DEADLINE, depth, drain, get_soon, publish
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.testing import TestBroker

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("amqp-publish") is None, reason="amqp-tools are not installed"),
]


def tool(
    broker: TestBroker, name: str, *arguments: str, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run one of the tools."""
    return subprocess.run(
        [name, f"--url={broker.amqp_url}", *arguments],
        input=stdin,
        capture_output=True,
        timeout=DEADLINE,
        check=False,
    )


def test_amqp_publish_sends_a_body_with_properties(
    broker: TestBroker, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True)

    done = tool(
        broker, "amqp-publish", "-r", name, "-p", "-C", "text/plain", "-H", "colour: red", "-b", "from C"
    )

    assert done.returncode == 0, done.stderr
    delivery = get_soon(channel, name)
    assert delivery.body == b"from C"
    assert (delivery.properties.content_type, delivery.properties.delivery_mode) == ("text/plain", 2)
    assert delivery.headers == {"colour": "red"}


def test_amqp_publish_takes_a_large_body_from_its_input(
    broker: TestBroker, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True)
    body = b"0123456789" * 50_000

    assert tool(broker, "amqp-publish", "-r", name, stdin=body).returncode == 0

    assert get_soon(channel, name).body == body


def test_amqp_get_takes_one_message_or_says_there_is_none(
    broker: TestBroker, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name)
    publish(channel, name, "for C")
    depth(channel, name)

    got = tool(broker, "amqp-get", "-q", name)
    empty = tool(broker, "amqp-get", "-q", name)

    assert (got.returncode, got.stdout) == (0, b"for C")
    assert (empty.returncode, empty.stdout) == (2, b"")
    channel.queue_delete(name)


def test_amqp_consume_runs_a_command_per_message_and_acks(
    broker: TestBroker, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name)
    publish(channel, name, "1\n", "2\n", "3\n", "left\n")
    depth(channel, name)

    done = tool(broker, "amqp-consume", "-q", name, "-c", "3", "-p", "1", "cat")

    assert (done.returncode, done.stdout) == (0, b"1\n2\n3\n"), done.stderr
    assert drain(channel, name) == [b"left\n"]
    channel.queue_delete(name)


def test_amqp_consume_can_bind_a_queue_of_its_own(
    broker: TestBroker, channel: BlockingChannel, name: str
) -> None:
    channel.exchange_declare(name, "topic")
    consumer = subprocess.Popen(
        [
            "amqp-consume",
            f"--url={broker.amqp_url}",
            "-e",
            name,
            "-r",
            "a.#",
            "-c",
            "1",
            "cat",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        channel.confirm_delivery()
        for _ in range(10_000):  # until the tool has bound its queue
            try:
                channel.basic_publish(name, "a.b", b"routed", mandatory=True)
                break
            except pika.exceptions.UnroutableError:
                channel.connection.process_data_events(0.005)
        out, _ = consumer.communicate(timeout=DEADLINE)
        assert out == b"routed"
    finally:
        consumer.kill()
        consumer.wait()
        channel.exchange_delete(name)


def test_amqp_declare_and_delete_queue(broker: TestBroker, channel: BlockingChannel, name: str) -> None:
    declared = tool(broker, "amqp-declare-queue", "-q", name, "-d")
    assert (declared.returncode, declared.stdout.strip()) == (0, name.encode())
    publish(channel, name, "1", "2")
    depth(channel, name)

    deleted = tool(broker, "amqp-delete-queue", "-q", name)

    assert (deleted.returncode, deleted.stdout.strip()) == (0, b"2")


def test_a_refusal_is_reported(broker: TestBroker, name: str) -> None:
    done = tool(broker, "amqp-get", "-q", name)

    assert done.returncode == 1
    assert b"NOT_FOUND" in done.stderr or b"404" in done.stderr

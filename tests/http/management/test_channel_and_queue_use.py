"""What the management API tells about channels, connections and the use of queues, with values."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.testing import TestBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as running:
        yield running


@pytest.fixture
def channel(broker: TestBroker) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        opened = connection.channel()
        opened.queue_declare("q")
        yield opened
        with suppress(pika.exceptions.AMQPError):
            connection.channel().queue_delete("q")


def get(broker: TestBroker, path: str) -> Any:
    answer = httpx.get(f"{broker.http_url}/api{path}", auth=("guest", "guest"))
    return answer.raise_for_status().json()


def stats(broker: TestBroker) -> dict[str, int]:
    (row,) = get(broker, "/channels")
    return {name: value for name, value in row["message_stats"].items() if not name.endswith("_details")}


def sample(broker: TestBroker) -> None:
    broker.call(lambda node: node.sample_figures())


def test_a_channel_counts_its_messages_by_kind(broker: TestBroker, channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    for body in (b"1", b"2", b"3", b"4"):
        channel.basic_publish("", "q", body)
    channel.basic_publish("", "nowhere", b"")
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "nowhere", b"", mandatory=True)
    method, _, _ = channel.basic_get("q")
    channel.basic_nack(method.delivery_tag)
    method, _, _ = channel.basic_get("q")
    channel.basic_ack(method.delivery_tag)
    channel.basic_get("q", auto_ack=True)
    tags: list[int] = []
    consumer = channel.basic_consume("q", lambda _, method, *__: tags.append(method.delivery_tag))
    channel.connection.process_data_events(0)
    channel.basic_ack(tags[-1], multiple=True)
    channel.basic_cancel(consumer)
    channel.basic_get("q")

    assert stats(broker) == {
        "publish": 6,
        "confirm": 6,
        "return_unroutable": 1,
        "drop_unroutable": 1,
        "deliver": 2,
        "deliver_no_ack": 0,
        "get": 2,
        "get_no_ack": 1,
        "get_empty": 1,
        "deliver_get": 5,
        "redeliver": 1,
        "ack": 3,
    }


def test_acks_of_a_transaction_count_when_it_is_committed(
    broker: TestBroker, channel: BlockingChannel
) -> None:
    for body in (b"1", b"2"):
        channel.basic_publish("", "q", body)
    channel.tx_select()
    first, _, _ = channel.basic_get("q")
    channel.basic_ack(first.delivery_tag)
    channel.tx_rollback()
    assert stats(broker)["ack"] == 0

    channel.basic_ack(first.delivery_tag)
    channel.tx_commit()

    assert stats(broker)["ack"] == 1


def test_a_connection_counts_reads_and_writes(broker: TestBroker, channel: BlockingChannel) -> None:
    (before,) = get(broker, "/connections")
    channel.queue_declare("q", passive=True)
    (after,) = get(broker, "/connections")

    assert (after["recv_cnt"], after["send_cnt"]) == (before["recv_cnt"] + 1, before["send_cnt"] + 1)
    assert after["send_pend"] == 0


def test_idle_since_is_the_time_of_the_last_use(broker: TestBroker, channel: BlockingChannel) -> None:
    channel.basic_publish("", "q", b"")
    channel.queue_declare("q", passive=True)
    assert "idle_since" not in get(broker, "/queues/%2F/q")
    assert "idle_since" not in get(broker, "/channels")[0]

    sample(broker)
    broker.clock.advance(seconds=30)
    idle_queue, idle_channel = get(broker, "/queues/%2F/q"), get(broker, "/channels")[0]
    channel.basic_get("q")
    sample(broker)

    assert idle_queue["idle_since"].endswith("+00:00")
    assert idle_channel["idle_since"].endswith("+00:00")
    assert "idle_since" not in get(broker, "/queues/%2F/q")
    assert "idle_since" not in get(broker, "/channels")[0]


def test_consumer_capacity_falls_while_messages_wait_for_consumers(
    broker: TestBroker, channel: BlockingChannel
) -> None:
    assert get(broker, "/queues/%2F/q")["consumer_capacity"] == 0.0  # no consumer
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("q", lambda *_: None)
    broker.clock.advance(seconds=20)
    assert get(broker, "/queues/%2F/q")["consumer_capacity"] == 1.0

    for _ in range(3):
        channel.basic_publish("", "q", b"")
    channel.queue_declare("q", passive=True)
    sample(broker)
    broker.clock.advance(seconds=20)

    busy = get(broker, "/queues/%2F/q")
    assert busy["consumer_capacity"] == busy["consumer_utilisation"] == 0.0
    assert (busy["messages_ready_ram"], busy["messages_unacknowledged_ram"]) == (2, 1)


def test_the_timestamp_of_the_head_is_shown(broker: TestBroker, channel: BlockingChannel) -> None:
    channel.basic_publish("", "q", b"", pika.BasicProperties(timestamp=1_700_000_000))
    channel.queue_declare("q", passive=True)

    assert get(broker, "/queues/%2F/q")["head_message_timestamp"] == 1_700_000_000

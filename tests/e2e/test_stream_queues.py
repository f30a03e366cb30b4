"""Partitioned queues through the AMQP door: streams, exchanges bound to them, consumer groups."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pika
import pytest
from e2e_support import DEADLINE
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
)

from holtmq.testing import TestBroker

STREAM = {"x-queue-type": "stream"}


@pytest.fixture
def stream_broker() -> Iterator[TestBroker]:
    with TestBroker(durable=True) as broker:
        yield broker


def connect(broker: TestBroker) -> tuple[pika.BlockingConnection, BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    return connection, connection.channel()


def bound_stream(broker: TestBroker) -> tuple[pika.BlockingConnection, BlockingChannel]:
    connection, channel = connect(broker)
    channel.queue_declare("s", durable=True, arguments=STREAM)
    channel.exchange_declare("events", "topic", durable=True)
    channel.queue_bind("s", "events", "#")
    channel.confirm_delivery()
    return connection, channel


def read(
    connection: pika.BlockingConnection, count: int, arguments: dict[str, Any], settle: str = "ack"
) -> list[tuple[Any, Any, bytes]]:
    """Consume until ``count`` messages have come, and make sure that no more do."""
    channel = connection.channel()
    channel.basic_qos(prefetch_count=100)
    got: list[tuple[Any, Any, bytes]] = []

    def take(_: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        got.append((method, properties, body))
        if settle == "ack":
            channel.basic_ack(method.delivery_tag)
        elif settle == "reject":
            channel.basic_reject(method.delivery_tag, requeue=False)

    channel.basic_consume("s", take, arguments=arguments)
    until = time.monotonic() + DEADLINE
    while len(got) < count and time.monotonic() < until:
        connection.process_data_events(0.02)
    connection.process_data_events(0.1)
    channel.close()
    return got


def test_a_stream_is_read_from_any_offset_by_anybody(stream_broker: TestBroker) -> None:
    connection, channel = bound_stream(stream_broker)
    for n in range(10):
        channel.basic_publish("events", f"k{n % 3}", b'{"n":%d}' % n)

    everything = read(connection, 10, {"x-stream-offset": "first"})
    again = read(connection, 10, {"x-stream-offset": "first"})
    tail = read(connection, 3, {"x-stream-offset": 7})
    last = read(connection, 1, {"x-stream-offset": "last"})

    assert [body for _, _, body in everything] == [b'{"n":%d}' % n for n in range(10)]
    assert [p.headers["x-stream-offset"] for _, p, _ in everything] == list(range(10))
    assert len(again) == 10
    assert [body for _, _, body in tail] == [b'{"n":7}', b'{"n":8}', b'{"n":9}']
    assert [body for _, _, body in last] == [b'{"n":9}']
    connection.close()


def test_bodies_and_properties_come_back_as_they_went_in(stream_broker: TestBroker) -> None:
    connection, channel = bound_stream(stream_broker)
    bodies = [b"\xff\x00raw", b"plain text", b'"a json string"', b'{"$base64":"x"}', b"", b"[1, 2]"]
    for body in bodies:
        properties = pika.BasicProperties(headers={"a": 1}, content_type="x/y", priority=3, message_id="m")
        channel.basic_publish("events", "key", body, properties)

    got = read(connection, len(bodies), {"x-stream-offset": "first"})

    assert [body for _, _, body in got] == bodies
    for method, properties, _ in got:
        assert (method.exchange, method.routing_key) == ("events", "key")
        assert (properties.content_type, properties.priority, properties.message_id) == ("x/y", 3, "m")
        assert properties.headers["a"] == 1
        assert properties.headers["x-partition"] == "key"
    connection.close()


def test_what_a_group_gets_again_is_marked_redelivered_also_behind_the_first_offset(
    stream_broker: TestBroker,
) -> None:
    connection, channel = bound_stream(stream_broker)
    channel.basic_publish("events", "k", b"0")
    channel.basic_publish("events", "k", b"1")
    group = {"x-consumer-group": "marked", "x-stream-offset": "first"}

    first = read(connection, 2, group)
    for n in (2, 3, 4):
        channel.basic_publish("events", "k", b"%d" % n)
    unsettled = read(connection, 3, group, settle="nothing")
    again = read(connection, 3, group)
    connection.close()

    assert [method.redelivered for method, _, _ in first + unsettled] == [False] * 5
    assert [(method.redelivered, body) for method, _, body in again] == [(True, b"%d" % n) for n in (2, 3, 4)]


def test_a_group_gets_again_what_it_did_not_acknowledge_and_goes_on_after_a_restart(
    stream_broker: TestBroker,
) -> None:
    connection, channel = bound_stream(stream_broker)
    for n in range(5):
        channel.basic_publish("events", "k", b"%d" % n)
    group = {"x-consumer-group": "g", "x-stream-offset": "first"}

    unsettled = read(connection, 5, group, settle="nothing")
    settled = read(connection, 5, group)
    nothing = read(connection, 0, group)
    connection.close()
    stream_broker.restart()
    connection, channel = connect(stream_broker)
    channel.confirm_delivery()
    channel.basic_publish("events", "k", b"5")
    later = read(connection, 1, group)

    assert [body for _, _, body in unsettled] == [b"%d" % n for n in range(5)]
    assert [(m.redelivered, body) for m, _, body in settled] == [(True, b"%d" % n) for n in range(5)]
    assert nothing == []
    assert [body for _, _, body in later] == [b"5"]
    connection.close()


def test_a_message_a_group_member_rejects_is_not_handed_out_again(stream_broker: TestBroker) -> None:
    connection, channel = bound_stream(stream_broker)
    channel.basic_publish("events", "k", b"poison")
    group = {"x-consumer-group": "g", "x-stream-offset": "first"}

    rejected = read(connection, 1, group, settle="reject")
    after = read(connection, 0, group)

    assert [body for _, _, body in rejected] == [b"poison"]
    assert after == []
    connection.close()


def test_a_member_of_a_group_that_acknowledges_ten_at_a_time_gets_ten(stream_broker: TestBroker) -> None:
    """Messages come one by one, all in one partition."""
    connection, channel = bound_stream(stream_broker)
    member = connection.channel()
    member.basic_qos(prefetch_count=25)
    got: list[bytes] = []
    unsettled: list[int] = []

    def on_message(_: object, method: object, __: object, body: bytes) -> None:
        got.append(body)
        unsettled.append(method.delivery_tag)  # type: ignore[attr-defined]
        if len(unsettled) == 10:
            member.basic_ack(unsettled[-1], multiple=True)
            unsettled.clear()

    member.basic_consume("s", on_message, arguments={"x-consumer-group": "g", "x-stream-offset": "first"})
    until = time.monotonic() + DEADLINE
    for number in range(40):
        channel.basic_publish("events", "k", b"%d" % number)
        while len(got) <= number and time.monotonic() < until:
            connection.process_data_events(0.01)
    connection.close()

    assert got == [b"%d" % number for number in range(40)]


def test_two_members_of_a_group_never_hold_the_same_message(stream_broker: TestBroker) -> None:
    connection, channel = bound_stream(stream_broker)
    for n in range(20):
        channel.basic_publish("events", f"p{n % 4}", b"%d" % n)
    got: list[bytes] = []
    for _ in range(2):
        member = connection.channel()
        member.basic_qos(prefetch_count=3)
        member.basic_consume(
            "s",
            lambda ch, method, _, body: (got.append(body), ch.basic_ack(method.delivery_tag)),  # type: ignore[func-returns-value]
            arguments={"x-consumer-group": "g", "x-stream-offset": "first"},
        )

    until = time.monotonic() + DEADLINE
    while len(got) < 20 and time.monotonic() < until:
        connection.process_data_events(0.02)
    connection.process_data_events(0.1)

    assert sorted(got, key=int) == [b"%d" % n for n in range(20)]
    for partition in range(4):
        mine = [int(body) for body in got if int(body) % 4 == partition]
        assert mine == sorted(mine)
    connection.close()


@pytest.mark.parametrize("refuse", ["nack", "nack and requeue", "reject"])
def test_a_reader_that_is_in_no_group_cannot_refuse_a_message(stream_broker: TestBroker, refuse: str) -> None:
    _, channel = bound_stream(stream_broker)
    channel.basic_publish("events", "k", b"1")
    channel.basic_qos(prefetch_count=1)

    method, _, _ = next(channel.consume("s", arguments={"x-stream-offset": "first"}))
    if refuse == "reject":
        channel.basic_reject(method.delivery_tag, requeue=False)
    else:
        channel.basic_nack(method.delivery_tag, requeue=refuse == "nack and requeue")
    with pytest.raises(ConnectionClosedByBroker) as refusal:
        channel.queue_declare("s", passive=True)

    assert refusal.value.reply_code == 540
    assert refusal.value.reply_text == (
        "NOT_IMPLEMENTED - basic.nack and basic.reject not supported by stream queues queue 's' in vhost '/'"
    )
    assert stream_broker.call(lambda node: node.broker.vhost("/").queues["s"].unacked) == 0


@pytest.mark.parametrize("offset", ["soon", -1, True, "10 hours"])
def test_a_start_that_makes_no_sense_is_refused_with_the_choices(
    stream_broker: TestBroker, offset: object
) -> None:
    connection, channel = connect(stream_broker)
    channel.queue_declare("s", durable=True, arguments=STREAM)

    with pytest.raises(ChannelClosedByBroker) as refusal:
        channel.basic_consume("s", lambda *_: None, arguments={"x-stream-offset": offset})

    assert refusal.value.reply_code == 406
    assert "first, last, next" in refusal.value.reply_text
    connection.close()


def test_a_deleted_stream_is_gone_with_its_messages(stream_broker: TestBroker) -> None:
    connection, channel = bound_stream(stream_broker)
    channel.basic_publish("events", "k", b"1")

    channel.queue_delete("s")
    channel.queue_declare("s", durable=True, arguments=STREAM)

    assert read(connection, 0, {"x-stream-offset": "first"}) == []
    connection.close()


def test_a_full_stream_refuses_a_message_that_its_neighbours_take(stream_broker: TestBroker) -> None:
    connection, channel = bound_stream(stream_broker)
    channel.queue_declare("work", durable=True)
    channel.queue_bind("work", "events", "#")
    body = {"queue": "s", "options": {"maxSize": 1}}
    assert (
        httpx.post(f"{stream_broker.http_url}/api/v1/configure", json=body, timeout=DEADLINE).status_code
        == 200
    )

    channel.basic_publish("events", "k", b"fits")
    with pytest.raises(NackError):
        channel.basic_publish("events", "k", b"too much")

    assert [message.body for message in stream_broker.messages("s")] == [b"fits"]
    assert [message.body for message in stream_broker.messages("work")] == [b"fits", b"too much"]
    connection.close()


def test_a_transaction_reaches_a_stream_and_a_work_queue_at_its_commit_or_never(
    stream_broker: TestBroker,
) -> None:
    connection, _ = bound_stream(stream_broker)
    channel = connection.channel()
    channel.queue_declare("work", durable=True)
    channel.queue_bind("work", "events", "#")
    channel.tx_select()

    channel.basic_publish("events", "k", b"dropped")
    channel.tx_rollback()
    channel.basic_publish("events", "k", b"kept", pika.BasicProperties(delivery_mode=2))
    channel.basic_publish("", "s", b"last", pika.BasicProperties(delivery_mode=2))
    before = stream_broker.messages("s")
    channel.tx_commit()
    connection.close()
    stream_broker.crash_and_restart()

    assert before == []
    assert [message.body for message in stream_broker.messages("s")] == [b"kept", b"last"]
    assert [message.body for message in stream_broker.messages("work")] == [b"kept"]


def test_what_a_leaving_group_member_held_goes_to_a_pop_that_waits(stream_broker: TestBroker) -> None:
    connection, channel = bound_stream(stream_broker)
    channel.basic_publish("events", "k", b"1")
    member = connection.channel()
    held: list[bytes] = []
    arguments = {"x-consumer-group": "g", "x-stream-offset": "first"}
    member.basic_consume("s", lambda *delivery: held.append(delivery[3]), arguments=arguments)
    until = time.monotonic() + DEADLINE
    while not held and time.monotonic() < until:
        connection.process_data_events(0.02)
    assert held == [b"1"]
    answers: list[httpx.Response] = []
    query = {"consumerGroup": "g", "wait": "true", "timeout": 20_000}
    url = f"{stream_broker.http_url}/api/v1/pop/queue/s"
    worker = threading.Thread(target=lambda: answers.append(httpx.get(url, params=query, timeout=40)))  # type: ignore[arg-type]
    worker.start()
    while not stream_broker.call(lambda node: node.partitioned.line.waiting_on("s")):
        assert worker.is_alive()

    stream_broker.drop_connections()
    worker.join(40)

    assert [message["data"] for message in answers[0].json()["messages"]] == [1]
    with pytest.raises(AMQPConnectionError):
        connection.process_data_events(DEADLINE)


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_a_quorum_queue_or_stream_takes_a_queue_mode_and_a_name_of_the_brokers(
    stream_broker: TestBroker, kind: str
) -> None:
    connection, channel = connect(stream_broker)

    lazy = channel.queue_declare(
        "lazy", durable=True, arguments={"x-queue-type": kind, "x-queue-mode": "lazy"}
    )
    named = channel.queue_declare("", durable=True, arguments={"x-queue-type": kind})

    assert lazy.method.queue == "lazy"
    assert named.method.queue.startswith("amq.gen-")
    connection.close()


def test_what_a_stream_cannot_do_costs_the_channel_and_not_the_connection(stream_broker: TestBroker) -> None:
    connection, _ = bound_stream(stream_broker)

    with pytest.raises(ChannelClosedByBroker, match="consume from it") as get:
        connection.channel().basic_get("s")
    with pytest.raises(ChannelClosedByBroker, match="cannot be purged") as purge:
        connection.channel().queue_purge("s")

    assert (get.value.reply_code, purge.value.reply_code) == (406, 406)
    connection.close()


@pytest.mark.parametrize("group", [{}, {"x-consumer-group": "g"}])
def test_a_stream_is_read_without_acknowledgments_and_without_a_prefetch(
    stream_broker: TestBroker, group: dict[str, str]
) -> None:
    connection, channel = bound_stream(stream_broker)
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("events", "k", body)
    start = {} if group else {"x-stream-offset": "first"}
    got: list[bytes] = []
    reader = connection.channel()

    reader.basic_consume(
        "s", lambda *delivery: got.append(delivery[3]), auto_ack=True, arguments={**start, **group}
    )
    until = time.monotonic() + DEADLINE
    while len(got) < 3 and time.monotonic() < until:
        connection.process_data_events(0.02)

    assert got == [b"1", b"2", b"3"]
    connection.close()


def test_a_running_node_lets_go_of_what_is_beyond_a_streams_limits(stream_broker: TestBroker) -> None:
    connection, channel = connect(stream_broker)
    channel.confirm_delivery()
    channel.queue_declare("aged", durable=True, arguments={**STREAM, "x-max-age": "1m"})
    channel.queue_declare("short", durable=True, arguments={**STREAM, "x-max-length-bytes": 25})
    for n in range(5):
        channel.basic_publish("", "aged", b"%d" % (10**9 + n))
        channel.basic_publish("", "short", b"%d" % (10**9 + n))

    stream_broker.clock.advance(30)
    assert len(stream_broker.messages("aged")) == 5
    assert [message.body for message in stream_broker.messages("short")] == [b"1000000003", b"1000000004"]
    stream_broker.clock.advance(40)

    assert stream_broker.messages("aged") == []
    assert channel.queue_declare("aged", passive=True).method.message_count == 0
    connection.close()

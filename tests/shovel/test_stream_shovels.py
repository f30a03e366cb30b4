"""Shovels that read a stream: every message once and in order, whichever side crashes."""

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from shovel_support import Operator, eventually

from holtmq.testing import TestBroker

COUNT = 1500
STREAM = {"x-queue-type": "stream"}


class Pair:
    """Two brokers that a test may crash; the stream is in the first, the shovel in the second."""

    def __init__(self, source: TestBroker, target: TestBroker) -> None:
        self.source, self.target = source, target
        self.old = Operator(source.http_url, source.amqp_url)
        self.new = Operator(target.http_url, target.amqp_url)

    def fill(self, first: int = 0, count: int = COUNT) -> None:
        channel = self.old.channel()
        channel.confirm_delivery()
        for number in range(first, first + count):
            sent = pika.BasicProperties(headers={"n": number}, timestamp=1_500_000_000 + number)
            channel.basic_publish("amq.fanout", f"key-{number % 3}", str(number).encode(), sent)
        channel.connection.close()

    def shovel(self, **more: object) -> None:
        self.new.put_shovel(
            "s",
            **{
                "src_uri": self.source.amqp_url,
                "src_queue": "log",
                "src_consumer_args": {"x-stream-offset": "first"},
                "dest_uri": "amqp://",
                "dest_queue": "log",
                "dest_keep_address": True,
                "src_prefetch_count": 50,
                "reconnect_delay": 0.02,
                **more,
            },
        ).raise_for_status()

    def wait_for(self, forwarded: int) -> None:
        eventually(lambda: self.new.shovel("s")["forwarded"] >= forwarded)

    def copied(self, count: int) -> list[tuple[Any, Any, bytes]]:
        """What the new stream has, from its beginning."""
        channel = self.new.channel()
        channel.basic_qos(prefetch_count=500)
        taken: list[tuple[Any, Any, bytes]] = []
        for method, properties, body in channel.consume("log", arguments={"x-stream-offset": "first"}):
            channel.basic_ack(method.delivery_tag)
            taken.append((method, properties, body))
            if len(taken) == count:
                break
        channel.cancel()
        channel.connection.close()
        return taken


@pytest.fixture
def pair() -> Iterator[Pair]:
    with TestBroker(clock="real") as source, TestBroker(clock="real") as target:
        both = Pair(source, target)
        for operator in (both.old, both.new):
            operator.declare("log", **STREAM)
        body = {"routing_key": ""}
        both.old.http.post("/bindings/%2F/e/amq.fanout/q/log", json=body).raise_for_status()
        yield both
        both.old.close()
        both.new.close()


def test_every_message_comes_once_and_in_order_while_both_brokers_crash(pair: Pair) -> None:
    pair.fill()
    pair.shovel()

    pair.wait_for(200)
    pair.target.crash_and_restart()
    pair.wait_for(500)
    pair.source.crash_and_restart()
    pair.wait_for(800)
    pair.source.drop_connections()
    pair.wait_for(COUNT)

    assert pair.new.messages("log") == COUNT
    taken = pair.copied(COUNT)
    assert [body for _, _, body in taken] == [str(number).encode() for number in range(COUNT)]
    assert [properties.headers["n"] for _, properties, _ in taken] == list(range(COUNT))
    assert [properties.headers["x-stream-offset"] for _, properties, _ in taken] == list(range(COUNT))
    assert [(method.exchange, method.routing_key) for method, _, _ in taken[:4]] == [
        ("amq.fanout", f"key-{number % 3}") for number in range(4)
    ]
    assert taken[7][1].timestamp == 1_500_000_007
    row = pair.new.shovel("s")
    assert (row["forwarded"], row["first_offset"], row["last_offset"]) == (COUNT, 0, COUNT - 1)
    assert pair.old.messages("log") == COUNT


def test_a_deleted_shovel_that_is_set_again_goes_on_behind_what_it_has_copied(pair: Pair) -> None:
    pair.fill(count=20)
    pair.shovel()
    pair.wait_for(20)
    pair.new.delete_shovel("s")
    pair.fill(first=20, count=10)
    pair.target.crash_and_restart()

    pair.shovel()
    pair.wait_for(30)

    assert [body for _, _, body in pair.copied(30)] == [str(number).encode() for number in range(30)]
    assert pair.new.messages("log") == 30


def test_a_new_destination_gets_everything_again(pair: Pair) -> None:
    pair.fill(count=20)
    pair.shovel()
    pair.wait_for(20)
    pair.new.delete_shovel("s")
    pair.new.http.delete("/queues/%2F/log").raise_for_status()
    pair.new.declare("log", **STREAM)

    pair.shovel()
    pair.wait_for(20)

    assert [body for _, _, body in pair.copied(20)] == [str(number).encode() for number in range(20)]


def test_a_full_destination_stops_the_shovel_without_gap_or_change_of_order(pair: Pair) -> None:
    pair.new.declare("few", **{"x-max-length": 5, "x-overflow": "reject-publish"})
    pair.fill(count=12)
    pair.shovel(dest_queue="few")
    eventually(lambda: "full" in (pair.new.shovel("s")["last_error"] or ""))

    taken = pair.new.take("few", 12)

    assert [body for _, _, body in taken] == [str(number).encode() for number in range(12)]
    eventually(lambda: pair.new.shovel("s")["forwarded"] == 12)


def test_a_queue_that_is_no_stream_is_named_as_the_reason(pair: Pair) -> None:
    pair.old.declare("plain")
    pair.old.publish("plain", ["x"])
    pair.shovel(src_queue="plain")

    eventually(lambda: "not a stream" in (pair.new.shovel("s")["last_error"] or ""))

    pair.new.delete_shovel("s")
    eventually(lambda: pair.old.messages("plain") == 1)


def test_a_stream_is_copied_to_another_broker_with_confirms(pair: Pair) -> None:
    pair.fill(count=300)
    pair.old.put_shovel(
        "s",
        src_uri="amqp://",
        src_queue="log",
        src_consumer_args={"x-stream-offset": "first"},
        dest_uri=pair.target.amqp_url,
        dest_queue="log",
        src_prefetch_count=20,
        reconnect_delay=0.02,
    ).raise_for_status()

    eventually(lambda: pair.old.shovel("s")["forwarded"] >= 50)
    pair.target.crash_and_restart()
    eventually(lambda: pair.old.shovel("s")["last_offset"] == 299)

    arrived = [int(body) for _, _, body in pair.copied(pair.new.messages("log"))]
    assert set(arrived) == set(range(300))
    assert len(arrived) <= 320  # what was on the way may come twice

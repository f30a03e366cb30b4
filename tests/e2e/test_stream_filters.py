"""Filters of stream readers: by value, by SQL, over more messages than one step reads."""

from collections.abc import Callable

import pika
import pytest
from e2e_support import Consuming, publish
from pika.adapters.blocking_connection import BlockingChannel

pytestmark = pytest.mark.e2e
Stream = Callable[..., None]


@pytest.fixture
def stream(channel: BlockingChannel, name: str) -> str:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=1000)
    return name


def read(channel: BlockingChannel, stream: str, count: int, **arguments: object) -> list[bytes]:
    table = {f"x-stream-{key.replace('_', '-')}": value for key, value in arguments.items()}
    consuming = Consuming(channel, stream, arguments={"x-stream-offset": "first", **table})
    consuming.wait(count)
    return [delivery.body for delivery in consuming.settle()]


def test_values_choose_messages(channel: BlockingChannel, stream: str) -> None:
    for value in ("eu", "us", "asia", "eu"):
        publish(channel, stream, value, headers={"x-stream-filter-value": value})
    publish(channel, stream, "bare")

    assert read(channel, stream, 2, filter="eu") == [b"eu", b"eu"]
    assert read(channel, stream, 3, filter=["eu", "asia"]) == [b"eu", b"asia", b"eu"]
    assert read(channel, stream, 2, filter="us", match_unfiltered=True) == [b"us", b"bare"]


def test_sql_chooses_messages_by_headers_and_properties(channel: BlockingChannel, stream: str) -> None:
    for amount in range(6):
        publish(
            channel,
            stream,
            f"{amount}",
            headers={"amount": amount},
            content_type="text/plain" if amount % 2 else "application/json",
            priority=amount,
        )

    assert read(channel, stream, 2, sql_filter="amount > 3") == [b"4", b"5"]
    sql = "amount * 2 > 4 AND p.content_type LIKE 'text/%'"
    assert read(channel, stream, 2, sql_filter=sql) == [b"3", b"5"]
    assert read(channel, stream, 1, sql_filter="header.priority = 2 OR missing = 1") == [b"2"]


def test_a_rare_message_is_found_behind_thousands(channel: BlockingChannel, stream: str) -> None:
    fast = channel.connection.channel()
    for number in range(5000):
        publish(fast, stream, str(number), headers={"number": number % 2500})
    publish(channel, stream, "end", headers={"number": 7})  # confirmed: all are stored

    assert read(channel, stream, 3, sql_filter="number = 7") == [b"7", b"2507", b"end"]


def test_new_messages_pass_the_filter_as_they_come(channel: BlockingChannel, stream: str) -> None:
    consuming = Consuming(channel, stream, arguments={"x-stream-filter": "mine"})
    for value in ("other", "mine", "other"):
        publish(channel, stream, value, headers={"x-stream-filter-value": value})

    consuming.wait(1)

    assert [delivery.body for delivery in consuming.settle()] == [b"mine"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x-stream-sql-filter": "a ="}, "ends too early"),
        ({"x-stream-sql-filter": 5}, "is not a text"),
        ({"x-stream-filter": 5}, "not a text or a list of texts"),
        ({"x-stream-filter": []}, "from 1 to 256"),
        ({"x-stream-match-unfiltered": True}, "needs 'x-stream-filter'"),
        ({"x-stream-filter": "a", "x-stream-match-unfiltered": "no"}, "is not true or false"),
        ({"x-stream-filter": "a", "x-consumer-group": "g"}, "members of a consumer group"),
    ],
)
def test_a_wrong_filter_is_refused(
    channel: BlockingChannel, stream: str, arguments: dict[str, object], reason: str
) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=reason):
        channel.basic_consume(stream, lambda *_: None, arguments=arguments)

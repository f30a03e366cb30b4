"""Work queues in Spark: a stream that leases and acknowledges, and a sink through an exchange."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pika
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType
from spark_support import Shop, batches

from holtmq.spark.errors import InvalidOption
from holtmq.spark.options import sink_options, work_options
from holtmq.spark.work_source import TaskMessages, WorkStreamReader, _body, _leased

pytestmark = pytest.mark.xdist_group("spark")

Channel: TypeAlias = pika.adapters.blocking_connection.BlockingChannel
PAYLOADS = StructType([StructField("payload", BinaryType())])


@pytest.fixture
def channel(shop: Shop) -> Iterator[Channel]:
    connection = pika.BlockingConnection(pika.URLParameters(shop.broker.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


def publish(channel: Channel, queue: str, bodies: list[bytes]) -> None:
    channel.queue_declare(queue, durable=True)
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))


def left(channel: Channel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def work(spark: SparkSession, shop: Shop, queue: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("holtmq").option("url", shop.url)
    return reader.option("workQueue", shop.name(queue)).options(**options).load()


def run(frame: DataFrame, checkpoint: Path, each: Callable[[DataFrame, int], None]) -> list[int]:
    writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    return batches(query)


def test_every_message_arrives_and_is_acknowledged(
    spark: SparkSession, shop: Shop, channel: Channel, tmp_path: Path
) -> None:
    bodies = [b'{"id": %d}' % n for n in range(7)]
    publish(channel, shop.name("tasks"), bodies)
    frame = work(spark, shop, "tasks", maxOffsetsPerTrigger="3", minPartitions="2", payloadSchema="id BIGINT")
    seen: list[int] = []

    sizes = run(frame, tmp_path / "c", lambda some, _: seen.extend(row["id"] for row in some.collect()))

    assert sizes == [3, 3, 1]
    assert sorted(seen) == list(range(7))
    assert left(channel, shop.name("tasks")) == 0
    again = channel.basic_get(shop.name("tasks"))
    assert again[0] is None, "the last batch was not acknowledged"


def test_a_batch_that_failed_comes_again(
    spark: SparkSession, shop: Shop, channel: Channel, tmp_path: Path
) -> None:
    publish(channel, shop.name("tasks"), [b"1", b"2"])
    seen: list[tuple[bytes, int]] = []

    def fail(some: DataFrame, _: int) -> None:
        raise ValueError("boom")

    def keep(some: DataFrame, _: int) -> None:
        seen.extend((bytes(row["payload"]), row["attempt"]) for row in some.collect())

    with pytest.raises(PySparkException):
        run(work(spark, shop, "tasks", leaseTime="2s"), tmp_path / "c", fail)
    while not seen:  # the lease of the failed run ends at some moment
        run(work(spark, shop, "tasks"), tmp_path / "c", keep)

    assert [payload for payload, _ in sorted(seen)] == [b"1", b"2"]
    assert left(channel, shop.name("tasks")) == 0


def test_the_bodies_are_those_that_were_published() -> None:
    assert _body(b'{"a":  1.0e2}') == b'{"a":  1.0e2}'
    assert _body(b'"text \\u00e4"') == "text ä".encode()
    assert _body(b'{"$base64":"AP8="}') == b"\x00\xff"
    assert _leased(b"") == []


def test_only_batches_that_are_over_are_acknowledged_and_the_rest_is_given_back(
    shop: Shop, channel: Channel
) -> None:
    publish(channel, shop.name("tasks"), [b"1", b"2", b"3"])
    options = work_options({"url": shop.url, "workQueue": shop.name("tasks"), "maxOffsetsPerTrigger": "2"})
    reader = WorkStreamReader(options, PAYLOADS)
    limit = reader.getDefaultReadLimit()
    start = reader.initialOffset()

    first = reader.latestOffset(start, limit)
    again = reader.latestOffset(start, limit)  # Spark may ask twice before it runs the batch
    (handful,) = reader.partitions(start, first)
    second = reader.latestOffset(first, limit)  # the first one is over
    (replayed,) = WorkStreamReader(options, PAYLOADS).partitions(start, first)
    assert left(channel, shop.name("tasks")) == 0
    reader.stop()

    assert (first, again, second) == ({"taken": 2}, {"taken": 2}, {"taken": 3})
    assert isinstance(handful, TaskMessages)
    assert isinstance(replayed, TaskMessages)
    assert [row.payload for row in handful.rows] == [b"1", b"2"]
    assert replayed.rows == [], "a new driver has no leases of the old one"
    assert channel.basic_get(shop.name("tasks"), auto_ack=True)[2] == b"3"


def test_a_batch_read_and_options_of_another_kind_of_queue_are_refused(
    spark: SparkSession, shop: Shop
) -> None:
    with pytest.raises(PySparkException, match="use readStream"):
        spark.read.format("holtmq").option("url", shop.url).option("workQueue", "tasks").load().collect()
    with pytest.raises(InvalidOption, match="no offsets, groups or history"):
        work_options({"workQueue": "q", "startingOffsets": "earliest"})
    with pytest.raises(InvalidOption, match="routing key which queues"):
        sink_options({"exchange": "x", "queue": "q"})


def test_rows_go_through_an_exchange_to_the_queues_it_leads_to(
    spark: SparkSession, shop: Shop, channel: Channel, tmp_path: Path
) -> None:
    exchange, queue = shop.name("x"), shop.name("bound")
    channel.exchange_declare(exchange, "topic", durable=True)
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, exchange, "order.*")
    shop.push("q", range(5))
    rows = shop.stream(spark, "q").selectExpr(
        "payload", "'order.new' AS routing_key", "map('h', 'v') AS headers", "3 AS priority", "transaction_id"
    )
    target = {"url": shop.url, "exchange": exchange, "checkpointLocation": str(tmp_path / "c")}

    query = rows.writeStream.format("holtmq").options(**target).trigger(availableNow=True).start()
    assert query.awaitTermination(300)

    method, properties, body = channel.basic_get(queue, auto_ack=True)
    assert (method.routing_key, properties.headers, properties.priority) == ("order.new", {"h": "v"}, 3)
    assert (properties.message_id, properties.delivery_mode) == ("t0", 2)
    assert body == b'{"id":0,"amount":0.0,"kind":"k0"}'
    assert left(channel, queue) == 4


def test_a_message_that_no_queue_gets_is_an_error_that_names_its_key(
    spark: SparkSession, shop: Shop, channel: Channel
) -> None:
    channel.exchange_declare(shop.name("x"), "topic", durable=True)
    rows = spark.sql("SELECT 'x' AS payload")
    writer = rows.write.format("holtmq").mode("append").option("url", shop.url)

    with pytest.raises(PySparkException, match=r"to no queue, with the routing keys \['nowhere'\]"):
        writer.option("exchange", shop.name("x")).option("routingKey", "nowhere").save()
    with pytest.raises(PySparkException, match="no exchange"):
        writer.option("exchange", shop.name("missing")).option("routingKey", "k").save()

    writer.option("exchange", shop.name("x")).option("routingKey", "nowhere").option(
        "mandatory", "false"
    ).save()

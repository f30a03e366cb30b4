"""The source in real Spark: batch reads, streams, limits, retention, relations."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from spark_support import Shop, batches

pytestmark = pytest.mark.xdist_group("spark")


def test_a_batch_read_has_every_message_once_in_as_many_slices_as_asked_for(
    spark: SparkSession, shop: Shop
) -> None:
    shop.push("q", range(1000))

    frame = shop.read(spark, "q", minPartitions="4", maxRecordsPerPartition="100")

    assert frame.rdd.getNumPartitions() == 10
    assert sorted(row.offset for row in frame.select("offset").collect()) == list(range(1000))
    assert frame.where("partition = 'p1'").count() == 333


def test_bounds_choose_offsets_and_times(spark: SparkSession, shop: Shop) -> None:
    shop.push("q", range(10))
    name = shop.name("q")

    def offsets(**options: str) -> list[int]:
        return sorted(row.offset for row in shop.read(spark, "q", **options).select("offset").collect())

    assert offsets(startingOffsets=f'{{"{name}": 4}}', endingOffsets=f'{{"{name}": 6}}') == [4, 5]
    assert offsets(startingTimestamp=str(int(time.time() * 1000) + 60_000)) == []
    assert offsets(startingTimestamp="0", endingTimestamp=str(int(time.time() * 1000) + 60_000)) == list(
        range(10)
    )
    assert offsets(partition="p1") == [1, 4, 7]
    later = f'{{"{name}": {int(time.time() * 1000) + 60_000}}}'
    assert offsets(startingOffsetsByTimestamp=later) == []
    assert offsets(endingOffsetsByTimestamp=later) == list(range(10))


def test_a_payload_schema_gives_typed_columns(spark: SparkSession, shop: Shop) -> None:
    shop.push("q", range(6))
    shop.http.post(
        "/api/v1/push", json={"items": [{"queue": shop.name("q"), "payload": {"id": "not a number"}}]}
    )

    frame = shop.read(
        spark, "q", payloadSchema="id BIGINT, amount DOUBLE, kind STRING", columns="offset,id,amount,_corrupt"
    )

    assert frame.columns == ["offset", "id", "amount", "_corrupt"]
    total = frame.selectExpr("sum(id)", "sum(amount)", "count(_corrupt)", "max(_corrupt)").first()
    assert tuple(total or ()) == (15, 7.5, 1, '{"id":"not a number"}')


def test_sql_and_the_module_name_work_without_a_register_call(spark: SparkSession, shop: Shop) -> None:
    shop.push("q", range(5))

    where = f"url '{shop.url}', queue '{shop.name('q')}'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW direct USING holtmq OPTIONS ({where})")

    assert spark.sql("SELECT count(*) AS n FROM direct WHERE offset >= 2").first()["n"] == 3  # type: ignore[index]
    reader = spark.read.format("pyspark_holtmq").option("url", shop.url).option("queue", shop.name("q"))
    assert reader.load().count() == 5


def test_two_queries_over_one_frame_do_not_see_each_others_filters(spark: SparkSession, shop: Shop) -> None:
    shop.push("q", range(100))

    frame = shop.read(spark, "q", minPartitions="10")

    assert frame.where("offset >= 40 AND offset < 43 AND partition = 'p2'").count() == 1
    assert frame.where("offset = 7 OR offset = 8").count() == 2


def test_an_unknown_queue_and_a_wrong_option_say_so(spark: SparkSession, shop: Shop) -> None:
    with pytest.raises(PySparkException, match="does not exist"):
        shop.read(spark, "missing").count()
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        shop.read(spark, "missing", startingOfsets="earliest")


@pytest.mark.parametrize(("limit", "sizes"), [("1", [1, 1, 1]), ("3", [3]), ("100000", [3])])
def test_available_now_reads_in_batches_of_the_limit_and_ends_exactly(
    spark: SparkSession, shop: Shop, tmp_path: Path, limit: str, sizes: list[int]
) -> None:
    shop.push("q", range(3))
    frame = shop.stream(spark, "q", maxOffsetsPerTrigger=limit, consumerGroup="mirror").select("payload")

    query = shop.to_queue(frame, "out", tmp_path / "c")

    assert batches(query) == sizes
    assert shop.next_offset("out") == 3
    # Spark commits a batch when the next one begins: the mirror is one behind at the end, unless a listener
    # of this session has reported the last one.
    if len(sizes) > 1:
        assert shop.lag("q", "mirror") in (0, sizes[-1])


def test_available_now_ends_with_what_was_there_while_somebody_pushes_all_the_time(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.push("q", range(30))
    seen: list[int] = []

    def work(batch: DataFrame, number: int) -> None:
        shop.push("q", range(1000 * (number + 1), 1000 * (number + 1) + 20))  # more than a batch takes
        seen.extend(row["offset"] for row in batch.collect())

    def run() -> list[int]:
        writer = shop.stream(spark, "q", maxOffsetsPerTrigger="10").select("offset").writeStream
        writer = writer.foreachBatch(work).option("checkpointLocation", str(tmp_path / "c"))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(300), "it reads what is pushed meanwhile, and never ends"
        finally:
            query.stop()
        return batches(query)

    assert run() == [10, 10, 10]
    assert sorted(seen) == list(range(30))
    assert run() == [10] * 6  # what came meanwhile, and again not what comes now
    assert sorted(seen) == list(range(90))
    assert shop.next_offset("q") == 90 + 6 * 20


def test_bytes_limit_a_batch_exactly_and_a_larger_message_goes_alone(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.push("q", range(10, 20), partitions=1)
    one = shop.http.get(
        f"/api/v1/ranges/{shop.name('q')}/fit", params={"from": 0, "to": 1, "maxBytes": 9999}
    ).json()
    frame = shop.stream(spark, "q", maxBytesPerTrigger=str(one["bytes"] * 4)).select("payload")

    query = shop.to_queue(frame, "out", tmp_path / "c")

    assert batches(query) == [4, 4, 2]
    small = shop.stream(spark, "q", maxBytesPerTrigger="1").select("payload").limit(3)
    assert small.isStreaming


def test_a_stream_goes_on_where_it_stopped_and_queues_that_come_later_are_read(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    def run() -> list[int]:
        frame = shop.stream(
            spark, "", queuePattern=rf"{shop.prefix}\.(a|b)", payloadSchema="id BIGINT", columns="id"
        )
        return shop.collect(frame, tmp_path / "c", tmp_path / "out")

    shop.push("a", range(5))
    assert run() == [0, 1, 2, 3, 4]
    shop.push("a", range(5, 7))
    shop.push("b", range(100, 103))
    assert run() == [0, 1, 2, 3, 4, 5, 6, 100, 101, 102]
    assert run() == [0, 1, 2, 3, 4, 5, 6, 100, 101, 102]


def test_retention_that_overtook_a_stream_is_an_error_that_names_the_gap(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    def run(**options: str) -> list[int]:
        frame = shop.stream(spark, "q", payloadSchema="id BIGINT", columns="id", **options)
        return shop.collect(frame, tmp_path / "c", tmp_path / "out")

    shop.push("q", range(9), partitions=1)
    assert run() == list(range(9))
    shop.push("q", range(9, 20), partitions=1)
    shop.trim("q", "p0", 15)

    with pytest.raises(PySparkException, match=r"lost 6 of 11 unread messages in offsets 9 to 14"):
        run()
    assert run(failOnDataLoss="false") == [*range(9), *range(15, 20)]


def test_holes_that_were_there_before_the_query_are_nobodys_loss(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.push("q", range(30), partitions=3)
    shop.trim("q", "p1", 5)

    def run() -> list[int]:
        frame = shop.stream(spark, "q", payloadSchema="id BIGINT", columns="id", maxOffsetsPerTrigger="10")
        return shop.collect(frame, tmp_path / "c", tmp_path / "out")

    assert len(run()) == 25
    shop.push("q", range(30, 36), partitions=3)
    assert len(run()) == 31


def test_a_queue_deleted_under_a_stream_is_an_error_and_its_successor_is_a_new_queue(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    def run(**options: str) -> list[int]:
        frame = shop.stream(spark, "q", payloadSchema="id BIGINT", columns="id", **options)
        return shop.collect(frame, tmp_path / "c", tmp_path / "out")

    shop.push("q", range(3))
    run()
    assert shop.http.delete(f"/api/v1/resources/queues/{shop.name('q')}").status_code < 300
    shop.push("q", range(50, 60))

    with pytest.raises(PySparkException, match="was deleted while the query stood at offset 3"):
        run()
    assert run(failOnDataLoss="false") == [0, 1, 2, *range(50, 60)]


def test_a_trigger_waits_for_enough_messages_or_for_its_delay(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.push("q", range(3))
    frame = shop.stream(spark, "q", minOffsetsPerTrigger="5", maxTriggerDelay="1h", consumerGroup="g").select(
        "payload"
    )
    writer = frame.writeStream.format("holtmq").option("url", shop.url).option("queue", shop.name("out"))
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        deadline = time.monotonic() + 300
        while not query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)
        assert shop.next_offset("out") == 0

        shop.push("q", range(3, 5))
        while shop.next_offset("out") < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert shop.next_offset("out") == 5
    finally:
        query.stop()


def test_dead_letters_and_deliveries_are_tables(spark: SparkSession, shop: Shop) -> None:
    shop.http.post("/api/v1/configure", json={"queue": shop.name("q"), "options": {"retryLimit": 0}})
    shop.push("q", range(2), partitions=1)
    popped = shop.http.get(
        f"/api/v1/pop/queue/{shop.name('q')}", params={"consumerGroup": "g", "batch": 2}
    ).json()
    acks = [
        {
            "transactionId": message["transactionId"],
            "partitionId": popped["partitionId"],
            "leaseId": popped["leaseId"],
            "status": status,
            "error": "no stock" if status == "failed" else None,
        }
        for message, status in zip(popped["messages"], ("failed", "completed"), strict=True)
    ]
    shop.http.post("/api/v1/ack/batch", json={"acknowledgments": acks, "consumerGroup": "g"})

    (letter,) = shop.read(spark, "q$dlq").collect()
    outcomes = [
        (row.offset, row.outcome) for row in shop.read(spark, "q$deliveries").orderBy("offset").collect()
    ]

    assert (letter.error, letter.attempts, letter.group, letter.transaction_id) == ("no stock", 1, "g", "t0")
    assert outcomes == [(0, "dead"), (1, "acked")]


def test_amqp_publishes_through_an_exchange_arrive_with_properties_and_headers(
    spark: SparkSession, shop: Shop
) -> None:
    name = shop.name("q")
    connection = pika.BlockingConnection(pika.URLParameters(shop.broker.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare(name, "topic", durable=True)
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_bind(name, name, "order.*")
    properties = pika.BasicProperties(
        content_type="text/plain", headers={"h": "v", "x-partition": "left"}, priority=3, correlation_id="c"
    )
    for body in (b'{"id": 1}', b"plain", b"\x00\xff"):
        channel.basic_publish(name, "order.new", body, properties)
    channel.basic_publish(name, "order.old", b"no properties", pika.BasicProperties(delivery_mode=2))
    connection.close()

    rows = shop.read(spark, "q").orderBy("offset").collect()

    assert [bytes(row.payload) for row in rows] == [b'{"id": 1}', b"plain", b"\x00\xff", b"no properties"]
    first, last = rows[0], rows[-1]
    assert (first.exchange, first.routing_key, first.content_type) == (name, "order.new", "text/plain")
    assert (first.priority, first.partition, first.headers["h"]) == (3, "left", "v")
    assert first.properties["correlation_id"] == "c"
    assert (last.partition, last.headers, last.properties) == ("order.old", None, {"delivery_mode": "2"})


def test_planning_ten_thousand_partitions_is_no_more_work_than_ten(spark: SparkSession, shop: Shop) -> None:
    from holtmq.spark.options import source_options
    from holtmq.spark.source import HoltStreamReader

    def lines(queue: str) -> int:
        """How many lines of Python run, here and in the broker: a count, since no clock is fair."""
        frame = shop.read(spark, queue)
        options = source_options({"url": shop.url, "queue": shop.name(queue)}, streaming=True)
        reader = HoltStreamReader(options, frame.schema)
        start = {f"{shop.name(queue)}#{_number(shop, queue)}": 0}
        count = 0

        def trace(_frame: object, event: str, _: object) -> Callable[..., Any]:
            nonlocal count
            count += event == "line"
            return trace

        before = sys.gettrace()
        shop.broker.call(lambda _: sys.settrace(trace))
        sys.settrace(trace)
        try:
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            slices = reader.partitions(start, end)
        finally:
            sys.settrace(before)
            shop.broker.call(lambda _: sys.settrace(None))
        assert sum(part.stop - part.first for part in slices) == 10_000  # type: ignore[attr-defined]
        return count

    shop.push("few", range(10_000), partitions=10)
    shop.push("many", range(10_000), partitions=10_000)
    lines("few")  # the first time also imports

    few, many = lines("few"), lines("many")

    assert 0 < many < 2 * few + 1000


def _number(shop: Shop, queue: str) -> int:
    answer = shop.http.get("/api/v1/ranges", params={"names": shop.name(queue)}).json()
    return int(answer["queues"][0]["id"])

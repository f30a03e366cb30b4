"""The sink in real Spark: exactly once for streams, all or nothing for batches, and what it refuses."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType
from spark_support import Shop

from holtmq.broker.partitioned.commands import staging
from holtmq.spark.client import BrokerClient
from holtmq.spark.errors import BrokerRefused
from holtmq.spark.options import sink_options
from holtmq.spark.sink import HoltBatchWriter

pytestmark = pytest.mark.xdist_group("spark")


def ids(spark: SparkSession, shop: Shop, queue: str) -> list[int]:
    frame = shop.read(spark, queue, payloadSchema="id BIGINT", columns="id")
    return sorted(row.id for row in frame.collect())


def test_a_batch_that_spark_repeats_adds_nothing_even_when_it_is_cut_differently(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.push("q", range(60))
    checkpoint = tmp_path / "c"

    def run(slices: str) -> None:
        frame = shop.stream(spark, "q", maxOffsetsPerTrigger="20", minPartitions=slices)
        shop.to_queue(frame.select("payload", "partition"), "out", checkpoint)

    run("1")
    assert ids(spark, shop, "out") == list(range(60))
    # As if Spark had died after the sink's commit and before its own.
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    shop.push("q", range(60, 70))
    run("3")

    assert ids(spark, shop, "out") == list(range(70))


def test_a_batch_write_with_one_failing_task_leaves_nothing(spark: SparkSession, shop: Shop) -> None:
    rows = spark.range(0, 100, 1, 4).selectExpr(
        "IF(id = 90, raise_error('boom'), CAST(id AS STRING)) AS payload"
    )

    with pytest.raises(PySparkException, match="boom"):
        rows.write.format("holtmq").mode("append").option("url", shop.url).option(
            "queue", shop.name("q")
        ).save()

    assert shop.next_offset("q") == 0
    waiting = shop.broker.call(lambda node: node.partitioned.staging.staged())
    assert not [writer for writer in waiting if writer.startswith("write-")]


def test_what_tasks_stage_before_and_after_the_abort_of_their_write_is_dropped(
    spark: SparkSession, shop: Shop
) -> None:
    options = sink_options({"url": shop.url, "queue": shop.name("q")})
    writer = HoltBatchWriter(options, StructType([StructField("payload", StringType())]), overwrite=False)
    rows = pa.RecordBatch.from_pydict({"payload": ["1"]})
    staged = pa.BufferOutputStream()
    with pa.ipc.new_stream(staged, rows.schema) as stream:
        stream.write_batch(rows)
    body = staged.getvalue().to_pybytes()
    with BrokerClient(options.connection) as broker:
        broker.stage(writer.name, 0, 0, 1, 0, body, {"queue": options.queue})

        writer.abort([])  # no task had reported its success

        with pytest.raises(BrokerRefused, match="was aborted"):
            broker.stage(writer.name, 0, 1, 1, 0, body, {"queue": options.queue})
    assert writer.name not in shop.broker.call(lambda node: node.partitioned.staging.staged())


def test_a_named_batch_write_happens_once(spark: SparkSession, shop: Shop) -> None:
    def write(name: str) -> None:
        rows = spark.range(10).selectExpr("CAST(id AS STRING) AS payload")
        writer = (
            rows.write.format("holtmq").mode("append").option("url", shop.url).option("queue", shop.name("q"))
        )
        writer.option("writeId", name).save()

    write(f"{shop.prefix}-a")
    write(f"{shop.prefix}-a")
    assert shop.next_offset("q") == 10
    write(f"{shop.prefix}-b")
    assert shop.next_offset("q") == 20


def test_every_column_arrives(spark: SparkSession, shop: Shop) -> None:
    rows = spark.sql(
        f"""SELECT '{{"a":1}}' AS payload, '{shop.name("x")}' AS queue, 'left' AS partition,
                   'mine' AS transaction_id, map('k', 'v') AS headers, 'a.b' AS routing_key, 5 AS priority"""
    )

    rows.write.format("holtmq").mode("append").option("url", shop.url).save()

    (row,) = shop.read(spark, "x").collect()
    assert (bytes(row.payload), row.partition, row.transaction_id) == (b'{"a":1}', "left", "mine")
    assert (row.headers, row.routing_key, row.priority) == ({"k": "v"}, "a.b", 5)


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT 1 AS id", r"to_json\(struct"),
        ("SELECT 'x' AS payload, 1 AS colour", "no column 'colour'"),
        ("SELECT 1 AS payload", "must be string or binary, not int"),
    ],
)
def test_a_frame_the_sink_cannot_write_is_refused_before_anything_happens(
    spark: SparkSession, shop: Shop, sql: str, words: str
) -> None:
    writer = spark.sql(sql).write.format("holtmq").mode("append").option("url", shop.url)

    with pytest.raises(PySparkException, match=words):
        writer.option("queue", shop.name("q")).save()


def test_overwriting_a_queue_is_refused(spark: SparkSession, shop: Shop) -> None:
    writer = (
        spark.sql("SELECT 'x' AS payload").write.format("holtmq").mode("overwrite").option("url", shop.url)
    )

    with pytest.raises(PySparkException, match="appended to, not overwritten"):
        writer.option("queue", shop.name("q")).save()


def test_a_write_in_many_parts_arrives_whole(spark: SparkSession, shop: Shop) -> None:
    rows = spark.range(0, 3000, 1, 2).selectExpr("to_json(struct(id, repeat('x', 200) AS pad)) AS payload")

    writer = rows.write.format("holtmq").mode("append").option("url", shop.url)
    writer.option("queue", shop.name("q")).option("stageBytes", "20k").save()

    assert ids(spark, shop, "q") == list(range(3000))


def test_rows_that_a_killed_driver_left_staged_do_not_get_into_the_batch_that_is_run_again(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "c"
    shop.push("q", range(5))
    frame = shop.stream(spark, "q").select("payload")
    shop.to_queue(frame, "out", checkpoint)
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    # A new driver counts its attempts from 0 again: leave something under every number it could use.
    leftover = pa.BufferOutputStream()
    table = pa.table({"payload": ['{"id": -1}']})
    with pa.ipc.new_stream(leftover, table.schema) as stream:
        stream.write_table(table)
    for attempt in range(30):
        where = f"/api/v1/staging/{query}/1/0/{attempt}"
        params = {"part": 7, "queue": shop.name("out")}
        shop.http.put(where, content=leftover.getvalue().to_pybytes(), params=params).raise_for_status()  # type: ignore[arg-type]
    shop.push("q", range(5, 9))

    shop.to_queue(shop.stream(spark, "q").select("payload"), "out", checkpoint)

    assert ids(spark, shop, "out") == list(range(9))


def test_a_stream_without_a_limit_whose_batch_is_too_large_for_one_record_arrives_whole(
    spark: SparkSession, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "ATOMIC_ROWS", 1000)
    monkeypatch.setattr(staging, "PIECE_ROWS", 700)
    monkeypatch.setattr("holtmq.spark.sink.PART_ROWS", 500)
    shop.push("q", range(5000))

    frame = shop.stream(spark, "q", minPartitions="3").select("payload").repartition(2)
    query = shop.to_queue(frame.selectExpr("payload"), "out", tmp_path / "c")

    assert [one["numInputRows"] for one in query.recentProgress] == [5000]
    assert ids(spark, shop, "out") == list(range(5000))

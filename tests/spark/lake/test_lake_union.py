"""Lake and live queue as one relation of the connector: each message once, whatever moves meanwhile."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lake_support import FORMATS, keep
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from spark_support import Shop

from holtmq.spark.errors import DataLoss, InvalidOption
from holtmq.spark.jobs.stopping import Stop
from holtmq.spark.lake.model import UnfitTable
from holtmq.spark.lake.opening import open_table
from holtmq.spark.lake.ranges import MESSAGE
from holtmq.spark.lake.relation import batch_reader, stream_reader
from holtmq.spark.lake.storage import Storage
from holtmq.spark.lake.writer import Care

formats = pytest.mark.parametrize("format", FORMATS)
spark_group = pytest.mark.xdist_group("spark")


def columns(*names: str) -> StructType:
    whole = from_arrow_schema(MESSAGE, prefer_timestamp_ntz=False)
    return StructType([whole[name] for name in names])


def options(shop: Shop, root: Path, **more: str) -> dict[str, str]:
    return {"url": shop.url, "queue": shop.name("q"), "lake": str(root), **more}


def offsets(given: dict[str, str]) -> list[int]:
    """All offsets of the relation, as Spark would read them."""
    reader = batch_reader(given, columns("offset"))
    found: list[int] = []
    for part in reader.partitions():
        for batch in reader.read(part):
            found += batch.column("offset").to_pylist()  # type: ignore[union-attr]
    return sorted(found)


@pytest.fixture
def moving(shop: Shop, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[int]]:
    """A queue that is pushed to, and an archiver with compaction behind it; how much was pushed."""
    format = request.getfixturevalue("format")
    done, stop = [50], Stop()
    shop.push("q", range(50))
    keep(shop, "q", tmp_path, format=format)
    failures: list[BaseException] = []

    def push() -> None:
        while not stop:
            shop.push("q", range(done[-1], done[-1] + 20))
            done.append(done[-1] + 20)
            stop.wait(0.005)

    def archive() -> None:
        try:
            care = Care(compact_from=3, keep_removed=3600)
            keep(shop, "q", tmp_path, every=0.001, max_rows=30, stop=stop, care=care)
        except BaseException as error:
            failures.append(error)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("holtmq.spark.jobs.archive._CARE_SECONDS", 0.0)
        threads = [threading.Thread(target=push), threading.Thread(target=archive)]
        for thread in threads:
            thread.start()
        yield done
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures


@formats
def test_the_seam_holds_while_pushes_and_the_archiver_run(
    shop: Shop, tmp_path: Path, format: str, moving: list[int]
) -> None:
    archived, reads = 50, 0
    while reads < 15 or archived == 50:  # a busy machine may give the archiver no turn for a while
        before = moving[-1]

        seen = offsets(options(shop, tmp_path))

        assert seen == list(range(len(seen)))
        assert len(seen) >= before
        reads += 1
        archived = open_table(Storage(str(tmp_path))).rows
        if archived == 50:
            time.sleep(0.05)  # reads of more and more rows leave it little of the processor
        assert reads < 1_000, "the archiver never got on"


@formats
def test_a_stream_over_all_history_sees_each_message_once_while_the_archiver_runs(
    shop: Shop, tmp_path: Path, format: str, moving: list[int]
) -> None:
    reader = stream_reader(options(shop, tmp_path), columns("offset"))
    start = reader.initialOffset()
    found: list[int] = []
    for _ in range(10):
        end = reader.latestOffset(start, ReadAllAvailable())
        batch = [
            at
            for part in reader.partitions(start, end)
            for rows in reader.read(part)
            for at in rows.column("offset").to_pylist()  # type: ignore[union-attr]
        ]
        again = [  # Spark repeats a batch after a crash: the archiver has moved on, the rows have not
            at
            for part in reader.partitions(start, end)
            for rows in reader.read(part)
            for at in rows.column("offset").to_pylist()  # type: ignore[union-attr]
        ]
        assert sorted(batch) == sorted(again)
        found += batch
        start = end

    assert sorted(found) == list(range(len(found)))
    assert len(found) >= 50


@formats
def test_times_partitions_and_typed_payloads_reach_over_the_seam(
    shop: Shop, tmp_path: Path, format: str
) -> None:
    shop.push("q", range(30))
    keep(shop, "q", tmp_path, format=format)
    shop.push("q", range(30, 60))
    shape = columns("offset", "partition", "created_at", "queue")
    reader = batch_reader(options(shop, tmp_path), shape)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]  # type: ignore[union-attr]
    middle = sorted(row["created_at"] for row in rows)[40]

    one = offsets(options(shop, tmp_path, partition="p1"))
    late = offsets(options(shop, tmp_path, startingTimestamp=middle.isoformat()))
    early = offsets(options(shop, tmp_path, endingTimestamp=middle.isoformat()))

    assert {row["queue"] for row in rows} == {shop.name("q")}
    assert one == [n for n in range(60) if n % 3 == 1]
    assert sorted(early + late) == list(range(60))
    assert max(early, default=-1) < min(late)


def test_a_queue_that_only_the_lake_still_has_is_read_and_its_former_lives_too(
    shop: Shop, tmp_path: Path
) -> None:
    def remove() -> None:
        assert shop.http.delete(f"/api/v1/resources/queues/{shop.name('q')}").status_code in (200, 204)

    shop.push("q", range(10))
    keep(shop, "q", tmp_path)
    remove()
    alone = offsets(options(shop, tmp_path))
    shop.push("q", range(5))
    both = offsets(options(shop, tmp_path))
    reader = stream_reader(options(shop, tmp_path), columns("offset"))
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))

    assert alone == list(range(10))
    assert both == sorted([*range(10), *range(5)])
    streamed = [at for p in parts for rows in reader.read(p) for at in rows.column("offset").to_pylist()]  # type: ignore[union-attr]
    assert sorted(streamed) == both


def test_a_gap_and_wrong_options_are_named(shop: Shop, tmp_path: Path) -> None:
    shop.push("q", range(10), partitions=1)
    keep(shop, "q", tmp_path)
    shop.push("q", range(10, 20), partitions=1)
    shop.trim("q", "p0", 15)

    with pytest.raises(DataLoss, match="lost 5 of 10"):
        offsets(options(shop, tmp_path))
    with pytest.raises(InvalidOption, match="bounded by startingTimestamp"):
        offsets(options(shop, tmp_path, startingOffsets=json.dumps({shop.name("q"): 3})))
    with pytest.raises(UnfitTable, match="there is no lake at"):
        offsets(options(shop, tmp_path / "lakke"))
    with pytest.raises(InvalidOption, match="not its dead letters"):
        offsets({**options(shop, tmp_path), "queue": shop.name("q") + "$dlq"})


@spark_group
@pytest.mark.parametrize("format", ["iceberg"])  # executors see files only, whatever the format
def test_sql_and_streams_of_spark_read_the_relation(
    spark: SparkSession, shop: Shop, tmp_path: Path, format: str
) -> None:
    lake = tmp_path / "lake"
    shop.push("q", range(100))
    keep(shop, "q", lake, format=format)
    shop.push("q", range(100, 150))
    given = options(shop, lake, payloadSchema="id BIGINT, kind STRING")
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW union_{format} USING holtmq OPTIONS "
        f"(url '{shop.url}', queue '{shop.name('q')}', lake '{lake}')"
    )

    total = spark.sql(f"SELECT count(*), count(DISTINCT message_id), max(offset) FROM union_{format}").first()
    typed = spark.read.format("holtmq").options(**given).load().groupBy("kind").count().collect()
    stream = spark.readStream.format("holtmq").options(**given, maxOffsetsPerTrigger="40").load()
    seen = shop.collect(stream.select("id"), tmp_path / "checkpoint", tmp_path / "out")

    assert tuple(total or ()) == (150, 150, 149)
    assert {row["kind"]: row["count"] for row in typed} == {"k0": 50, "k1": 50, "k2": 50}
    assert seen == list(range(150))
    keep(shop, "q", lake)
    shop.push("q", range(150, 170))
    assert shop.collect(stream.select("id"), tmp_path / "checkpoint", tmp_path / "out") == list(range(170))

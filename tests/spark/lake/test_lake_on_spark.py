"""The lake on real Spark: the same archive by executors, and reading it with SQL beside the live queue."""

from pathlib import Path

import pytest
from lake_support import FORMATS, LEAVE, ids, keep, setting
from pyspark.sql import SparkSession
from spark_support import Shop

from holtmq.spark.errors import DataLoss
from holtmq.spark.jobs.archive import archive
from holtmq.spark.lake import Lake, table
from holtmq.spark.lake.writer import Care

pytestmark = pytest.mark.xdist_group("spark")

formats = pytest.mark.parametrize("format", FORMATS)


@formats
def test_spark_and_arrow_write_the_same_lake_and_the_table_has_the_live_messages_too(
    spark: SparkSession, shop: Shop, tmp_path: Path, format: str
) -> None:
    queue = shop.name("q")
    shop.push("q", range(200))

    first = archive(setting(shop), queue, str(tmp_path), max_rows=100, care=LEAVE, format=format)
    shop.push("q", range(200, 300))
    keep(shop, "q", tmp_path)
    shop.push("q", range(300, 350))
    both = table(spark, str(tmp_path), shop.url, queue)

    assert (first["rows"], first["batches"], first["lake_rows"]) == (200, 2, 200)
    assert ids(tmp_path, format) == list(range(300))
    assert sorted(row.offset for row in both.select("offset").collect()) == list(range(350))
    archive(setting(shop), queue, str(tmp_path), care=Care(compact_from=2, keep_removed=3600))
    assert sorted(row.offset for row in both.select("offset").collect()) == list(range(350))
    assert table(spark, str(tmp_path), shop.url, queue).count() == 350
    lake = Lake(spark, str(tmp_path)).frame()
    assert lake.where("queue = '" + queue + "' AND date >= current_date() - 1").count() == 350
    assert dict(lake.dtypes)["created_at"] == "timestamp"


def test_a_gap_between_lake_and_queue_is_named(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    shop.push("q", range(10), partitions=1)
    keep(shop, "q", tmp_path)
    shop.push("q", range(10, 20), partitions=1)
    shop.trim("q", "p0", 15)

    with pytest.raises(DataLoss, match="the lake ends at 10, the queue's oldest message is 15"):
        table(spark, str(tmp_path), shop.url, shop.name("q"))


def test_the_folders_of_a_parquet_lake_are_for_any_tool(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.push("q", range(50))
    keep(shop, "q", tmp_path, max_rows=10, care=Care(compact_from=2))

    assert spark.read.parquet(str(tmp_path)).where(f"queue = '{shop.name('q')}'").count() == 50

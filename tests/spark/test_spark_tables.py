"""Queues as tables of Spark's catalog."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType
from spark_support import Shop

from holtmq.spark import register
from holtmq.spark.errors import InvalidOption
from holtmq.spark.tables import _names, comment_of, create_tables, options_of, with_comment

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def database(spark: SparkSession, shop: Shop, tmp_path: Path) -> Iterator[str]:
    name = f"db_{shop.prefix}"
    spark.sql(f"CREATE DATABASE {name} LOCATION '{tmp_path}'")  # not in the working folder
    yield name
    spark.sql(f"DROP DATABASE IF EXISTS {name} CASCADE")


def one(spark: SparkSession, sql: str) -> object:
    (row,) = spark.sql(sql).collect()
    return row[0]


def test_a_table_made_in_sql_is_read_written_and_streamed(
    spark: SparkSession, shop: Shop, database: str, tmp_path: Path
) -> None:
    shop.push("q", range(5))
    where = f"url '{shop.url}', queue '{shop.name('q')}'"

    spark.sql(f"CREATE TABLE {database}.q USING holtmq OPTIONS ({where})")

    assert one(spark, f"SELECT count(*) FROM {database}.q WHERE offset >= 2") == 3
    narrowed = f'{{"{shop.name("q")}": 4}}'
    assert one(spark, f"SELECT count(*) FROM {database}.q WITH (startingOffsets = '{narrowed}')") == 1
    spark.sql(f"INSERT INTO {database}.q (partition, payload) VALUES ('p9', CAST('99' AS BINARY))")
    assert one(spark, f"SELECT CAST(payload AS STRING) FROM {database}.q WHERE partition = 'p9'") == "99"
    with pytest.raises(PySparkException, match="column offset is the broker's to give"):
        spark.sql(f"INSERT INTO {database}.q (offset, payload) VALUES (7, CAST('1' AS BINARY))")
    stream = spark.readStream.option("startingOffsets", "earliest").table(f"{database}.q")
    shop.to_queue(stream.select("payload"), "out", tmp_path / "c")
    assert shop.next_offset("out") == 6


def test_tables_that_could_not_be_read_are_refused_with_the_reason(
    spark: SparkSession, shop: Shop, database: str
) -> None:
    where = f"url '{shop.url}', queue '{shop.name('q')}'"

    with pytest.raises(PySparkException, match="give tokenFile"):
        spark.sql(f"CREATE TABLE {database}.t USING holtmq OPTIONS ({where}, token 'secret')")
    with pytest.raises(PySparkException, match="say what to read"):
        spark.sql(f"CREATE TABLE {database}.t USING holtmq OPTIONS (url '{shop.url}')")
    spark.sql(f"CREATE TABLE {database}.t (offset BIGINT) USING holtmq OPTIONS ({where})")
    with pytest.raises(PySparkException, match="without a list of columns"):
        spark.sql(f"SELECT * FROM {database}.t").collect()


def test_every_queue_is_a_table_and_so_are_its_dead_letters_and_deliveries(
    spark: SparkSession, shop: Shop, database: str
) -> None:
    shop.push("or.ders", range(3))
    options = {"queue": shop.name("or.ders"), "options": {"retryLimit": 0}}
    shop.http.post("/api/v1/configure", json=options)
    got = shop.http.get(f"/api/v1/pop/queue/{shop.name('or.ders')}", params={"consumerGroup": "g"}).json()
    failed = {
        "transactionId": got["messages"][0]["transactionId"],
        "partitionId": got["partitionId"],
        "leaseId": got["leaseId"],
        "status": "failed",
        "error": "boom",
    }
    shop.http.post("/api/v1/ack/batch", json={"acknowledgments": [failed], "consumerGroup": "g"})
    spark.sql(f"CREATE TABLE {database}.mine USING parquet AS SELECT 1 AS a")
    plain = f"{shop.prefix}_or_ders"

    register(spark, shop.url, database, pattern=rf"{shop.prefix}\..*")

    assert one(spark, f"SELECT count(*) FROM {database}.{plain}") == 3
    assert one(spark, f"SELECT error FROM {database}.{plain}_dlq") == "boom"
    assert one(spark, f"SELECT max(outcome) FROM {database}.{plain}_deliveries") == "dead"
    shop.push("later", range(1))
    made = create_tables(spark, shop.url, database, rf"{shop.prefix}\.later")
    assert made[f"{shop.prefix}_later"] == shop.name("later")
    listed = spark.sql(f"SHOW TABLES IN {database}").collect()
    left = {row.tableName for row in listed if not row.isTemporary}
    assert left == {"mine", *(name.lower() for name in made)}


def test_names_are_what_spark_allows_and_each_is_used_once() -> None:
    names = dict(_names(["a.b", "a-b", "A_B", "orders", "orders_dlq"], {"orders_deliveries"}))

    assert names["A_B"] == "A_B"
    assert (names["a_b_2"], names["a_b_3"]) == ("a.b", "a-b")  # the older queue first
    assert (names["orders_dlq"], names["orders_dlq_2"]) == ("orders_dlq", "orders$dlq")
    assert names["orders_deliveries_2"] == "orders$deliveries"
    assert len({name.lower() for name in names}) == len(names) == 15


def test_a_new_queue_does_not_change_what_a_table_name_means() -> None:
    before = dict(_names(["a/b", "orders"], set()))

    after = dict(_names(["a/b", "orders", "A b", "a.b"], set()))

    assert before.items() <= after.items()
    assert (after["a_b"], after["A_b_2"], after["a_b_3"]) == ("a/b", "A b", "a.b")


def test_a_queue_with_a_comma_in_its_name_can_be_read(spark: SparkSession, shop: Shop, database: str) -> None:
    shop.push("eu,us", range(2))

    made = create_tables(spark, shop.url, database, pattern=rf"{shop.prefix}\..*")

    assert list(made) == [f"{shop.prefix}_eu_us"]
    assert one(spark, f"SELECT count(*) FROM {database}.{shop.prefix}_eu_us") == 2


def test_options_survive_the_comment_and_a_token_is_not_written_into_it() -> None:
    options = {"url": "http://h:1", "queue": 'it\'s \\ "q"'}
    schema = StructType([StructField("a", StringType(), True, {"comment": comment_of(options)})])

    assert options_of(schema) == options
    assert options_of(StructType([])) == {}
    assert with_comment("`a` STRING, `b` INT", "it's").startswith("`a` STRING COMMENT 'it\\'s', `b`")
    with pytest.raises(InvalidOption, match="tokenFile"):
        comment_of({"Token": "x"})


def test_local_workers_run_the_python_that_registers(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.push("q", range(2))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/no/such/python3")  # as one without holtmq

    register(spark)

    rows = spark.read.format("holtmq").option("url", shop.url).option("queue", shop.name("q")).load()
    assert rows.count() == 2

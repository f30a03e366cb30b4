"""Queries that tell the broker how they fare."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_support import Shop

from holtmq.cli import main
from holtmq.spark.listening import ProgressListener

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def reported(spark: SparkSession, shop: Shop) -> Iterator[None]:
    listener = ProgressListener(shop.url)
    spark.streams.addListener(listener)
    yield
    spark.streams.removeListener(listener)


def told(shop: Shop, name: str, state: str) -> dict[str, Any]:
    """What the broker knows of a query once it is in this state: listeners are told a little later."""
    while True:
        for one in shop.http.get("/api/v1/pipelines").json()["pipelines"]:
            if one["name"] == name and one["state"] == state:
                return dict(one)
        time.sleep(0.02)  # leaves Spark the processor


@pytest.mark.usefixtures("reported")
def test_a_query_reports_its_batches_and_its_group_is_current_at_once(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.push("q", range(25))
    frame = shop.stream(spark, "q", maxOffsetsPerTrigger="10", consumerGroup="mirror").select("payload")
    writer = frame.writeStream.format("holtmq").option("url", shop.url).option("queue", shop.name("out"))
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).queryName(f"{shop.prefix}-copy")

    writer.trigger(availableNow=True).start().awaitTermination()

    seen = told(shop, f"{shop.prefix}-copy", "stopped")
    assert (seen["rowsTotal"], seen["batches"], seen["lastError"]) == (25, 3, "")
    # Spark itself confirms a batch when the next one begins, and the last one never.
    assert shop.lag("q", "mirror") == 0
    shown = CliRunner().invoke(main, ["pipeline", "list", "--url", shop.url])
    assert f"{shop.prefix}-copy" in shown.output
    listed = json.loads(CliRunner().invoke(main, ["pipeline", "list", "--json", "--url", shop.url]).output)
    assert seen["query"] in {one["query"] for one in listed}


@pytest.mark.usefixtures("reported")
def test_a_query_that_fails_says_why(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    shop.push("q", range(3))
    wrong = shop.stream(spark, "q").selectExpr("CAST(raise_error('boom') AS STRING) AS payload")
    writer = wrong.writeStream.format("holtmq").option("url", shop.url).option("queue", shop.name("out"))
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).queryName(f"{shop.prefix}-bad")

    with pytest.raises(PySparkException):
        writer.trigger(availableNow=True).start().awaitTermination()

    assert "boom" in told(shop, f"{shop.prefix}-bad", "failed")["lastError"]


@pytest.mark.usefixtures("reported")
def test_a_query_stops_when_an_operator_asks_for_it(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    shop.push("q", range(3))
    frame = shop.stream(spark, "q").select("payload")
    writer = frame.writeStream.format("holtmq").option("url", shop.url).option("queue", shop.name("out"))
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).queryName(f"{shop.prefix}-stop")
    query = writer.start()
    told(shop, f"{shop.prefix}-stop", "running")

    assert shop.http.post(f"/api/v1/pipelines/{query.id}/stop").status_code == 202
    shop.push("q", range(3, 6))  # the next batch is the next report

    query.awaitTermination()
    assert told(shop, f"{shop.prefix}-stop", "stopped")["lastError"] == ""


def test_a_broker_that_is_away_does_not_disturb_a_query(
    spark: SparkSession, shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listener = ProgressListener("http://127.0.0.1:9")

    listener._send("q", {}, {})

    assert "was not reported" in caplog.text

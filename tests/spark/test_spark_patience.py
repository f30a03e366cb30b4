"""How long a job waits: for a broker that is away, and for Spark's own Python processes."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from holtmq.cli import main, pipeline
from holtmq.spark.jobs.running import Setting
from holtmq.spark.options import sink_options, source_options
from holtmq.spark.python_start import START_MS, patient_class

pytestmark = pytest.mark.xdist_group("spark")


def test_a_broker_may_be_away_for_a_failover_unless_the_user_says_otherwise() -> None:
    assert source_options({"queue": "q"}, streaming=True).connection.retry_seconds == 300
    assert sink_options({"queue": "q", "retryTimeout": "20s"}).connection.retry_seconds == 20


def test_the_command_lines_patience_reaches_what_a_job_reads_and_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Setting] = []
    monkeypatch.setattr(
        "holtmq.spark.jobs.archive.archive",
        lambda setting, *_, **__: seen.append(setting) or {},  # type: ignore[func-returns-value]
    )

    def run(*words: str) -> str:
        asked = ["pipeline", "archive", "--queue", "q", "--lake", "x", *words]
        return CliRunner().invoke(main, asked, catch_exceptions=False).output

    run("--retry-timeout", "7m")
    run()
    refused = run("--retry-timeout", "soon")

    assert [one.source["retryTimeout"] for one in seen] == ["7m", "5m"]
    assert "use a duration such as" in refused


def test_every_job_has_the_option() -> None:
    group = pipeline.pipeline
    assert isinstance(group, click.Group)

    jobs = [command for command in group.commands.values() if {"conf"} & {p.name for p in command.params}]

    assert len(jobs) >= 7
    for job in jobs:
        assert "retry_timeout" in {parameter.name for parameter in job.params}, job.name


def test_spark_waits_longer_for_its_python_processes_than_it_would(tmp_path: Path) -> None:
    folder = tmp_path / "classes"
    folder.mkdir()

    assert patient_class(folder)

    (changed,) = folder.rglob("*.class")
    assert changed.read_bytes().count(b"\x05" + START_MS.to_bytes(8, "big")) == 1


def test_the_session_runs_with_the_longer_wait(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    loaded = jvm.java.lang.Class.forName("org.apache.spark.api.python.PythonWorkerFactory")

    where = str(loaded.getProtectionDomain().getCodeSource().getLocation().getPath())

    assert "holt-spark-" in where, "the class came from Spark's own jar: streams get ten seconds to start"
    assert spark.conf.get("spark.python.authenticate.socketTimeout") == "120s"

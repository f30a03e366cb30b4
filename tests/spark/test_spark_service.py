"""``holt pipeline serve``: several jobs in one process, restarted, watched, stopped gracefully."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from lake_support import ids
from pyspark.sql import SparkSession
from spark_processes import Broker, push_until_taken, until
from spark_support import Shop

from holtmq.cli import main
from holtmq.spark.jobs import rollup as rollup_job
from holtmq.spark.jobs.running import Progress, Setting
from holtmq.spark.jobs.service import Service, State
from holtmq.spark.jobs.service_file import load_jobs
from holtmq.spark.jobs.service_http import ServiceHttp, metrics
from holtmq.spark.jobs.stopping import Stop
from holtmq.spark.jobs.toml_file import PipelineFileError

GOOD = """
[jobs.keep-orders]
kind = "archive"
queue = "orders"
lake = "lake"
engine = "arrow"
every = "30s"
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'kind = "archive"',
            'kind = "arcive"',
            "line 3: jobs.keep-orders.kind: must be one of archive, rollup",
        ),
        ('queue = "orders"', "", "line 2: jobs.keep-orders.queue: is missing"),
        (
            'lake = "lake"',
            'lake = "lake"\ncolour = 1',
            "line 6: jobs.keep-orders.colour: there is no such key",
        ),
        ('every = "30s"', "", "say how often"),
        ('every = "30s"', 'every = "soon"', "line 7: jobs.keep-orders.every: use a duration"),
        (
            'engine = "arrow"',
            'engine = "duck"',
            "line 6: jobs.keep-orders.engine: must be one of spark, arrow",
        ),
        ('lake = "lake"', 'lake = "lake"\nmax_rows = 0', "line 6: jobs.keep-orders.max_rows"),
        ('kind = "archive"', 'kind = "run"', "there is no such key"),
        ("[jobs.keep-orders]", "[keep]", "there is no such key; there are jobs"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(GOOD)
    (job,) = load_jobs(path, Setting("http://127.0.0.1:6632"))
    path.write_text(GOOD.replace(old, new))

    with pytest.raises(PipelineFileError) as refusal:
        load_jobs(path, Setting("http://127.0.0.1:6632"))

    assert (job.name, job.setting.every, job.needs_spark) == ("keep-orders", 30.0, False)
    assert words in str(refusal.value)
    said = CliRunner().invoke(main, ["pipeline", "serve", str(path), "--check"])
    assert (said.exit_code, "Traceback" in said.output) == (1, False)


def test_jobs_are_restarted_after_a_failure_and_end_on_sigterm(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    (tmp_path / "jobs.toml").write_text(
        "".join(
            f"""
[jobs.{name}]
kind = "archive"
queue = "in"
lake = "{name}"
format = "{name}"
group = "{name}"
engine = "arrow"
every = "100ms"
retry_timeout = "100ms"
"""
            for name in ("parquet", "delta")
        )
    )
    command = [sys.executable, "-m", "holtmq", "pipeline", "serve", str(tmp_path / "jobs.toml")]
    command += ["--url", broker.url, "--health", "127.0.0.1:0"]
    log = tmp_path / "serve.log"
    with log.open("w") as err:
        service = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)
    try:
        until(lambda: "metrics on port" in log.read_text(), "the service is up")
        url = "http://127.0.0.1:" + re.findall(r"metrics on port (\d+)", log.read_text())[0]

        def figure(metric: str, name: str) -> float:
            found = re.search(rf'{metric}{{job="{name}".*?}} (\S+)', httpx.get(f"{url}/metrics").text)
            return float(found[1]) if found else 0.0

        def rows(name: str) -> float:
            return figure("job_rows_total", name)

        push_until_taken(broker, range(100))
        until(lambda: rows("parquet") == rows("delta") == 100, "both jobs archive")
        broker.kill()
        until(lambda: httpx.get(f"{url}/health").status_code == 503, "the failure shows")
        for name in ("parquet", "delta"):  # each by itself: the other may not have looked yet
            until(lambda name=name: figure("job_restarts_total", name) >= 1, f"{name} failed")  # type: ignore[misc]
        broker.start()
        push_until_taken(broker, range(100, 150))
        until(lambda: rows("parquet") == rows("delta") == 150, "both jobs go on")
        until(lambda: httpx.get(f"{url}/health").status_code == 200, "health is back")
        service.send_signal(signal.SIGTERM)
        out, _ = service.communicate(timeout=120)
    finally:
        service.kill()
        broker.kill()

    summary: dict[str, Any] = json.loads(out)
    assert service.returncode == 0
    assert summary["stopped"] == "SIGTERM"
    for name in ("parquet", "delta"):
        assert summary["jobs"][name]["rows"] == 150
        assert summary["jobs"][name]["restarts"] >= 1
        assert ids(tmp_path / name, name) == list(range(150))


def test_a_job_that_cannot_work_fails_alone(shop: Shop, tmp_path: Path) -> None:
    shop.push("q", range(10))
    (tmp_path / "bad" / "_delta_log").mkdir(parents=True)
    text = GOOD.replace('"orders"', f'"{shop.name("q")}"').replace("30s", "10ms")
    bad = text.replace("keep-", "bad-").replace('lake = "lake"', 'lake = "bad"\nformat = "parquet"')
    path = tmp_path / "jobs.toml"
    path.write_text(text + bad)
    service = Service(load_jobs(path, Setting(shop.url, out=io.StringIO())), Progress(io.StringIO()))
    runner = threading.Thread(target=service.run)
    runner.start()
    good, failed = service.lives

    until(lambda: good.total("rows") == 10 and failed.state is State.FAILED, "one works, one fails")
    with ServiceHttp(service, "127.0.0.1:0") as pages:
        answer = httpx.get(f"http://127.0.0.1:{pages.port}/health")
    service.stop.set()
    runner.join()

    assert answer.status_code == 503
    assert "is kept as delta, not as parquet" in answer.text
    assert good.state is State.STOPPED
    assert 'job_up{job="' in metrics(service)


def test_metrics_have_every_digit_and_nothing_that_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(GOOD)
    service = Service(load_jobs(path, Setting("http://127.0.0.1:9")), Progress(io.StringIO()))
    (life,) = service.lives

    before = metrics(service)
    life.figures, life.last_progress_at = {"rows": 12_345_678, "behind": 7_654_321}, 1_794_850_707.5

    assert "\nholt_pipeline_job_last_progress_seconds{" not in before
    assert "\nholt_pipeline_job_behind_messages{" not in before
    after = {
        line.split("{")[0]: float(line.split()[-1])
        for line in metrics(service).splitlines()
        if line[0] != "#"
    }
    assert after["holt_pipeline_job_rows_total"] == 12_345_678
    assert after["holt_pipeline_job_behind_messages"] == 7_654_321
    assert after["holt_pipeline_job_last_progress_seconds"] == 1_794_850_707.5


@pytest.mark.xdist_group("spark")
def test_jobs_on_spark_share_a_driver_and_keep_their_views_apart(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.push("a", range(30))
    shop.push("b", range(40))
    jobs = ""
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(f"""
[sources.events]
queue = "{shop.name(name)}"
payload_schema = "id BIGINT"
[steps.ids]
sql = "SELECT id, '{name}' AS origin FROM events"
[sinks.out]
from = "ids"
queue = "{shop.name("out-" + name)}"
""")
        jobs += f'[jobs.{name}]\nkind = "run"\nfile = "{name}.toml"\nevery = "100ms"\n'
    jobs += f'[jobs.figures]\nkind = "rollup"\nqueue = "{shop.name("a")}"\nlake = "lake"\nevery = "1h"\n'
    (tmp_path / "jobs.toml").write_text(jobs)
    setting = Setting(shop.url, "local[2]", out=io.StringIO())
    said = io.StringIO()
    service = Service(load_jobs(tmp_path / "jobs.toml", setting), Progress(said))
    runner = threading.Thread(target=service.run)
    runner.start()

    try:
        until(
            lambda: shop.next_offset("out-a") == 30 and shop.next_offset("out-b") == 40,
            "both pipelines have written",
        )
        until(lambda: service.lives[2].state is State.RUNNING, "the rollup has run")
        assert service.healthy, said.getvalue()
    finally:
        service.stop.set()
        runner.join()

    origins = {
        name: {json.loads(bytes(row.payload))["origin"] for row in shop.read(spark, f"out-{name}").collect()}
        for name in ("a", "b")
    }
    assert origins == {"a": {"a"}, "b": {"b"}}
    assert [life.state for life in service.lives] == [State.STOPPED] * 3
    assert os.path.isdir(tmp_path / "lake" / "_rollup" / "minutes")


def test_a_rollup_that_runs_again_and_again_counts_all_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter([7, 0, 5])
    monkeypatch.setattr(Setting, "session", lambda *_: None)
    monkeypatch.setattr(rollup_job, "_step", lambda *_: ({"job": "rollup"}, next(steps)))
    stop, seen = Stop(), list[Mapping[str, float]]()

    def watch(figures: Mapping[str, float]) -> None:
        seen.append(figures)
        if len(seen) == 3:
            stop.set()

    setting = Setting("http://127.0.0.1:9", every=0.0, out=io.StringIO(), watch=watch)
    rollup_job.rollup(setting, "orders", str(tmp_path), stop=stop)

    assert seen == [{"rows": 7, "batches": 1}, {"rows": 7, "batches": 2}, {"rows": 12, "batches": 3}]

"""Declarative Pipelines and Spark Connect, each in a process of its own as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from click.testing import CliRunner
from spark_support import Shop

from holtmq.cli import main
from holtmq.testing import TestBroker

pytest.importorskip("grpc")
pytest.importorskip("yaml")

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow, pytest.mark.timeout(600)]


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
    }


def payloads(shop: Shop, queue: str) -> list[dict[str, object]]:
    import pyarrow as pa

    answer = shop.http.get(f"/api/v1/ranges/{queue}/rows", params={"columns": "payload"})
    assert answer.status_code == 200, answer.text
    return [json.loads(row) for row in pa.ipc.open_stream(answer.content).read_all()[0].to_pylist()]


def orders(shop: Shop, *amounts: float) -> None:
    items = [
        {"queue": "orders", "payload": {"id": n, "kind": "book", "amount": amount}}
        for n, amount in enumerate(amounts)
    ]
    assert shop.http.post("/api/v1/push", json={"items": items}).status_code == 201


def test_a_new_project_runs_from_queue_to_table_to_queue(tmp_path: Path) -> None:
    project = tmp_path / "shop"
    with TestBroker(clock="real") as broker:
        shop = Shop(broker, "")
        orders(shop, 5, 150, 99, 200)
        made = CliRunner().invoke(main, ["pipeline", "init", str(project), "--url", broker.http_url])
        assert made.exit_code == 0, made.output

        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines"), "run"]
        ran = subprocess.run(
            command, cwd=project, env=environment(tmp_path), capture_output=True, text=True, check=False
        )

        assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
        assert sorted(row["id"] for row in payloads(shop, "large-orders")) == [1, 3]  # type: ignore[type-var]
        shop.http.close()
    again = CliRunner().invoke(main, ["pipeline", "init", str(project)])
    assert "is there already" in again.output


def test_source_sink_tables_reports_lake_and_jobs_work_over_spark_connect(tmp_path: Path) -> None:
    with TestBroker(clock="real") as broker:
        shop = Shop(broker, "")
        orders(shop, 1, 2, 3)
        script = Path(__file__).with_name("connect_job.py")

        ran = subprocess.run(
            [sys.executable, str(script), broker.http_url, str(tmp_path)],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )

        assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
        assert ran.stdout.splitlines() == [
            "rows 3",
            "table 3",
            "ended True",
            "archived 3",
            "union 3",
            "relation 3",
            "rolled 1",
            "run 3 3",
        ]
        assert [row["amount"] for row in payloads(shop, "copies")] == [1, 2, 3]
        assert sorted(row["amount"] for row in payloads(shop, "doubled")) == [2, 4, 6]  # type: ignore[type-var]
        told = shop.http.get("/api/v1/pipelines").json()["pipelines"]
        assert "copy" in [one["name"] for one in told]
        shop.http.close()

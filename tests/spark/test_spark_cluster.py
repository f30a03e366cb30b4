"""A Spark cluster of real processes: executors that share nothing with the driver but the wheel."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pyspark
import pytest
from spark_processes import Broker, Process, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(720)]

PIPELINE = """
[sources.numbers]
queue = "in"
payload_schema = "id BIGINT"

[steps.squares]
sql = "SELECT id, id * id AS square FROM numbers"

[sinks.out]
from = "squares"
queue = "out"
"""


class Cluster:
    """A standalone master and one worker, on free ports."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        home = Path(pyspark.__file__).parent
        run = str(home / "bin" / "spark-class")
        # Nothing of this Python on the worker's PATH: what executors run is what the driver names.
        common = {
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": "",
        }
        package = "org.apache.spark.deploy"
        host = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        self._master = Process([run, f"{package}.master.Master", *host], folder / "master.log", **common)
        self._worker: Process | None = None
        try:
            self.url = self._says(self._master, r"Starting Spark master at (spark://\S+)")
            worker = [run, f"{package}.worker.Worker", *host, "--cores", "2", "--memory", "1g"]
            worker += ["--work-dir", str(self.work), self.url]
            self._worker = Process(worker, folder / "worker.log", **common)
            self._says(self._worker, r"(Successfully registered with master)")
        except BaseException:
            self.kill()
            raise

    @staticmethod
    def _says(process: Process, pattern: str) -> str:
        found: list[str] = []

        def said() -> bool:
            text = process.log.read_text()
            assert process.alive, text
            found.extend(re.findall(pattern, text))
            return bool(found)

        until(said, pattern, 180)
        return found[0]

    def kill(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._master.kill()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    one = Broker(tmp_path)
    yield one
    one.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    one = Cluster(tmp_path)
    yield one
    one.kill()


def test_a_streaming_job_runs_on_executors_of_a_standalone_cluster(
    cluster: Cluster, broker: Broker, tmp_path: Path
) -> None:
    items = [{"queue": "in", "partition": f"p{n % 3}", "payload": {"id": n}} for n in range(200)]
    httpx.post(f"{broker.url}/api/v1/push", json={"items": items}, timeout=60).raise_for_status()
    (tmp_path / "squares.toml").write_text(PIPELINE)
    command = [sys.executable, "-m", "holtmq", "pipeline", "run", str(tmp_path / "squares.toml")]
    command += ["--url", broker.url, "--master", cluster.url]
    for conf in (
        "spark.driver.host=127.0.0.1",
        "spark.driver.bindAddress=127.0.0.1",
        "spark.ui.enabled=false",
        "spark.sql.shuffle.partitions=2",
    ):
        command += ["--conf", conf]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}

    job = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)

    told = job.stdout[-2000:] + job.stderr[-4000:] + executor_logs(cluster)[-6000:]
    assert job.returncode == 0, told
    answer = httpx.get(f"{broker.url}/api/v1/ranges/out/rows", params={"columns": "payload"}, timeout=60)
    rows = pa.ipc.open_stream(answer.content).read_all().column("payload").to_pylist()
    squares = {row["id"]: row["square"] for row in map(json.loads, rows)}
    assert squares == {n: n * n for n in range(200)}
    assert len(rows) == 200
    assert executor_logs(cluster), "no executor of the cluster has run"


def executor_logs(cluster: Cluster) -> str:
    return "\n".join(path.read_text() for path in cluster.work.glob("app-*/*/stderr"))

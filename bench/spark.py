"""``make bench-spark``: the source, the sink and the jobs, as ratios to what Spark itself can do, in one run.

Owns: the workloads and the report. Must not touch: the broker's or Spark's settings; both run with defaults.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pika
from bench.amqp import holt
from bench.rabbitmq import free_port
from bench.spark_ceiling import ROWS, CeilingSource
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from holtmq.spark import session
from holtmq.spark.jobs.archive import archive
from holtmq.spark.jobs.running import Setting
from holtmq.spark.lake.opening import FORMATS
from holtmq.spark.lake.writer import Care

console = Console()
PAYLOAD = '{"id": %d, "amount": 61.5, "kind": "book", "customer": "c12", "note": "twenty-two or so letters"}'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64 * ROWS, help="messages to read")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slices", type=int, default=2)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--quick", action="store_true", help="small and once: shows that it runs")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rows, chosen.rounds = 8 * ROWS, 1
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    with (
        tempfile.TemporaryDirectory(prefix="holt-bench-spark-") as folder,
        holt("--http-port", str(port)) as served,
    ):
        console.print(f"filling a queue with {chosen.rows:,} messages")
        fill(url, chosen.rows)
        spark = session("bench", chosen.master)
        spark.dataSource.register(CeilingSource)
        figures = Bench(spark, url, served.url, served.pid, Path(folder), chosen).run()
        spark.stop()
    report(figures, chosen)
    return 0


class Bench:
    def __init__(
        self,
        spark: SparkSession,
        url: str,
        amqp: str,
        pid: int,
        folder: Path,
        chosen: argparse.Namespace,
    ) -> None:
        self.spark = spark
        self.url = url
        self.amqp = amqp
        self.pid = pid
        self.folder = folder
        self.rows: int = chosen.rows
        self.rounds: int = chosen.rounds
        self.slices: int = chosen.slices
        self.master: str = chosen.master

    def run(self) -> dict[str, float]:
        lake = self.folder / "rows.parquet"
        idle = resident(self.pid)  # what the queue itself takes, before anybody reads it
        console.print("writing the same rows as Parquet")
        self.source().write.parquet(str(lake))
        few = max(1000, self.rows // 20)
        self.fill_amqp(few * (self.rounds + 1))
        contenders: dict[str, tuple[Callable[[], None], int]] = {
            "source": (lambda: drain(self.source()), self.rows),
            "ceiling": (lambda: drain(self.ceiling()), self.rows // ROWS // self.slices * self.slices * ROWS),
            "parquet": (lambda: drain(self.spark.read.parquet(str(lake))), self.rows),
            "pika": (lambda: self.pika_loop(few), few),
            "sink": (self.sink, self.rows // 4),
        }
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        cpu: list[float] = []
        peak = 0
        for turn in range(self.rounds + 1):  # the first is for warming up
            for name, (work, rows) in contenders.items():
                before = cpu_seconds(self.pid)
                began = time.monotonic()
                work()
                seconds = time.monotonic() - began
                if name == "source":
                    peak = max(peak, resident(self.pid))
                if turn:
                    rates[name].append(rows / seconds)
                    if name == "source":
                        cpu.append((cpu_seconds(self.pid) - before) / rows * 1e6)
                    console.print(f"  round {turn}: {name} {rows / seconds:,.0f} rows/s")
        figures = {name: statistics.median(found) for name, found in rates.items()}
        figures |= self.archives()
        figures["micro_batch_ms"] = self.micro_batches()
        figures["broker_cpu_us_per_row"] = statistics.median(cpu)
        figures["broker_rss_mb"] = peak / 1e6
        figures["reading_rss_mb"] = (peak - idle) / 1e6
        return figures

    def source(self) -> DataFrame:
        reader = self.spark.read.format("holtmq").option("url", self.url).option("queue", "bench")
        return (
            reader.option("minPartitions", str(self.slices))
            .option("maxRecordsPerPartition", str(1 << 30))
            .load()
        )

    def ceiling(self) -> DataFrame:
        return self.spark.read.format("ceiling").options(rows=str(self.rows), slices=str(self.slices)).load()

    def sink(self) -> None:
        rows = self.spark.range(0, self.rows // 4, 1, self.slices)
        out = rows.selectExpr("to_json(struct(id, 61.5 AS amount, 'book' AS kind)) AS payload")
        out.write.format("holtmq").mode("append").option("url", self.url).option("queue", "sunk").save()

    def fill_amqp(self, count: int) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(self.amqp))
        channel = connection.channel()
        channel.queue_declare("old-way")
        for n in range(count):
            channel.basic_publish("", "old-way", (PAYLOAD % n).encode())
        connection.close()

    def pika_loop(self, count: int) -> None:
        """What people do today: consume into a list, make a frame of it, ack."""
        connection = pika.BlockingConnection(pika.URLParameters(self.amqp))
        channel = connection.channel()
        rows = []
        for method, properties, body in channel.consume("old-way"):
            rows.append(
                (method.exchange, method.routing_key, method.delivery_tag, properties.message_id, body)
            )
            if len(rows) == count:
                break
        names = "exchange STRING, routing_key STRING, tag LONG, message_id STRING, payload BINARY"
        drain(self.spark.createDataFrame(rows, names))
        channel.basic_ack(rows[-1][2], multiple=True)
        with suppress(Exception):
            channel.cancel()
            connection.close()

    def archive(self, format: str, engine: str) -> float:
        """From queue to lake, end to end: planning, rows, files, sync, commit; a session is there already."""
        log = self.folder / "archive.log"
        lake = self.folder / f"lake-{format}-{engine}"
        with log.open("a") as out:
            setting = Setting(self.url, self.master, out=out, threads=self.slices)
            began = time.monotonic()
            archive(
                setting,
                "bench",
                str(lake),
                max_rows=self.rows // 2,
                care=Care(compact=False),
                format=format,
                engine=engine,
                group="",
            )
            return self.rows / (time.monotonic() - began)

    def archives(self) -> dict[str, float]:
        """Every table format by Spark, and Parquet without a JVM; the first batch warms up."""
        self.archive("parquet", "spark")
        shutil.rmtree(self.folder / "lake-parquet-spark")
        figures = {f"archive_{format}": self.archive(format, "spark") for format in FORMATS}
        return figures | {"archive_arrow": self.archive("parquet", "arrow")}

    def micro_batches(self) -> float:
        """Median time of a batch of a thousand messages, from queue to nowhere."""
        options = {
            "url": self.url,
            "queue": "bench",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "1000",
        }
        name = json.dumps({"bench": max(0, self.rows - 20_000)})
        frame = self.spark.readStream.format("holtmq").options(**{**options, "startingOffsets": name}).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(self.folder / "micro"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        times = [one["durationMs"]["triggerExecution"] for one in query.recentProgress[2:]]
        return float(statistics.median(times))


def share(figures: dict[str, float], name: str) -> str:
    return f"archive is {figures[f'archive_{name}'] / figures['source']:.2f} of it"


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def fill(url: str, rows: int) -> None:
    with httpx.Client(base_url=url, timeout=120) as client:
        for at in range(0, rows, 5000):
            items = ",".join(
                f'{{"queue":"bench","partition":"p{n % 10}","payload":{PAYLOAD % n}}}'
                for n in range(at, min(at + 5000, rows))
            )
            body = f'{{"items":[{items}]}}'
            client.post(
                "/api/v1/push", content=body, headers={"content-type": "application/json"}
            ).raise_for_status()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def report(figures: dict[str, float], chosen: argparse.Namespace) -> None:
    ours = figures["source"]
    table = Table(title="Spark source and sink", title_justify="left")
    for name in ("what", "rows/s", "source is"):
        table.add_column(name, justify="left" if name == "what" else "right")
    lines = [
        ("our source (broker -> Spark, all columns)", ours, ""),
        (
            "ceiling: a Python source with batches in memory",
            figures["ceiling"],
            f"{ours / figures['ceiling']:.2f} of it",
        ),
        ("the same rows from Parquet", figures["parquet"], f"{ours / figures['parquet']:.2f} of it"),
        ("a pika loop with createDataFrame", figures["pika"], f"{ours / figures['pika']:.1f} times"),
        ("our sink (all or nothing)", figures["sink"], ""),
        *(
            (f"archive end to end, {what}", figures[f"archive_{name}"], share(figures, name))
            for name, what in (
                ("parquet", "Parquet"),
                ("delta", "Delta Lake"),
                ("iceberg", "Iceberg"),
                ("arrow", "Parquet without a JVM"),
            )
        ),
    ]
    for what, rate, ratio in lines:
        table.add_row(what, f"{rate:,.0f}", ratio)
    console.print(table)
    console.print(
        f"micro-batch of 1,000: {figures['micro_batch_ms']:.0f} ms; "
        f"broker: {figures['broker_cpu_us_per_row']:.2f} µs CPU a row read, "
        f"{figures['broker_rss_mb']:.0f} MB resident, "
        f"{figures['reading_rss_mb']:.0f} of them since reading began; load average {os.getloadavg()[0]:.1f}"
    )
    now = datetime.now(UTC)
    folder = Path("bench/results") / now.date().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    where = folder / f"spark-{now:%H%M%S}.json"
    facts = {
        "at": now.isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "command": " ".join(["python -m bench.spark", *sys.argv[1:]]),
        "rows": chosen.rows,
        "rounds": chosen.rounds,
        "figures": {name: round(value, 3) for name, value in figures.items()},
    }
    where.write_text(json.dumps(facts, indent=2) + "\n")
    console.print(f"written to {where}")


if __name__ == "__main__":
    sys.exit(main())

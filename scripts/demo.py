"""``make demo``: a broker, orders through AMQP and HTTP, two consumer groups, and then all of it on Spark.

Owns: the story. Everything happens in a folder of its own; the broker listens on free ports and ends with it.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import httpx
import pika
from rich.console import Console
from rich.table import Table

KINDS = ("book", "lamp", "chair", "tea")
ERRORS = (
    lambda n: f"payment provider timed out after {200 + n % 50} ms",
    lambda n: f"no stock for order {n}",
    lambda n: f"customer c{n % 7}@example.org is unknown",
)
console = Console()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=5000, help="how many orders to publish")
    parser.add_argument("--folder", type=Path, help="where to work [default: a new temporary folder]")
    parser.add_argument("--master", default="local[*]", help="where Spark runs")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="holt-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    dice = random.Random(7)
    with broker(folder) as (amqp_port, url):
        console.rule("[bold]HoltMQ demo")
        console.print(f"A broker is running: AMQP on port {amqp_port}, HTTP at {url}, data in {folder}/data")
        with step("Publishing orders, half through AMQP, half over HTTP"):
            publish_amqp(amqp_port, range(0, arguments.orders, 2), dice)
            publish_http(url, range(1, arguments.orders, 2), dice)
        with step("Group 'billing' works on all of them, and fails on some"):
            work(url, "billing", dice, failing=0.06)
        with step("Group 'shipping' works on the first half"):
            work(url, "shipping", dice, failing=0.02, most=arguments.orders // 2)
        run_spark(url, folder, arguments.master)
    return 0


def run_spark(url: str, folder: Path, master: str) -> None:
    from holtmq.spark.jobs.archive import archive
    from holtmq.spark.jobs.dead_letters import dead_letters
    from holtmq.spark.jobs.rollup import read_rollup, rollup
    from holtmq.spark.jobs.running import Setting
    from holtmq.spark.lake import table

    log = (folder / "spark.log").open("w")
    lake, report = str(folder / "lake"), folder / "dead-letters.html"
    with log, redirect_stderr(log):
        setting = Setting(url, master, out=log)
        with step("Spark starts"), quiet(folder / "spark.log"):
            spark = setting.session("demo")
        with step("holt pipeline archive: queue -> Parquet lake, exactly once"):
            done = archive(setting, "orders", lake)
        with step("holt pipeline rollup: figures per minute, group and partition"):
            rollup(setting, "orders", lake, partial=True)
        with step("holt pipeline dead-letters: what fails and why"):
            letters = dead_letters(setting, "orders", lake=lake, html=str(report))
        with step("holt pipeline table: lake and live queue as one relation, asked in SQL"):
            publish_http(url, range(10_000_000, 10_000_100), random.Random(1))
            fields = "id BIGINT, kind STRING, amount DOUBLE"
            table(spark, lake, url, "orders").selectExpr(
                f"from_json(CAST(payload AS STRING), '{fields}') AS o", "exchange IS NOT NULL AS amqp"
            ).createOrReplaceTempView("messages")
            kinds = spark.sql(
                """SELECT o.kind, count(*) AS orders, count_if(amqp) AS through_amqp,
                          round(sum(o.amount), 2) AS amount
                   FROM messages GROUP BY 1 ORDER BY amount DESC"""
            ).collect()
        figures = (
            read_rollup(spark, lake)
            .groupBy("group")
            .agg({"delivered": "sum", "acked": "sum", "failed": "sum", "dead": "sum", "queued_p95_ms": "max"})
        )
        groups = [row.asDict() for row in figures.where("`group` IS NOT NULL").orderBy("group").collect()]
        spark.stop()
    console.print(f"\n{done['lake_rows']:,} messages are in the lake, 100 newer ones in the queue alone.\n")
    show(
        "Orders by kind (lake and live queue)",
        ["kind", "orders", "through AMQP", "amount"],
        [list(r) for r in kinds],
    )
    names = ["group", "sum(delivered)", "sum(acked)", "sum(failed)", "sum(dead)", "max(queued_p95_ms)"]
    rows = [[row[name] for name in names] for row in groups]
    show("Consumer groups", ["group", "delivered", "acked", "failed", "dead", "p95 in queue (ms)"], rows)
    families = letters["families"]
    assert isinstance(families, list)
    show(
        f"{letters['letters']} dead letters, by family of errors",
        ["family", "group", "letters"],
        [[one["family"], one["group"], one["letters"]] for one in families],
    )
    console.print(f"[bold]Report with charts:[/bold] file://{report}")
    console.print(f"Lake: {lake}    Spark's own words: {folder / 'spark.log'}")
    (folder / "summary.json").write_text(
        json.dumps({"archive": done, "letters": letters["letters"]}, default=str)
    )


@contextmanager
def broker(folder: Path) -> Iterator[tuple[int, str]]:
    log = folder / "broker.log"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HOLT_")},
        "HOLT_DATA_DIR": str(folder / "data"),
        "HOLT_AMQP_PORT": "0",
        "HOLT_AMQP_HOST": "127.0.0.1",
        "HOLT_HTTP_PORT": "0",
        "HOLT_HTTP_HOST": "127.0.0.1",
    }
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "holtmq", "serve"], env=environment, stdout=out, stderr=out
        )
    try:
        deadline = time.monotonic() + 60
        while True:
            ports = re.search(r"ready.*amqp_port=(\d+).*http_port=(\d+)", log.read_text())
            if ports:
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the broker did not start:\n{log.read_text()}")
            time.sleep(0.05)
        yield int(ports[1]), f"http://127.0.0.1:{ports[2]}"
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def step(text: str) -> Iterator[None]:
    began = time.monotonic()
    with console.status(f"{text} ..."):
        yield
    console.print(f"[green]done[/green]  {text}  [dim]{time.monotonic() - began:.1f} s[/dim]")


@contextmanager
def quiet(log: Path) -> Iterator[None]:
    """The JVM inherits standard error: give it a file while it starts."""
    kept = os.dup(2)
    with log.open("a") as out:
        os.dup2(out.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def order(n: int, dice: random.Random) -> dict[str, object]:
    return {
        "id": n,
        "kind": dice.choice(KINDS),
        "amount": round(dice.uniform(2, 200), 2),
        "customer": f"c{n % 97}",
    }


def publish_amqp(port: int, numbers: range, dice: random.Random) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    channel.exchange_declare("shop", "topic", durable=True)
    channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_bind("orders", "shop", "order.#")
    channel.confirm_delivery()
    for n in numbers:
        body = order(n, dice)
        properties = pika.BasicProperties(
            content_type="application/json", delivery_mode=2, headers={"x-partition": f"customer-{n % 8}"}
        )
        channel.basic_publish("shop", f"order.{body['kind']}", json.dumps(body).encode(), properties)
    connection.close()


def publish_http(url: str, numbers: range, dice: random.Random) -> None:
    for at in range(0, len(numbers), 500):
        items = [
            {
                "queue": "orders",
                "partition": f"customer-{n % 8}",
                "transactionId": f"o{n}",
                "payload": order(n, dice),
            }
            for n in numbers[at : at + 500]
        ]
        httpx.post(f"{url}/api/v1/push", json={"items": items}, timeout=60).raise_for_status()


def work(url: str, group: str, dice: random.Random, failing: float, most: int = 1 << 60) -> None:
    """Pop, work, ack; what fails too often becomes a dead letter."""
    client = httpx.Client(base_url=url, timeout=60)
    seen = 0
    while seen < most:
        answer = client.get(f"/api/v1/pop/queue/orders?consumerGroup={group}&batch=100")
        if answer.status_code == 204 or not answer.json()["messages"]:
            return
        popped = answer.json()
        acks = [ack_for(popped, message, group, dice, failing) for message in popped["messages"]]
        body = {"consumerGroup": group, "acknowledgments": acks}
        client.post("/api/v1/ack/batch", json=body).raise_for_status()
        seen += len(acks)


def ack_for(
    popped: dict, message: dict, group: str, dice: random.Random, failing: float
) -> dict[str, object]:  # type: ignore[type-arg]
    bad = dice.random() < failing
    make: Callable[[int], str] = dice.choice(ERRORS)
    return {
        "transactionId": message["transactionId"],
        "partitionId": popped["partitionId"],
        "leaseId": popped["leaseId"],
        "status": "dlq" if bad else "completed",
        "error": make(dice.randrange(1000)) if bad else None,
    }


def show(title: str, head: list[str], rows: list[list[object]]) -> None:
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(head):
        table.add_column(name, justify="left" if place == 0 else "right")
    for row in rows:
        cells = [
            f"{c:,.1f}" if isinstance(c, float) else f"{c:,}" if isinstance(c, int) else str(c) for c in row
        ]
        table.add_row(*cells)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())

"""Helpers of the Spark tests: pushing, reading, running a query to its end."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holtmq.testing import TestBroker

QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "5ms",
}


class Shop:
    """A broker with a client beside it and names that no other test uses."""

    def __init__(self, broker: TestBroker, prefix: str) -> None:
        self.broker = broker
        self.prefix = prefix
        self.http = httpx.Client(base_url=broker.http_url, timeout=60)

    @property
    def url(self) -> str:
        return self.broker.http_url

    def name(self, queue: str) -> str:
        return f"{self.prefix}.{queue}"

    def push(self, queue: str, numbers: Iterable[int], partitions: int = 3) -> None:
        items = [
            {
                "queue": self.name(queue),
                "partition": f"p{n % partitions}",
                "transactionId": f"t{n}",
                "payload": {"id": n, "amount": n * 0.5, "kind": f"k{n % 3}"},
            }
            for n in numbers
        ]
        for at in range(0, len(items), 5000):
            answer = self.http.post("/api/v1/push", json={"items": items[at : at + 5000]})
            assert answer.status_code == 201, answer.text

    def next_offset(self, queue: str) -> int:
        answer = self.http.get("/api/v1/ranges", params={"names": self.name(queue)})
        return 0 if answer.status_code == 404 else int(answer.json()["queues"][0]["nextOffset"])

    def trim(self, queue: str, partition: str, upto: int) -> None:
        """What retention does, now: everything of the partition below this position goes."""
        from array import array

        from holtmq.broker.partitioned.events import Trimmed

        def run(node: Any) -> None:
            store = node.partitioned.store
            found = store.queues[self.name(queue)]
            event = Trimmed(array("I", [found.indexes[partition]]), array("Q", [upto]))
            store.commit([(found.number, event)])

        self.broker.call(run)

    def lag(self, queue: str, group: str) -> int:
        return self.broker.call(
            lambda node: sum(
                n for _, n in node.partitioned.store.queues[self.name(queue)].groups[group].lagging()
            )
        )

    def lag_or(self, otherwise: int, queue: str, group: str) -> int:
        """The group's lag, also while there is no such group yet."""
        try:
            return self.lag(queue, group)
        except KeyError:
            return otherwise

    def read(self, spark: SparkSession, queue: str, **options: str) -> DataFrame:
        reader = spark.read.format("holtmq").option("url", self.url).option("queue", self.name(queue))
        return reader.options(**options).load()

    def stream(self, spark: SparkSession, queue: str, **options: str) -> DataFrame:
        reader = spark.readStream.format("holtmq").option("url", self.url)
        if queue:
            reader = reader.option("queue", self.name(queue))
        return reader.options(**{"startingOffsets": "earliest", **options}).load()

    def to_queue(self, frame: DataFrame, queue: str, checkpoint: Path) -> StreamingQuery:
        """Run a stream into a queue until it has caught up."""
        writer = frame.writeStream.format("holtmq").option("url", self.url).option("queue", self.name(queue))
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(300), "the stream never caught up"
        return query

    def collect(self, frame: DataFrame, checkpoint: Path, out: Path) -> list[int]:
        """Run a stream with an ``id`` column into files until it has caught up; all ids written so far."""
        writer = frame.writeStream.format("json").option("checkpointLocation", str(checkpoint))
        query = writer.option("path", str(out)).trigger(availableNow=True).start()
        assert query.awaitTermination(300), "the stream never caught up"
        return sorted(int(row["id"]) for row in written(out))


def written(out: Path) -> Sequence[dict[str, Any]]:
    """Rows of a streaming file sink, by its own log: a file outside of it was never committed."""
    log = out / "_spark_metadata"
    names: list[str] = []
    for entry in sorted(
        (f for f in log.iterdir() if f.name.isdigit() or f.suffix == ".compact"), key=_number
    ):
        lines = [json.loads(line) for line in entry.read_text().splitlines()[1:]]
        found = [line["path"] for line in lines if line.get("action") == "add"]
        names = found if entry.suffix == ".compact" else names + found
    rows: list[dict[str, Any]] = []
    for name in names:
        path = name.removeprefix("file://")
        rows += [json.loads(line) for line in Path(path).read_text().splitlines()]
    return rows


def _number(entry: Path) -> tuple[int, int]:
    return int(entry.name.split(".")[0]), entry.suffix == ".compact"


def batches(query: StreamingQuery) -> list[int]:
    """Rows of each batch that had any."""
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

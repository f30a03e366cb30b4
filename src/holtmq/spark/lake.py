"""A Parquet lake of queues: ``queue=…/date=…/``, with a log that says which files count.

Owns: the log, the exactly-once adding of batches, compaction, and the one relation over lake and live tail.
Must not touch: how batches come about. One writer per lake.

A batch is written aside, moved into place, and then one log entry makes it true. An intent, written before
the move, lets the next run remove what a crash left behind. Whoever reads through the log sees each message
once at any moment; whoever reads the folders directly sees the same once a run has ended.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from holtmq.spark.errors import DataLoss, HoltSparkError
from holtmq.spark.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = (
    "partition STRING, offset BIGINT, message_id STRING, transaction_id STRING, trace_id STRING, "
    "created_at TIMESTAMP, headers MAP<STRING, STRING>, payload BINARY, exchange STRING, routing_key STRING, "
    "content_type STRING, priority INT, properties MAP<STRING, STRING>"
)
SCHEMA: Final = f"{COLUMNS}, queue_id BIGINT, queue STRING, date DATE"
_LOG: Final = "_holt/log"
_ASIDE: Final = "_holt/staging"
_SMALL_BYTES: Final = 64 << 20
# A message's id carries 14 bits of its queue's number: a queue that was made again starts at offset 0 again.
_QUEUE_ID: Final = "CAST(conv(substring(message_id, 20, 4), 16, 10) AS BIGINT) & 16383"
_QUEUE_IDS: Final = 1 << 14


@dataclass(slots=True)
class LakeState:
    """The fold of the log."""

    files: dict[str, int] = field(default_factory=dict)  # path -> bytes
    next: dict[str, int] = field(default_factory=dict)  # queue#id -> first offset that is not in the lake
    rows: int = 0
    entries: int = 0
    batches: dict[str, int] = field(default_factory=dict)  # writer -> last batch
    removed: set[str] = field(default_factory=set)


class Lake:
    """See the module."""

    def __init__(self, spark: "SparkSession", root: str) -> None:
        self._spark = spark
        self._files = Files(spark, root)
        self.root = self._files.root

    # -- the log ---------------------------------------------------------------------------------

    def state(self) -> LakeState:
        """What counts now."""
        state = LakeState()
        for name in self._files.names(_LOG):
            if not name.endswith(".json") or name.startswith("."):
                continue
            entry = json.loads(self._files.read(f"{_LOG}/{name}"))
            state.entries = int(name.removesuffix(".json")) + 1
            for path in entry.get("remove", ()):
                state.files.pop(path, None)
                state.removed.add(path)
            for path, size in entry["add"].items():
                state.files[path] = size
            state.next |= entry.get("next", {})
            state.rows += entry.get("rows", 0)
            if "writer" in entry:
                state.batches[entry["writer"]] = entry["batch"]
        return state

    def _log(self, state: LakeState, entry: dict[str, object]) -> None:
        name = f"{_LOG}/{state.entries:020d}.json"
        if self._files.exists(name):
            raise HoltSparkError(f"another job writes to the lake {self.root}: {name} has appeared meanwhile")
        self._files.write(name, json.dumps(entry))

    # -- writing ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """Finish or undo what a crash left: call before the first batch."""
        state = self.state()
        for name in self._files.names(_ASIDE):
            if name.endswith(".intent"):
                for path in json.loads(self._files.read(f"{_ASIDE}/{name}")):
                    if path not in state.files:
                        self._files.delete(path)
        for path in state.removed - state.files.keys():
            self._files.delete(path)
        self._files.delete(_ASIDE)

    def add(self, rows: "DataFrame", writer: str, batch: int) -> dict[str, int]:
        """Add a batch of messages, once; where each of its queues goes on."""
        state = self.state()
        if state.batches.get(writer, -1) >= batch:
            return {}
        self.settle()
        aside = f"{_ASIDE}/b{batch}"
        dated = rows.selectExpr("*", f"{_QUEUE_ID} AS queue_id", "to_date(created_at) AS date")
        dated.write.partitionBy("queue", "date").parquet(self._files.full(aside))
        found = self._files.walk(aside, ".parquet")
        if not found:
            return {}
        written = self._read([f"{aside}/{path}" for path, _ in found], aside)
        ends = written.groupBy("queue", "queue_id").agg({"offset": "max", "*": "count"}).collect()
        following = {f"{row['queue']}#{row['queue_id']}": row["max(offset)"] + 1 for row in ends}
        added = self._move_in(aside, found, f"b{batch:08d}-{writer[:8]}")
        self._log(
            state,
            {
                "writer": writer,
                "batch": batch,
                "add": added,
                "next": following,
                "rows": sum(row["count(1)"] for row in ends),
            },
        )
        self._files.delete(_ASIDE)
        return following

    def _move_in(self, aside: str, found: Iterable[tuple[str, int]], prefix: str) -> dict[str, int]:
        moves = {}
        for place, (path, size) in enumerate(found):
            folder = path.rpartition("/")[0]
            moves[path] = (f"{folder}/{prefix}-{place:04d}.parquet", size)
        self._files.write(f"{_ASIDE}/{prefix}.intent", json.dumps([new for new, _ in moves.values()]))
        for old, (new, _) in moves.items():
            self._files.move(f"{aside}/{old}", new)
        return dict(moves.values())

    def compact(self, at_least: int = 8, small_bytes: int = _SMALL_BYTES) -> int:
        """Make one file of many small ones, day by day; how many files were replaced."""
        self.settle()
        replaced = 0
        for folder, paths in list(self._small(small_bytes)):
            if len(paths) < at_least:
                continue
            state = self.state()
            aside = f"{_ASIDE}/c{state.entries}"
            rows = self._read(paths).orderBy("offset").coalesce(1)
            rows.write.partitionBy("queue", "date").parquet(self._files.full(aside))
            found = self._files.walk(aside, ".parquet")
            added = self._move_in(aside, found, f"c{state.entries:08d}")
            assert all(path.startswith(folder) for path in added)
            self._log(state, {"add": added, "remove": paths})
            self.settle()
            replaced += len(paths)
        return replaced

    def _small(self, small_bytes: int) -> Iterator[tuple[str, list[str]]]:
        folders: dict[str, list[str]] = {}
        for path, size in self.state().files.items():
            if size < small_bytes:
                folders.setdefault(path.rpartition("/")[0], []).append(path)
        yield from sorted(folders.items())

    # -- reading ---------------------------------------------------------------------------------

    def frame(self, state: LakeState | None = None) -> "DataFrame":
        """Every archived message, by the log."""
        return self._read((state or self.state()).files)

    def _read(self, paths: Iterable[str], base: str = "") -> "DataFrame":
        full = [self._files.full(path) for path in paths]
        if not full:
            return self._spark.createDataFrame([], SCHEMA)
        reader = self._spark.read.schema(SCHEMA).option(
            "basePath", self._files.full(base) if base else self.root
        )
        return reader.parquet(*full)


def table(spark: "SparkSession", root: str, url: str, queues: str, **options: str) -> "DataFrame":
    """One relation over the lake and what the broker has beyond it: no gap, no overlap.

    The log is read first and says where the lake ends; the tail starts right there. What is archived after
    that is not in the list of files, so it is not seen twice.
    """
    from holtmq.spark.client import BrokerClient
    from holtmq.spark.options import source_options

    lake = Lake(spark, root)
    state = lake.state()
    given = {"url": url, "queue": queues, **options}
    chosen = source_options(given, streaming=None)
    with BrokerClient(chosen.connection) as broker:
        heads = broker.heads(chosen.selection)
    starts: dict[str, int] = {}
    for head in heads:
        ends = state.next.get(f"{head.name}#{head.number % _QUEUE_IDS}")
        if ends is not None and ends < head.first:
            lost = head.first - ends
            raise DataLoss(
                f"there is a gap between lake and queue {head.name}: the lake ends at {ends}, "
                f"the queue's oldest message is {head.first}; {lost} offsets are in neither"
            )
        starts[head.name] = -2 if ends is None else ends
    names = [column for column in lake.frame(LakeState()).columns if column not in ("date", "queue_id")]
    archived = lake.frame(state).where(_among(head.name for head in heads)).select(*names)
    tail = spark.read.format("holtmq").options(**given, startingOffsets=json.dumps(starts)).load()
    return archived.unionByName(tail.select(*names))


def _among(names: Iterable[str]) -> str:
    quoted = ", ".join("'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'" for name in names)
    return f"queue IN ({quoted or 'NULL'})"

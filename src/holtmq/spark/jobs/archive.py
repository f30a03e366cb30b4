"""``holt pipeline archive``: queues into a Parquet lake, exactly once.

Owns: the job. Must not touch: how the lake works.
"""

from typing import TYPE_CHECKING

from holtmq.spark.client import BrokerClient
from holtmq.spark.jobs.running import Setting, run_stream
from holtmq.spark.lake import Lake
from holtmq.spark.options import source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def archive(
    setting: Setting,
    queues: str,
    lake: str,
    checkpoint: str = "",
    *,
    group: str = "archive",
    max_rows: int = 500_000,
    compact: bool = True,
    from_latest: bool = False,
) -> dict[str, object]:
    """Bring the lake up to date, once or for ever.

    ``group`` shows the job's progress in the broker: retention by completed messages waits for it.
    """
    spark = setting.session("archive")
    home = Lake(spark, lake)
    home.settle()
    options = {
        **setting.source,
        "queue": queues,
        "startingOffsets": "latest" if from_latest else "earliest",
        "maxOffsetsPerTrigger": str(max_rows),
    }
    connection = source_options(options, streaming=True).connection
    rows = spark.readStream.format("holtmq").options(**options).load()
    writer_id: list[str] = []

    def add(batch: "DataFrame", number: int) -> None:
        # The lake's log is the truth; the mirror follows it, at once and not a batch later.
        following = home.add(batch, _query_id(batch, writer_id), number)
        if group:
            with BrokerClient(connection) as broker:
                for key, at in following.items():
                    broker.mirror(key.rpartition("#")[0], group, at)

    writer = rows.writeStream.foreachBatch(add).option(
        "checkpointLocation", checkpoint or f"{home.root}/_holt/checkpoint"
    )
    summary = run_stream(setting, "archive", writer)
    summary["compacted_files"] = home.compact() if compact else 0
    state = home.state()
    return summary | {"lake": home.root, "lake_rows": state.rows, "lake_files": len(state.files)}


def _query_id(batch: "DataFrame", known: list[str]) -> str:
    if not known:
        context = batch.sparkSession.sparkContext
        known.append(str(context.getLocalProperty("sql.streaming.queryId") or "archive"))
    return known[0]

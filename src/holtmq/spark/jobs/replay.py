"""``holt pipeline replay`` and ``redrive``: push messages selected by SQL into queues again.

Owns: both jobs. Must not touch: how writes are exactly once (the sink) or how a dead letter is returned (the
broker pushes and removes it in one step).
"""

import time
from typing import TYPE_CHECKING, Final

from holtmq.spark.client import BrokerClient
from holtmq.spark.errors import BrokerRefused, InvalidOption
from holtmq.spark.jobs.running import Progress, Setting, filtered
from holtmq.spark.lake import Lake
from holtmq.spark.name_lists import join_names, split_names
from holtmq.spark.options import source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HEADERS: Final = """
    map_concat(
        map_filter(coalesce(headers, CAST(map() AS MAP<STRING, STRING>)), (k, v) -> k != 'x-replayed-from'),
        map('x-replayed-from', concat(queue, '@', offset)))
"""


def replay(
    setting: Setting,
    *,
    queue: str = "",
    lake: str = "",
    where: str = "",
    to: str,
    write_id: str = "",
    dry_run: bool = False,
    limit: int = 0,
) -> dict[str, object]:
    """Push messages of a queue or a lake into a queue; with ``write_id`` once, however often it is run."""
    if bool(queue) == bool(lake):
        raise InvalidOption("replay from a queue or from a lake: give one of both")
    spark = setting.session("replay")
    if lake:
        rows = Lake(spark, lake).frame()
    else:
        rows = spark.read.format("holtmq").options(**setting.source, queue=queue).load()
    rows = filtered(rows, where)
    if limit:
        rows = rows.orderBy("queue", "offset").limit(limit)
    began = time.monotonic()
    count = rows.count()
    summary: dict[str, object] = {"job": "replay", "matching": count, "to": to, "dry_run": dry_run}
    if not dry_run and count:
        # The old transaction id would be a duplicate in the original queue; ``x-replayed-from`` names it.
        out = rows.orderBy("queue", "offset").selectExpr(
            "payload",
            "partition",
            "concat('replay:', message_id) AS transaction_id"
            if write_id
            else "CAST(NULL AS STRING) AS transaction_id",
            f"{_HEADERS} AS headers",
            "routing_key",
            "priority",
        )
        _write(setting, out, to, write_id)
    return summary | {"seconds": round(time.monotonic() - began, 2)}


def _write(setting: Setting, rows: "DataFrame", queue: str, write_id: str) -> None:
    writer = rows.write.format("holtmq").mode("append").options(**setting.source, queue=queue)
    (writer.option("writeId", f"replay:{write_id}") if write_id else writer).save()


def redrive(
    setting: Setting,
    queue: str,
    *,
    where: str = "",
    rate: float = 100.0,
    to: str = "",
    dry_run: bool = False,
    limit: int = 0,
) -> dict[str, object]:
    """Return dead letters to their queues, ``rate`` a second. Each is pushed once, also in a repeated run."""
    spark = setting.session("redrive")
    names = join_names(f"{name}$dlq" for name in split_names(queue))
    options = {**setting.source, "queue": names}
    letters = filtered(spark.read.format("holtmq").options(**options).load(), where)
    ids = [row["letter_id"] for row in letters.select("letter_id").orderBy("letter_id").collect()]
    ids = ids[:limit] if limit else ids
    summary: dict[str, object] = {"job": "redrive", "matching": len(ids), "dry_run": dry_run}
    if dry_run:
        return summary
    progress = Progress(setting.out)
    began = time.monotonic()
    done = gone = 0
    with BrokerClient(source_options(options, streaming=False).connection) as broker:
        for place, letter in enumerate(ids):
            due = began + place / rate - time.monotonic()
            if due > 0:
                time.sleep(due)
            try:
                broker.call("POST", f"/api/v1/dlq/{letter}/replay", body={"queue": to} if to else {})
                done += 1
            except BrokerRefused as refusal:
                if refusal.status != 404:  # 404: already replayed or deleted
                    raise
                gone += 1
            progress.say(f"redrive: {place + 1:,} of {len(ids):,}")
    progress.end()
    return summary | {"redriven": done, "already_gone": gone, "seconds": round(time.monotonic() - began, 2)}

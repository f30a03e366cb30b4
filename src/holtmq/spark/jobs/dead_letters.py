"""``holt pipeline dead-letters``: failures by error family, queue, group and hour.

Owns: the rule that groups errors into families, and the figures. Must not touch: the dead letters
themselves, the layout of the report (``report``).
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holtmq.spark.jobs.report import Bar, Section, render
from holtmq.spark.jobs.running import Setting
from holtmq.spark.lake.storage import qualified
from holtmq.spark.name_lists import join_names, split_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SAMPLES: Final = 3
# From specific to general: an address must not become "<n>.<n>.<n>.<n>" first.
_FAMILIES: Final = (
    (r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b", "<uuid>"),
    (r"\b[\w.+-]+@[\w-]+(\.[\w-]+)+\b", "<email>"),
    (r"\b[a-z][a-z0-9+.-]*://[^\s\"']+", "<url>"),
    (r"\b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?", "<time>"),
    (r"\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b", "<address>"),
    (r"(/[\w.-]+){2,}", "<path>"),
    (r"\b0x[0-9a-fA-F]+\b", "<hex>"),
    (r"\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{12,}\b", "<hex>"),
    (r"\"[^\"]*\"", "<text>"),
    (r"'[^']*'", "<text>"),
    (r"\d+(\.\d+)?", "<n>"),
    (r"\s+", " "),
)


def family_of(column: str) -> "Column":
    """Give errors that differ only in details (ids, numbers, addresses) the same name."""
    from pyspark.sql import functions as sql

    text = sql.substring(sql.coalesce(sql.col(column), sql.lit("")), 1, 500)
    for pattern, name in _FAMILIES:
        text = sql.regexp_replace(text, pattern, name)
    return sql.trim(text)


@dataclass(frozen=True, slots=True)
class Family:
    """Errors of one kind on one queue and group."""

    family: str
    queue: str
    group: str
    letters: int
    first_seen: str
    last_seen: str
    samples: list[str]


def dead_letters(
    setting: Setting, queues: str, *, lake: str = "", html: str = "", since: str = ""
) -> dict[str, object]:
    """The families as a summary; on request also as Parquet below ``lake`` and as a page."""
    spark = setting.session("dead-letters")
    began = time.monotonic()
    names = join_names(f"{name}$dlq" for name in split_names(queues))
    options = {**setting.source, "queue": names}
    if since:
        options["startingTimestamp"] = since
    letters = spark.read.format("holtmq").options(**options).load()
    letters = letters.withColumn("family", family_of("error")).cache()
    families = _families(letters)
    hours = _hours(letters)
    if lake:
        kept = letters.selectExpr("*", "to_date(last_failed_at) AS date")
        kept.write.mode("overwrite").partitionBy("date").parquet(f"{qualified(lake)}/_dead_letters")
    if html:
        Path(html).write_text(_page(families, hours, queues), encoding="utf-8")
    letters.unpersist()
    return {
        "job": "dead-letters",
        "letters": sum(one.letters for one in families),
        "families": [
            {
                "family": one.family,
                "queue": one.queue,
                "group": one.group,
                "letters": one.letters,
                "first_seen": one.first_seen,
                "last_seen": one.last_seen,
                "samples": one.samples,
            }
            for one in families
        ],
        "html": html or None,
        "seconds": round(time.monotonic() - began, 2),
    }


def _families(letters: "DataFrame") -> list[Family]:
    rows = letters.selectExpr(
        "family",
        "queue",
        "`group`",
        "first_failed_at",
        "last_failed_at",
        "struct(last_failed_at, error, CAST(payload AS STRING) AS payload) AS sample",
    )
    found = rows.sparkSession.sql(
        f"""
        SELECT family, queue, `group`, count(*) AS letters,
               date_format(min(first_failed_at), "yyyy-MM-dd'T'HH:mm:ss'Z'") AS first_seen,
               date_format(max(last_failed_at), "yyyy-MM-dd'T'HH:mm:ss'Z'") AS last_seen,
               slice(sort_array(collect_list(sample), false), 1, {_SAMPLES}) AS samples
        FROM {{rows}} GROUP BY family, queue, `group` ORDER BY letters DESC, family, queue
        """,
        rows=rows,
    ).collect()
    return [
        Family(
            row["family"] or "(no text)",
            row["queue"],
            row["group"],
            row["letters"],
            row["first_seen"],
            row["last_seen"],
            [f"{s['error']}\n  {(s['payload'] or '')[:300]}" for s in row["samples"]],
        )
        for row in found
    ]


def _hours(letters: "DataFrame") -> list[tuple[str, int]]:
    rows = letters.selectExpr("date_format(last_failed_at, 'yyyy-MM-dd HH:00') AS hour")
    return [(row["hour"], row["count"]) for row in rows.groupBy("hour").count().orderBy("hour").collect()]


def _page(families: list[Family], hours: list[tuple[str, int]], queues: str) -> str:
    by_queue: dict[str, int] = {}
    by_group: dict[str, int] = {}
    by_family: dict[str, int] = {}
    for one in families:
        for counts, key in ((by_queue, one.queue), (by_group, one.group), (by_family, one.family)):
            counts[key] = counts.get(key, 0) + one.letters
    total = sum(by_family.values())
    rows = [
        [
            one.family,
            one.queue,
            one.group,
            f"{one.letters:,}",
            one.first_seen,
            one.last_seen,
            "\n".join(one.samples),
        ]
        for one in families
    ]
    return render(
        f"Dead letters of {queues}",
        f"{total:,} dead letters in {len(by_family):,} families of errors",
        [
            Section("By hour (UTC)", bars=[Bar(hour, count) for hour, count in hours], upright=True),
            Section("By family", bars=_top(by_family)),
            Section("By queue", bars=_top(by_queue)),
            Section("By consumer group", bars=_top(by_group)),
            Section(
                "Families",
                head=["Family", "Queue", "Group", "Letters", "First seen", "Last seen", "Samples"],
                rows=rows,
            ),
        ],
    )


def _top(counts: dict[str, int]) -> list[Bar]:
    return [Bar(name, count) for name, count in sorted(counts.items(), key=lambda item: -item[1])[:15]]

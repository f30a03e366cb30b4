"""The jobs of ``holt pipeline``, on real Spark and a real broker."""

import io
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from spark_support import Shop

from holtmq.cli import main
from holtmq.spark.errors import BrokerRefused
from holtmq.spark.jobs.archive import archive
from holtmq.spark.jobs.dead_letters import dead_letters, family_of
from holtmq.spark.jobs.declared import PipelineFileError, parse_pipeline  # type: ignore[attr-defined]
from holtmq.spark.jobs.declared_run import run_pipeline
from holtmq.spark.jobs.replay import redrive, replay
from holtmq.spark.jobs.rollup import read_rollup, rollup
from holtmq.spark.jobs.running import Progress, Setting
from holtmq.spark.lake import Lake

pytestmark = pytest.mark.xdist_group("spark")


def setting(shop: Shop) -> Setting:
    return Setting(shop.url, "local[2]", out=io.StringIO())


def test_a_windowed_aggregation_from_queue_to_queue_equals_a_batch_query_over_the_archive(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """The stream sees events late and in pieces; with a watermark it must still come to the same sums."""
    root = str(tmp_path / "lake")
    items = [
        {
            "queue": shop.name("q"),
            "partition": f"p{n % 3}",
            "payload": {"at": _minute(n), "kind": f"k{n % 2}", "n": n},
        }
        for n in [*range(0, 100), *range(60, 120)]
    ]
    shop.http.post("/api/v1/push", json={"items": items})
    sql = (
        "SELECT date_format(window.start, 'HH:mm') AS minute, kind, sum(n) AS total, count(*) AS events "
        "FROM {} GROUP BY window(at, '10 minutes'), kind"
    )
    text = f"""
[sources.events]
queue = "{shop.name("q")}"
payload_schema = "at TIMESTAMP, kind STRING, n BIGINT"
watermark = "at 2 hours"
max_offsets = 37
[steps.totals]
sql = "{sql.format("events")}"
[sinks.out]
from = "totals"
queue = "{shop.name("out")}"
mode = "update"
"""

    run_pipeline(setting(shop), parse_pipeline(text, "p.toml"), str(tmp_path / "c"))
    archive(setting(shop), shop.name("q"), root)

    fields = "minute STRING, kind STRING, total BIGINT, events BIGINT"
    updates = shop.read(spark, "out", payloadSchema=fields, columns=f"offset,{_names(fields)}").orderBy(
        "offset"
    )
    last = {(row.minute, row.kind): (row.total, row.events) for row in updates.collect()}
    frame = (
        Lake(spark, root)
        .frame()
        .selectExpr("from_json(CAST(payload AS STRING), 'at TIMESTAMP, kind STRING, n BIGINT') AS p")
    )
    frame.selectExpr("p.*").createOrReplaceTempView("archived")
    batch = {
        (row.minute, row.kind): (row.total, row.events) for row in spark.sql(sql.format("archived")).collect()
    }
    assert last == batch
    assert sum(events for _, events in last.values()) == 160


def _minute(n: int) -> str:
    return f"2026-05-01T{10 + n // 60:02d}:{n % 60:02d}:00Z"


def _names(ddl: str) -> str:
    return ",".join(part.split()[0] for part in ddl.split(", "))


def fail_some(shop: Shop, queue: str, errors: list[str | None], group: str = "g") -> None:
    """Pop one message per entry and fail it with that text, or complete it."""
    for error in errors:
        popped = shop.http.get(
            f"/api/v1/pop/queue/{shop.name(queue)}", params={"consumerGroup": group, "batch": 1}
        ).json()
        ack = {
            "transactionId": popped["messages"][0]["transactionId"],
            "partitionId": popped["partitionId"],
            "leaseId": popped["leaseId"],
            "consumerGroup": group,
            "status": "completed" if error is None else "dlq",
            "error": error,
        }
        assert shop.http.post("/api/v1/ack", json=ack).status_code == 200


def test_rollup_counts_what_happened(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    shop.push("q", range(9))
    fail_some(shop, "q", ["boom", None, None])

    done = rollup(setting(shop), shop.name("q"), str(tmp_path), partial=True)
    again = rollup(setting(shop), shop.name("q"), str(tmp_path), partial=True)

    figures = {name: done[name] for name in ("pushed", "delivered", "acked", "failed", "dead")}
    assert figures == {"pushed": 9, "delivered": 3, "acked": 2, "failed": 0, "dead": 1}
    total = (
        read_rollup(spark, str(tmp_path))
        .selectExpr("sum(pushed)", "sum(acked)", "min(queued_p99_ms)")
        .first()
    )
    assert total is not None
    assert (total[0], total[1]) == (9, 2)
    assert total[2] >= 0
    assert again["queues"] == 1


@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_rollup_of_a_second_queue_counts_it_and_leaves_the_first_alone(
    spark: SparkSession, shop: Shop, tmp_path: Path, format: str
) -> None:
    """The place in time and the minutes' folders were shared: 0 of 40 rows, and with --partial worse."""
    shop.push("one", range(40))
    shop.push("two", range(25))

    rollup(setting(shop), shop.name("one"), str(tmp_path), partial=True, format=format)
    second = rollup(setting(shop), shop.name("two"), str(tmp_path), partial=True)
    shop.push("one", range(40, 50))
    rollup(setting(shop), f"{shop.name('one')},{shop.name('two')}", str(tmp_path), partial=True)

    assert second["pushed"] == 25
    assert second["format"] == format
    rows = read_rollup(spark, str(tmp_path)).groupBy("queue").sum("pushed").collect()
    assert {row[0]: row[1] for row in rows} == {shop.name("one"): 50, shop.name("two"): 25}


def test_dead_letters_are_grouped_into_families(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    shop.push("q", range(4))
    fail_some(
        shop, "q", ["order 17 not found", "order 18 not found", "timeout after 3.5s at 10.0.0.1:80", None]
    )
    page = tmp_path / "report.html"

    found = dead_letters(setting(shop), shop.name("q"), lake=str(tmp_path / "lake"), html=str(page))

    families = {one["family"]: one["letters"] for one in found["families"]}  # type: ignore[attr-defined]
    assert families == {"order <n> not found": 2, "timeout after <n>s at <address>": 1}
    assert spark.read.parquet(str(tmp_path / "lake" / "_dead_letters")).count() == 3
    text = page.read_text()
    assert "order &lt;n&gt; not found" in text
    assert text.count("<svg") == 4
    assert not re.search(r"(src|href)=", text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "user 6f1c2d3e-0000-4000-8000-00000000000a is gone",
            "user 7f1c2d3e-1111-4000-8000-00000000000b is gone",
        ),
        ("no file /var/data/a.txt", "no file /tmp/b/c.txt"),
        ("bad value 'x y' for \"k\"", "bad value 'z' for \"other\""),
        ("mail to a.b@c.org  failed", "mail to d@e.net failed"),
        ("at 2026-05-01T10:00:00Z: 0xdeadbeef", "at 2026-06-02 11:01:00: 0x1"),
    ],
)
def test_errors_that_differ_in_particulars_are_one_family(spark: SparkSession, one: str, other: str) -> None:
    frame = spark.createDataFrame([(one,), (other,)], "error STRING").select(
        family_of("error").alias("family")
    )

    assert len({row.family for row in frame.collect()}) == 1


def test_replay_takes_what_sql_chooses_and_happens_once_under_a_name(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.push("q", range(30))
    where = "get_json_object(json, '$.kind') = 'k1' AND offset < 15"
    name, out = shop.name("q"), shop.name("again")

    counted = replay(setting(shop), queue=name, where=where, to=out, dry_run=True)
    for _ in range(2):
        replay(setting(shop), queue=name, where=where, to=out, write_id=shop.prefix)

    assert counted["matching"] == 5
    rows = shop.read(spark, "again").orderBy("offset").collect()
    assert [json.loads(bytes(row.payload))["id"] for row in rows] == [1, 4, 7, 10, 13]
    assert rows[0].headers["x-replayed-from"] == f"{name}@1"


def test_redrive_sends_chosen_dead_letters_home_and_takes_them_off_the_list(
    spark: SparkSession, shop: Shop
) -> None:
    shop.push("q", range(4))
    fail_some(shop, "q", ["timeout", "bad", "timeout", None])
    name = shop.name("q")

    dry = redrive(setting(shop), name, where="error = 'timeout'", dry_run=True)
    done = redrive(setting(shop), name, where="error = 'timeout'", rate=1000)

    assert dry["matching"] == 2
    assert (done["redriven"], done["already_gone"]) == (2, 0)
    assert shop.next_offset("q") == 6
    assert [row.error for row in shop.read(spark, "q$dlq").collect()] == ["bad"]


def test_a_run_tells_what_came_in_and_what_went_out(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """An open window writes nothing: that was reported as a success with so many rows."""
    shop.push("q", range(30))
    text = f"""
[sources.orders]
queue = "{shop.name("q")}"
payload_schema = "id BIGINT, kind STRING"
watermark = "created_at 1 hour"
[steps.totals]
sql = "SELECT window.start AS at, count(*) AS n FROM orders GROUP BY window(created_at, '1 minute')"
[steps.some]
sql = "SELECT id FROM orders WHERE kind = 'k1'"
[sinks.open]
from = "totals"
queue = "{shop.name("open")}"
[sinks.some]
from = "some"
lake = "{tmp_path / "table"}"
format = "delta"
"""

    done = run_pipeline(setting(shop), parse_pipeline(text, "p.toml"), str(tmp_path / "c"))
    again = run_pipeline(setting(shop), parse_pipeline(text, "p.toml"), str(tmp_path / "c"))

    sinks: dict[str, dict[str, object]] = done["sinks"]  # type: ignore[assignment]
    assert (sinks["open"]["rows_in"], sinks["open"]["rows_out"], sinks["open"]["lag"]) == (30, 0, 0)
    assert "nothing was written: a window stays open" in str(sinks["open"]["note"])
    assert (sinks["open"]["late_rows"], "watermark" in sinks["open"]) == (0, True)
    assert (sinks["some"]["rows_in"], sinks["some"]["rows_out"]) == (30, 10)
    assert again["sinks"]["some"]["rows_out"] == 0  # type: ignore[index]
    assert sorted(row.id for row in Lake(spark, str(tmp_path / "table")).frame().collect()) == [
        n for n in range(30) if n % 3 == 1
    ]


def test_check_resolves_the_columns_of_every_step(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    arguments = [
        "pipeline",
        "run",
        str(file),
        "--check",
        "--master",
        "local[2]",
        "--url",
        "http://127.0.0.1:9",
    ]
    file.write_text(GOOD)
    good = CliRunner().invoke(main, arguments)
    file.write_text(GOOD.replace("SELECT id FROM", "SELECT idd FROM"))
    wrong = CliRunner().invoke(main, arguments)

    assert json.loads(good.output)["sinks"] == {"out": ["payload"]}
    assert wrong.exit_code == 1
    assert "p.toml, line 6: steps.some.sql:" in wrong.output
    assert "idd" in wrong.output
    assert "Traceback" not in wrong.output


def test_progress_on_a_pipe_says_something_new_or_nothing() -> None:
    out = io.StringIO()
    progress = Progress(out)

    for _ in range(3):
        progress.say("archive: batch 1")
    progress.note("archive: stopping")

    assert out.getvalue().splitlines() == ["archive: batch 1", "archive: stopping"]


GOOD = """
[sources.orders]
queue = "orders"
payload_schema = "id BIGINT"
[steps.some]
sql = "SELECT id FROM orders"
[sinks.out]
from = "some"
queue = "out"
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('queue = "orders"', 'queue = "orders"\ncolour = "red"', "line 4: sources.orders.colour"),
        ('queue = "orders"', "queue_pattern = '('", "line 3: sources.orders.queue_pattern"),
        ('payload_schema = "id BIGINT"', 'payload_schema = "id"', "line 4: sources.orders.payload_schema"),
        ('payload_schema = "id BIGINT"', 'watermark = "soon"', "line 4: sources.orders.watermark"),
        ('sql = "SELECT id FROM orders"', 'sql = ""', "line 6: steps.some.sql"),
        ('from = "some"', 'from = "none"', "line 8: sinks.out.from"),
        ('from = "some"', 'mode = "sometimes"', "line 8: sinks.out.mode"),
        ('queue = "out"', "", "line 7: sinks.out: say where to"),
        ("[steps.some]", "[steps.orders]", "a source has this name already"),
        ("[sinks.out]", "[sinks.out", "line 7"),
    ],
)
def test_a_wrong_pipeline_file_is_refused_with_its_line(old: str, new: str, words: str) -> None:
    assert parse_pipeline(GOOD, "good.toml").sinks[0].queue == "out"

    with pytest.raises(PipelineFileError) as refusal:
        parse_pipeline(GOOD.replace(old, new), "bad.toml")

    assert words in str(refusal.value)


def test_the_commands_teach_themselves_and_the_doctor_finds_what_is_missing(shop: Shop) -> None:
    runner = CliRunner()
    for verb in ("archive", "table", "rollup", "dead-letters", "replay", "redrive", "run"):
        said = runner.invoke(main, ["pipeline", verb, "--help"])
        assert said.exit_code == 0
        assert "holt pipeline" in said.output or "[sources" in said.output

    healthy = runner.invoke(main, ["pipeline", "doctor", "--no-spark", "--json", "--url", shop.url])
    ill = runner.invoke(main, ["pipeline", "doctor", "--no-spark", "--json", "--url", "http://127.0.0.1:9"])

    assert healthy.exit_code == 0, healthy.output
    assert ill.exit_code == 1
    assert [one["what"] for one in json.loads(ill.output) if not one["good"]] == ["Broker"]


def test_a_job_that_fails_says_why_in_one_line(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    arguments = [
        "pipeline",
        "archive",
        "--url",
        shop.url,
        "--queue",
        shop.name("none"),
        "--lake",
        str(tmp_path),
    ]

    said = CliRunner().invoke(main, [*arguments, "--master", "local[2]"])

    assert said.exit_code == 1
    assert "does not exist" in said.output
    assert "Traceback" not in said.output
    with pytest.raises(BrokerRefused):
        archive(setting(shop), shop.name("none"), str(tmp_path))

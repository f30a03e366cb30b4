"""The guide pages are true: their commands parse, their files load, their programs run."""

import re
import shlex
from pathlib import Path

import click
import pytest
from lake_support import keep
from pyspark.sql import SparkSession
from spark_support import Shop

from holtmq.cli.pipeline import pipeline
from holtmq.spark.jobs.running import Setting
from holtmq.spark.jobs.service_file import load_jobs

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("lake.md", "pipeline-service.md", "pipeline.md")


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def commands(page: str) -> list[list[str]]:
    text = (DOCS / page).read_text().replace("\\\n", " ")
    lines = re.findall(r"^    holt pipeline (.+)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_page_exists_with_its_options(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("jobs.toml", "totals.toml"):
        (tmp_path / name).touch()
    found = commands(page)
    assert len(found) >= 2

    for verb, *words in found:
        command = pipeline.commands[verb]
        assert isinstance(command, click.Command)
        command.make_context(verb, list(words))  # refuses what it does not know


def test_the_service_of_the_page_is_a_good_one(tmp_path: Path) -> None:
    (text,) = blocks("pipeline-service.md", "toml")
    (tmp_path / "jobs.toml").write_text(text)
    (declared,) = blocks("pipeline.md", "toml")
    (tmp_path / "totals.toml").write_text(declared)

    jobs = load_jobs(tmp_path / "jobs.toml", Setting("http://127.0.0.1:6632"))

    assert [(job.name, job.kind, job.needs_spark) for job in jobs] == [
        ("keep-orders", "archive", False),
        ("figures", "rollup", True),
        ("totals", "run", True),
    ]


@pytest.mark.xdist_group("spark")
def test_the_programs_of_the_lakes_page_run(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    shop.push("q", range(20))
    keep(shop, "q", tmp_path / "lake")
    shop.push("q", range(20, 30))

    def here(text: str) -> str:
        text = text.replace("http://127.0.0.1:6632", shop.url).replace('"orders"', f'"{shop.name("q")}"')
        text = text.replace("queue 'orders'", f"queue '{shop.name('q')}'")
        return re.sub(r"(\./|/data/)lake", str(tmp_path / "lake"), text)

    (program,) = blocks("lake.md", "python")
    (sql,) = blocks("lake.md", "sql")
    names: dict[str, object] = {"spark": spark, "url": shop.url}
    exec(here(program), names)
    spark.sql(here(sql).strip().rstrip(";").replace("VIEW orders", "VIEW guide_orders"))

    assert names["history"].count() == 30  # type: ignore[attr-defined]
    assert names["stream"].isStreaming  # type: ignore[attr-defined]
    assert spark.sql("SELECT count(*) FROM guide_orders").first() == (30,)

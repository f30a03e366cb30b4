"""A project for Spark's Declarative Pipelines: queue, table, view, queue.

Owns: the files of a new project. Must not touch: Spark; ``spark-pipelines`` runs the project.

The source is named ``pyspark_holtmq`` there: Spark finds that module by its name, and a pipeline's code may
not register a source.
"""

import re
from pathlib import Path
from typing import Final

from holtmq.spark.errors import InvalidOption

_SPEC: Final = """\
name: {name}
storage: {storage}
configuration:
  spark.sql.shuffle.partitions: "4"
  spark.sql.session.timeZone: UTC
libraries:
  - glob:
      include: transformations/**
"""

_FLOW: Final = '''\
"""Queue {queue} -> table {table} -> view {table}_by_kind -> queue {target}."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

BROKER = {{
    "url": os.environ.get("HOLT_URL", "{url}"),
    "tlsCa": os.environ.get("HOLT_ADMIN_TLS_CA", "{tls_ca}"),  # empty: the system's authorities
    "tokenFile": os.environ.get("HOLT_TOKEN_FILE", ""),
}}

spark = SparkSession.active()


@dp.table(comment="Every message of queue {queue}, with the fields of its payload")
def {table}() -> DataFrame:
    return (
        spark.readStream.format("pyspark_holtmq")
        .options(**BROKER)
        .option("queue", "{queue}")
        .option("startingOffsets", "earliest")
        .option("payloadSchema", "id BIGINT, kind STRING, amount DOUBLE")
        .load()
        .select("id", "kind", "amount", "offset", "created_at")
    )


@dp.materialized_view(comment="Totals, made anew with each run")
def {table}_by_kind() -> DataFrame:
    rows = spark.read.table("{table}")
    return rows.groupBy("kind").agg(f.count("*").alias("orders"), f.sum("amount").alias("total"))


dp.create_sink("{sink}", "pyspark_holtmq", {{**BROKER, "queue": "{target}"}})


@dp.append_flow(target="{sink}")
def to_{sink}() -> DataFrame:
    large = spark.readStream.table("{table}").where("amount >= 100")
    payload = f.to_json(f.struct("id", "kind", "amount")).alias("payload")
    return large.select(payload, f.col("kind").alias("partition"))
'''

_CDC: Final = '''\
"""The newest state of each key, out of a queue of changes.

Auto CDC merges into its target, so the target needs a table format with MERGE: Delta Lake or Iceberg, with
its jars in spark.jars.packages. Move this file to transformations/ once your catalog has one.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

BROKER = {{
    "url": os.environ.get("HOLT_URL", "{url}"),
    "tlsCa": os.environ.get("HOLT_ADMIN_TLS_CA", "{tls_ca}"),
    "tokenFile": os.environ.get("HOLT_TOKEN_FILE", ""),
}}

spark = SparkSession.active()


@dp.temporary_view
def changes() -> DataFrame:
    return (
        spark.readStream.format("pyspark_holtmq")
        .options(**BROKER)
        .option("queue", "{queue}")
        .option("startingOffsets", "earliest")
        .option("payloadSchema", "id BIGINT, kind STRING, amount DOUBLE, deleted BOOLEAN")
        .load()
        .select("id", "kind", "amount", "deleted", "offset")
    )


dp.create_streaming_table("{table}_now", format="delta")

dp.create_auto_cdc_flow(
    target="{table}_now",
    source="changes",
    keys=["id"],
    sequence_by="offset",  # a queue numbers its messages: the order of changes is known
    apply_as_deletes="deleted",
    except_column_list=["deleted", "offset"],
)
'''

_README: Final = """\
# {name}

    pip install 'holtmq[pipelines]'              # here; the broker needs 'holtmq[arrow]'
    export HOLT_URL={url}
    holt pipeline doctor --url $HOLT_URL         # says what is missing
    export PYSPARK_PYTHON=$(which python)        # executors use the Python that has holtmq
    spark-pipelines dry-run                      # checks the graph
    spark-pipelines run                          # reads what is there, then ends

| | |
|---|---|
| `transformations/flow.py` | queue `{queue}` -> table `{table}` -> a view; rows -> queue `{target}` |
| `auto_cdc/changes.py` | the newest state of each key, for a catalog with Delta Lake or Iceberg |

Each run goes on where the last one stopped: offsets are in the pipeline's storage. The sink is exactly once.
A token goes into a file that `HOLT_TOKEN_FILE` names. For an https address whose authority the system does
not know, `HOLT_ADMIN_TLS_CA` names the authority's file.
"""


def create_project(folder: Path, url: str, queue: str, target: str, tls_ca: str = "") -> list[Path]:
    """Write a project into a folder that does not exist yet; return its files."""
    if folder.exists():
        raise InvalidOption(f"{folder} is there already; choose another name")
    table = _identifier(queue)
    sink = f"{_identifier(target)}_queue"
    names = {
        "name": folder.name,
        "storage": f"file://{(folder / 'storage').resolve()}",
        "url": url,
        "tls_ca": tls_ca,
        "queue": queue,
        "table": table,
        "target": target,
        "sink": sink,
    }
    for given in (url, queue, target, tls_ca):
        if '"' in given or "\\" in given or "\n" in given:
            raise InvalidOption(f"{given!r} cannot be written into a project: it has a quote or a backslash")
    texts = {
        "spark-pipeline.yml": _SPEC,
        "transformations/flow.py": _FLOW,
        "auto_cdc/changes.py": _CDC,
        "README.md": _README,
    }
    written = []
    for path, text in texts.items():
        target_file = folder / path
        target_file.parent.mkdir(parents=True, exist_ok=True)
        target_file.write_text(text.format(**names))
        written.append(target_file)
    (folder / "storage").mkdir()
    return written


def _identifier(name: str) -> str:
    """A queue's name as an identifier in Python and SQL."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if re.match(r"[A-Za-z_]", plain) else f"q_{plain}"

"""Queues as tables of Spark's catalog: ``CREATE TABLE … USING holtmq`` and a database of all queues.

Owns: how a table keeps its options, and the tables that ``register`` makes. Must not touch: reading, writing.

Spark 4 stores the options of ``CREATE TABLE`` and does not hand them to a Python source when the table is
read. What it does hand over is the table's columns with their comments. So the options travel in the comment
of the first column. A token would be readable there for everybody who may describe the table: it is refused,
and ``tokenFile`` names the file that has it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from holtmq.spark.client import BrokerClient
from holtmq.spark.ddl import quoted
from holtmq.spark.errors import InvalidOption
from holtmq.spark.options import Selection, source_options
from holtmq.spark.relations import Relation, split_relation
from holtmq.spark.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

DATABASE: Final = "holt"
_MARK: Final = "holtmq "
_OPTION: Final = "option."  # how Spark names a table's options, beside properties of its own


def table_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a CREATE TABLE that is under way; None for any other read."""
    if "provider" not in given or "owner" not in given:
        return None
    return {name.removeprefix(_OPTION): value for name, value in given.items() if name.startswith(_OPTION)}


def comment_of(options: Mapping[str, str]) -> str:
    """The comment that keeps a table's options."""
    for name in options:
        if name.lower() in ("token", "password"):
            raise InvalidOption(
                f"option {name}: whoever may describe the table could read it there; "
                f"put it into a file on the driver and the executors and give {name.lower()}File"
            )
    return _MARK + json.dumps(dict(options), sort_keys=True)


def options_of(schema: "StructType") -> dict[str, str]:
    """The options a table of these columns was made with; none for what is not our table."""
    for column in schema.fields[:1]:
        comment = str(column.metadata.get("comment", ""))
        if comment.startswith(_MARK):
            return {str(name): str(value) for name, value in json.loads(comment[len(_MARK) :]).items()}
    return {}


def with_comment(ddl: str, comment: str) -> str:
    """The columns of a relation, the comment on the first one."""
    first, comma, rest = ddl.partition(", ")
    return f"{first} COMMENT {literal(comment)}{comma}{rest}"


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def create_tables(
    spark: "SparkSession", url: str, database: str = DATABASE, pattern: str = "", **options: str
) -> dict[str, str]:
    """A table for every queue, its dead letters and its deliveries; the relation behind each name.

    Called again, it adds tables of new queues and drops those of queues that are gone. Tables that are not
    of this source are left alone.
    """
    given = {"url": url, **options}
    comment_of(given)
    with BrokerClient(source_options({**given, "queue": "-"}, streaming=None).connection) as broker:
        queues = [head.name for head in broker.heads(Selection(pattern=pattern or ".*"))]
    where = quoted(database)
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {where}")
    theirs = set()
    for row in spark.sql(f"SHOW TABLES IN {where}").collect():
        if row["isTemporary"]:
            continue
        name = f"{where}.{quoted(row['tableName'])}"
        if options_of(spark.table(name).schema):
            spark.sql(f"DROP TABLE {name}")
        else:
            theirs.add(str(row["tableName"]).lower())
    made: dict[str, str] = {}
    for name, relation in _names(queues, theirs):
        comment = comment_of({**given, "queue": relation})
        columns = ", ".join(f"{quoted(c)} {kind}" for c, kind in COLUMNS[split_relation(relation)[1]].items())
        spark.sql(f"CREATE TABLE {where}.{quoted(name)} ({with_comment(columns, comment)}) USING holtmq")
        made[name] = relation
    return made


def _names(queues: Iterable[str], taken: set[str]) -> Iterator[tuple[str, str]]:
    """Table names: letters, digits, underscores, without regard to case. Queues choose before relations."""
    relations = [(queue, queue) for queue in sorted(queues)]
    for side in (Relation.DEAD_LETTERS, Relation.DELIVERIES):
        relations += [(f"{queue}_{side.value}", f"{queue}${side.value}") for queue in sorted(queues)]
    for wanted, relation in relations:
        name = plain = re.sub(r"\W", "_", wanted, flags=re.ASCII)
        number = 1
        while name.lower() in taken:
            number += 1
            name = f"{plain}_{number}"
        taken.add(name.lower())
        yield name, relation

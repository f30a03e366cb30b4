"""Queues as tables of Spark's catalog: ``CREATE TABLE … USING holtmq`` and a database of all queues.

Owns: how a table stores its options, and the tables that ``register`` creates. Must not touch: rows.

Spark 4 stores the options of ``CREATE TABLE`` and does not pass them to a Python source when the table is
read. It does pass the table's columns with their comments, so the options are stored in the comment of the
first column. Every user who may describe the table could read a token there: it is refused, and
``tokenFile`` names a file that contains it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
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
_OPTION: Final = "option."  # Spark's prefix for a table's options, next to its own properties


def table_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options of the CREATE TABLE being executed; None for any other read."""
    if "provider" not in given or "owner" not in given:
        return None
    return {name.removeprefix(_OPTION): value for name, value in given.items() if name.startswith(_OPTION)}


def comment_of(options: Mapping[str, str]) -> str:
    """The comment that stores a table's options."""
    for name in options:
        if name.lower() in ("token", "password"):
            raise InvalidOption(
                f"option {name}: users who may describe the table could read it there; "
                f"put it into a file on the driver and the executors and give {name.lower()}File"
            )
    return _MARK + json.dumps(dict(options), sort_keys=True)


def options_of(schema: "StructType") -> dict[str, str]:
    """The options a table with these columns was created with; empty if it is not our table."""
    for column in schema.fields[:1]:
        comment = str(column.metadata.get("comment", ""))
        if comment.startswith(_MARK):
            return {str(name): str(value) for name, value in json.loads(comment[len(_MARK) :]).items()}
    return {}


def with_comment(ddl: str, comment: str) -> str:
    """The columns of a relation, with the comment on the first one."""
    first, comma, rest = ddl.partition(", ")
    return f"{first} COMMENT {literal(comment)}{comma}{rest}"


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def create_tables(
    spark: "SparkSession", url: str, database: str = DATABASE, pattern: str = "", **options: str
) -> dict[str, str]:
    """Create a table for every queue, its dead letters and its deliveries; return the relation of each name.

    A repeated call adds tables for new queues and drops those of deleted queues. Tables of other sources are
    left alone.
    """
    given = {"url": url, **options}
    comment_of(given)
    with BrokerClient(source_options({**given, "queue": "-"}, streaming=None).connection) as broker:
        heads = broker.heads(Selection(pattern=pattern or ".*"))
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
    by_age = sorted(heads, key=lambda head: head.number)
    for name, relation in _names([head.name for head in by_age], theirs):
        comment = comment_of({**given, **_selected(relation)})
        columns = ", ".join(f"{quoted(c)} {kind}" for c, kind in COLUMNS[split_relation(relation)[1]].items())
        spark.sql(f"CREATE TABLE {where}.{quoted(name)} ({with_comment(columns, comment)}) USING holtmq")
        made[name] = relation
    return made


def _selected(relation: str) -> dict[str, str]:
    """The option that selects it: a comma in ``queue`` separates two names."""
    return {"queuePattern": re.escape(relation)} if "," in relation else {"queue": relation}


def _names(queues: Sequence[str], taken: set[str]) -> Iterator[tuple[str, str]]:
    """Unique table names: letters, digits, underscores, ignoring case. Queues come before other relations.

    A queue whose own name can be a table's gets it. Among the others the older queue comes first: a new queue
    must not change which one an existing table name means.
    """
    fit = [queue for queue in queues if _fit(queue) == queue]
    relations = [(queue, queue) for queue in [*fit, *(queue for queue in queues if _fit(queue) != queue)]]
    for kind in (Relation.DEAD_LETTERS, Relation.DELIVERIES):
        # Only a pattern selects a queue with a comma in its name, and a pattern selects messages.
        relations += [
            (f"{queue}_{kind.value}", f"{queue}${kind.value}")
            for _, queue in relations[: len(queues)]
            if "," not in queue
        ]
    for wanted, relation in relations:
        name = plain = _fit(wanted)
        number = 1
        while name.lower() in taken:
            number += 1
            name = f"{plain}_{number}"
        taken.add(name.lower())
        yield name, relation


def _fit(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII)

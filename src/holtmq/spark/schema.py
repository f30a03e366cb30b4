"""Columns of each relation, as Spark DDL and as what the broker is asked for.

Owns: names, types and order; the split of a payload schema into its fields; projection. Must not touch:
rows, the broker. DDL stays text here: pyspark parses DDL only where a session lives, and readers run where
there is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holtmq.spark.errors import InvalidOption, UnfitSchema
from holtmq.spark.options import SourceOptions
from holtmq.spark.relations import Relation

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

CORRUPT: Final = "_corrupt"
PAYLOAD: Final = "payload"
_MESSAGE: Final = {
    "queue": "STRING",
    "partition": "STRING",
    "offset": "BIGINT",
    "message_id": "STRING",
    "transaction_id": "STRING",
    "trace_id": "STRING",
    "created_at": "TIMESTAMP",
    "headers": "MAP<STRING, STRING>",
    "payload": "BINARY",
    "exchange": "STRING",
    "routing_key": "STRING",
    "content_type": "STRING",
    "priority": "INT",
    "properties": "MAP<STRING, STRING>",
}
_LETTER: Final = {
    **_MESSAGE,
    "letter_id": "BIGINT",
    "group": "STRING",
    "error": "STRING",
    "attempts": "INT",
    "first_failed_at": "TIMESTAMP",
    "last_failed_at": "TIMESTAMP",
}
_DELIVERY: Final = {
    "queue": "STRING",
    "partition": "STRING",
    "offset": "BIGINT",
    "created_at": "TIMESTAMP",
    "group": "STRING",
    "attempt": "INT",
    "delivered_at": "TIMESTAMP",
    "settled_at": "TIMESTAMP",
    "outcome": "STRING",
    "error": "STRING",
}
COLUMNS: Final = {Relation.MESSAGES: _MESSAGE, Relation.DEAD_LETTERS: _LETTER, Relation.DELIVERIES: _DELIVERY}


@dataclass(frozen=True, slots=True)
class Layout:
    """What a row of this read looks like: ``names`` in order, ``typed`` of them out of the payload."""

    names: tuple[str, ...]
    typed: tuple[str, ...] = ()

    @property
    def fetched(self) -> tuple[str, ...]:
        """What the broker has to send; the payload when fields are taken from it."""
        plain = [name for name in self.names if name not in self.typed and name != CORRUPT]
        if (self.typed or CORRUPT in self.names) and PAYLOAD not in plain:
            plain.append(PAYLOAD)
        return tuple(plain)


def source_ddl(options: SourceOptions) -> str:
    """The schema of a read as DDL."""
    fields = dict(COLUMNS[options.relation])
    if options.payload_schema:
        typed = split_ddl(options.payload_schema)
        clash = sorted((fields.keys() - {PAYLOAD}) & typed.keys())
        if clash and not options.columns:
            raise InvalidOption(
                f"option payloadSchema: {', '.join(clash)} is also a column of the message; "
                "rename it in the payload, or read the payload as it is and use from_json"
            )
        if clash:
            raise InvalidOption(f"option payloadSchema: {', '.join(clash)} is also a column of the message")
        if not options.columns and PAYLOAD not in typed:
            del fields[PAYLOAD]
        fields |= typed
        fields[CORRUPT] = "STRING"
    if options.columns:
        unknown = [name for name in options.columns if name not in fields]
        if unknown:
            raise InvalidOption(f"option columns: no column {unknown[0]!r}; there are {', '.join(fields)}")
        fields = {name: fields[name] for name in options.columns}
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in fields.items())


def layout(options: SourceOptions, schema: "StructType") -> Layout:
    """How to make rows of the schema Spark settled on: ours, or one the user gave."""
    typed = split_ddl(options.payload_schema).keys() if options.payload_schema else ()
    known = {*COLUMNS[options.relation], *typed, *((CORRUPT,) if typed else ())}
    names = tuple(schema.fieldNames())
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UnfitSchema(
            f"there is no column {unknown[0]!r} to read; there are {', '.join(sorted(known))}. "
            "Fields of a JSON payload are declared with the option payloadSchema"
        )
    return Layout(names, tuple(name for name in names if name in typed))


def split_ddl(ddl: str) -> dict[str, str]:
    """Top-level fields of a DDL string, name to type, in order. Types are Spark's business."""
    fields: dict[str, str] = {}
    for part in _top_level(ddl):
        name, kind = _field(part)
        if not name or not kind:
            raise InvalidOption(
                f"option payloadSchema: {part.strip()!r} is not a field such as 'amount DOUBLE'"
            )
        if name in fields:
            raise InvalidOption(f"option payloadSchema: field {name!r} twice")
        fields[name] = kind
    return fields


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _top_level(ddl: str) -> Sequence[str]:
    parts, depth, start, in_name = [], 0, 0, False
    for place, char in enumerate(ddl):
        if char == "`":
            in_name = not in_name
        elif in_name:
            continue
        elif char in "<(":
            depth += 1
        elif char in ">)":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(ddl[start:place])
            start = place + 1
    return [*parts, ddl[start:]]


def _field(part: str) -> tuple[str, str]:
    part = part.strip()
    if part.startswith("`"):
        end = part.find("`", 1)
        while end >= 0 and part[end : end + 2] == "``":
            end = part.find("`", end + 2)
        return (part[1:end].replace("``", "`"), part[end + 1 :].strip(" :")) if end > 0 else ("", "")
    name, _, kind = part.partition(":") if ":" in part.split("<")[0].split(" ")[0] else part.partition(" ")
    return name.strip(), kind.strip()

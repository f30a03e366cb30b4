"""Columns of each relation, as Spark DDL and as requested from the broker.

Owns: names, types and order; projection. Must not touch: rows, the broker.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holtmq.spark.ddl import quoted
from holtmq.spark.errors import InvalidOption, UnfitSchema
from holtmq.spark.options import PayloadFormat, PayloadOptions, SourceOptions
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
    """The columns of this read: ``names`` in order, ``typed`` of them from the payload."""

    names: tuple[str, ...]
    typed: tuple[str, ...] = ()

    @property
    def fetched(self) -> tuple[str, ...]:
        """Columns the broker must send, with the payload when fields are taken from it."""
        plain = [name for name in self.names if name not in self.typed and name != CORRUPT]
        if (self.typed or CORRUPT in self.names) and PAYLOAD not in plain:
            plain.append(PAYLOAD)
        return tuple(plain)


def source_ddl(options: SourceOptions) -> str:
    """The schema of a read as DDL."""
    fields = dict(COLUMNS[options.relation])
    typed = payload_fields(options.payload)
    if typed:
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
        fields[CORRUPT] = "STRING" if options.payload.format is PayloadFormat.JSON else "BINARY"
    if options.columns:
        unknown = [name for name in options.columns if name not in fields]
        if unknown:
            raise InvalidOption(f"option columns: no column {unknown[0]!r}; there are {', '.join(fields)}")
        fields = {name: fields[name] for name in options.columns}
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in fields.items())


def payload_fields(options: PayloadOptions) -> dict[str, str]:
    """The columns decoded from the payload; none where it is left as it is."""
    from holtmq.spark.payload_formats import payload_decoder

    decoder = payload_decoder(options)
    return {} if decoder is None else decoder.fields()


def layout(options: SourceOptions, schema: "StructType") -> Layout:
    """The layout for the schema Spark chose: ours, or one the user gave."""
    typed = payload_fields(options.payload).keys()
    known = {*COLUMNS[options.relation], *typed, *((CORRUPT,) if typed else ())}
    names = tuple(schema.fieldNames())
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UnfitSchema(
            f"there is no column {unknown[0]!r} to read; there are {', '.join(sorted(known))}. "
            "Fields of a payload are declared with the option payloadSchema or payloadSchemaFile"
        )
    return Layout(names, tuple(name for name in names if name in typed))

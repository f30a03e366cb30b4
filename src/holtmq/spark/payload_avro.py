"""Avro payloads: one record each in Avro's binary encoding, without a header.

Owns: the mapping of Avro's types to Spark's, and decoding. Must not touch: the broker, Spark. Needs
``fastavro`` (``holtmq[avro]``).
"""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from holtmq.spark.ddl import quoted
from holtmq.spark.errors import InvalidOption
from holtmq.spark.payload_rows import rows_as_columns

_PLAIN: Final = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "string": "STRING",
    "enum": "STRING",
    "fixed": "BINARY",
}
_LOGICAL: Final = {
    "date": "DATE",
    "timestamp-millis": "TIMESTAMP",
    "timestamp-micros": "TIMESTAMP",
    "local-timestamp-millis": "TIMESTAMP_NTZ",
    "local-timestamp-micros": "TIMESTAMP_NTZ",
}


class AvroDecoder:
    """Decodes records of one schema (the text of an ``.avsc`` file)."""

    def __init__(self, text: str) -> None:
        try:
            import fastavro.schema
        except ImportError:
            raise InvalidOption("payloadFormat avro: pip install 'holtmq[avro]'") from None
        try:
            parsed = fastavro.schema.parse_schema(json.loads(text))
        except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
            raise InvalidOption(f"option payloadSchemaFile: not an Avro schema: {error}") from None
        except fastavro.schema.UnknownType as error:
            raise InvalidOption(f"option payloadSchemaFile: unknown Avro type {error}") from None
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise InvalidOption("option payloadSchemaFile: the Avro schema must be a record")
        self._schema = parsed
        self._names: dict[str, Mapping[str, object]] = {}

    def fields(self) -> dict[str, str]:
        self._names = {}
        return self._fields(self._schema, ())

    def check(self, schema: pa.Schema) -> None:
        """Every type that ``fields`` returns is supported."""

    def decode(self, payloads: Sequence[bytes | None], schema: pa.Schema) -> tuple[pa.Table, pa.Array]:
        from fastavro import schemaless_reader

        def one(payload: bytes) -> Mapping[str, object]:
            stream = io.BytesIO(payload)
            row = schemaless_reader(stream, self._schema, None)
            if stream.tell() < len(payload) or not isinstance(row, dict):
                raise ValueError("there is more behind the record")
            return row

        # What fastavro raises on bytes that do not match the schema, depending on where its reader fails.
        unfit = (ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, StopIteration)
        return rows_as_columns(payloads, schema, one, unfit)

    def _fields(self, record: Mapping[str, object], inside: tuple[str, ...]) -> dict[str, str]:
        name = str(record["name"])
        if name in inside:
            raise InvalidOption(f"option payloadSchemaFile: {name} contains itself; Spark has no such type")
        self._names[name] = record
        fields = record["fields"]
        assert isinstance(fields, list)
        return {str(field["name"]): self._type(field["type"], (*inside, name)) for field in fields}

    def _type(self, kind: object, inside: tuple[str, ...]) -> str:
        if isinstance(kind, list):
            real = [one for one in kind if one != "null"]
            if len(real) != 1:
                raise InvalidOption(
                    f"option payloadSchemaFile: a union of {len(real)} types; Spark has a column of one type"
                )
            return self._type(real[0], inside)
        if isinstance(kind, str):
            if kind in _PLAIN:
                return _PLAIN[kind]
            if kind in self._names:
                return self._type(self._names[kind], inside)
            raise InvalidOption(f"option payloadSchemaFile: Avro type {kind!r} has no counterpart in Spark")
        assert isinstance(kind, dict)
        if "name" in kind:
            self._names[str(kind["name"])] = kind
        if kind.get("logicalType") == "decimal":
            return f"DECIMAL({kind['precision']}, {kind.get('scale', 0)})"
        if kind.get("logicalType") in _LOGICAL:
            return _LOGICAL[str(kind["logicalType"])]
        match kind["type"]:
            case "record":
                inner = self._fields(kind, inside)
                return f"STRUCT<{', '.join(f'{quoted(name)}: {of}' for name, of in inner.items())}>"
            case "array":
                return f"ARRAY<{self._type(kind['items'], inside)}>"
            case "map":
                return f"MAP<STRING, {self._type(kind['values'], inside)}>"
            case other:
                return self._type(other, inside)

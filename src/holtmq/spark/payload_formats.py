"""How payloads become columns: JSON by a DDL string, Avro and Protobuf by a schema file.

Owns: the choice of the format, and reading the schema file once, on the driver: executors need no file.
Must not touch: the broker, Spark.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from holtmq.spark import payloads
from holtmq.spark.ddl import split_ddl
from holtmq.spark.errors import InvalidOption
from holtmq.spark.options import PayloadFormat, PayloadOptions


class PayloadDecoder(Protocol):
    """Created on the driver, pickled to executors."""

    def fields(self) -> dict[str, str]:
        """Columns and their types in Spark's DDL."""

    def check(self, schema: pa.Schema) -> None:
        """Refuse unsupported types before the first batch."""

    def decode(self, payloads: Sequence[bytes | None], schema: pa.Schema) -> tuple[pa.Table, pa.Array]:
        """A row for each payload, all null where it does not fit, and a column with those that do not."""


def payload_decoder(options: PayloadOptions) -> PayloadDecoder | None:
    """The decoder for these options; None where payloads are left as they are."""
    if options.format is PayloadFormat.JSON:
        return JsonDecoder(options.ddl) if options.ddl else None
    try:
        definition = Path(options.schema_file).read_bytes()
    except OSError as error:
        raise InvalidOption(f"option payloadSchemaFile: {error}") from None
    if options.format is PayloadFormat.AVRO:
        from holtmq.spark.payload_avro import AvroDecoder

        return AvroDecoder(definition.decode("utf-8", "replace"))
    from holtmq.spark.payload_protobuf import ProtobufDecoder

    return ProtobufDecoder(definition, options.message)


class JsonDecoder:
    """Decodes fields of JSON objects."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl

    def fields(self) -> dict[str, str]:
        return split_ddl(self._ddl)

    def check(self, schema: pa.Schema) -> None:
        payloads.check_schema(schema)

    def decode(self, values: Sequence[bytes | None], schema: pa.Schema) -> tuple[pa.Table, pa.Array]:
        return payloads.typed_columns(values, schema)

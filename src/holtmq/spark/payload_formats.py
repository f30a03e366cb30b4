"""How payloads become columns: JSON by a DDL string, Avro and Protobuf by a schema file.

Owns: the choice of the format, and the reading of the schema file, once, on the driver: executors need no
file. Must not touch: the broker, Spark.
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
    """Made on the driver, pickled to executors."""

    def fields(self) -> dict[str, str]:
        """Columns and their types, as Spark writes them."""

    def check(self, schema: pa.Schema) -> None:
        """Refuse types that cannot be made, before the first batch does."""

    def decode(self, payloads: Sequence[bytes | None], schema: pa.Schema) -> tuple[pa.Table, pa.Array]:
        """A row for each payload, all null where it does not fit, and the column that has those."""


def payload_decoder(options: PayloadOptions) -> PayloadDecoder | None:
    """What makes columns of payloads; None where they are left as they are."""
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
    """Fields of JSON objects."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl

    def fields(self) -> dict[str, str]:
        return split_ddl(self._ddl)

    def check(self, schema: pa.Schema) -> None:
        payloads.check_schema(schema)

    def decode(self, values: Sequence[bytes | None], schema: pa.Schema) -> tuple[pa.Table, pa.Array]:
        return payloads.typed_columns(values, schema)

"""Protobuf payloads: one message each.

Owns: the mapping of Protobuf's types to Spark's, and decoding. Must not touch: the broker, Spark. The schema
is a descriptor set: ``protoc --include_imports --descriptor_set_out=orders.desc orders.proto`` writes one.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from holtmq.spark.ddl import quoted
from holtmq.spark.errors import InvalidOption
from holtmq.spark.payload_rows import rows_as_columns

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

_TIMESTAMP: Final = "google.protobuf.Timestamp"
# By the numbers of Protobuf's C++ types, as in its descriptors.
_PLAIN: Final = {
    1: "INT",
    2: "BIGINT",
    3: "BIGINT",  # uint32 does not fit INT
    4: "DECIMAL(20, 0)",  # uint64 does not fit BIGINT
    5: "DOUBLE",
    6: "FLOAT",
    7: "BOOLEAN",
    8: "STRING",  # an enum, by name
}
_CPP_ENUM: Final = 8
_CPP_STRING: Final = 9
_CPP_MESSAGE: Final = 10
_TYPE_BYTES: Final = 12


class ProtobufDecoder:
    """Decodes messages of one type from a descriptor set."""

    def __init__(self, definition: bytes, message: str) -> None:
        self._definition = definition
        self._message = message
        self._descriptor()  # raises if they are invalid

    def fields(self) -> dict[str, str]:
        return self._fields(self._descriptor(), ())

    def check(self, schema: pa.Schema) -> None:
        """Every type that ``fields`` returns is supported."""

    def decode(self, payloads: Sequence[bytes | None], schema: pa.Schema) -> tuple[pa.Table, pa.Array]:
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        kind = GetMessageClass(self._descriptor())

        def one(payload: bytes) -> Mapping[str, object]:
            return _values(kind.FromString(payload))

        return rows_as_columns(payloads, schema, one, (DecodeError, ValueError))

    def _descriptor(self) -> "Descriptor":
        from google.protobuf import descriptor_pb2, descriptor_pool
        from google.protobuf.message import DecodeError

        pool = descriptor_pool.DescriptorPool()
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(self._definition).file
            for one in files:
                pool.Add(one)
        except (DecodeError, TypeError) as error:
            raise InvalidOption(
                f"option payloadSchemaFile: not a descriptor set ({error}); make one with "
                "protoc --include_imports --descriptor_set_out=FILE"
            ) from None
        names = [f"{one.package}.{m.name}".lstrip(".") for one in files for m in one.message_type]
        try:
            return pool.FindMessageTypeByName(self._message)
        except KeyError:
            raise InvalidOption(
                f"option payloadMessage: there is no message {self._message!r}; there are {', '.join(names)}"
            ) from None

    def _fields(self, kind: "Descriptor", inside: tuple[str, ...]) -> dict[str, str]:
        if kind.full_name in inside:
            raise InvalidOption(
                f"option payloadSchemaFile: {kind.full_name} contains itself; Spark has no such type"
            )
        return {field.name: self._type(field, (*inside, kind.full_name)) for field in kind.fields}

    def _type(self, field: "FieldDescriptor", inside: tuple[str, ...]) -> str:
        if _is_map(field):
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            return f"MAP<{self._single(key, inside)}, {self._single(value, inside)}>"
        single = self._single(field, inside)
        return f"ARRAY<{single}>" if field.is_repeated else single

    def _single(self, field: "FieldDescriptor", inside: tuple[str, ...]) -> str:
        if field.cpp_type == _CPP_STRING:
            return "BINARY" if field.type == _TYPE_BYTES else "STRING"
        if field.cpp_type != _CPP_MESSAGE:
            return _PLAIN[field.cpp_type]
        if field.message_type.full_name == _TIMESTAMP:
            return "TIMESTAMP"
        inner = self._fields(field.message_type, inside)
        return f"STRUCT<{', '.join(f'{quoted(name)}: {of}' for name, of in inner.items())}>"


def _values(message: "Message") -> dict[str, object]:
    """Fields by name; null for an optional field that is absent."""
    return {
        field.name: None
        if field.has_presence and not message.HasField(field.name)
        else _value(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
    }


def _value(field: "FieldDescriptor", value: object) -> object:
    if _is_map(field):
        of = field.message_type.fields_by_name["value"]
        return [(key, _single_value(of, one)) for key, one in value.items()]  # type: ignore[attr-defined]
    if field.is_repeated:
        return [_single_value(field, one) for one in value]  # type: ignore[attr-defined]
    return _single_value(field, value)


def _single_value(field: "FieldDescriptor", value: object) -> object:
    if field.cpp_type == _CPP_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    if field.cpp_type != _CPP_MESSAGE:
        return value
    if field.message_type.full_name == _TIMESTAMP:
        return value.ToMicroseconds()  # type: ignore[attr-defined]
    return _values(value)


def _is_map(field: "FieldDescriptor") -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)

"""Avro and Protobuf payloads as columns, by a schema file."""

import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from pyspark.sql import SparkSession
from spark_support import Shop

from holtmq.spark.errors import InvalidOption
from holtmq.spark.options import PayloadFormat, PayloadOptions, source_options
from holtmq.spark.payload_formats import payload_decoder
from holtmq.spark.schema import source_ddl

pytestmark = pytest.mark.xdist_group("spark")

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["book", "pen"]}},
        {"name": "other", "type": ["null", "Kind"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {
            "name": "buyer",
            "type": {"type": "record", "name": "Buyer", "fields": [{"name": "name", "type": "string"}]},
        },
    ],
}
RECORD = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": %s}]}'
ROW = {
    "id": 7,
    "note": None,
    "kind": "pen",
    "other": "book",
    "at": datetime(2026, 5, 1, 12, tzinfo=UTC),
    "day": date(2026, 5, 1),
    "price": Decimal("12.50"),
    "tags": ["a", "b"],
    "counts": {"x": 1},
    "buyer": {"name": "ann"},
}


def avro_bytes(row: dict[str, object]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(ORDER), row)
    return out.getvalue()


@pytest.fixture
def avsc(tmp_path: Path) -> str:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(ORDER))
    return str(path)


@pytest.fixture
def descriptor_set(tmp_path: Path) -> str:
    path = tmp_path / "orders.desc"
    path.write_bytes(_files().SerializeToString())
    return str(path)


def _files() -> descriptor_pb2.FileDescriptorSet:
    """What protoc writes for message shop.Order, with an enum, a map, a time and a nested message."""
    kinds = descriptor_pb2.FieldDescriptorProto
    one = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    one.dependency.append("google/protobuf/timestamp.proto")
    color = one.enum_type.add(name="Color")
    color.value.add(name="RED", number=0)
    color.value.add(name="BLUE", number=1)
    order = one.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=kinds.TYPE_UINT64, label=1)
    order.field.add(name="color", number=2, type=kinds.TYPE_ENUM, type_name=".shop.Color", label=1)
    order.field.add(name="tags", number=3, type=kinds.TYPE_STRING, label=3)
    stamp = ".google.protobuf.Timestamp"
    order.field.add(name="at", number=4, type=kinds.TYPE_MESSAGE, type_name=stamp, label=1)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT32, label=1)
    counts = ".shop.Order.CountsEntry"
    order.field.add(name="counts", number=5, type=kinds.TYPE_MESSAGE, type_name=counts, label=3)
    order.field.add(name="raw", number=6, type=kinds.TYPE_BYTES, label=1)
    time = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(time)
    return descriptor_pb2.FileDescriptorSet(file=[time, one])


def protobuf_bytes() -> bytes:
    pool = descriptor_pool.DescriptorPool()
    for one in _files().file:
        pool.Add(one)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(
        id=2**64 - 1, color=1, tags=["a"], counts={"x": 2}, raw=b"\xff"
    )
    order.at.FromMicroseconds(1_000_001)
    return bytes(order.SerializeToString())


def test_avro_types_are_sparks_and_what_does_not_fit_is_kept(avsc: str) -> None:
    decoder = payload_decoder(PayloadOptions(PayloadFormat.AVRO, schema_file=avsc))
    assert decoder is not None
    good = avro_bytes(ROW)  # type: ignore[arg-type]

    decoder = pickle.loads(pickle.dumps(decoder))
    schema = pa.schema(
        [("id", pa.int64()), ("kind", pa.string()), ("buyer", pa.struct([("name", pa.string())]))]
    )
    table, corrupt = decoder.decode([good, good[:-3], good + b"\0", b"", None], schema)

    assert decoder.fields() == {
        "id": "BIGINT",
        "note": "STRING",
        "kind": "STRING",
        "other": "STRING",
        "at": "TIMESTAMP",
        "day": "DATE",
        "price": "DECIMAL(8, 2)",
        "tags": "ARRAY<STRING>",
        "counts": "MAP<STRING, INT>",
        "buyer": "STRUCT<`name`: STRING>",
    }
    assert table.to_pylist()[0] == {"id": 7, "kind": "pen", "buyer": {"name": "ann"}}
    assert table["id"].to_pylist() == [7, None, None, None, None]
    assert corrupt.to_pylist() == [None, good[:-3], good + b"\0", b"", None]


def test_protobuf_types_are_sparks_and_what_does_not_fit_is_kept(descriptor_set: str) -> None:
    options = PayloadOptions(PayloadFormat.PROTOBUF, schema_file=descriptor_set, message="shop.Order")
    decoder = payload_decoder(options)
    assert decoder is not None

    decoder = pickle.loads(pickle.dumps(decoder))
    schema = pa.schema(
        [
            ("id", pa.decimal128(20, 0)),
            ("color", pa.string()),
            ("tags", pa.list_(pa.string())),
            ("at", pa.timestamp("us", "UTC")),
            ("counts", pa.map_(pa.string(), pa.int32())),
            ("raw", pa.binary()),
        ]
    )
    table, corrupt = decoder.decode([protobuf_bytes(), b"\x0a\xff", b""], schema)

    assert list(decoder.fields().values()) == [
        "DECIMAL(20, 0)",
        "STRING",
        "ARRAY<STRING>",
        "TIMESTAMP",
        "MAP<STRING, INT>",
        "BINARY",
    ]
    first, second, third = table.to_pylist()
    assert first == {
        "id": Decimal(2**64 - 1),
        "color": "BLUE",
        "tags": ["a"],
        "at": datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC),
        "counts": [("x", 2)],
        "raw": b"\xff",
    }
    assert (second["id"], third["color"], third["at"]) == (None, "RED", None)
    assert corrupt.to_pylist() == [None, b"\x0a\xff", None]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"payloadFormat": "xml"}, "json, avro or protobuf"),
        ({"payloadFormat": "avro"}, "needs payloadSchemaFile"),
        ({"payloadFormat": "avro", "payloadSchemaFile": "/none.avsc"}, "No such file"),
        ({"payloadSchemaFile": "x"}, "goes with payloadFormat"),
        ({"payloadFormat": "avro", "payloadSchemaFile": "x", "payloadSchema": "a INT"}, "it is for JSON"),
        ({"payloadFormat": "protobuf", "payloadSchemaFile": "x"}, "go together"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        source_ddl(source_options({"queue": "q", **options}, streaming=False))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json", "not an Avro schema"),
        ('"string"', "must be a record"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Nope"}]}', "Avro"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}',
            "union of 2",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}',
            "contains itself",
        ),
    ],
)
def test_a_schema_spark_cannot_have_is_refused_with_the_reason(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.avsc"
    path.write_text(text)
    options = {"queue": "q", "payloadFormat": "avro", "payloadSchemaFile": str(path)}

    with pytest.raises(InvalidOption, match=words):
        source_ddl(source_options(options, streaming=False))


def test_a_message_that_is_not_in_the_file_is_refused_with_those_that_are(descriptor_set: str) -> None:
    options = PayloadOptions(PayloadFormat.PROTOBUF, schema_file=descriptor_set, message="shop.Invoice")

    with pytest.raises(InvalidOption, match=r"there are .*shop\.Order"):
        payload_decoder(options)


def test_both_arrive_in_spark(spark: SparkSession, shop: Shop, avsc: str, descriptor_set: str) -> None:
    rows = [(bytearray(avro_bytes({**ROW, "id": n})),) for n in range(3)] + [(bytearray(b"junk"),)]
    target = {"url": shop.url, "queue": shop.name("avro")}
    spark.createDataFrame(rows, "payload BINARY").write.format("holtmq").mode("append").options(
        **target
    ).save()
    target = {"url": shop.url, "queue": shop.name("proto")}
    one = spark.createDataFrame([(bytearray(protobuf_bytes()),)], "payload BINARY")
    one.write.format("holtmq").mode("append").options(**target).save()

    avro = shop.read(spark, "avro", payloadFormat="avro", payloadSchemaFile=avsc)
    proto = shop.read(
        spark,
        "proto",
        payloadFormat="protobuf",
        payloadSchemaFile=descriptor_set,
        payloadMessage="shop.Order",
    )

    total = avro.selectExpr("sum(id)", "max(price)", "max(buyer.name)", "max(_corrupt)").first()
    assert tuple(total or ()) == (3, Decimal("12.50"), "ann", bytearray(b"junk"))
    (order,) = proto.select("color", "counts", "at").collect()
    assert (order.color, order.counts) == ("BLUE", {"x": 2})

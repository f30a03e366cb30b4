"""The pages under docs/spark are true: their programs run as written, on a broker with their queues."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import fastavro
import httpx
import pika
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import DataFrame, SparkSession

from holtmq.testing import TestBroker

pytestmark = pytest.mark.xdist_group("spark")

DOCS = Path(__file__).parents[2] / "docs" / "spark"
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker(clock="real") as broker:
        for n in range(4):
            payload = {"id": n, "kind": "ab"[n % 2]}
            item = {"queue": "orders", "partition": "eu", "payload": payload}
            assert httpx.post(f"{broker.http_url}/api/v1/push", json={"items": [item]}).status_code == 201
        yield broker


@pytest.fixture
def channel(broker: TestBroker) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


def programs(page: str, kind: str = "python") -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_queues_are_tables_as_the_page_on_sql_says(spark: SparkSession, broker: TestBroker) -> None:
    (program,) = programs("sql.md")
    statements = [
        statement
        for block in programs("sql.md", "sql")
        for statement in block.replace("http://127.0.0.1:6632", broker.http_url).split(";")
        if statement.strip()
    ]
    spark.catalog.dropTempView("orders")  # another test's would hide the table
    try:
        exec(program.replace("http://127.0.0.1:6632", broker.http_url), {})
        found = [spark.sql(statement).collect() for statement in statements]
        kinds, since, orders = found[1], found[2], spark.sql("SELECT count(*) FROM holt.orders").first()
        assert spark.readStream.table("holt.orders").isStreaming
    finally:
        spark.sql("DROP TABLE IF EXISTS orders")
        spark.sql("DROP DATABASE IF EXISTS holt CASCADE")

    assert len(found) == 4
    assert sorted(tuple(row) for row in kinds) == [("a", 2), ("b", 2)]
    assert since[0][0] == 4
    assert orders == (5,)  # with the row that the page inserts


def test_payloads_become_columns_as_the_page_says(
    spark: SparkSession,
    broker: TestBroker,
    channel: pika.adapters.blocking_connection.BlockingChannel,
    tmp_path: Path,
) -> None:
    avro, protobuf = programs("payloads.md")
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "orders.desc").write_bytes(_orders().SerializeToString())
    for queue, body in (("avro-orders", _avro(7)), ("protobuf-orders", _protobuf(8))):
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "stream"})
        channel.basic_publish("", queue, body)

    def run(program: str, queue: str) -> DataFrame:
        names: dict[str, DataFrame] = {}
        text = program.replace('"orders"', f'"{queue}"')
        for file in ("order.avsc", "orders.desc"):
            text = text.replace(f'"{file}"', repr(str(tmp_path / file)))
        exec(text, {"spark": spark, "url": broker.http_url}, names)
        return names["orders"]

    assert [row["id"] for row in run(avro, "avro-orders").collect()] == [7]
    stream = run(protobuf, "protobuf-orders")
    assert stream.isStreaming
    assert "id" in stream.columns


def test_work_queues_are_read_and_exchanges_written_as_the_page_says(
    spark: SparkSession,
    broker: TestBroker,
    channel: pika.adapters.blocking_connection.BlockingChannel,
    tmp_path: Path,
) -> None:
    reads, writes = programs("work-queues.md")
    channel.queue_declare("tasks", durable=True)
    channel.basic_publish("", "tasks", b'{"id": 1, "kind": "new"}', pika.BasicProperties(delivery_mode=2))
    channel.exchange_declare("orders", "topic", durable=True)
    channel.queue_declare("done", durable=True)
    channel.queue_bind("done", "orders", "order.#")
    names: dict[str, object] = {"spark": spark, "url": broker.http_url}

    def work(some: DataFrame, _: int) -> None:
        names["seen"] = [(row["id"], row["kind"]) for row in some.collect()]

    names["work"] = work
    for program in (reads, writes):
        # The page starts queries that go on; here they end with what is there.
        text = program.replace(".start()", ".trigger(availableNow=True).start().awaitTermination(300)")
        exec(text.replace('"/data/', f'"{tmp_path}/'), names)
        names["done"] = names["tasks"]
        channel.basic_publish("", "tasks", b'{"id": 2, "kind": "old"}', pika.BasicProperties(delivery_mode=2))

    assert names["seen"] == [(1, "new")]
    method, _, body = channel.basic_get("done", auto_ack=True)
    assert method.routing_key == "order.old"
    assert json.loads(body)["id"] == 2


def _avro(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(ORDER), {"id": number})
    return out.getvalue()


def _orders() -> descriptor_pb2.FileDescriptorSet:
    one = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    one.message_type.add(name="Order").field.add(name="id", number=1, type=kinds.TYPE_INT64, label=1)
    return descriptor_pb2.FileDescriptorSet(file=[one])


def _protobuf(number: int) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_orders().file[0])
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    return bytes(order(id=number).SerializeToString())

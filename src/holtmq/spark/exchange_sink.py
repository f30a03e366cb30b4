"""The sink for an exchange: rows become AMQP messages, at least once.

Owns: the writers and the columns they accept. Must not touch: staging, which is for partitioned queues.

Tasks publish as they run, and a request is answered when its messages are durable. A retried task publishes
again. Messages carry a ``message_id``: the row's ``transaction_id``, or one that is the same when a batch
is repeated with the same rows in the same order, so that consumers can detect duplicates.
"""

import uuid
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from holtmq.spark.client import BrokerClient
from holtmq.spark.errors import HoltSparkError, UnfitSchema
from holtmq.spark.options import SinkOptions
from holtmq.spark.sink import as_stream, parts

_NAMES: Final = {
    "payload": ("string", "binary"),
    "routing_key": ("string",),
    "headers": ("map<string,string>",),
    "priority": ("tinyint", "smallint", "int", "bigint"),
    "transaction_id": ("string",),
}


def check_exchange_columns(schema: StructType, options: SinkOptions) -> None:
    """Refuse a frame that cannot be published, and say why."""
    given = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "payload" not in given:
        raise UnfitSchema(
            "an exchange is given column payload, and there is none; make one with "
            f"to_json(struct(*)) AS payload. Columns: {', '.join(given)}"
        )
    for name, kind in given.items():
        if name not in _NAMES:
            raise UnfitSchema(f"an exchange takes no column {name!r}; it takes {', '.join(_NAMES)}")
        if kind not in _NAMES[name]:
            raise UnfitSchema(f"column {name} must be {' or '.join(_NAMES[name])}, not {kind}")
    if "routing_key" not in given and not options.routing_key and options.exchange == "amq.default":
        raise UnfitSchema(
            "the default exchange needs a routing key: option routingKey, or a column routing_key"
        )


def _publish(options: SinkOptions, batches: Iterator[pa.RecordBatch], ids: str) -> None:
    assert options.exchange is not None
    with BrokerClient(options.connection) as broker:
        for number, held in enumerate(parts(batches, options.part_bytes)):
            answer = broker.publish(options.exchange, as_stream(held), options.routing_key, f"{ids}:{number}")
            if options.mandatory and answer["unrouted"]:
                raise HoltSparkError(
                    f"exchange {options.exchange} leads {answer['unrouted']} messages to no queue, with the "
                    f"routing keys {answer['keys']}: bind a queue, or set mandatory=false to drop them"
                )


class ExchangeStreamWriter(DataSourceStreamArrowWriter):
    """Publishes every batch at least once."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_exchange_columns(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        _publish(self._options, iterator, f"{query}:{batch}:{context.partitionId()}")
        return WriterCommitMessage()


class ExchangeBatchWriter(DataSourceArrowWriter):
    """Publishes every row at least once; what was published before a failure stays published."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise UnfitSchema('messages are published, nothing is overwritten: use mode("append")')
        check_exchange_columns(schema, options)
        self._options = options
        self._name = str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        _publish(self._options, iterator, f"{self._name}:{context.partitionId()}")
        return WriterCommitMessage()

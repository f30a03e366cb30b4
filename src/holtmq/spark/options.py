"""Every option of the source and the sink: parsed once, checked with a clear error, frozen.

Owns: names, defaults, ranges and which options exclude each other. Must not touch: the broker, Spark. The
results are pickled to executors.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from holtmq.spark.errors import InvalidOption
from holtmq.spark.offset_bounds import EARLIEST, LATEST, Bound, read_bound
from holtmq.spark.option_values import GivenOptions, parse_number
from holtmq.spark.relations import Relation, split_relation

DEFAULT_RECORDS_PER_SLICE: Final = 250_000
DEFAULT_URL: Final = "http://127.0.0.1:6632"
# A standby that takes over, or a broker that recovers a large journal, needs a minute or two.
DEFAULT_RETRY_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the broker."""

    url: str = DEFAULT_URL
    token: str = ""
    timeout: float = 60.0  # seconds without a byte
    retry_seconds: float = DEFAULT_RETRY_SECONDS  # then an unreachable broker fails the query
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_verify: bool = True
    token_file: str = ""  # path of the token file, on every machine that needs it
    user: str = ""  # a broker user, instead of a token
    password: str = ""
    password_file: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which queues: by name, by pattern, or by their configuration."""

    queues: tuple[str, ...] = ()
    pattern: str = ""
    namespace: str = ""
    task: str = ""

    def __str__(self) -> str:
        if self.queues:
            return "queue " + ", ".join(self.queues)
        named = (("queuePattern", self.pattern), ("namespace", self.namespace), ("task", self.task))
        return " and ".join(f"{name} {value}" for name, value in named if value)


class PayloadFormat(Enum):
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


@dataclass(frozen=True, slots=True)
class PayloadOptions:
    """The payload format: JSON with the fields of ``ddl``, or Avro or Protobuf described by a file."""

    format: PayloadFormat = PayloadFormat.JSON
    ddl: str = ""
    schema_file: str = ""
    message: str = ""  # Protobuf: the full name of the message


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options of a read."""

    connection: Connection
    selection: Selection
    relation: Relation
    starting: Bound
    ending: Bound
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay: float = 900.0
    max_bytes: int | None = None
    min_partitions: int = 1
    max_records: int = DEFAULT_RECORDS_PER_SLICE
    fail_on_data_loss: bool = True
    consumer_group: str = ""
    payload: PayloadOptions = field(default_factory=lambda: PayloadOptions())
    columns: tuple[str, ...] = ()
    partition: str = ""

    @property
    def limited(self) -> bool:
        return self.max_offsets is not None or self.max_bytes is not None or self.min_offsets is not None


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options of a write."""

    connection: Connection
    queue: str = ""
    partition: str = ""
    part_bytes: int = 1 << 20  # size of one staging request: the broker does nothing else meanwhile
    write_id: str = ""  # a batch write with this name happens once, however often it is run
    write_batch: int = 0  # the number of the write under its name; must increase
    exchange: str | None = None  # publish to it instead of a queue
    routing_key: str = ""
    mandatory: bool = True  # a message that is routed to no queue is an error


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """The parsed options of a stream over a work queue."""

    connection: Connection
    queue: str
    max_messages: int = 10_000
    max_bytes: int = 32 << 20
    min_partitions: int = 1
    lease_seconds: float = 60.0
    payload: PayloadOptions = field(default_factory=lambda: PayloadOptions())


_CONNECTION: Final = (
    "url",
    "token",
    "tokenFile",
    "user",
    "password",
    "passwordFile",
    "timeout",
    "retryTimeout",
    "tlsCa",
    "tlsCert",
    "tlsKey",
    "tlsVerify",
)
SOURCE_OPTIONS: Final = (
    *_CONNECTION,
    "queue",
    "subscribe",
    "queuePattern",
    "subscribePattern",
    "namespace",
    "task",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "consumerGroup",
    "payloadSchema",
    "payloadFormat",
    "payloadSchemaFile",
    "payloadMessage",
    "columns",
    "partition",
    "lake",
    "lakeCatalog",
)
_KAFKA_NAMES: Final = {"subscribe": "queue", "subscribePattern": "queuePattern"}
SINK_OPTIONS: Final = (
    *_CONNECTION,
    "queue",
    "partition",
    "exchange",
    "routingKey",
    "mandatory",
    "stageBytes",
    "writeId",
    "writeBatch",
)
WORK_OPTIONS: Final = (
    *_CONNECTION,
    "workQueue",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "leaseTime",
    "payloadSchema",
    "payloadFormat",
    "payloadSchemaFile",
    "payloadMessage",
)


def source_options(given: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Parse and check the options of a read; ``streaming`` is None while its kind is not known."""
    options = GivenOptions(given, SOURCE_OPTIONS, _KAFKA_NAMES)
    selection, relation = _selection(options)
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            options.absent(name, "a stream has no end; use it with spark.read")
    starting = read_bound(options, "starting", LATEST if streaming else EARLIEST)
    ending = read_bound(options, "ending", LATEST)
    if streaming is False and starting.word == LATEST:
        options.refuse("startingOffsets", "'latest' leaves a batch query nothing to read")
    if streaming is False and LATEST in dict(starting.offsets).values():
        options.refuse("startingOffsets", "-1 (latest) leaves a batch query nothing to read")
    if ending.word == EARLIEST or EARLIEST in dict(ending.offsets).values():
        options.refuse("endingOffsets", "'earliest' leaves nothing to read")
    maximum, minimum = options.count("maxOffsetsPerTrigger"), options.count("minOffsetsPerTrigger")
    if maximum is not None and minimum is not None and minimum > maximum:
        options.refuse("minOffsetsPerTrigger", f"it is more than maxOffsetsPerTrigger ({maximum})")
    if relation is not Relation.MESSAGES:
        for name in ("payloadSchema", "payloadFormat", "consumerGroup", "maxBytesPerTrigger"):
            options.absent(name, f"it works on queues, not on their ${relation.value}")
    return SourceOptions(
        connection=_connection(options),
        selection=selection,
        relation=relation,
        starting=starting,
        ending=ending,
        max_offsets=maximum,
        min_offsets=minimum,
        max_delay=options.seconds("maxTriggerDelay", 900.0),
        max_bytes=options.size("maxBytesPerTrigger"),
        min_partitions=options.count("minPartitions") or 1,
        max_records=options.count("maxRecordsPerPartition") or DEFAULT_RECORDS_PER_SLICE,
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        consumer_group=options.text("consumerGroup"),
        payload=_payload(options),
        columns=options.names("columns"),
        partition=options.text("partition"),
    )


def work_options(given: Mapping[str, str]) -> WorkOptions:
    """Parse and check the options of a stream over a work queue."""
    options = GivenOptions(given, WORK_OPTIONS)
    for name in SOURCE_OPTIONS:
        if name not in WORK_OPTIONS:
            options.absent(name, "a work queue has no offsets, groups or history: it delivers what waits")
    lease = options.seconds("leaseTime", 60.0)
    if lease < 1:
        options.refuse("leaseTime", "it must be at least a second")
    return WorkOptions(
        _connection(options),
        options.text("workQueue"),
        options.count("maxOffsetsPerTrigger") or 10_000,
        options.size("maxBytesPerTrigger") or 32 << 20,
        options.count("minPartitions") or 1,
        lease,
        _payload(options),
    )


def is_work(given: Mapping[str, str]) -> bool:
    """Whether the options are about a work queue."""
    return any(name.lower() == "workqueue" and value for name, value in given.items())


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse and check the options of a write."""
    options = GivenOptions(given, SINK_OPTIONS)
    queue = options.text("queue")
    if split_relation(queue)[1] is not Relation.MESSAGES:
        options.refuse("queue", "it can be read, not written")
    exchange = options.text("exchange") or None
    if exchange is not None:
        for name in ("queue", "partition", "writeId"):
            options.absent(name, "an exchange decides by the routing key which queues get a message")
    for name in ("routingKey", "mandatory"):
        if exchange is None:
            options.absent(name, "it goes with the option exchange")
    return SinkOptions(
        _connection(options),
        queue,
        options.text("partition"),
        options.size("stageBytes") or 1 << 20,
        options.text("writeId"),
        options.parse("writeBatch", parse_number) if options.text("writeBatch") else 0,
        exchange,
        options.text("routingKey"),
        options.flag("mandatory", True),
    )


def _selection(options: GivenOptions) -> tuple[Selection, Relation]:
    selection = Selection(
        options.names("queue"), options.text("queuePattern"), options.text("namespace"), options.text("task")
    )
    if selection.queues and (selection.pattern or selection.namespace or selection.task):
        options.refuse("queue", "give queue, or queuePattern/namespace/task, not both")
    if selection == Selection():
        raise InvalidOption("say what to read: queue, queuePattern, namespace or task")
    if selection.pattern:
        try:
            re.compile(selection.pattern)
        except re.error as error:
            options.refuse("queuePattern", f"not a regular expression: {error}")
    relations = {split_relation(name)[1] for name in selection.queues} or {Relation.MESSAGES}
    if len(relations) > 1:
        options.refuse(
            "queue", "queues, their $dlq and their $deliveries have different columns; read one kind"
        )
    return selection, relations.pop()


def _payload(options: GivenOptions) -> PayloadOptions:
    word = options.text("payloadFormat").lower() or "json"
    if word not in {one.value for one in PayloadFormat}:
        options.refuse("payloadFormat", "it must be json, avro or protobuf")
    kind = PayloadFormat(word)
    if kind is PayloadFormat.JSON:
        for name in ("payloadSchemaFile", "payloadMessage"):
            options.absent(name, "it goes with payloadFormat avro or protobuf; JSON has payloadSchema")
    else:
        options.absent("payloadSchema", f"it is for JSON; payloadFormat {word} has payloadSchemaFile")
        if not options.text("payloadSchemaFile"):
            raise InvalidOption(f"payloadFormat {word} needs payloadSchemaFile")
    if (kind is PayloadFormat.PROTOBUF) != bool(options.text("payloadMessage")):
        raise InvalidOption("payloadFormat protobuf and payloadMessage (its full name) go together")
    return PayloadOptions(
        kind, options.text("payloadSchema"), options.text("payloadSchemaFile"), options.text("payloadMessage")
    )


def _connection(options: GivenOptions) -> Connection:
    url = options.text("url") or DEFAULT_URL
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        options.refuse("url", "it must look like http://host:6632")
    if bool(options.text("tlsCert")) != bool(options.text("tlsKey")):
        raise InvalidOption("tlsCert and tlsKey go together")
    if options.text("token") and options.text("tokenFile"):
        raise InvalidOption("give token or tokenFile, not both")
    if options.text("password") and options.text("passwordFile"):
        raise InvalidOption("give password or passwordFile, not both")
    if options.text("user") and (options.text("token") or options.text("tokenFile")):
        raise InvalidOption("give user and password, or a token, not both")
    if (options.text("password") or options.text("passwordFile")) and not options.text("user"):
        raise InvalidOption("password goes with user")
    return Connection(
        url.rstrip("/"),
        options.text("token"),
        options.seconds("timeout", 60.0),
        options.seconds("retryTimeout", DEFAULT_RETRY_SECONDS),
        options.text("tlsCa"),
        options.text("tlsCert"),
        options.text("tlsKey"),
        options.flag("tlsVerify", True),
        options.text("tokenFile"),
        options.text("user"),
        options.text("password"),
        options.text("passwordFile"),
    )

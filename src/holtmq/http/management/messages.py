"""Management API: publish a message, get messages, purge a queue.

Owns: JSON to message and back. Must not touch: routing and leases, which are the broker's.
"""

import asyncio
import base64
import binascii
from contextlib import suppress
from dataclasses import fields
from enum import Enum
from typing import Final

import msgspec

from holtmq.auth.permissions import Action
from holtmq.auth.rights import IMPERSONATOR
from holtmq.broker.errors import StillExpiring
from holtmq.broker.flow import PublishOutcome
from holtmq.broker.message import Message, make_address
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.leases import Holder, Ledger
from holtmq.broker.work.work_queue import require_work_queue
from holtmq.http.engine.endpoints import CHANGED, Call, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.engine.wire import plain
from holtmq.http.management.access import READ_QUEUE, WRITE_EXCHANGE
from holtmq.http.management.conventions import endpoint, missing_is_bad_request
from holtmq.http.management.topology import exchange_name
from holtmq.http.management.wire import checked_key, checked_table
from holtmq.wire.primitives import CodecError
from holtmq.wire.properties import (
    PROPERTIES_AT,
    Properties,
    decode_properties,
    encode_header,
    encode_properties,
)
from holtmq.wire.tables import timestamp_value

_MOST_MESSAGES: Final = 10_000
_AT_ONCE: Final = 5_000  # an answer has no more: about 20 ms
_MOST_BYTES: Final = 64 << 20  # an answer is built in memory: beyond this it ends early


class Encoding(Enum):
    STRING = "string"
    BASE64 = "base64"


class PropertiesIn(msgspec.Struct, kw_only=True):
    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, object] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | int | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


class PublishIn(msgspec.Struct, kw_only=True):
    properties: PropertiesIn
    routing_key: str
    payload: str
    payload_encoding: Encoding


class AckMode(Enum):
    ACK_REQUEUE = "ack_requeue_true"
    ACK = "ack_requeue_false"
    REJECT_REQUEUE = "reject_requeue_true"
    REJECT = "reject_requeue_false"


class GetEncoding(Enum):
    AUTO = "auto"
    BASE64 = "base64"


class GetIn(msgspec.Struct, kw_only=True):
    count: int
    ackmode: AckMode
    encoding: GetEncoding
    truncate: int | None = None


async def publish(call: Call) -> object:
    given, vhost = call.json(PublishIn), call.vhost
    exchange, key = exchange_name(call.path["exchange"]), checked_key(given.routing_key)
    with missing_is_bad_request():
        vhost.exchange(exchange)
    call.require_in_vhost(Action.WRITE, exchange)
    call.context.check_alarm()
    body = _body(given, call.context.config.amqp.max_message_bytes)
    header = encode_header(len(body), encode_properties(_properties(given.properties)))
    flow = call.broker.flow
    properties = flow.publish_properties.of(header)
    user = call.identity
    if properties.user_id not in (None, user.name) and IMPERSONATOR not in user.tags:
        raise Refusal(
            400, f"user_id property set to '{properties.user_id}' but authenticated user was '{user.name}'"
        )
    call.require_topics(vhost, exchange, (key, *properties.extra_keys), write=True)
    if properties.direct_reply:
        raise Refusal(400, "direct reply-to needs a consumer, which a single request does not have")
    route = call.broker.resolve(vhost, exchange, key, make_address(exchange, key))
    outcome = flow.publishing.publish(route, properties, header, body)
    if outcome is PublishOutcome.IN_STEPS:
        outcome = await Stepwise().run(flow.publishing.take_steps())
    if outcome is PublishOutcome.REFUSED:
        raise Refusal(400, "a queue that this message is for is full and refused it")
    return {"routed": outcome is not PublishOutcome.UNROUTED}


def _body(given: PublishIn, most: int) -> bytes:
    if given.payload_encoding is Encoding.STRING:
        body = given.payload.encode()
    else:
        try:
            body = base64.b64decode(given.payload, validate=True)
        except (binascii.Error, ValueError):
            raise Refusal(400, "the payload is not base64") from None
    if len(body) > most:
        raise Refusal(400, f"message size {len(body)} is larger than configured max size {most}")
    return body


def _properties(given: PropertiesIn) -> Properties:
    seconds = given.timestamp
    if seconds is not None and not 0 <= seconds < 1 << 64:
        raise Refusal(400, f"timestamp {seconds} is not in 0 .. 2**64-1 seconds since 1970")
    return Properties(
        content_type=given.content_type,
        content_encoding=given.content_encoding,
        headers=None if given.headers is None else checked_table(given.headers, "headers"),
        delivery_mode=given.delivery_mode,
        priority=given.priority,
        correlation_id=given.correlation_id,
        reply_to=given.reply_to,
        expiration=None if given.expiration is None else str(given.expiration),
        message_id=given.message_id,
        timestamp=None if seconds is None else timestamp_value(seconds),
        type=given.type,
        user_id=given.user_id,
        app_id=given.app_id,
        cluster_id=given.cluster_id,
    )


async def get(call: Call) -> object:
    given = call.json(GetIn)
    queue = require_work_queue(call.vhost.queue(call.path["queue"]), "consume from it, do not get")
    call.require_in_vhost(Action.READ, queue.name)
    if not 0 < given.count <= _MOST_MESSAGES:
        raise Refusal(400, f"count is from 1 to {_MOST_MESSAGES}")
    if given.truncate is not None and given.truncate < 0:
        raise Refusal(400, "truncate is the number of bytes to show")
    found: list[tuple[Message, bool, int]] = []
    ledger, holder, size = Ledger(), Holder(), 0
    flow = call.broker.flow
    try:
        while len(found) < min(given.count, _AT_ONCE) and size < _MOST_BYTES:
            try:
                message = call.broker.get(queue)
            except StillExpiring:
                if found:
                    break  # no other task may run while they are leased here
                await asyncio.sleep(0)
                continue
            if message is None:
                break
            ledger.grant(queue, message, holder)
            size += len(message.body) + len(message.header)
            found.append((message, queue.is_redelivered(message), len(queue)))
    except BaseException:
        flow.release(ledger.end_all())  # no other code knows these leases
        raise
    leases = ledger.end_all()
    match given.ackmode:
        case AckMode.ACK:
            flow.ack(leases)
        case AckMode.REJECT:
            flow.reject(leases)
        case AckMode.ACK_REQUEUE | AckMode.REJECT_REQUEUE:
            flow.release(leases)
    rows, stepwise = [], Stepwise()
    for message, is_redelivered, left in found:
        rows.append(_row(message, is_redelivered, left, given.encoding, given.truncate))
        await stepwise.between()
    return rows


def message_row(queue: Queue | None, message: Message, truncate: int | None = None) -> dict[str, object]:
    """A message as JSON. ``queue`` None: it is in none yet. ``truncate``: show at most so many bytes."""
    is_redelivered = queue is not None and queue.is_redelivered(message)
    return _row(message, is_redelivered, 0 if queue is None else len(queue), GetEncoding.AUTO, truncate)


def _row(
    message: Message, is_redelivered: bool, left: int, wanted: GetEncoding, truncate: int | None
) -> dict[str, object]:
    shown = message.body if truncate is None else message.body[:truncate]
    payload, encoding = base64.b64encode(shown).decode(), Encoding.BASE64
    if wanted is GetEncoding.AUTO:
        with suppress(UnicodeDecodeError):
            payload, encoding = shown.decode(), Encoding.STRING
    return {
        "payload_bytes": len(message.body),
        "redelivered": is_redelivered,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "message_count": left,
        "properties": properties_row(message),
        "payload": payload,
        "payload_encoding": encoding.value,
    }


def properties_row(message: Message) -> dict[str, object]:
    """A message's properties as JSON, without those it does not have."""
    properties = Properties()
    with suppress(CodecError):  # headers that no rule had to decode may be malformed
        properties = decode_properties(message.header, PROPERTIES_AT)
    return shown_properties(properties)


def shown_properties(properties: Properties) -> dict[str, object]:
    """The properties that a message has, as JSON."""
    return {name: plain(value) for name in _PROPERTIES if (value := getattr(properties, name)) is not None}


async def purge(call: Call) -> Reply:
    queue = call.vhost.queue(call.path["queue"])
    call.require_in_vhost(Action.READ, queue.name)
    call.broker.purge_queue(call.vhost, queue.name)
    return CHANGED


_PROPERTIES: Final = tuple(field.name for field in fields(Properties))
ENDPOINTS: Final = (
    endpoint("POST", "/api/exchanges/{vhost}/{exchange}/publish", publish, WRITE_EXCHANGE),
    endpoint("POST", "/api/queues/{vhost}/{queue}/get", get, READ_QUEUE),
    endpoint("DELETE", "/api/queues/{vhost}/{queue}/contents", purge, READ_QUEUE),
)

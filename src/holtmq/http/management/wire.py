"""Wire forms of the management API: request bodies, and errors in answers.

Owns: RabbitMQ's field names in requests, statuses of errors. Must not touch: state.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar, cast
from urllib.parse import quote_plus

import msgspec

from holtmq.broker.errors import BrokerError
from holtmq.broker.records.changes import pack_table
from holtmq.http.engine.errors import NoRoute, Refusal, failure_of
from holtmq.http.engine.wire import encode, plain, text
from holtmq.wire.primitives import CodecError
from holtmq.wire.tables import FieldTable

T = TypeVar("T")

_NAMED_OVER_AMQP: Final = ("queue", "exchange")  # their names may have control characters
_LONGEST_NAME: Final = 255  # AMQP's short string: AMQP clients could not use a longer name
_ERRORS: Final = {
    400: "bad_request",
    401: "not_authorized",
    403: "not_authorised",
    404: "Object Not Found",
    405: "method_not_allowed",
    409: "conflict",
    412: "precondition_failed",
    413: "payload_too_large",
    408: "timeout",
    415: "unsupported_media_type",
    429: "too_many_requests",
    503: "unavailable",
}


# RabbitMQ takes [] for no arguments, which some clients send.
Arguments = dict[str, object] | list[object]


class VhostMetadataIn(msgspec.Struct):
    description: str | None = None
    tags: str | list[str] | None = None
    default_queue_type: str | None = None
    protected_from_deletion: bool | None = None


class VhostIn(VhostMetadataIn):
    name: str = ""
    metadata: VhostMetadataIn = msgspec.field(
        default_factory=VhostMetadataIn
    )  # RabbitMQ 4 exports these here


class UserIn(msgspec.Struct, kw_only=True):
    tags: str | list[str]
    name: str = ""
    password: str | None = None
    password_hash: str | None = None
    hashing_algorithm: str | None = None
    argon2_hash: str | None = None  # beside an empty ``password_hash``, in definitions of this broker
    limits: dict[str, object] = {}


class PermissionIn(msgspec.Struct, kw_only=True):
    configure: str
    write: str
    read: str
    user: str = ""
    vhost: str = ""


class PolicyIn(msgspec.Struct, kw_only=True):
    pattern: str
    definition: dict[str, object]
    priority: int = 0
    apply_to: str = msgspec.field(name="apply-to", default="all")
    name: str = ""
    vhost: str = ""


class QueueIn(msgspec.Struct, kw_only=True):
    durable: bool = False
    auto_delete: bool = False
    arguments: Arguments = {}
    name: str = ""
    vhost: str = ""


class ExchangeIn(msgspec.Struct, kw_only=True):
    type: str = "direct"
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = {}
    name: str = ""
    vhost: str = ""


class BindingIn(msgspec.Struct, kw_only=True, gc=False):
    routing_key: str = ""
    arguments: Arguments = {}
    source: str = ""
    destination: str = ""
    destination_type: str = "queue"
    vhost: str = ""


def checked_name(name: str, what: str) -> str:
    """The name; raises 400 if AMQP clients could not use it."""
    if what in _NAMED_OVER_AMQP:
        name = name.replace("\r", "").replace("\n", "")  # as AMQP methods do here and in RabbitMQ
    if not name:
        raise Refusal(400, f"a {what} needs a name")
    if len(name.encode()) > _LONGEST_NAME:
        raise Refusal(400, f"the name of a {what} has at most {_LONGEST_NAME} bytes")
    if what not in _NAMED_OVER_AMQP and any(character < " " or character == "\x7f" for character in name):
        raise Refusal(400, f"the name of a {what} has no control characters")
    return name


def checked_key(routing_key: str) -> str:
    """The routing key; raises 400 if it is too long for AMQP."""
    if len(routing_key.encode()) > _LONGEST_NAME:
        raise Refusal(400, f"a routing key has at most {_LONGEST_NAME} bytes")
    return routing_key


def checked_table(values: Arguments, what: str) -> FieldTable:
    """The table; raises 400 if it cannot be encoded. Call it before state changes, which cannot be undone."""
    if isinstance(values, list):
        if values:
            raise Refusal(400, f"{what}: a JSON object is expected, not an array")
        return {}
    table = cast(FieldTable, values)  # every JSON value is a field value
    try:
        pack_table(table)
    except CodecError as error:
        raise Refusal(400, f"{what}: {error}") from None
    return table


def tags_of(tags: str | Sequence[str]) -> tuple[str, ...]:
    """Tags, from a list or from RabbitMQ's older form, a text with commas."""
    parts = tags.split(",") if isinstance(tags, str) else tags
    return tuple(dict.fromkeys(tag.strip() for tag in parts if tag.strip()))


def properties_key(routing_key: str, arguments: Mapping[str, object]) -> str:
    """The name of a binding, in RabbitMQ's form; unique between source and destination."""
    key = quote_plus(routing_key).replace("~", "%7E")
    if not arguments:
        return key or "~"
    digest = base64.urlsafe_b64encode(_digest(arguments)).rstrip(b"=").decode()
    return f"{key}~{digest}"


def _digest(arguments: Mapping[str, object]) -> bytes:
    return hashlib.blake2b(
        msgspec.json.encode(plain(dict(arguments)), order="sorted"), digest_size=16
    ).digest()


def error_answer(error: Exception) -> tuple[int, bytes]:
    """(status, body) for a handler's exception, in RabbitMQ's form."""
    if isinstance(error, NoRoute) and error.status == 404:
        error = Refusal(404, "Not Found")
    found = failure_of(error)
    # RabbitMQ has no 409 and 429 for these: what cannot be done now is a bad request.
    status = 400 if isinstance(error, BrokerError) and found.status in (409, 429) else found.status
    word = (
        found.code if isinstance(error, Refusal) and status == 400 else _ERRORS.get(status, "internal_error")
    )
    return status, encode({"error": word, "reason": text(found.text)})

"""The definition of a shovel: RabbitMQ's runtime parameter ``shovel``, read and checked.

Owns: its keys, defaults and addresses, and the refusals. Must not touch: sockets; ``holtmq.shovel`` runs it.
"""

from enum import Enum
from typing import Final, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from holtmq.broker.errors import Conflict
from holtmq.wire.primitives import CodecError
from holtmq.wire.properties import PROPERTY_FLAGS, Form, Properties, encode_properties
from holtmq.wire.tables import FieldTable, timestamp_value

COMPONENT: Final = "shovel"
PROGRESS_COMPONENT: Final = "shovel-progress"  # what each has moved; written by the shovel itself
_PROTOCOL: Final = "amqp091"
_PROTOCOLS: Final = (_PROTOCOL, "amqp10", "local")
_LONGEST_NAME: Final = 255
_FORMS: Final = {name: form for _, name, form in PROPERTY_FLAGS}
_PORTS: Final = {"amqp": 5672, "amqps": 5671}
# Parameters of RabbitMQ's addresses. Those in the second list change nothing here.
_READ: Final = (
    "heartbeat",
    "connection_timeout",
    "cacertfile",
    "certfile",
    "keyfile",
    "verify",
    "server_name_indication",
)
_IGNORED: Final = ("channel_max", "depth", "password", "auth_mechanism", "fail_if_no_peer_cert")


class CannotRun(Conflict):
    """A correct definition that this broker cannot run, such as one for AMQP 1.0."""


class AckMode(Enum):
    """When the source is told that a message has been moved."""

    ON_CONFIRM = "on-confirm"
    ON_PUBLISH = "on-publish"
    NO_ACK = "no-ack"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's address. Without a host it is this broker, which asks for no password."""

    host: str = ""
    port: int = 5672
    user: str = "guest"
    password: str = "guest"
    vhost: str = "/"
    tls: bool = False
    heartbeat: int | None = None  # seconds; None: what the server proposes
    connect_seconds: float = 30.0
    ca_file: str = ""  # empty: the system's authorities
    cert_file: str = ""
    key_file: str = ""
    verify: bool = True
    server_name: str = ""

    @property
    def is_local(self) -> bool:
        """Whether it is this broker."""
        return not self.host

    def __str__(self) -> str:
        """The address without credentials."""
        vhost = "" if self.vhost == "/" else "/" + self.vhost.replace("%", "%25").replace("/", "%2F")
        if self.is_local:
            return f"amqp://{vhost}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'amqps' if self.tls else 'amqp'}://{host}:{self.port}{vhost}"

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"


class _Given(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", kw_only=True):
    src_uri: str | list[str]
    dest_uri: str | list[str]
    src_protocol: str = _PROTOCOL
    dest_protocol: str = _PROTOCOL
    src_queue: str | None = None
    src_queue_args: dict[str, object] = {}
    src_exchange: str | None = None
    src_exchange_key: str = ""
    src_consumer_args: dict[str, object] = {}
    src_prefetch_count: int | None = None
    prefetch_count: int | None = None
    src_delete_after: str | int | None = None
    delete_after: str | int | None = None
    src_predeclared: bool = False
    dest_queue: str | None = None
    dest_queue_args: dict[str, object] = {}
    dest_exchange: str | None = None
    dest_exchange_key: str | None = None
    dest_predeclared: bool = False
    dest_publish_properties: dict[str, object] | None = None
    publish_properties: dict[str, object] | None = None
    dest_add_forward_headers: bool | None = None
    add_forward_headers: bool | None = None
    dest_add_timestamp_header: bool | None = None
    add_timestamp_header: bool | None = None
    dest_keep_address: bool = False
    ack_mode: AckMode = AckMode.ON_CONFIRM
    reconnect_delay: float = 5


class ShovelDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """What one shovel does. An absent queue or exchange is None: an empty name is the default exchange."""

    sources: tuple[Address, ...]
    destinations: tuple[Address, ...]
    src_queue: str | None
    src_queue_args: dict[str, object]
    src_exchange: str | None
    src_exchange_key: str
    src_consumer_args: dict[str, object]
    src_predeclared: bool
    prefetch: int
    delete_after: int | None  # messages; 0: as many as wait in the queue at the start; None: never
    dest_queue: str | None
    dest_queue_args: dict[str, object]
    dest_exchange: str | None
    dest_exchange_key: str | None
    dest_predeclared: bool
    keep_address: bool  # messages keep the exchange and routing key of their first publish
    properties: bytes  # property bytes that replace those of every message; empty: none
    add_forward_headers: bool
    add_timestamp_header: bool
    ack_mode: AckMode
    reconnect_seconds: float  # 0: do not try again


def parse_shovel(value: bytes) -> ShovelDefinition:
    """Read a definition; raises Conflict that names what is wrong, or CannotRun."""
    _check_protocols(value)
    try:
        given = msgspec.json.decode(value, type=_Given, strict=False)
    except msgspec.MsgspecError as error:
        raise Conflict(f"shovel: {error}") from None
    _check_ends(given)
    prefetch = given.src_prefetch_count if given.src_prefetch_count is not None else given.prefetch_count
    after = given.src_delete_after if given.src_delete_after is not None else given.delete_after
    definition = ShovelDefinition(
        sources=_addresses(given.src_uri, "src-uri"),
        destinations=_addresses(given.dest_uri, "dest-uri"),
        src_queue=given.src_queue,
        src_queue_args=given.src_queue_args,
        src_exchange=given.src_exchange,
        src_exchange_key=given.src_exchange_key,
        src_consumer_args=given.src_consumer_args,
        src_predeclared=given.src_predeclared,
        prefetch=_prefetch(prefetch),
        delete_after=_delete_after(after, given.ack_mode),
        dest_queue=given.dest_queue,
        dest_queue_args=given.dest_queue_args,
        dest_exchange=given.dest_exchange,
        dest_exchange_key=given.dest_exchange_key,
        dest_predeclared=given.dest_predeclared,
        keep_address=given.dest_keep_address,
        properties=_property_bytes(given.dest_publish_properties or given.publish_properties),
        add_forward_headers=_newer(given.dest_add_forward_headers, given.add_forward_headers),
        add_timestamp_header=_newer(given.dest_add_timestamp_header, given.add_timestamp_header),
        ack_mode=given.ack_mode,
        reconnect_seconds=_seconds(given.reconnect_delay),
    )
    if definition.keep_address and (
        definition.dest_queue is None or not all(address.is_local for address in definition.destinations)
    ):
        raise Conflict("shovel: dest-keep-address needs a dest-queue of this broker (dest-uri amqp://)")
    return definition


class _Protocols(msgspec.Struct, rename="kebab"):
    src_protocol: str = _PROTOCOL
    dest_protocol: str = _PROTOCOL


def _check_protocols(value: bytes) -> None:
    """Look at the protocols first: each has keys of its own."""
    try:
        given = msgspec.json.decode(value, type=_Protocols, strict=False)
    except msgspec.MsgspecError as error:
        raise Conflict(f"shovel: {error}") from None
    for side, protocol in (("src", given.src_protocol), ("dest", given.dest_protocol)):
        if protocol not in _PROTOCOLS:
            raise Conflict(f"shovel: {side}-protocol is {_PROTOCOL}, not '{protocol}'")
        if protocol != _PROTOCOL:
            raise CannotRun(f"{side}-protocol {protocol} is not supported; {_PROTOCOL} is")


def without_passwords(value: bytes) -> bytes:
    """The definition with addresses that have no credentials, for readers who must not see them."""
    try:
        fields = msgspec.json.decode(value, type=dict[str, object])
    except msgspec.MsgspecError:
        return b"{}"
    for key in ("src-uri", "dest-uri"):
        match fields.get(key):
            case str(uri):
                fields[key] = _bare(uri)
            case list(uris):
                fields[key] = [_bare(str(uri)) for uri in uris]
    return msgspec.json.encode(fields)


def _bare(uri: str) -> str:
    try:
        return str(parse_address(uri, "uri"))
    except Conflict:
        return "amqp://?"


def parse_address(uri: str, key: str = "address") -> Address:
    """Read an address such as ``amqps://user:password@host:port/vhost?heartbeat=30``."""
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError as error:
        raise Conflict(f"{key}: the address cannot be read: {error}") from None
    if parts.scheme not in _PORTS:
        raise Conflict(f"{key}: an address begins with amqp:// or amqps://, not '{parts.scheme}:'")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(options.keys() - {*_READ, *_IGNORED})
    if unknown:
        raise Conflict(f"{key}: unknown parameter {', '.join(unknown)}; there are {', '.join(_READ)}")
    verify = options.get("verify", "verify_peer")
    if verify not in ("verify_peer", "verify_none"):
        raise Conflict(f"{key}: verify is verify_peer or verify_none, not '{verify}'")
    return Address(
        host=parts.hostname or "",
        port=port or _PORTS[parts.scheme],
        user=unquote(parts.username) if parts.username is not None else "guest",
        password=unquote(parts.password) if parts.password is not None else "guest",
        vhost=unquote(parts.path[1:]) or "/",
        tls=parts.scheme == "amqps",
        heartbeat=_number(options, "heartbeat", key),
        connect_seconds=(_number(options, "connection_timeout", key) or 30_000) / 1000,
        ca_file=options.get("cacertfile", ""),
        cert_file=options.get("certfile", ""),
        key_file=options.get("keyfile", ""),
        verify=verify == "verify_peer",
        server_name=options.get("server_name_indication", ""),
    )


def _addresses(given: str | list[str], key: str) -> tuple[Address, ...]:
    uris = [given] if isinstance(given, str) else given
    if not uris:
        raise Conflict(f"shovel: {key} needs at least one address")
    return tuple(parse_address(uri, f"shovel: {key}") for uri in uris)


def _number(options: dict[str, str], name: str, key: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) > 1 << 31:
        raise Conflict(f"{key}: {name} is a whole number, not '{text}'")
    return int(text)


def _check_ends(given: _Given) -> None:
    if given.src_queue is None and given.src_exchange is None:
        raise Conflict("shovel: must specify 'src-exchange' or 'src-queue'")
    if given.src_queue is not None and given.src_exchange is not None:
        raise Conflict("shovel: cannot specify 'src-exchange' and 'src-queue'")
    if given.dest_queue is not None and given.dest_exchange is not None:
        raise Conflict("shovel: cannot specify 'dest-exchange' and 'dest-queue'")
    for key, name in (
        ("src-queue", given.src_queue),
        ("src-exchange", given.src_exchange),
        ("src-exchange-key", given.src_exchange_key),
        ("dest-queue", given.dest_queue),
        ("dest-exchange", given.dest_exchange),
        ("dest-exchange-key", given.dest_exchange_key),
    ):
        if name is not None and len(name.encode()) > _LONGEST_NAME:
            raise Conflict(f"shovel: {key} has at most {_LONGEST_NAME} bytes")
    for key, name in (("src-queue", given.src_queue), ("dest-queue", given.dest_queue)):
        if name == "":
            raise Conflict(f"shovel: {key} needs a name")


def _prefetch(given: int | None) -> int:
    if given is not None and not 1 <= given <= 65_535:
        raise Conflict(f"shovel: src-prefetch-count is from 1 to 65535, not {given}")
    return given or 1000


def _delete_after(given: str | int | None, mode: AckMode) -> int | None:
    match given:
        case None | "never":
            return None
        case "queue-length":
            after = 0
        case int() if given > 0:
            after = given
        case str() if given.isascii() and given.isdigit() and int(given) > 0:
            after = int(given)
        case _:
            raise Conflict(f"shovel: src-delete-after is never, queue-length or a number, not '{given}'")
    if mode is AckMode.NO_ACK:
        # What was delivered beyond the number could not be returned to the source.
        raise Conflict("shovel: cannot specify 'no-ack' and a 'src-delete-after' other than never")
    return after


def _seconds(given: float) -> float:
    if not 0 <= given <= 86_400:
        raise Conflict(f"shovel: reconnect-delay is from 0 to 86400 seconds, not {given}")
    return given


def _property_bytes(given: dict[str, object] | None) -> bytes:
    if not given:
        return b""
    properties = Properties()
    for key, value in given.items():
        name = key.replace("-", "_")
        match _FORMS.get(name), value:
            case Form.TEXT, str():
                setattr(properties, name, value)
            case Form.OCTET, int() if 0 <= value <= 255:
                setattr(properties, name, value)
            case Form.TIMESTAMP, int() if value >= 0:
                properties.timestamp = timestamp_value(value)
            case Form.TABLE, dict():
                properties.headers = cast(FieldTable, value)
            case None, _:
                raise Conflict(f"shovel: dest-publish-properties: there is no property '{key}'")
            case _:
                raise Conflict(f"shovel: dest-publish-properties: {key} cannot be {value!r}")
    try:
        return encode_properties(properties)
    except CodecError as error:
        raise Conflict(f"shovel: dest-publish-properties: {error}") from None


def _newer(newer: bool | None, older: bool | None) -> bool:
    return bool(older if newer is None else newer)

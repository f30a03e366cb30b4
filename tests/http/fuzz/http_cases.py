"""Random requests to every route of both tables: mostly right, then damaged.

Owns: making them from a seed. Must not touch: the broker; a case is bytes for a socket. What is asked is made
from the tables' own types, so that a new route is covered when it is declared.
"""

import base64
import types
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from holtmq.http.engine.endpoints import Endpoint
from holtmq.http.management.api import ENDPOINTS as MANAGEMENT
from holtmq.http.management.wire import (
    BindingIn,
    ExchangeIn,
    PermissionIn,
    PolicyIn,
    QueueIn,
    UserIn,
    VhostIn,
)
from holtmq.http.routes import ENDPOINTS

NAMES = (
    "q",
    "a.b",
    "work",
    "p",
    "g",
    "guest",
    "/",
    "%2F",
    "amq.direct",
    "orders",
    "Default",
    "1-0",
    "w1",
    "__QUEUE_MODE__",
)
ODD = (
    "%00",
    "%FF%FE",
    "%",
    "%zz",
    "..",
    ".",
    "%2F%2F",
    "x" * 1100,
    "grün",
    "%F0%9F%A6%A6",
    "-1",
    "9" * 30,
    "$dlq",
    "{}",
)
TEXTS = (
    *("q", "a.b", "work", "", "p", "g", "1-0", "2-1", "w1", "e:1:p:1", "#", "*", "null", "x" * 1100),
    *("get", "put", "schedule", "acquire", "push", "ack", "completed", "failed", "stream", "all", "direct"),
    *("2026-01-01T00:00:00Z", "2026-13-45", "bnVsbA==", "\u0000", "ü", "\U0001f9a6", "^(a+)+$", "(?=a)"),
)
NUMBERS = (0, 1, -1, 2, 10, 255, 65536, 2**31, 2**53, 2**63, 2**64, 10**30, 0.5, -0.0, 1e300, 1e-300)
BODIES: dict[str, type] = {
    "/api/vhosts/{vhost}": VhostIn,
    "/api/users/{user}": UserIn,
    "/api/permissions/{vhost}/{user}": PermissionIn,
    "/api/policies/{vhost}/{name}": PolicyIn,
    "/api/operator-policies/{vhost}/{name}": PolicyIn,
    "/api/queues/{vhost}/{queue}": QueueIn,
    "/api/exchanges/{vhost}/{exchange}": ExchangeIn,
    "/api/bindings/{vhost}/e/{source}/{kind}/{destination}": BindingIn,
}
QUERIES = (
    "columns",
    "sort",
    "sort_reverse",
    "page",
    "page_size",
    "name",
    "use_regex",
    "if-empty",
    "if-unused",
)


@dataclass(frozen=True)
class Case:
    """One request."""

    seed: int
    what: str
    request: bytes


def make_case(seed: int) -> Case:
    """The case of a seed, always the same."""
    dice = Random(seed)
    routes: list[Endpoint] = [*ENDPOINTS, *MANAGEMENT]
    route = dice.choice(routes)
    method = (
        route.method
        if dice.random() < 0.95
        else dice.choice(("GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS"))
    )
    path = "/".join(_segment(dice, piece) for piece in route.path.split("/"))
    names = route.query if isinstance(route, Endpoint) else QUERIES
    query = "&".join(f"{name}={_query_value(dice)}" for name in names if dice.random() < 0.4)
    body = _body(dice, route) if method in ("POST", "PUT", "PATCH") or dice.random() < 0.05 else b""
    head = [f"{method} {path}{'?' + query if query else ''} HTTP/1.1".encode("utf-8", "replace")]
    head += _headers(dice, body)
    return Case(seed, f"{method} {route.path}", b"\r\n".join(head) + b"\r\n\r\n" + body)


def _segment(dice: Random, piece: str) -> str:
    if not piece.startswith("{"):
        return piece
    return dice.choice(NAMES if dice.random() < 0.8 else ODD)


def _query_value(dice: Random) -> str:
    pool = dice.choice(
        (NAMES, ODD, ("true", "false", "1", "0", "5", "20", "-1", "1e9", "2026-01-01T00:00:00Z", ""))
    )
    return dice.choice(pool).replace("&", "%26").replace(" ", "+")


def _headers(dice: Random, body: bytes) -> list[bytes]:
    lines = [
        b"host: "
        + dice.choice(
            (b"127.0.0.1", b"localhost:6632", b"127.0.0.1")
            + ((b"evil.example", b"\xff") if dice.random() < 0.05 else ())
        )
    ]
    good = b"authorization: Basic " + base64.b64encode(b"fuzz:fuzz")
    if dice.random() < 0.85:
        lines.append(good)
    elif dice.random() < 0.7:
        lines.append(b"authorization: " + dice.choice(_CREDENTIALS))
    lines += [dice.choice(_EXTRA) for _ in range(dice.randrange(3)) if dice.random() < 0.2]
    if body or dice.random() < 0.1:
        lines.append(b"content-length: %d" % len(body))
    return lines


_CREDENTIALS = (
    b"Basic \xff\xfe\xfd",
    b"Basic " + base64.b64encode(b"\xff\xfe:x"),
    b"Basic " + base64.b64encode(b"no colon"),
    b"Bearer \xc3\xbc\xc3\xbc",
    b"Bearer a.b.c",
    b"Bearer",
    b"",
    b"\xff",
    b"Bearer eyJhbGciOiJub25lIn0.e30.",
    b"Digest x",
    b"Basic " + base64.b64encode("gr\u00fcn:gr\u00fcn".encode()),
)
_EXTRA = (
    b"content-encoding: gzip",
    b"content-encoding: \xff",
    b"content-type: text/plain",
    b"content-type: application/x-www-form-urlencoded",
    b"origin: http://evil.example",
    b"origin: http://127.0.0.1",
    b"origin: null",
    b"sec-fetch-site: cross-site",
    b"cookie: holt_session=x; a",
    b"cookie: \xff",
    b"x-forwarded-for: 203.0.113.9, 127.0.0.1",
    b"x-forwarded-for: \xff,,",
    b"forwarded: for=1",
    b"x-reason: \xff",
    b"expect: 100-continue",
    b"connection: keep-alive",
    b"upgrade: h2c",
    b"accept: */*",
)


def _body(dice: Random, route: Endpoint) -> bytes:
    kind = route.body if isinstance(route, Endpoint) else BODIES.get(route.path)
    value = _plain(dice, 0) if kind is None else _of_type(dice, kind, 0)
    try:
        text = msgspec.json.encode(value)
    except (msgspec.MsgspecError, OverflowError, ValueError):  # a number no JSON library writes
        text = b'{"items":[{"queue":"q","payload":1e999}]}'
    return _damaged(dice, text) if dice.random() < 0.35 else text


def _damaged(dice: Random, text: bytes) -> bytes:
    data = bytearray(text or b"{}")
    match dice.randrange(7):
        case 0:
            del data[dice.randrange(len(data)) :]
        case 1:
            data[dice.randrange(len(data))] = dice.randrange(256)
        case 2:  # bytes that are no text, inside of a string if there is one
            at = data.find(b'"') + 1
            data[at:at] = dice.choice((b"\xff", b"\xed\xa0\x80", b"\xc3", b"\xf4\x90\x80\x80"))
        case 3:
            quotes = [at for at, byte in enumerate(data) if byte == 0x22]
            if quotes:
                data[dice.choice(quotes) + 1 :][:0] = b""
                data[dice.choice(quotes) : dice.choice(quotes)] = b'"\\ud800'
        case 4:
            data = bytearray(b"[" * dice.choice((10, 2000)) + data)
        case 5:
            at = dice.randrange(len(data))
            data[at:at] = bytes(dice.randrange(256) for _ in range(dice.randrange(1, 8)))
        case 6:
            data = bytearray(
                dice.choice(
                    (b"", b" ", b"null", b"[]", b"{}", b'""', b"0", b"QPB1", b"\x1f\x8b\x08\x00", b"ARROW1")
                )
            )
    return bytes(data)


def _of_type(dice: Random, kind: Any, depth: int) -> object:
    if dice.random() < 0.04:
        return _plain(dice, depth)
    maker = _MAKERS.get(kind) if isinstance(kind, type) else None
    if maker is not None:
        return maker(dice)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _of_type(dice, arguments[0], depth)
    if origin in (Union, types.UnionType):
        return _of_type(dice, dice.choice([one for one in arguments if one is not msgspec.UnsetType]), depth)
    if origin is list:
        return [_of_type(dice, arguments[0], depth + 1) for _ in range(dice.choice((0, 1, 1, 2, 3)))]
    if origin is tuple:
        return [_plain(dice, depth + 1) for _ in range(2)]
    if origin is dict:
        return {dice.choice(TEXTS): _of_type(dice, arguments[1], depth + 1) for _ in range(dice.randrange(3))}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {
            field.encode_name: _of_type(dice, field.type, depth + 1)
            for field in msgspec.structs.fields(kind)
            if field.required or dice.random() < 0.6
        }
    if isinstance(kind, type) and issubclass(kind, Enum):
        return dice.choice([member.value for member in kind])
    return _plain(dice, depth)


_MAKERS: dict[type, Callable[[Random], object]] = {
    str: lambda dice: dice.choice(TEXTS),
    int: lambda dice: dice.choice([n for n in NUMBERS if isinstance(n, int)]),
    float: lambda dice: dice.choice(NUMBERS),
    bool: lambda dice: dice.random() < 0.5,
    type(None): lambda dice: None,
}


def _plain(dice: Random, depth: int) -> object:
    """Any JSON."""
    if depth > 3 or dice.random() < 0.6:
        return dice.choice((*TEXTS, *NUMBERS, None, True, False))
    if dice.random() < 0.5:
        return [_plain(dice, depth + 1) for _ in range(dice.randrange(4))]
    return {dice.choice(TEXTS): _plain(dice, depth + 1) for _ in range(dice.randrange(4))}

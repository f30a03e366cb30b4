"""Small conversions that every endpoint needs: JSON, AMQP values, times, query parameters, path segments.

Owns: how values look on the wire. Must not touch: what they mean.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Final, TypeVar
from urllib.parse import unquote_plus, unquote_to_bytes

import msgspec

from holtmq.broker.errors import Conflict
from holtmq.broker.partitioned.groups.subscriptions import read_timestamp
from holtmq.http.engine.errors import Refusal, invalid_json
from holtmq.wire.tables import EPOCH, Timestamp

T = TypeVar("T")

_US: Final = 1_000_000
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z").match
_seconds: dict[int, str] = {}


quoted: Final[Callable[[str], str]] = encode_basestring  # a JSON string; no wrapper: called per message


def quoted_or_null(text: str | None) -> str:
    return "null" if text is None else encode_basestring(text)


def iso_us(at_us: int) -> str:
    """UTC with microseconds. The part up to the second is cached: many messages share a second."""
    second, us = divmod(at_us, _US)
    head = _seconds.get(second)
    if head is None:
        if len(_seconds) > 4096:
            _seconds.clear()
        moment = datetime.fromtimestamp(second, UTC)
        head = _seconds[second] = moment.strftime("%Y-%m-%dT%H:%M:%S.")
    return f"{head}{us:06d}Z"


def iso_ms(at_us: int) -> str:
    """UTC with milliseconds."""
    return iso_us(at_us)[:-4] + "Z"


def iso_seconds(at: float | None) -> str | None:
    """A time in seconds, as the clock gives it."""
    return None if at is None else iso_ms(round(at * _US))


def is_uuid(text: str) -> bool:
    return _UUID(text) is not None


def segment(raw: str) -> str:
    """One path segment, decoded after the path was split."""
    return unquote_to_bytes(raw).decode("utf-8", "replace") if "%" in raw else raw


class Query:
    """Query parameters of a request. Unknown ones are ignored, malformed numbers take the default."""

    __slots__ = ("_raw", "_values")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._values: dict[str, str] = {}
        for pair in raw.decode("latin-1").split("&"):
            name, _, value = pair.partition("=")
            if name:
                self._values.setdefault(unquote_plus(name), unquote_plus(value))

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name) or default

    def optional(self, name: str) -> str | None:
        return self._values.get(name) or None

    def every(self, name: str) -> list[str]:
        """All values of a parameter that may be repeated."""
        pairs = (pair.partition("=") for pair in self._raw.decode("latin-1").split("&"))
        return [unquote_plus(value) for key, _, value in pairs if unquote_plus(key) == name and value]

    def number(self, name: str, default: int, low: int = 0, high: int = 1 << 53) -> int:
        value = self._values.get(name, "")
        if not re.fullmatch(r"-?[0-9]{1,18}", value):
            return min(default, high)
        return min(max(int(value), low), high)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._values.get(name)
        return default if value is None else value in ("true", "1")

    def has(self, name: str) -> bool:
        return name in self._values

    def time_us(self, name: str) -> int | None:
        """A time parameter, in microseconds; None if it is absent. Raises 400 if it is malformed."""
        value = self._values.get(name)
        return None if not value else moment_us(value, name)


def moment_us(text: str, name: str) -> int:
    """An ISO-8601 time, in microseconds; ``name`` is the parameter that the error names."""
    try:
        return read_timestamp(text)
    except Conflict as error:
        raise Refusal(400, f"{name}: {error}") from None


def read_json(body: bytes, kind: type[T], *, is_lenient: bool = False) -> T:
    """A body as this struct; raises 400. ``is_lenient``: "true" and "1" may stand for true and 1."""
    try:
        return msgspec.json.decode(body, type=kind, strict=not is_lenient)
    except msgspec.MsgspecError as error:
        raise invalid_json(error) from None


def raw(payload: bytes) -> msgspec.Raw:
    """Stored JSON inside an answer, without decoding it."""
    return msgspec.Raw(payload)


def plain(value: object) -> object:
    """A value of a field table as a JSON value."""
    match value:
        case dict():
            return {text(str(key)): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case str():
            return text(value)
        case bytes():
            return value.decode("utf-8", "replace")
        case datetime():
            return int((value - EPOCH).total_seconds())
        case Decimal():
            return float(value)
        case Timestamp():
            return int(value)
        case msgspec.Raw():
            return msgspec.json.decode(value)
        case _:
            return value


def text(value: str) -> str:
    """A text that JSON can carry: names from AMQP may contain bytes that are not UTF-8."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def encode(value: object) -> bytes:
    """The answer as JSON."""
    try:
        return msgspec.json.encode(value, enc_hook=plain)
    except UnicodeEncodeError:
        return msgspec.json.encode(plain(msgspec.to_builtins(value, enc_hook=plain)))

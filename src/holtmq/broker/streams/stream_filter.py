"""Which messages of a stream a reader receives: by filter value, and by an SQL expression.

Owns: the consumer arguments ``x-stream-filter``, ``x-stream-match-unfiltered`` and ``x-stream-sql-filter``,
and the names of fields in an expression. Must not touch: how the stream is read.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from holtmq.broker.errors import Conflict
from holtmq.broker.partitioned.log.bodies import AmqpMetadata, Body
from holtmq.broker.streams.sql_filter import SqlFilter
from holtmq.wire.primitives import CodecError
from holtmq.wire.properties import Properties, decode_properties

VALUE_HEADER: Final = "x-stream-filter-value"
_VALUES: Final = "x-stream-filter"
_UNFILTERED: Final = "x-stream-match-unfiltered"
_SQL: Final = "x-stream-sql-filter"
ARGUMENTS: Final = (_VALUES, _UNFILTERED, _SQL)
_MOST_VALUES: Final = 256
_DECODED: Final = 64  # bytes of properties take as long as a message that needs no decoding
# AMQP 1.0's sections and their short names, with the names that 0-9-1 has for the same things.
_SECTIONS: Final = {
    "p": "properties",
    "h": "header",
    "a": "application_properties",
    "properties": "properties",
    "header": "header",
    "application_properties": "application_properties",
}
_RENAMED: Final = {"creation_time": "timestamp", "subject": "type", "durable": "delivery_mode"}
_PROPERTIES: Final = frozenset(Properties.__dataclass_fields__) - {"headers"}


class StreamFilter:
    """The filter of one reader. ``accepts`` remembers the last properties: neighbours mostly share them."""

    def __init__(self, values: frozenset[str] | None, match_unfiltered: bool, sql: SqlFilter | None) -> None:
        self._values = values
        self._match_unfiltered = match_unfiltered
        self._sql = sql
        self._last: AmqpMetadata | None = None
        self._answer = False
        self.work = 1  # of the last ``accepts``, in the time of a message like the one before it, about 3 µs

    def accepts(self, stored: Body) -> bool:
        """Whether the reader receives this message."""
        metadata = stored.metadata
        self.work = 1
        if metadata is None:
            return self._check(Properties(), 0)
        if metadata is not self._last:
            size = len(metadata.header)
            self.work += size // _DECODED
            try:
                properties = decode_properties(metadata.header)
            except CodecError:  # a header table that no rule had to decode
                properties = Properties()
            self._answer = self._check(properties, size)
            self._last = metadata
        return self._answer

    def _check(self, properties: Properties, size: int) -> bool:
        headers: Mapping[str, object] = properties.headers or {}
        if self._values is not None:
            value = headers.get(VALUE_HEADER)
            if not (self._match_unfiltered if value is None else value in self._values):
                return False
        if self._sql is None:
            return True
        self.work += self._sql.work(size)
        return self._sql.accepts(lambda name: _field(properties, headers, name))


def make_filter(arguments: Mapping[str, object], queue: str) -> StreamFilter | None:
    """The filter in a consumer's arguments; None if it has none. Raises Conflict."""
    given = [name for name in ARGUMENTS if name in arguments]
    if not given:
        return None
    values = _read_values(arguments[_VALUES], queue) if _VALUES in arguments else None
    unfiltered = arguments.get(_UNFILTERED, False)
    if not isinstance(unfiltered, bool):
        raise _bad(_UNFILTERED, queue, f"{unfiltered!r} is not true or false")
    if values is None and _UNFILTERED in arguments:
        raise _bad(_UNFILTERED, queue, f"it needs '{_VALUES}' beside it")
    sql = arguments.get(_SQL)
    if sql is not None and not isinstance(sql, str):
        raise _bad(_SQL, queue, f"{sql!r} is not a text")
    try:
        compiled = None if sql is None else SqlFilter(sql)
    except Conflict as error:
        raise _bad(_SQL, queue, str(error)) from None
    return StreamFilter(values, unfiltered, compiled)


def _read_values(given: object, queue: str) -> frozenset[str]:
    values = [given] if isinstance(given, str) else given
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        raise _bad(_VALUES, queue, f"{given!r} is not a text or a list of texts")
    if not 0 < len(values) <= _MOST_VALUES:
        raise _bad(_VALUES, queue, f"{len(values)} values; from 1 to {_MOST_VALUES} are allowed")
    return frozenset(values)


def _bad(name: str, queue: str, reason: str) -> Conflict:
    return Conflict(f"invalid arg '{name}' for queue '{queue}': {reason}")


def _field(properties: Properties, headers: Mapping[str, object], name: str) -> object:
    """A bare name is a header; ``properties.content_type`` (or ``p.``) and ``header.priority`` (``h.``) are
    properties."""
    first, dot, rest = name.partition(".")
    section = _SECTIONS.get(first) if dot else None
    if section is None or section == "application_properties":
        value = headers.get(name if section is None else rest)
    else:
        known = _RENAMED.get(rest, rest).replace("-", "_")
        value = getattr(properties, known) if known in _PROPERTIES else None
        if rest == "durable":
            value = value == 2
    return value.timestamp() if isinstance(value, datetime) else value

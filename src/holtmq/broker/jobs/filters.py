"""Filters on messages: ``header.tenant=acme``, ``age>3600``, ``json.order.id=17``.

Owns: the language of expressions and their meaning. Must not touch: queues, clocks; a ``Subject`` is one
message as it is now.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Final

import msgspec

from holtmq.broker.errors import Conflict
from holtmq.wire.primitives import CodecError
from holtmq.wire.properties import PROPERTIES_AT, Properties, decode_properties

_PROPERTIES: Final = tuple(field.name for field in fields(Properties) if field.name != "headers")
_PLAIN: Final = ("body", "exchange", "key", "age", "size", "deliveries")
_EXPRESSION: Final = re.compile(
    rf"(?P<field>{'|'.join(_PLAIN)}|(?:property|header|json)\.[^=!~<>]+)(?P<operator>!=|=|~|<|>)(?P<value>.*)",
    re.DOTALL,
)
_STEPS: Final = re.compile(r"[^.\[\]]+|\[[0-9]{1,18}\]")
_MISSING: Final = object()
_JSON_MOST: Final = 4 << 20  # bytes of a body that is decoded: more would hold the event loop for too long


@dataclass
class Subject:
    """One message, for a filter. What an expression does not ask for is not decoded."""

    body: bytes
    header: bytes  # the content header; empty for a message that came over HTTP
    exchange: str
    key: str
    age: float  # seconds
    deliveries: int

    @cached_property
    def properties(self) -> Properties:
        """Its AMQP properties; none when it has none or they are malformed."""
        if self.header:
            try:
                return decode_properties(self.header, PROPERTIES_AT)
            except CodecError:
                pass
        return Properties()

    @cached_property
    def json(self) -> object:
        """Its body as JSON, or a value that equals nothing; a very large body counts as no JSON."""
        if len(self.body) > _JSON_MOST:
            return _MISSING
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return _MISSING


Filter = Callable[[Subject], bool]


def parse_filter(expressions: Sequence[str]) -> Filter:
    """One function for all expressions; raises Conflict for one that is not understood."""
    tests = [_parse(expression) for expression in expressions]
    return lambda subject: all(test(subject) for test in tests)


def _parse(expression: str) -> Filter:
    found = _EXPRESSION.fullmatch(expression.strip())
    if found is None:
        raise Conflict(
            f"filter '{expression}' is not understood: expected FIELD, one of = != ~ < >, and a value, such "
            f"as header.tenant=acme; fields are {', '.join(_PLAIN)}, property.NAME, header.NAME, json.PATH"
        )
    name, operator, wanted = found["field"].strip(), found["operator"], found["value"].strip()
    value_of = _reader(name, expression)
    if operator in "<>":
        try:
            bound = float(wanted)
        except ValueError:
            raise Conflict(f"filter '{expression}': {wanted!r} is not a number") from None
        return lambda subject: _is_beyond(value_of(subject), operator, bound)
    if operator == "~":
        return lambda subject: _contains(value_of(subject), wanted)
    try:
        spelled: object = msgspec.json.decode(wanted)
    except msgspec.DecodeError:
        spelled = _MISSING
    if operator == "=":
        return lambda subject: _equals(value_of(subject), wanted, spelled)
    return lambda subject: not _equals(value_of(subject), wanted, spelled)


def _reader(name: str, expression: str) -> Callable[[Subject], object]:
    kind, _, rest = name.partition(".")
    match kind:
        case "property":
            if rest not in _PROPERTIES:
                raise Conflict(
                    f"filter '{expression}': there is no property {rest!r}; one of {', '.join(_PROPERTIES)}"
                )
            return lambda subject: _or_missing(getattr(subject.properties, rest))
        case "header":
            return lambda subject: (subject.properties.headers or {}).get(rest, _MISSING)
        case "json":
            steps = [int(step[1:-1]) if step[0] == "[" else step for step in _STEPS.findall(rest)]
            return lambda subject: _at(subject.json, steps)
        case "size":
            return lambda subject: len(subject.body)
        case _:
            return lambda subject: getattr(subject, kind)


def _at(value: object, steps: Sequence[str | int]) -> object:
    for step in steps:
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step, _MISSING)
        elif isinstance(step, int) and isinstance(value, list) and step < len(value):
            value = value[step]
        else:
            return _MISSING
    return value


def _or_missing(value: object) -> object:
    return _MISSING if value is None else value


def _equals(value: object, wanted: str, spelled: object) -> bool:
    if value is _MISSING:
        return False
    if _text(value) == wanted:
        return True
    value = _plain(value)
    return (
        spelled is not _MISSING and isinstance(value, bool) == isinstance(spelled, bool) and value == spelled
    )


def _contains(value: object, wanted: str) -> bool:
    return value is not _MISSING and wanted in _text(value)


def _is_beyond(value: object, operator: str, bound: float) -> bool:
    value = _plain(value)
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return False
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value > bound if operator == ">" else value < bound


def _plain(value: object) -> object:
    """A value of a field table as JSON shows it."""
    match value:
        case bytes():
            return value.decode("utf-8", "replace")
        case datetime():
            return int(value.timestamp())
        case Decimal():
            return float(value)
        case _:
            return value


def _text(value: object) -> str:
    value = _plain(value)
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value, enc_hook=str).decode()

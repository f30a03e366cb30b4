"""Whether a redeclaration is equivalent to the first declaration, and the text of the error if not.

Owns: the comparison of declared fields and argument tables, and RabbitMQ's error text for a difference
(people grep for it). Must not touch: what any single argument means.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal

_INT32_MAX = 2**31 - 1


def field_difference(field: str, thing: str, received: object, current: object) -> str | None:
    """The error text for one declared field, or None if equal. ``thing``: "queue 'q' in vhost '/'"."""
    if same_value(received, current):
        return None
    return _sentence(field, thing, f"'{shown(received)}'", f"'{shown(current)}'")


def argument_difference(
    keys: Iterable[str], thing: str, received: Mapping[str, object], current: Mapping[str, object]
) -> str | None:
    """The error text for the first of ``keys`` on which two argument tables differ, or None."""
    for key in keys:
        if key in received and key in current:
            if not same_value(received[key], current[key]):
                return _sentence(key, thing, f"'{shown(received[key])}'", f"'{shown(current[key])}'")
        elif key in received or key in current:
            return _sentence(key, thing, _presence(key, received), _presence(key, current))
    return None


def same_value(left: object, right: object) -> bool:
    """Equality as in RabbitMQ: every integer width is one type, but true is not 1 and 1 is not 1.0."""
    left_is_text, right_is_text = isinstance(left, str | bytes), isinstance(right, str | bytes)
    if left_is_text and right_is_text:
        return _as_bytes(left) == _as_bytes(right)
    return type(left) is type(right) and left == right


def shown(value: object) -> str:
    """A table value as RabbitMQ prints it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return "undefined" if value is None else str(value)


def type_name(value: object) -> str:
    """RabbitMQ's name for the field type that encodes this value."""
    match value:
        case bool():
            return "bool"
        case int():
            # The width on the wire is lost in decoding; clients choose the narrower of these two.
            return "signedint" if -_INT32_MAX - 1 <= value <= _INT32_MAX else "long"
        case float():
            return "double"
        case str():
            return "longstr"
        case bytes():
            return "binary"
        case None:
            return "void"
        case Decimal():
            return "decimal"
        case datetime():
            return "timestamp"
        case Mapping():
            return "table"
        case _:
            return "array"


def _presence(key: str, table: Mapping[str, object]) -> str:
    if key not in table:
        return "none"
    return f"the value '{shown(table[key])}' of type '{type_name(table[key])}'"


def _sentence(key: str, thing: str, received: str, current: str) -> str:
    return f"inequivalent arg '{key}' for {thing}: received {received} but current is {current}"


def _as_bytes(text: object) -> object:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text


def frozen(value: object) -> object:
    """A hashable copy that keeps types apart: true, 1 and 1.0 are three different arguments."""
    if isinstance(value, Mapping):
        return tuple(sorted((key, frozen(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return ("array", *map(frozen, value))
    return (type(value).__name__, value)

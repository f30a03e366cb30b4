"""JSON payloads as typed values, one at a time: what Arrow's JSON reader does not support or refuses.

Owns: which JSON value fits which type. A value that both accept is the same as Arrow's. Must not touch:
batches, Spark. As in Spark's ``from_json``, a STRING takes any value, as its JSON text.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal, InvalidOperation
from typing import Final

import msgspec
import pyarrow as pa

# A payload, or a value in it, that does not fit. OverflowError: a time before the year 1 in UTC.
UNFIT: Final = (ValueError, TypeError, OverflowError, InvalidOperation, msgspec.MsgspecError)

_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array: Final = msgspec.json.Decoder(list[msgspec.Raw])
_text: Final = msgspec.json.Decoder(str)
_number: Final = msgspec.json.Decoder(float)
_INTEGER: Final = re.compile(rb"-?\d+")
# ``fromisoformat`` also takes weeks and dates without hyphens, which Spark and Arrow do not.
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_EXACT: Final = Context(prec=80)


def is_supported(kind: pa.DataType) -> bool:
    """Whether ``row_of`` can give values of this type."""
    if pa.types.is_struct(kind):
        return all(is_supported(field.type) for field in kind)
    if pa.types.is_map(kind):
        return pa.types.is_string(kind.key_type) and is_supported(kind.item_type)
    if pa.types.is_list(kind):
        return is_supported(kind.value_type)
    return any(test(kind) for test, _ in _CONVERSIONS)


def row_of(payload: bytes, schema: pa.Schema) -> dict[str, object]:
    """The fields of a JSON object; raises one of ``UNFIT`` if it is none or a field does not fit."""
    given = _object.decode(payload)
    return {field.name: _value(given.get(field.name), field.type) for field in schema}


def _value(given: msgspec.Raw | None, kind: pa.DataType) -> object:
    if given is None or (raw := bytes(given)) == b"null":
        return None
    if pa.types.is_struct(kind):
        return _fields(_object.decode(raw), kind)
    if pa.types.is_map(kind):
        return [(name, _value(value, kind.item_type)) for name, value in _object.decode(raw).items()]
    if pa.types.is_list(kind):
        return [_value(value, kind.value_type) for value in _array.decode(raw)]
    for test, convert in _CONVERSIONS:
        if test(kind):
            return convert(raw, kind)
    raise TypeError(f"JSON has no {kind}")


def _fields(given: Mapping[str, msgspec.Raw], kind: pa.DataType) -> dict[str, object]:
    return {field.name: _value(given.get(field.name), field.type) for field in kind}


def _string(raw: bytes, kind: pa.DataType) -> str:
    return _text.decode(raw) if raw[:1] == b'"' else raw.decode()


def _binary(raw: bytes, kind: pa.DataType) -> bytes:
    return _text.decode(raw).encode()


def _integer(raw: bytes, kind: pa.DataType) -> int:
    if not _INTEGER.fullmatch(raw):
        raise ValueError("not a whole number")
    value = int(raw)
    if not -(1 << kind.bit_width - 1) <= value < 1 << kind.bit_width - 1:
        raise ValueError(f"too large for {kind}")
    return value


def _floating(raw: bytes, kind: pa.DataType) -> float:
    value = _number.decode(raw)
    if math.isinf(value):
        raise ValueError("too large")
    return value


def _boolean(raw: bytes, kind: pa.DataType) -> bool:
    if raw not in (b"true", b"false"):
        raise ValueError("neither true nor false")
    return raw == b"true"


def _decimal(raw: bytes, kind: pa.DataType) -> Decimal:
    given = Decimal(_text.decode(raw) if raw[:1] == b'"' else raw.decode())
    if not given.is_finite():
        raise ValueError("not a number")
    value = given.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    if value != given or len(value.as_tuple().digits) > kind.precision:
        raise ValueError(f"has more digits than {kind}")
    return value


def _timestamp(raw: bytes, kind: pa.DataType) -> datetime:
    text = _text.decode(raw)
    if not _DATE.match(text):
        raise ValueError("not an ISO-8601 time")
    value = datetime.fromisoformat(text)  # cuts nanoseconds to microseconds
    # A time without an offset is in UTC.
    value = value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    return value if kind.tz else value.replace(tzinfo=None)


def _date(raw: bytes, kind: pa.DataType) -> date:
    text = _text.decode(raw)
    if not _DATE.match(text) or text[10:11] not in ("", "T", " "):
        raise ValueError("not an ISO-8601 date")
    return date.fromisoformat(text[:10])


def _time(raw: bytes, kind: pa.DataType) -> time:
    return time.fromisoformat(_text.decode(raw))


_CONVERSIONS: Final[
    Sequence[tuple[Callable[[pa.DataType], bool], Callable[[bytes, pa.DataType], object]]]
] = (
    (pa.types.is_string, _string),
    (pa.types.is_signed_integer, _integer),
    (pa.types.is_floating, _floating),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_date32, _date),
    (pa.types.is_time, _time),
    (pa.types.is_binary, _binary),
)

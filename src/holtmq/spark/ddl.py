"""Spark's DDL as text: splitting a column list, quoting a name.

Owns: that text. Must not touch: what the types mean. It stays text because pyspark parses DDL only in a
process with a session, and readers run without one.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from holtmq.spark.errors import InvalidOption

_NESTED: Final = ("ARRAY", "MAP", "STRUCT")
_TYPES: Final = (
    *("BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG"),
    *("FLOAT", "REAL", "DOUBLE", "DECIMAL", "DEC", "NUMERIC"),
    *("STRING", "CHAR", "CHARACTER", "VARCHAR", "BINARY", "VARIANT", "VOID"),
    *("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "INTERVAL"),
)
_NESTED_TYPE: Final = re.compile(r"(\w+)\s*<(.*)>", re.DOTALL)


def split_ddl(ddl: str) -> dict[str, str]:
    """Top-level fields of a DDL string, name to type, in order."""
    fields: dict[str, str] = {}
    for part in _top_level(ddl):
        name, kind = _field(part)
        if not name or not kind:
            raise InvalidOption(
                f"option payloadSchema: {part.strip()!r} is not a field such as 'amount DOUBLE'"
            )
        if name in fields:
            raise InvalidOption(f"option payloadSchema: field {name!r} twice")
        _check_type(name, kind)
        fields[name] = kind
    return fields


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _check_type(name: str, kind: str) -> None:
    """Refuse a word that is no type: Spark would point at a place in the columns of the whole relation."""
    nested = _NESTED_TYPE.match(kind)
    word = nested[1] if nested else re.split(r"\W", kind, maxsplit=1)[0]
    if nested and word.upper() in _NESTED:
        for part in _top_level(nested[2]):
            if word.upper() == "STRUCT":
                _check_type(f"{name}.{_field(part)[0]}", _field(part)[1])
            else:
                _check_type(name, part.strip())
    elif word.upper() in _NESTED:
        raise InvalidOption(
            f"option payloadSchema: field {name}: say what is in it, "
            "such as ARRAY<INT>, MAP<STRING, INT> or STRUCT<a: INT>"
        )
    elif word.upper() not in _TYPES:
        close = get_close_matches(word.upper(), [*_TYPES, *_NESTED], n=1)
        hint = f"; did you mean {close[0]}?" if close else ", such as BIGINT, DOUBLE, STRING or TIMESTAMP"
        raise InvalidOption(f"option payloadSchema: field {name}: {kind!r} is not a type{hint}")


def _top_level(ddl: str) -> Sequence[str]:
    parts, depth, start, in_name = [], 0, 0, False
    for place, char in enumerate(ddl):
        if char == "`":
            in_name = not in_name
        elif in_name:
            continue
        elif char in "<(":
            depth += 1
        elif char in ">)":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(ddl[start:place])
            start = place + 1
    return [*parts, ddl[start:]]


def _field(part: str) -> tuple[str, str]:
    part = part.strip()
    if part.startswith("`"):
        end = part.find("`", 1)
        while end >= 0 and part[end : end + 2] == "``":
            end = part.find("`", end + 2)
        return (part[1:end].replace("``", "`"), part[end + 1 :].strip(" :")) if end > 0 else ("", "")
    name, _, kind = part.partition(":") if ":" in part.split("<")[0].split(" ")[0] else part.partition(" ")
    return name.strip(), kind.strip()

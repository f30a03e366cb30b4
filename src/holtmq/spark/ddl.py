"""Spark's DDL as text: splitting a column list, quoting a name.

Owns: that text. Must not touch: what the types mean. It stays text because pyspark parses DDL only in a
process with a session, and readers run without one.
"""

from collections.abc import Sequence

from holtmq.spark.errors import InvalidOption


def split_ddl(ddl: str) -> dict[str, str]:
    """Top-level fields of a DDL string, name to type, in order. Types are not checked; Spark does that."""
    fields: dict[str, str] = {}
    for part in _top_level(ddl):
        name, kind = _field(part)
        if not name or not kind:
            raise InvalidOption(
                f"option payloadSchema: {part.strip()!r} is not a field such as 'amount DOUBLE'"
            )
        if name in fields:
            raise InvalidOption(f"option payloadSchema: field {name!r} twice")
        fields[name] = kind
    return fields


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


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

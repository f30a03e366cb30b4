"""Finds the line of a setting in a TOML file, so that an error can point at it.

Owns: a simple line scanner. Must not touch: values; ``tomllib`` reads those. Where the scanner fails (inline
tables, quoted dots) the error names only the file.
"""

import re
from typing import Final

_TABLE: Final = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_.\"'-]+(?:\s*\.\s*[A-Za-z0-9_\"'-]+)*)\s*=")


def key_lines(text: str) -> dict[str, int]:
    """Line numbers, from 1, of every table (``amqp``) and key (``amqp.port``)."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _TABLE.fullmatch(line):
            table = _plain(match[1])
            lines.setdefault(table, number)
        elif match := _KEY.match(line):
            name = _plain(match[1])
            lines.setdefault(f"{table}.{name}" if table else name, number)
    return lines


def _plain(name: str) -> str:
    return ".".join(piece.strip().strip("\"'") for piece in name.split("."))

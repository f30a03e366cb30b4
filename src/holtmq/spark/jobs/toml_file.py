"""A TOML file that declares jobs, with line numbers.

Owns: errors that name the file and the line. Must not touch: what the tables mean.
"""

import re
import tomllib
from collections.abc import Mapping
from typing import Final

from holtmq.spark.errors import HoltSparkError

_TABLE: Final = re.compile(r"\s*\[\s*([\w.\-\"]+)\s*\]\s*(?:#.*)?")
_KEY: Final = re.compile(r"\s*([\w\-]+)\s*=")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")


class PipelineFileError(HoltSparkError):
    """An error in a pipeline file, with its line."""


class TomlFile:
    """The parsed file, and the lines of its tables and keys."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.lines: dict[str, int] = {}
        table = ""
        for number, line in enumerate(text.splitlines(), 1):
            if match := _TABLE.fullmatch(line):
                table = match[1].replace('"', "")
                self.lines.setdefault(table, number)
            elif match := _KEY.match(line):
                self.lines.setdefault(f"{table}.{match[1]}", number)
        try:
            self.data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise PipelineFileError(f"{name}: {error}") from None

    def refuse(self, where: str, why: str) -> PipelineFileError:
        at = self.lines.get(where) or self.lines.get(where.rpartition(".")[0])
        return PipelineFileError(f"{self.name}{f', line {at}' if at else ''}: {where}: {why}")

    def tables(self, kind: str, *, sql: bool = True) -> dict[str, dict[str, object]]:
        """The tables ``[kind.name]``; with ``sql`` their names must be valid in a query."""
        found = self.data.get(kind, {})
        if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
            raise self.refuse(kind, f"write each one as its own table: [{kind}.name]")
        for name in found:
            if sql and not _NAME.fullmatch(name):
                raise self.refuse(f"{kind}.{name}", "a name is letters, digits and _: SQL speaks of it")
        return found

    def text(self, where: str, value: object) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, str | int | float):
            raise self.refuse(where, f"must be text or a number, not {value!r}")
        return str(value)

    def only(self, where: str, table: Mapping[str, object], known: set[str]) -> None:
        for key in table:
            if key not in known:
                raise self.refuse(
                    f"{where}.{key}", f"there is no such key; there are {', '.join(sorted(known))}"
                )

"""The options that a query was given: values parsed, errors that name the option.

Owns: how numbers, times, sizes and flags are written. Must not touch: which options exist (``options.py``).
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final, NoReturn, TypeVar

from holtmq.spark.errors import InvalidOption
from holtmq.spark.name_lists import split_names

T = TypeVar("T")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES: Final = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kb": 1 << 10,
    "m": 1 << 20,
    "mb": 1 << 20,
    "g": 1 << 30,
    "gb": 1 << 30,
}


def parse_timestamp_us(text: str) -> int:
    """Microseconds from an ISO-8601 time (UTC unless it has a zone) or from Kafka's epoch milliseconds."""
    if re.fullmatch(r"\d{1,16}", text):
        return int(text) * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("use an ISO-8601 time such as 2026-05-01T12:00:00Z, or epoch milliseconds") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return max(0, (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)


def parse_seconds(text: str) -> float:
    """Seconds from ``15m``, ``10s``, ``500ms`` or a bare number of seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", text.strip().lower())
    if found is None:
        raise ValueError("use a duration such as 500ms, 10s, 15m or 1h")
    return float(found[1]) * _UNITS[found[2] or "s"]


def parse_size(text: str) -> int:
    """Bytes from ``64m``, ``1gb`` or a bare number."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _SIZES:
        raise ValueError("use a size such as 1048576, 64m or 1g")
    size = int(found[1]) * _SIZES[found[2]]
    if size < 1:
        raise ValueError("it must be at least 1")
    return size


def parse_number(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text.strip()):
        raise ValueError("it must be a whole number")
    return int(text)


def _parse_count(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text.strip()) or int(text) < 1:
        raise ValueError("it must be a whole number of at least 1")
    return int(text)


class GivenOptions:
    """The given options by lower-case name, and errors that name the option."""

    def __init__(
        self, given: Mapping[str, str], known: tuple[str, ...], aliases: Mapping[str, str] | None = None
    ) -> None:
        self._given = {name.lower(): str(value).strip() for name, value in given.items()}
        for alias, name in (aliases or {}).items():
            if alias.lower() in self._given and name.lower() in self._given:
                raise InvalidOption(f"{alias} is another name of {name}: give one of them")
            if alias.lower() in self._given:
                self._given[name.lower()] = self._given.pop(alias.lower())
        spelled = {name.lower(): name for name in known}
        for name in self._given.keys() - spelled.keys():
            # Spark adds options of its own (path, checkpointLocation), so unknown names are accepted. A near
            # miss is not: a query with "startingOffset" would silently start somewhere else.
            near = get_close_matches(name, spelled, n=1, cutoff=0.85)
            if near:
                raise InvalidOption(f"there is no option {name!r}; did you mean {spelled[near[0]]}?")

    def text(self, name: str) -> str:
        return self._given.get(name.lower(), "")

    def names(self, name: str) -> tuple[str, ...]:
        return split_names(self.text(name))

    def table(self, name: str, example: str) -> dict[str, object]:
        """A non-empty JSON object."""
        try:
            found = json.loads(self.text(name))
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found:
            self.refuse(name, example)
        return found

    def parse(self, name: str, how: Callable[[str], T]) -> T:
        try:
            return how(self.text(name))
        except ValueError as error:
            self.refuse(name, str(error))

    def count(self, name: str) -> int | None:
        return self.parse(name, _parse_count) if self.text(name) else None

    def size(self, name: str) -> int | None:
        return self.parse(name, parse_size) if self.text(name) else None

    def seconds(self, name: str, default: float) -> float:
        return self.parse(name, parse_seconds) if self.text(name) else default

    def flag(self, name: str, default: bool) -> bool:
        word = self.text(name).lower()
        if word not in ("", "true", "false"):
            self.refuse(name, "it must be true or false")
        return default if not word else word == "true"

    def absent(self, name: str, why: str) -> None:
        if self.text(name):
            self.refuse(name, why)

    def refuse(self, name: str, why: str) -> NoReturn:
        value = (
            "" if name in ("token", "password") else f" ({self.text(name)[:80]!r})" if self.text(name) else ""
        )
        raise InvalidOption(f"option {name}{value}: {why}")

"""Converts one setting's text or TOML value to a typed value.

Owns: the units (sizes, durations), the accepted spellings, and the error text that says what is expected.
Must not touch: files, the environment, names of settings.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

# Types that TOML, an environment variable or a flag can yield.
_TYPE_NAMES: Final = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list"}

_SIZE_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "k": 1024,
    "m": 1024**2,
    "g": 1024**3,
    "t": 1024**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}
_DURATION_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_NUMBER_AND_UNIT: Final = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})


class Secret(str):
    """A string whose repr is masked, so that it does not appear in logs and tracebacks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'" if self else "''"


class BadValue(ValueError):
    """The value cannot be used; the text says what is expected."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value: its name for the documentation, and how to read and to write it."""

    name: str
    parse: Callable[[object], object]
    show: Callable[[object], object] = lambda value: value  # converts to a type of TOML and JSON
    metavar: str = ""  # placeholder for the value in --help; when empty, the name
    is_flag: bool = False  # on the command line: --name / --no-name, without a value


def _parse_bool(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str):
        word = raw.strip().lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
    raise BadValue("expected true or false")


def _parse_text(raw: object) -> str:
    if not isinstance(raw, str):
        raise BadValue(f"expected a text, got {_TYPE_NAMES.get(type(raw), 'something else')}")
    return raw


def _parse_secret(raw: object) -> Secret:
    return Secret(_parse_text(raw))


def _parse_path(raw: object) -> Path:
    text = _parse_text(raw)
    if not text:
        raise BadValue("expected a path, got an empty text")
    return Path(text)


def _parse_optional_path(raw: object) -> Path | None:
    # An empty text turns off a setting that a lower layer has turned on.
    return _parse_path(raw) if raw != "" else None


def _parse_texts(raw: object) -> tuple[str, ...]:
    if isinstance(raw, str):
        return tuple(piece.strip() for piece in raw.split(",") if piece.strip())
    if isinstance(raw, list) and all(isinstance(piece, str) for piece in raw):
        return tuple(raw)
    raise BadValue("expected a list of texts, or one text with commas")


def _parse_int(raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str):
        try:
            return int(raw)
        except ValueError:
            pass
    raise BadValue("expected a whole number")


def _parse_size(raw: object) -> int:
    amount, unit = _number_and_unit(raw, "expected a size such as 1048576 or 64MiB")
    factor = _SIZE_UNITS.get(unit.lower())
    if factor is None:
        raise BadValue(f"unknown unit {unit!r}: use B, kB, MB, GB, KiB, MiB or GiB")
    return round(amount * factor)


def _parse_milliseconds(raw: object) -> int:
    return round(_duration_ms(raw, "ms", "expected milliseconds such as 500, or a duration such as 10s"))


def _parse_seconds(raw: object) -> float:
    return _duration_ms(raw, "s", "expected seconds such as 10, or a duration such as 500ms or 2m") / 1000


def _parse_whole_seconds(raw: object) -> int:
    seconds = _parse_seconds(raw)
    if seconds != int(seconds):
        raise BadValue("expected whole seconds")
    return int(seconds)


_LEAST_MEMORY: Final = 1024**2


def _parse_fraction_or_size(raw: object) -> float:
    if isinstance(raw, str) and raw.strip().endswith("%"):
        try:
            fraction = float(raw.strip()[:-1]) / 100
        except ValueError as error:
            raise BadValue("expected a percentage such as 60%") from error
        if not 0 <= fraction <= 1:
            raise BadValue("expected a percentage from 0% to 100%")
        return fraction
    wanted = "expected a fraction such as 0.6, a percentage such as 60%, or a size such as 2GiB"
    amount, unit = _number_and_unit(raw, wanted)
    if not unit and amount <= 1:
        return amount
    size = float(_parse_size(raw))
    if size < _LEAST_MEMORY:  # 1.5 or 4 is a mistake: it would block every publisher forever
        raise BadValue("a fraction is at most 1, and a size at least 1MiB")
    return size


def _duration_ms(raw: object, bare_unit: str, wanted: str) -> float:
    amount, unit = _number_and_unit(raw, wanted)
    factor = _DURATION_UNITS_MS.get(unit.lower() or bare_unit)
    if factor is None:
        raise BadValue(f"unknown unit {unit!r}: use ms, s, m, h or d")
    return amount * factor


def _number_and_unit(raw: object, wanted: str) -> tuple[float, str]:
    if isinstance(raw, (int, float)) and not isinstance(raw, bool) and raw >= 0:
        return raw, ""
    if isinstance(raw, str) and (match := _NUMBER_AND_UNIT.fullmatch(raw)):
        return float(match[1].replace("_", "")), match[2]
    raise BadValue(wanted)


def _show_size(value: object) -> object:
    assert isinstance(value, int)
    for unit, factor in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024), ("MB", 1000**2)):
        if value >= factor and value % factor == 0:
            return f"{value // factor}{unit}"
    return value


def _show_whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _show_optional(value: object) -> object:
    return "" if value is None else str(value)


def _show_texts(value: object) -> object:
    assert isinstance(value, tuple)
    return list(value)


BOOL: Final = Kind("boolean", _parse_bool, is_flag=True)
TEXT: Final = Kind("text", _parse_text)
SECRET: Final = Kind("text, secret", _parse_secret, metavar="TEXT")
TEXTS: Final = Kind("list of texts", _parse_texts, _show_texts, metavar="TEXT,TEXT...")
PATH: Final = Kind("path", _parse_path, str)
OPTIONAL_PATH: Final = Kind("path", _parse_optional_path, _show_optional)
INT: Final = Kind("number", _parse_int)
SIZE: Final = Kind("size", _parse_size, _show_size)
SECONDS: Final = Kind("duration (s)", _parse_seconds, _show_whole, metavar="DURATION")
WHOLE_SECONDS: Final = Kind("duration (s)", _parse_whole_seconds, metavar="DURATION")
MILLISECONDS: Final = Kind("duration (ms)", _parse_milliseconds, metavar="DURATION")
FRACTION_OR_SIZE: Final = Kind(
    "fraction or size", _parse_fraction_or_size, _show_whole, metavar="FRACTION|SIZE"
)


def choice(members: type[StrEnum], synonyms: dict[str, str] | None = None) -> Kind:
    """A kind that accepts the values of ``members``, and other spellings of them."""
    known = {member.value.lower(): member for member in members}
    known |= {other: members(value) for other, value in (synonyms or {}).items()}

    def parse(raw: object) -> StrEnum:
        found = known.get(raw.strip().lower()) if isinstance(raw, str) else None
        if found is None:
            raise BadValue(f"expected {_either(member.value for member in members)}")
        return found

    spellings = [member.value for member in members]
    return Kind(" or ".join(spellings), parse, str, metavar="|".join(spellings))


def _either(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last

"""LIKE patterns of SQL filters: ``%`` is any text, ``_`` one character.

Owns: the time that a value may take, whatever the pattern: linear in its length, which is bounded. Must not
touch: the rest of the language.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

import re2

from holtmq.broker.errors import Conflict

_LONGEST: Final = 32_768  # characters of a value
LONGEST_WITH_ANY: Final = 1_024  # the same with ``_``: RE2 takes up to 5 ns for each, times the pattern's
_QUIET: Final = re2.Options()
_QUIET.log_errors = False
_QUIET.dot_nl = True


def compile_like(pattern: str, escape: str) -> Callable[[str], bool | None]:
    """A test of a value; its answer is None, unknown, for a value that is too long. Raises Conflict."""
    parts = _parts(pattern, escape)
    has_any = _Wild.CHARACTER in parts
    matches = _with_any(parts) if has_any else _with_texts(parts)
    longest = LONGEST_WITH_ANY if has_any else _LONGEST
    return lambda value: matches(value) if len(value) <= longest else None


class _Wild(Enum):
    TEXT = "%"
    CHARACTER = "_"


def _parts(pattern: str, escape: str) -> list[str | _Wild]:
    parts: list[str | _Wild] = []
    characters = iter(pattern)
    for one in characters:
        if one == escape:
            following = next(characters, None)
            if following is None:
                raise Conflict("the SQL filter has a LIKE pattern that ends with its ESCAPE character")
            parts.append(following)
        else:
            parts.append(_Wild(one) if one in "%_" else one)
    return parts


def _with_texts(parts: list[str | _Wild]) -> Callable[[str], bool | None]:
    """Texts that follow each other, with anything between them."""
    texts = [""]
    for part in parts:
        if part is _Wild.TEXT:
            texts.append("")
        else:
            texts[-1] += str(part)
    first, *others = texts
    if not others:
        return lambda value: value == first
    *others, last = others

    def matches(value: str) -> bool:
        at, end = len(first), len(value) - len(last)
        if at > end or not value.startswith(first) or not value.endswith(last):
            return False
        for text in others:
            at = value.find(text, at, end)
            if at < 0:
                return False
            at += len(text)
        return True

    return matches


def _with_any(parts: list[str | _Wild]) -> Callable[[str], bool | None]:
    """With ``_``, which stands for one character."""
    wild = {_Wild.TEXT: ".*", _Wild.CHARACTER: "."}
    compiled = re2.compile(
        "".join([wild[part] if isinstance(part, _Wild) else re2.escape(part) for part in parts]), _QUIET
    )

    def matches(value: str) -> bool | None:
        try:
            return compiled.fullmatch(value) is not None
        except UnicodeEncodeError:  # bytes that are no text
            return None

    return matches

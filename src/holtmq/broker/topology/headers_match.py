"""Whether a message's headers match the arguments of a headers binding.

Owns: ``x-match`` and its four meanings, and when two header values are equal.
Must not touch: how headers are decoded, or what is bound.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Final

from holtmq.broker.errors import Conflict

_ABSENT = object()
_WANTED: Final = 8  # headers of one pattern that are a few


class Match(Enum):
    ALL = "all"
    ANY = "any"
    ALL_WITH_X = "all-with-x"
    ANY_WITH_X = "any-with-x"


@dataclass(frozen=True, slots=True)
class HeadersPattern:
    """The condition of one binding, parsed when it is bound."""

    wants_all: bool
    wanted: tuple[tuple[str, object], ...]

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, object]) -> "HeadersPattern":
        match = _match_of(arguments)
        with_x = match in (Match.ALL_WITH_X, Match.ANY_WITH_X)
        wanted = tuple(
            (key, value)
            for key, value in arguments.items()
            if key != "x-match" and (with_x or not key.startswith("x-"))
        )
        return cls(match in (Match.ALL, Match.ALL_WITH_X), wanted)

    @property
    def work(self) -> int:
        """How many comparisons with a pattern of a few headers may take as long."""
        return 1 + len(self.wanted) // _WANTED

    def pairs(self) -> list[tuple[str, object]]:
        """Headers with values, of which a message that matches has at least one; none: it may have any."""
        known = [
            (key, found)
            for key, value in self.wanted
            if value is not None and (found := comparable(value)) is not None
        ]
        if self.wants_all:
            return known[:1]
        return known if len(known) == len(self.wanted) else []

    def matches(self, headers: Mapping[str, object]) -> bool:
        """An empty pattern matches everything under "all" and nothing under "any"."""
        wants_all = self.wants_all
        for key, value in self.wanted:
            present = headers.get(key, _ABSENT)
            # A void value in the binding only requires that the header is present.
            fits = present is not _ABSENT and (value is None or equal(value, present))
            if fits is not wants_all:
                return fits
        return wants_all


def comparable(value: object) -> Hashable | None:
    """The same object for values that are ``equal``; None for values that are not looked up by it."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, str | bytes):
        return _as_bytes(value)
    return value if isinstance(value, int | float | Decimal) else None


def equal(left: object, right: object) -> bool:
    """Compares numbers by value at any width, text and binary by bytes; a boolean never equals a number."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, str | bytes) and isinstance(right, str | bytes):
        return _as_bytes(left) == _as_bytes(right)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    return left == right


def _match_of(arguments: Mapping[str, object]) -> Match:
    wanted = arguments.get("x-match", "all")
    try:
        return Match(wanted)
    except ValueError:
        raise Conflict(
            f"Invalid x-match field value {wanted!r}; expected all, any, all-with-x, or any-with-x"
        ) from None


def _as_bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text

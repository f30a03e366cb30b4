"""Regular expressions over names, for permissions, policies and searches.

Owns: the engine and the errors. Must not touch: what the names stand for. The engine is RE2, whose time is
linear in the length of the name; Python's ``re`` backtracks, and ``^(a+)+$`` on a name of 30 letters would
block the broker for minutes. RE2 has no lookaround and no backreferences; RabbitMQ (PCRE) has both, so the
error names the construct.
"""

import re
from functools import lru_cache
from typing import Final

import re2

LONGEST: Final = 4096
_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False  # the caller reports the error
_DOT_MATCHES_ALL: Final = re2.Options()
_DOT_MATCHES_ALL.log_errors = False
_DOT_MATCHES_ALL.dot_nl = True

_NOTHING: Final = r"[^\x{0}-\x{10FFFF}]"

# Constructs that PCRE has and RE2 does not: how RE2 quotes each, and its name.
_CONSTRUCTS: Final = (
    ("(?=", "a lookahead, (?=...)"),
    ("(?!", "a negative lookahead, (?!...)"),
    ("(?<=", "a lookbehind, (?<=...)"),
    ("(?<!", "a negative lookbehind, (?<!...)"),
    ("(?>", "an atomic group, (?>...)"),
    ("(?(", "a condition, (?(...)...)"),
    ("(?#", "a comment, (?#...)"),
    ("(?|", "a branch reset, (?|...)"),
    ("(?R", "a recursion, (?R)"),
    ("(?P", "a reference to a named group, (?P=...) or (?P>...)"),
)
_QUOTED: Final = re.compile(r"invalid perl operator: (.*)|invalid escape sequence: \\(.*)", re.DOTALL)
_POSSESSIVE: Final = re.compile(r"bad repetition operator: [*+?]\+")


class BadPattern(ValueError):
    """The text is not a usable regular expression; the message says why."""


class NamePattern:
    """A compiled expression."""

    __slots__ = ("_found", "_meaning", "_whole", "pattern")

    def __init__(self, pattern: str, meaning: str | None = None) -> None:
        self.pattern = pattern
        self._meaning = pattern if meaning is None else meaning
        # Made when they are needed: most patterns are used in one of the two ways, some in neither.
        self._found: re2.Set | None = None
        self._whole: re2.Set | None = None

    def found_in(self, name: str) -> bool:
        """Whether any part of the name matches."""
        if self._found is None:
            self._found = self._compiled(re2.Set.SearchSet(_OPTIONS))
        return self._found.Match(name.encode("utf-8", "surrogatepass")) is not None

    def covers(self, name: str) -> bool:
        """Whether the whole name matches; a dot matches any character, also a newline."""
        if self._whole is None:
            self._whole = self._compiled(re2.Set.FullMatchSet(_DOT_MATCHES_ALL))
        return self._whole.Match(name.encode("utf-8", "surrogatepass")) is not None

    def _compiled(self, one: re2.Set) -> re2.Set:
        one.Add(self._meaning)
        one.Compile()
        return one

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamePattern) and other.pattern == self.pattern

    def __hash__(self) -> int:
        return hash(self.pattern)

    def __repr__(self) -> str:
        return f"NamePattern({self.pattern!r})"


@lru_cache(maxsize=4096)  # an import compiles each pattern in its rehearsal, and uses it after that
def compile_pattern(pattern: str) -> NamePattern:
    """The compiled expression; raises BadPattern with the reason."""
    if len(pattern) > LONGEST:
        raise BadPattern(f"the pattern is longer than {LONGEST} characters")
    try:
        re2.compile(pattern, _OPTIONS)
    except (re2.error, UnicodeEncodeError) as error:
        raise BadPattern(_reason(pattern, error)) from None
    return NamePattern(pattern)


def compile_stored(pattern: str) -> NamePattern:
    """The same for a stored pattern, which an older version with another engine may have accepted: if it
    cannot be compiled, it is kept and matches nothing."""
    try:
        return compile_pattern(pattern)
    except BadPattern:
        return NamePattern(pattern, _NOTHING)


def is_usable(pattern: str) -> bool:
    """Whether the pattern can be compiled."""
    try:
        compile_pattern(pattern)
    except BadPattern:
        return False
    return True


def _reason(pattern: str, error: Exception) -> str:
    text = str(error)
    if error.args and isinstance(error.args[0], bytes):
        text = error.args[0].decode("utf-8", "replace")
    construct = _construct(text)
    if construct:
        return f"{pattern!r} uses {construct}, which is not supported: patterns are in RE2's syntax"
    return f"{pattern!r} is not a regular expression: {text}"


def _construct(text: str) -> str:
    """The name of the unsupported construct; empty when the pattern is wrong in another way."""
    quoted = _QUOTED.match(text)
    if quoted is None:
        return "a possessive repetition (*+, ++ or ?+)" if _POSSESSIVE.match(text) else ""
    operator, escape = quoted[1], quoted[2]
    if escape is not None:
        if escape[:1].isdigit() or escape[:1] in ("k", "g"):
            return f"a backreference, \\{escape}"
        return f"the escape \\{escape}" if escape else ""
    return next((name for start, name in _CONSTRUCTS if operator.startswith(start)), "")

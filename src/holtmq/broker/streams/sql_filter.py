"""SQL filter expressions over a message's properties and headers: ``priority > 4 AND region LIKE 'eu-%'``.

Owns: the language, a subset of AMQP's SQL filters that RabbitMQ 4 has: AND, OR, NOT, comparisons, IN, LIKE
with ESCAPE, IS NULL and arithmetic. Must not touch: where messages come from.

An expression comes from a client and runs for each message. Its length, its number of words and its depth
are bounded, LIKE is linear in the length of the value, which is bounded for it, and there are no loops, so
the time for one message is bounded, too. A missing field and a comparison of different types are unknown, as
in SQL; unknown at the end means no.
"""

import operator
import re
from collections.abc import Callable
from typing import Final

from holtmq.broker.errors import Conflict
from holtmq.broker.streams.like_pattern import LONGEST_WITH_ANY, compile_like

Lookup = Callable[[str], object]  # a field's value by its name; None if it has none
Expression = Callable[[Lookup], object]

LONGEST: Final = 4096
_MOST_WORDS: Final = 512
_DEEPEST: Final = 32
_LARGEST: Final = 1 << 63  # integers beyond are unknown: they could grow without bound
_WORD: Final = re.compile(
    r"""\s*(?:
      (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"[^"]+"|\[[^\]]+\])
    | (?P<name>[A-Za-z_$][A-Za-z0-9_$.-]*)
    | (?P<sign><>|!=|<=|>=|[=<>(),+\-*/%])
    )""",
    re.VERBOSE,
)
_KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"})
_COMPARISONS: Final[dict[str, Callable[..., bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ARITHMETIC: Final[dict[str, Callable[..., int | float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
}
_WORDS: Final = 16
_SEARCHED: Final = 2_048  # characters, by one LIKE
_STEPS: Final = 2_048  # with _; up to 600 of them, but seldom


class SqlFilter:
    """A compiled expression. Raises Conflict with the place of the error."""

    __slots__ = ("_expression", "_patterns", "_steps", "_words")

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise Conflict(f"the SQL filter has {len(text)} characters, and at most {LONGEST} are allowed")
        words = _words(text)
        parser = _Parser(words)
        self._expression = parser.condition(0)
        parser.expect_end()
        self._words = len(words)
        self._patterns = sum(word.kind == "keyword" and word.value == "LIKE" for word in words)
        self._steps = len(text) if "_" in text and self._patterns else 0

    def accepts(self, lookup: Lookup) -> bool:
        """Whether the expression is true for a message with these fields."""
        return self._expression(lookup) is True

    def work(self, size: int) -> int:
        """An estimate of the time of ``accepts`` for fields of so many bytes, in units of 3 µs."""
        searched = self._patterns * size // _SEARCHED + self._steps * min(size, LONGEST_WITH_ANY) // _STEPS
        return self._words // _WORDS + searched


class _Word:
    __slots__ = ("at", "kind", "value")

    def __init__(self, kind: str, value: str, at: int) -> None:
        self.kind = kind
        self.value = value
        self.at = at


def _words(text: str) -> list[_Word]:
    words: list[_Word] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _WORD.match(text, at)
        if found is None or found.lastgroup is None:
            raise _wrong(text[at : at + 10].strip(), at, "a name, a number, a 'text' or an operator")
        value, start = found[found.lastgroup], found.start(found.lastgroup)
        kind = found.lastgroup
        if kind == "name" and value.upper() in _KEYWORDS:
            kind, value = "keyword", value.upper()
        words.append(_Word(kind, value, start))
        if len(words) > _MOST_WORDS:
            raise Conflict(f"the SQL filter has more than {_MOST_WORDS} words")
        at = found.end()
    return words


def _wrong(got: str, at: int, wanted: str) -> Conflict:
    return Conflict(f"the SQL filter is wrong at character {at + 1}, {got!r}: expected {wanted}")


class _Parser:
    """Recursive descent; each level of parentheses, NOT and signs is one level deeper."""

    def __init__(self, words: list[_Word]) -> None:
        self._words = words
        self._next = 0

    def expect_end(self) -> None:
        if self._next < len(self._words):
            word = self._words[self._next]
            raise _wrong(word.value, word.at, "the end, AND or OR")

    def condition(self, depth: int) -> Expression:
        if depth > _DEEPEST:
            raise Conflict(f"the SQL filter is nested deeper than {_DEEPEST} levels")
        return self._chain("OR", lambda: self._chain("AND", lambda: self._negation(depth), False), True)

    def _chain(self, word: str, part: Callable[[], Expression], decides: bool) -> Expression:
        """Parts joined by AND or OR; ``decides``: the value of a part that decides the whole."""
        parts = [part()]
        while self._take("keyword", word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else _junction(parts, decides)

    def _negation(self, depth: int) -> Expression:
        if not self._take("keyword", "NOT"):
            return self._comparison(depth)
        if depth > _DEEPEST:
            raise Conflict(f"the SQL filter is nested deeper than {_DEEPEST} levels")
        return _negated(self._negation(depth + 1))

    def _comparison(self, depth: int) -> Expression:
        left = self._sum(depth)
        word = self._peek()
        if word is None:
            return left
        if word.kind == "sign" and word.value in _COMPARISONS:
            self._next += 1
            return _compared(_COMPARISONS[word.value], left, self._sum(depth))
        if self._take("keyword", "IS"):
            negated = self._take("keyword", "NOT")
            self._expect("keyword", "NULL")
            return (
                (lambda lookup: left(lookup) is not None)
                if negated
                else (lambda lookup: left(lookup) is None)
            )
        negated = self._take("keyword", "NOT")
        if self._take("keyword", "IN"):
            found = _membership(left, self._list(depth))
        elif self._take("keyword", "LIKE"):
            found = self._like(left)
        elif negated:
            raise self._unexpected("IN or LIKE after NOT")
        else:
            return left
        return _negated(found) if negated else found

    def _list(self, depth: int) -> list[Expression]:
        self._expect("sign", "(")
        members = [self._sum(depth)]
        while self._take("sign", ","):
            members.append(self._sum(depth))
        self._expect("sign", ")")
        return members

    def _like(self, left: Expression) -> Expression:
        pattern = self._text()
        escape = ""
        if self._take("keyword", "ESCAPE"):
            escape = self._text()
            if len(escape) != 1:
                raise Conflict("the SQL filter has an ESCAPE that is not one character")
        matches = compile_like(pattern, escape)

        def liked(lookup: Lookup) -> bool | None:
            value = left(lookup)
            return matches(value) if isinstance(value, str) else None

        return liked

    def _sum(self, depth: int) -> Expression:
        return self._calculation(
            ("+", "-"), lambda: self._calculation(("*", "/", "%"), lambda: self._sign(depth))
        )

    def _calculation(self, signs: tuple[str, ...], part: Callable[[], Expression]) -> Expression:
        first, rest = part(), list[tuple[Callable[..., int | float], Expression]]()
        while (word := self._peek()) is not None and word.kind == "sign" and word.value in signs:
            self._next += 1
            rest.append((_ARITHMETIC[word.value], part()))
        return _calculated(first, rest) if rest else first

    def _sign(self, depth: int) -> Expression:
        if self._take("sign", "-"):
            return _calculated(lambda _: 0, [(operator.sub, self._value(depth))])
        self._take("sign", "+")
        return self._value(depth)

    def _value(self, depth: int) -> Expression:
        word = self._peek()
        if word is None:
            raise self._unexpected("a value")
        self._next += 1
        match word.kind, word.value:
            case "number", text:
                number = float(text) if set(text) & set(".eE") else int(text)
                return lambda _: number
            case "text", text:
                content = text[1:-1].replace("''", "'")
                return lambda _: content
            case "quoted", text:
                name = text[1:-1]
                return lambda lookup: lookup(name)
            case "name", name:
                return lambda lookup: lookup(name)
            case "keyword", "TRUE" | "FALSE" as truth:
                return lambda _: truth == "TRUE"
            case "sign", "(":
                inside = self.condition(depth + 1)
                self._expect("sign", ")")
                return inside
        self._next -= 1
        raise self._unexpected("a value")

    def _text(self) -> str:
        word = self._peek()
        if word is None or word.kind != "text":
            raise self._unexpected("a 'text'")
        self._next += 1
        return word.value[1:-1].replace("''", "'")

    def _peek(self) -> _Word | None:
        return self._words[self._next] if self._next < len(self._words) else None

    def _take(self, kind: str, value: str) -> bool:
        word = self._peek()
        if word is None or word.kind != kind or word.value != value:
            return False
        self._next += 1
        return True

    def _expect(self, kind: str, value: str) -> None:
        if not self._take(kind, value):
            raise self._unexpected(value)

    def _unexpected(self, wanted: str) -> Conflict:
        word = self._peek()
        if word is None:
            return Conflict(f"the SQL filter ends too early: expected {wanted}")
        return _wrong(word.value, word.at, wanted)


def _junction(parts: list[Expression], decides: bool) -> Expression:
    def junction(lookup: Lookup) -> bool | None:
        unknown = False
        for part in parts:
            value = part(lookup)
            if value is decides:
                return decides
            unknown = unknown or not isinstance(value, bool)
        return None if unknown else not decides

    return junction


def _negated(part: Expression) -> Expression:
    def negated(lookup: Lookup) -> bool | None:
        value = part(lookup)
        return not value if isinstance(value, bool) else None

    return negated


def _kind(value: object) -> type | None:
    if isinstance(value, bool):
        return bool
    if isinstance(value, int | float):
        return float
    return str if isinstance(value, str) else None


def _compared(compare: Callable[..., bool], left: Expression, right: Expression) -> Expression:
    ordered = compare not in (operator.eq, operator.ne)

    def compared(lookup: Lookup) -> bool | None:
        one, other = left(lookup), right(lookup)
        kind = _kind(one)
        if kind is None or kind is not _kind(other) or (ordered and kind is bool):
            return None
        return compare(one, other)

    return compared


def _membership(left: Expression, members: list[Expression]) -> Expression:
    def membership(lookup: Lookup) -> bool | None:
        value = left(lookup)
        kind = _kind(value)
        if kind is None:
            return None
        found = (member(lookup) for member in members)
        return any(_kind(one) is kind and one == value for one in found)

    return membership


def _calculated(first: Expression, rest: list[tuple[Callable[..., int | float], Expression]]) -> Expression:
    def calculated(lookup: Lookup) -> int | float | None:
        total = first(lookup)
        for calculate, part in rest:
            value = part(lookup)
            if _kind(total) is not float or _kind(value) is not float:
                return None
            try:
                total = calculate(total, value)
            except ArithmeticError:  # a division by zero, or a float that is too large
                return None
            if isinstance(total, int) and abs(total) > _LARGEST:
                return None
        return total if isinstance(total, int | float) else None

    return calculated

"""Management API: lists in pages, with a search by name.

Owns: RabbitMQ's parameters ``page``, ``page_size``, ``name`` and ``use_regex``, and the frame around a page.
Must not touch: what is listed, and in which order.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.wire import Query
from holtmq.name_patterns import BadPattern, compile_pattern

T = TypeVar("T")

_PAGE_SIZE: Final = 100
_MOST: Final = 500


@dataclass(frozen=True, slots=True)
class Page:
    """The part of a list that was requested."""

    number: int
    size: int
    wanted: Callable[[object], bool] | None  # filter by name; None: all rows

    def cut(self, found: Sequence[T]) -> Sequence[T]:
        """The rows of the page; raises 400 when there is no such page."""
        first = (self.number - 1) * self.size
        if first >= len(found) and self.number > 1:
            text = f"Page out of range, page: {self.number} page size: {self.size}, len: {len(found)}"
            raise Refusal(400, text, "page_out_of_range")
        return found[first : first + self.size]

    def frame(self, total: int, found: int, items: int) -> dict[str, object]:
        """The counts and page numbers that the answer shows beside the rows."""
        return {
            "total_count": total,
            "filtered_count": found,
            "item_count": items,
            "page": self.number,
            "page_size": self.size,
            "page_count": -(-found // self.size),
        }


def read_page(query: Query) -> Page:
    """The page that a query asks for; raises 400 when it is invalid."""
    number, size = _number(query, "page", 1), _number(query, "page_size", _PAGE_SIZE)
    if number < 1 or not 1 <= size <= _MOST:
        text = f"Invalid pagination parameters: page number {number}, page size {size}"
        raise Refusal(400, text, "invalid_pagination_parameters")
    return Page(number, size, _name_filter(query.text("name"), query.text("use_regex") == "true"))


def _number(query: Query, name: str, default: int) -> int:
    text = query.text(name)
    if not text:
        return default
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise Refusal(400, "Pagination parameters are invalid")
    return int(text)


def _name_filter(wanted: str, is_pattern: bool) -> Callable[[object], bool] | None:
    if not wanted:
        return None
    if not is_pattern:
        lowered = wanted.lower()
        return lambda row: lowered in _name(row).lower()
    try:
        found = compile_pattern(f"(?i:{wanted})").found_in
    except BadPattern as error:
        raise Refusal(400, f"Pagination parameters are invalid: {error}") from None
    return lambda row: found(_name(row))


def _name(row: object) -> str:
    return str(row["name"] if isinstance(row, dict) else getattr(row, "name", ""))

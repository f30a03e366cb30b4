"""Management API: lists in pages, with a search by name.

Owns: RabbitMQ's parameters ``page``, ``page_size``, ``name`` and ``use_regex``, and the frame around a page.
Must not touch: what is listed, and in which order.
"""

import re
from collections.abc import Sequence
from typing import Final

from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.wire import Query
from holtmq.name_patterns import BadPattern, compile_pattern

_PAGE_SIZE: Final = 100
_MOST: Final = 500


def one_page(rows: Sequence[object], query: Query) -> dict[str, object]:
    """The page that was asked for; 400 when there is no such page."""
    page, size = _number(query, "page", 1), _number(query, "page_size", _PAGE_SIZE)
    if page < 1 or not 1 <= size <= _MOST:
        text = f"Invalid pagination parameters: page number {page}, page size {size}"
        raise Refusal(400, text, "invalid_pagination_parameters")
    is_pattern = query.text("use_regex") == "true"
    found = _named(rows, query.text("name"), is_pattern)
    first = (page - 1) * size
    if first >= len(found) and page > 1:
        text = f"Page out of range, page: {page} page size: {size}, len: {len(found)}"
        raise Refusal(400, text, "page_out_of_range")
    items = found[first : first + size]
    return {
        "total_count": len(rows),
        "filtered_count": len(found),
        "item_count": len(items),
        "page": page,
        "page_size": size,
        "page_count": -(-len(found) // size),
        "items": items,
    }


def _number(query: Query, name: str, default: int) -> int:
    text = query.text(name)
    if not text:
        return default
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise Refusal(400, "Pagination parameters are invalid")
    return int(text)


def _named(rows: Sequence[object], wanted: str, is_pattern: bool) -> list[object]:
    if not wanted:
        return list(rows)
    if not is_pattern:
        wanted = wanted.lower()
        return [row for row in rows if wanted in _name(row).lower()]
    try:
        found = compile_pattern(f"(?i:{wanted})").found_in
    except BadPattern as error:
        raise Refusal(400, f"Pagination parameters are invalid: {error}") from None
    return [row for row in rows if found(_name(row))]


def _name(row: object) -> str:
    return str(row["name"] if isinstance(row, dict) else getattr(row, "name", ""))

"""Bounds lists with payloads: a page ends early, and says so, before it fills the memory.

Owns: the bound and the form of a truncated page. Must not touch: what is listed.
"""

from collections.abc import Iterable

import msgspec

MOST_BYTES = 64 << 20  # of payloads; the row that crosses the bound is still included


def within_bytes(rows: Iterable[dict[str, object]]) -> list[dict[str, object]]:
    """The first rows, until their payloads reach ``MOST_BYTES``, at least one; the rest is not generated."""
    kept: list[dict[str, object]] = []
    left = MOST_BYTES
    for row in rows:
        kept.append(row)
        left -= sum([len(memoryview(value)) for value in row.values() if isinstance(value, msgspec.Raw)])
        if left <= 0:
            break
    return kept


def page_out(limit: int, offset: int, cut: bool) -> dict[str, object]:
    """Limit and offset of a page; after a cut the next offset is this one plus the rows returned."""
    page: dict[str, object] = {"limit": limit, "offset": offset}
    return {**page, "truncated": True} if cut else page

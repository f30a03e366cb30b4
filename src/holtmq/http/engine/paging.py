"""How much one answer holds: lists with payloads end early, and say so, before they fill the memory.

Owns: the bound and the form of a page that was cut. Must not touch: what is listed.
"""

from collections.abc import Iterable

import msgspec

MOST_BYTES = 64 << 20  # of payloads, and the row that goes beyond


def within_bytes(rows: Iterable[dict[str, object]]) -> list[dict[str, object]]:
    """The first rows, one at least, until their payloads have ``MOST_BYTES``; later ones are never made."""
    kept: list[dict[str, object]] = []
    left = MOST_BYTES
    for row in rows:
        kept.append(row)
        left -= sum([len(memoryview(value)) for value in row.values() if isinstance(value, msgspec.Raw)])
        if left <= 0:
            break
    return kept


def page_out(limit: int, offset: int, cut: bool) -> dict[str, object]:
    """Which part of a list this is; after a cut the rest begins as many rows further as were given."""
    page: dict[str, object] = {"limit": limit, "offset": offset}
    return {**page, "truncated": True} if cut else page

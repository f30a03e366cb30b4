"""Bounds lists with payloads: a page ends early, and says so, before it fills the memory.

Owns: the bound and the form of a truncated page. Must not touch: what is listed.
"""

from collections.abc import Iterable

import msgspec

from holtmq.http.engine.stepwise import Stepwise

MOST_BYTES = 64 << 20  # of payloads; the row that crosses the bound is still included


async def within_bytes(
    rows: Iterable[dict[str, object] | None],
) -> tuple[list[dict[str, object]], bool]:
    """The first rows, until their payloads reach ``MOST_BYTES``, at least one; and whether there are more.

    Rows are generated in steps, and what they are about may change meanwhile. None: it is gone.
    """
    kept: list[dict[str, object]] = []
    left, stepwise = MOST_BYTES, Stepwise()
    for row in rows:
        if left <= 0:
            return kept, True
        if row is not None:
            kept.append(row)
            left -= sum([len(memoryview(value)) for value in row.values() if isinstance(value, msgspec.Raw)])
        await stepwise.between()
    return kept, False


def page_out(limit: int, offset: int, cut: bool) -> dict[str, object]:
    """Limit and offset of a page; after a cut the next offset is this one plus the rows returned."""
    page: dict[str, object] = {"limit": limit, "offset": offset}
    return {**page, "truncated": True} if cut else page

"""One page of a long list, sorted in steps.

Owns: the order of rows. Must not touch: what a row contains. Sorting 20,000 rows at once takes 30 ms, during
which the broker would serve no other client.
"""

from collections.abc import Callable, Sequence
from heapq import merge
from operator import itemgetter
from typing import Any, Final, TypeVar

from holtmq.http.engine.stepwise import Stepwise

T = TypeVar("T")

_SORTED_AT_ONCE: Final = 1_000  # about 1 ms
_LOOK_EVERY: Final = 32


async def ordered_page(
    rows: Sequence[T], key: Callable[[T], Any], descending: bool, skip: int, limit: int
) -> list[T]:
    """Rows ``skip`` to ``skip + limit`` of the sorted list. Keys must be unique, or ties keep their order."""
    stepwise = Stepwise()
    runs: list[list[tuple[Any, T]]] = []
    if len(rows) > _SORTED_AT_ONCE:
        await stepwise.rest()
    for start in range(0, len(rows), _SORTED_AT_ONCE):
        run = [(key(row), row) for row in rows[start : start + _SORTED_AT_ONCE]]
        run.sort(key=itemgetter(0), reverse=descending)
        runs.append(run)
        await stepwise.between()
    page: list[T] = []
    for place, (_, row) in enumerate(merge(*runs, key=itemgetter(0), reverse=descending)):
        if place >= skip + limit:
            break
        if place >= skip:
            page.append(row)
        if not place % _LOOK_EVERY:
            await stepwise.between()
    return page

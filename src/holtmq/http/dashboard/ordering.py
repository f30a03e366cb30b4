"""One page of a long list, sorted in steps.

Owns: the order of rows. Must not touch: what a row contains. Sorting 20,000 rows at once takes 30 ms, during
which the broker would serve no other client. Keeping 20,000 tuples takes as long: the garbage collector looks
at them, and then they are freed at once. So a key is made for as long as its part is sorted.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

from holtmq.http.engine.stepwise import Stepwise

T = TypeVar("T")
_Key: TypeAlias = tuple[Any, ...]

_SORTED_AT_ONCE: Final = 1_000  # about 1 ms
_NEAR: Final = 2_000  # rows from one end of the list; sorted together with others in about 1 ms


async def ordered_page(
    rows: Sequence[T], key: Callable[[T], _Key], descending: bool, skip: int, limit: int
) -> list[T]:
    """Rows ``skip`` to ``skip + limit`` of the sorted list; rows with equal keys keep their order. The first
    item of a key may change meanwhile: what it was at first counts. The others must not."""
    if len(rows) > _SORTED_AT_ONCE:
        await Stepwise().rest()
    limit = max(0, min(limit, len(rows) - skip))
    if not limit:
        return []
    order = _Order(rows, key, -1 if descending else 1)
    behind = len(rows) - skip - limit  # rows after the page
    if skip + limit <= _NEAR:
        page = (await _first(order, descending, skip + limit))[skip:]
    elif behind + limit <= _NEAR:
        page = (await _first(order, not descending, behind + limit))[behind:][::-1]
    elif descending:
        page = (await _middle(order, behind, limit))[::-1]
    else:
        page = await _middle(order, skip, limit)
    return [rows[place] for place in page]


class _Order(Generic[T]):
    """Entries to sort by: a row's key and its place. Places make them unique, and are negative in a list that
    is sorted downwards, so that ties keep their order."""

    def __init__(self, rows: Sequence[T], key: Callable[[T], _Key], sign: int) -> None:
        self._rows = rows
        self._key = key
        self._sign = sign
        self._values: list[Any] = []  # the first item of each key, as it was when its part was read

    def parts(self) -> Iterator[list[_Key]]:
        """The entries of all rows, in parts."""
        rows, key, sign = self._rows, self._key, self._sign
        for start in range(0, len(rows), _SORTED_AT_ONCE):
            part = rows[start : start + _SORTED_AT_ONCE]
            entries = [(*key(row), sign * place) for place, row in enumerate(part, start)]
            self._values += [entry[0] for entry in entries]
            yield entries

    def again(self, place: int) -> _Key:
        """The entry of one row, which was in a part."""
        return (self._values[place], *self._key(self._rows[place])[1:], self._sign * place)


def _places(entries: list[_Key]) -> list[int]:
    return [abs(entry[-1]) for entry in entries]


async def _first(order: _Order[T], reverse: bool, count: int) -> list[int]:
    """The first places of the sorted list: each part is sorted with the best so far; the rest is dropped."""
    stepwise = Stepwise()
    best: list[_Key] = []
    for part in order.parts():
        best += part
        best.sort(reverse=reverse)
        del best[count:]
        await stepwise.between()
    return _places(best)


async def _middle(order: _Order[T], skip: int, limit: int) -> list[int]:
    """A page far from both ends, sorted upwards: sort parts, find where it begins and ends in each, and sort
    what is between. A merge up to the page would take most of the time."""
    stepwise = Stepwise()
    runs: list[list[int]] = []
    for part in order.parts():
        part.sort()
        runs.append(_places(part))
        await stepwise.between()
    page: list[int] = []
    first = await _cut(order, runs, skip, stepwise)
    for start in range(skip, skip + limit, _SORTED_AT_ONCE):
        after = await _cut(order, runs, min(start + _SORTED_AT_ONCE, skip + limit), stepwise)
        near = [one for run, begin, end in zip(runs, first, after, strict=True) for one in run[begin:end]]
        near.sort(key=order.again)
        page += near
        first = after
        await stepwise.between()
    return page


async def _cut(order: _Order[T], runs: list[list[int]], rank: int, stepwise: Stepwise) -> list[int]:
    """Where the entry of this rank in all runs together would be in each run."""
    low, high = [0] * len(runs), [len(run) for run in runs]
    while True:
        middles = [
            (order.again(run[(low[n] + high[n]) // 2]), n) for n, run in enumerate(runs) if high[n] > low[n]
        ]
        if not middles:
            return low
        # Before and after the weighted median of the middles there is at least a quarter of what is left.
        middles.sort()
        half = sum(high[n] - low[n] for _, n in middles) / 2
        for pivot, home in middles:  # noqa: B007 - the last of both is used below
            half -= high[home] - low[home]
            if half <= 0:
                break
        at = [bisect_left(run, pivot, low[n], high[n], key=order.again) for n, run in enumerate(runs)]
        if sum(at) < rank:
            low = at
            low[home] += 1  # the pivot is before the entry, too
        else:
            high = at
        await stepwise.between()

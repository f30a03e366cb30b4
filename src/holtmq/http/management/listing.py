"""Management API: long lists, built, filtered, sorted and encoded in steps; other requests run in between.

Owns: what the parameters ``sort``, ``columns`` and ``page`` do to a list, and its JSON. Must not touch: what
a row contains. A list has the objects that existed when it began; each row shows the state when it is built.
Rows are kept as bytes: a hundred thousand of them as objects would keep the garbage collector busy.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Final, Generic, TypeVar

import msgspec

from holtmq.http.engine.pieces import Pieces
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.engine.wire import encode, plain
from holtmq.http.management.paging import Page

T = TypeVar("T")

_SORTED_AT_ONCE: Final = 2_000  # about 2 ms
_LOOK_EVERY: Final = 16  # rows between two checks of the clock

SortKey = tuple[str, object]


@dataclass(frozen=True, slots=True)
class Rows:
    """The answer of a handler that lists; rows are built during the iteration.

    What the iterable walks over must not change meanwhile: pass a copy.
    """

    rows: Iterable[object]


@dataclass(frozen=True, slots=True)
class RowsOf(Generic[T]):
    """The same for objects with a name, in the order of the list: a page of it needs no other rows."""

    objects: Sequence[T]
    row: Callable[[T], dict[str, object]]


@dataclass(frozen=True, slots=True)
class View:
    """The order, columns and page that a request asks for."""

    sort: str = ""
    reverse: bool = False
    columns: str = ""
    page: Page | None = None


async def collected(rows: Iterable[T]) -> list[T]:
    """All rows, built in steps."""
    stepwise = Stepwise()
    made: list[T] = []
    for row in rows:
        made.append(row)
        if not len(made) % _LOOK_EVERY:
            await stepwise.between()
    return made


async def encoded(value: object, view: View | None = None) -> Pieces:
    """An answer as JSON; lists, also those in an object, are encoded in steps."""
    return Pieces(await _pieces(value, view or View()))


async def _pieces(value: object, view: View) -> list[bytes]:
    if isinstance(value, RowsOf):
        if view.page is not None and not view.sort:
            return [await _page(value, view.page, _writer(view))]
        return await _list(map(value.row, value.objects), view)
    if isinstance(value, Rows):
        return await _list(value.rows, view)
    if isinstance(value, list):
        return await _list(value, view)
    if isinstance(value, dict) and view.columns:
        value = _picked(value, _paths(view.columns))
    if isinstance(value, dict) and any(isinstance(item, Rows) for item in value.values()):
        pieces: list[bytes] = []
        for key, item in value.items():
            pieces += (b"," if pieces else b"{", encode(str(key)), b":")
            pieces += await _pieces(item, View())
        return [*pieces, b"}"]
    return [encode(value)]


async def _list(rows: Iterable[object], view: View) -> list[bytes]:
    if view.page is None and not view.sort:
        return await _as_they_come(rows, _writer(view))
    page, total = view.page, 0
    wanted = page.wanted if page is not None else None
    written = _writer(view)
    stepwise = Stepwise()
    found: list[tuple[SortKey, bytes]] = []
    path = view.sort.split(".")
    for row in rows:
        total += 1
        if wanted is None or wanted(row):
            fields = _fields(row) if view.sort else row
            found.append((_key(fields, path) if view.sort else _UNSORTED, written(fields)))
        if not total % _LOOK_EVERY:
            await stepwise.between()
    if view.sort:
        found = await _ordered(found, view.reverse)
    if page is None:
        return await _as_they_come(found, lambda entry: entry[1])
    items = [item for _, item in page.cut(found)]
    return [_framed(page, total, len(found), items)]


async def _page(given: RowsOf[T], page: Page, written: Callable[[object], bytes]) -> bytes:
    found, wanted = given.objects, page.wanted
    if wanted is not None:
        stepwise, matching = Stepwise(), list[T]()
        for one in found:
            if wanted(one):
                matching.append(one)
            await stepwise.between()
        found = matching
    items = [written(row) for row in await collected(map(given.row, page.cut(found)))]
    return _framed(page, len(given.objects), len(found), items)


def _framed(page: Page, total: int, found: int, items: list[bytes]) -> bytes:
    frame = encode(page.frame(total, found, len(items)))
    return b'%b,"items":[%b]}' % (frame[:-1], b",".join(items))


async def _as_they_come(rows: Iterable[T], written: Callable[[T], bytes]) -> list[bytes]:
    stepwise = Stepwise()
    parts: list[bytes] = []
    left = iter(rows)
    while part := [written(row) for row in islice(left, _LOOK_EVERY)]:
        parts += (b"," if parts else b"[", b",".join(part))
        await stepwise.between()
    return [*parts, b"]"] if parts else [b"[]"]


_UNSORTED: Final[SortKey] = ("", "")


async def _ordered(rows: list[tuple[SortKey, bytes]], reverse: bool) -> list[tuple[SortKey, bytes]]:
    def key(entry: tuple[SortKey, bytes]) -> SortKey:
        return entry[0]

    stepwise = Stepwise()
    runs = []
    for at in range(0, len(rows), _SORTED_AT_ONCE):
        # Python's sort is stable and so is the merge: equal rows stay in the order they came in.
        runs.append(sorted(rows[at : at + _SORTED_AT_ONCE], key=key, reverse=reverse))
        await stepwise.between()
    return await collected(merge(*runs, key=key, reverse=reverse))


def _writer(view: View) -> Callable[[object], bytes]:
    if not view.columns:
        return encode
    paths = _paths(view.columns)

    def write(row: object) -> bytes:
        fields = _fields(row)
        return encode(_picked(fields, paths) if isinstance(fields, dict) else fields)

    return write


def _fields(row: object) -> object:
    return row if isinstance(row, dict) else msgspec.to_builtins(row, enc_hook=plain)


def _key(row: object, path: list[str]) -> SortKey:
    """The sort key of a row: one column (``a.b`` is a nested field); rows without it come first."""
    for part in path:
        row = row.get(part) if isinstance(row, dict) else None
    if row is None:
        return _UNSORTED
    if isinstance(row, bool | int | float):
        return "number", row
    return "text", str(row)


def _paths(columns: str) -> list[list[str]]:
    return [column.split(".") for column in columns.split(",") if column]


def _picked(row: dict[str, object], paths: list[list[str]]) -> dict[str, object]:
    """Only these columns; ``a.b`` is a nested field."""
    out: dict[str, object] = {}
    for path in paths:
        source: object = row
        for part in path:
            source = source.get(part) if isinstance(source, dict) else None
        if source is None:
            continue
        target = out
        for part in path[:-1]:
            inner = target.setdefault(part, {})
            assert isinstance(inner, dict)
            target = inner
        target[path[-1]] = source
    return out

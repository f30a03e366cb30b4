"""Finds the route of a path.

Owns: the tree of path segments. Must not touch: what routes do. Paths are split before they are decoded:
``%2F`` inside a name is not a separator, and the default vhost (``/``) stays one segment.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

from holtmq.http.engine.wire import segment

T = TypeVar("T")

_TAIL = ":path}"


class _Place(Generic[T]):
    __slots__ = ("fixed", "named", "routes", "tail")

    def __init__(self) -> None:
        self.fixed: dict[str, _Place[T]] = {}
        self.named: _Place[T] | None = None
        self.tail: _Place[T] | None = None
        self.routes: dict[str, tuple[T, tuple[str, ...]]] = {}  # by method, with the names in the path


class Router(Generic[T]):
    """Templates like ``/a/{name}/b`` and ``/a/{rest:path}``; a fixed segment wins over a named one."""

    def __init__(self) -> None:
        self._root: _Place[T] = _Place()

    def add(self, method: str, template: str, target: T) -> None:
        """Add a route; raises when the method and path are in the table already."""
        at = self._root
        names: list[str] = []
        for piece in template.split("/")[1:]:
            if piece.startswith("{"):
                names.append(piece[1 : piece.index(":")] if piece.endswith(_TAIL) else piece[1:-1])
                if piece.endswith(_TAIL):
                    at.tail = at.tail or _Place()
                    at = at.tail
                else:
                    at.named = at.named or _Place()
                    at = at.named
            else:
                at = at.fixed.setdefault(piece, _Place())
        if method in at.routes:
            raise ValueError(f"{method} {template} is in the table twice")
        at.routes[method] = (target, tuple(names))

    def find(self, method: str, path: str) -> tuple[T, dict[str, str]] | None:
        """The route and the names in the path, decoded; None when there is none."""
        for place, values in self._places(path):
            found = place.routes.get(method)
            if found is not None:
                target, names = found
                return target, dict(zip(names, map(segment, values), strict=True))
        return None

    def methods(self, path: str) -> list[str]:
        """The methods that the path has routes for."""
        return sorted({method for place, _ in self._places(path) for method in place.routes})

    def _places(self, path: str) -> Iterator[tuple[_Place[T], tuple[str, ...]]]:
        pieces = path.split("/")
        if pieces[0] == "":  # every path begins with a slash
            yield from self._walk(self._root, pieces, 1, ())

    def _walk(
        self, at: _Place[T], pieces: list[str], depth: int, values: tuple[str, ...]
    ) -> Iterator[tuple[_Place[T], tuple[str, ...]]]:
        if depth == len(pieces):
            yield at, values
            return
        piece = pieces[depth]
        fixed = at.fixed.get(piece)
        if fixed is not None:
            yield from self._walk(fixed, pieces, depth + 1, values)
        if at.named is not None and piece:
            yield from self._walk(at.named, pieces, depth + 1, (*values, piece))
        if at.tail is not None:
            yield at.tail, (*values, "/".join(pieces[depth:]))

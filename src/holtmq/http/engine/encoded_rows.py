"""The rows of a long answer, kept as JSON.

Owns: encoding them as they come. Must not touch: what a row contains. A hundred thousand rows as objects
would keep the garbage collector busy, and to encode and free them at once would hold the event loop.
"""

from typing import Final

from holtmq.http.engine.pieces import Pieces
from holtmq.http.engine.wire import encode

_JOINED: Final = 64  # rows in one piece


class _Encoded:
    """JSON between two brackets, in pieces."""

    __slots__ = ("_buffer", "_pieces")

    _BRACKETS: tuple[bytes, bytes]

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._buffer: list[bytes] = []

    def _add(self, encoded: bytes) -> None:
        self._buffer.append(encoded)
        if len(self._buffer) >= _JOINED:
            self._join()

    def _join(self) -> None:
        if self._buffer:
            self._pieces += (b"," if self._pieces else self._BRACKETS[0], b",".join(self._buffer))
            self._buffer = []

    def pieces(self) -> list[bytes]:
        """All of it."""
        self._join()
        return [*self._pieces, self._BRACKETS[1]] if self._pieces else [b"".join(self._BRACKETS)]


class EncodedRows(_Encoded):
    """A JSON array that grows."""

    __slots__ = ()

    _BRACKETS = b"[", b"]"

    def append(self, row: object) -> None:
        """Add a row."""
        self._add(encode(row))


class EncodedObject(_Encoded):
    """A JSON object that grows."""

    __slots__ = ()

    _BRACKETS = b"{", b"}"

    def put(self, name: str, value: object) -> None:
        """Add a member, which may hold rows; its name must be new."""
        pieces = _pieces_of(value)
        if pieces is None:
            self._add(encode(name) + b":" + encode(value))
        else:
            self._join()
            self._pieces += (b"," if self._pieces else b"{", encode(name), b":", *pieces)


def pieces_of(answer: object) -> Pieces | None:
    """The answer in pieces, if it is one of these or an object with some among its values; else None."""
    pieces = _pieces_of(answer)
    return None if pieces is None else Pieces(pieces)


def _pieces_of(answer: object) -> list[bytes] | None:
    if isinstance(answer, _Encoded):
        return answer.pieces()
    if not isinstance(answer, dict) or not any(isinstance(item, _Encoded) for item in answer.values()):
        return None
    whole: list[bytes] = []
    for key, item in answer.items():
        whole += (b"," if whole else b"{", encode(str(key)), b":")
        whole += item.pieces() if isinstance(item, _Encoded) else (encode(item),)
    return [*whole, b"}"]

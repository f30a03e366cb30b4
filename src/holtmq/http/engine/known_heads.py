"""Heads that a connection repeats: a request with the same head again is not parsed again.

Owns: recognising a request that is complete in one read and whose head differs from an earlier one at most in
the value of content-length. Must not touch: rights; the connection admits each request anew.
"""

from __future__ import annotations

from typing import Final

from holtmq.auth.rights import Identity

_HEADS_MAX: Final = 4  # per connection
_HEAD_BYTES: Final = 2_048
_LINE_BYTES: Final = 256
_DIGITS: Final = 5  # of content-length: a longer body takes so long that parsing its head does not matter
_MISSES_MAX: Final = 16  # a head that differs every time, by a trace id perhaps, is not looked for again
_LENGTH: Final = b"\r\ncontent-length:"
# With these the end of a request is decided by more than content-length.
_FRAMING: Final = frozenset({b"transfer-encoding", b"upgrade", b"expect"})


class KnownHead:
    """What the parser found in a head. ``before`` and ``after`` are its bytes around content-length."""

    __slots__ = ("admitted", "admitted_bytes", "after", "before", "headers", "misses", "path", "query")

    def __init__(
        self, before: bytes, after: bytes, path: bytes, query: bytes, headers: dict[bytes, bytes]
    ) -> None:
        self.before = before
        self.after = after
        self.path = path
        self.query = query
        self.headers = headers
        self.misses = 0
        # The last sender that was let in with this head, and its largest body:
        self.admitted: Identity | None = None
        self.admitted_bytes = 0

    def with_length(self, digits: bytes) -> dict[bytes, bytes]:
        """The headers of a request with this content-length."""
        headers = self.headers
        return headers if headers[b"content-length"] == digits else {**headers, b"content-length": digits}


class KnownHeads:
    """The heads of one connection's POST requests, by request line."""

    __slots__ = ("_by_line",)

    def __init__(self) -> None:
        self._by_line: dict[bytes, KnownHead] = {}

    def find(self, data: bytes) -> tuple[KnownHead, bytes, int] | None:
        """The head, the content-length and the body's offset, if ``data`` is one such request and no more."""
        if not self._by_line:
            return None
        known = self._by_line.get(data[: data.find(b"\r\n", 0, _LINE_BYTES)])
        if known is None or known.misses > _MISSES_MAX:
            return None
        at = len(known.before)
        stop = data.find(b"\r", at, at + _DIGITS + 1)
        digits = data[at:stop]
        if stop < 0 or not digits.isdigit():
            return None
        if not data.startswith(known.after, stop) or not data.startswith(known.before):
            known.misses += 1
            return None
        body_at = stop + len(known.after)
        if len(data) != body_at + int(digits):
            return None
        known.misses = 0
        return known, digits, body_at

    def learn(self, data: bytes, path: bytes, query: bytes, headers: dict[bytes, bytes]) -> None:
        """Remember the head of a request that the parser has accepted; ``data`` begins with it."""
        line = data[: data.find(b"\r\n", 0, _LINE_BYTES)]
        if len(self._by_line) >= _HEADS_MAX or line in self._by_line or not _FRAMING.isdisjoint(headers):
            return
        if not (line.startswith(b"POST /") and line.endswith(b" HTTP/1.1")):
            return
        if headers.get(b"connection", b"keep-alive").lower() != b"keep-alive":
            return
        end = data.find(b"\r\n\r\n", 0, _HEAD_BYTES) + 4
        lower = data[:end].lower()
        length = headers.get(b"content-length", b"")
        at = lower.find(_LENGTH) + len(_LENGTH)
        at += data[at : at + 1] == b" "
        stop = at + len(length)
        if lower.count(_LENGTH) != 1 or not length.isdigit() or data[at : stop + 2] != length + b"\r\n":
            return
        if data[stop + 2 : stop + 3] in (b" ", b"\t"):  # the value goes on in the next line
            return
        self._by_line[line] = KnownHead(data[:at], data[stop:end], path, query, headers)

"""The frames a connection has to send.

Owns: the chunks of this turn, and whether the peer reads fast enough. Must not touch: the socket; the server
writes the chunks and reports when the socket's own buffer is full.
"""

from collections.abc import Callable
from typing import Final

_LARGE: Final = 16_384  # a chunk of this size is written without a copy
_LARGE_MEAN: Final = 4_096  # below this average size there is no search for large chunks
_TURN_MAX: Final = 1_048_576  # bytes per turn before deliveries pause


class Outbox:
    """Outgoing frames of one connection."""

    __slots__ = ("_notify", "blocked", "chunks", "is_full", "size")

    def __init__(self, notify: Callable[[], None]) -> None:
        self.chunks: list[bytes] = []
        self.size = 0
        self.blocked = False  # the socket's buffer is full: the peer reads too slowly
        self.is_full = False  # no room for deliveries; replies always have room
        self._notify = notify

    def append(self, data: bytes) -> None:
        """Add a frame."""
        self.chunks.append(data)
        self.grew(len(data))

    def grew(self, size: int) -> None:
        """The caller has added ``size`` bytes to ``chunks``."""
        if not self.size:
            self._notify()
        self.size += size
        if self.size > _TURN_MAX:
            self.is_full = True

    def take(self) -> bytes:
        """Remove all chunks and return them joined."""
        data = b"".join(self.chunks)
        self.chunks.clear()
        self.size = 0
        self.is_full = self.blocked
        return data

    def take_parts(self) -> list[bytes]:
        """Remove all chunks and return them for one write: large ones as they are, small ones joined."""
        chunks = self.chunks
        if self.size < _LARGE_MEAN * len(chunks):
            return [self.take()] if chunks else []
        parts: list[bytes] = []
        small: list[bytes] = []
        for chunk in chunks:
            if len(chunk) < _LARGE:
                small.append(chunk)
                continue
            if small:
                parts.append(b"".join(small))
                small.clear()
            parts.append(chunk)
        if small:
            parts.append(b"".join(small))
        chunks.clear()
        self.size = 0
        self.is_full = self.blocked
        return parts

    def block(self, blocked: bool) -> None:
        """The socket's buffer is full, or has room again."""
        self.blocked = blocked
        self.is_full = blocked or self.size > _TURN_MAX

"""A whole answer in pieces, which are handed to the socket in portions.

Owns: what was not handed over yet. Must not touch: sockets, what the answer says. An answer of 50 MB that is
joined and written at once would hold the event loop for 100 ms, most of it in the kernel.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from typing import Final

PORTION: Final = 256 << 10  # bytes: below 1 ms


class Pieces:
    """The body of one answer; it can be sent once."""

    __slots__ = ("_left", "size")

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self._left = deque(pieces)
        self.size = sum(map(len, self._left))  # bytes that were not handed over yet

    @classmethod
    def of(cls, body: bytes) -> "Pieces":
        """A body that is joined already."""
        view = memoryview(body)
        return cls(view[at : at + PORTION] for at in range(0, len(body), PORTION))

    def joined(self) -> bytes:
        """All of it."""
        left, self._left, self.size = self._left, deque(), 0
        return b"".join(left)

    async def portions(self) -> AsyncGenerator[bytes, None]:
        """Take portions to send; other work runs between two of them."""
        left = self._left
        while left:
            taken: list[bytes | memoryview] = []
            size = 0
            while left and size < PORTION:
                taken.append(left.popleft())
                size += len(taken[-1])
            self.size -= size
            portion = b"".join(taken)
            del taken
            yield portion
            await asyncio.sleep(0)

"""The bytes of one consumer that are not counted yet.

Owns: the buffer, and moving an incomplete message to its front. Must not touch: sockets, what the bytes mean.
"""

from __future__ import annotations


class ReadBuffer:
    """A buffer that the caller fills and a subclass counts deliveries in."""

    def __init__(self, size: int) -> None:
        self.buffer = bytearray(size)
        self._view = memoryview(self.buffer)
        self._filled = 0
        self._done = 0  # bytes of complete messages that `settle` will drop
        self.count = 0  # deliveries so far, which is also the last delivery tag
        self.slow_reads = 0  # reads that had to be parsed frame by frame

    def room(self) -> memoryview:
        """The buffer space for the next bytes."""
        return self._view[self._filled :]

    def settle(self) -> None:
        """Drop the complete messages of the last read."""
        done, filled = self._done, self._filled
        if done:
            if done < filled:
                self.buffer[: filled - done] = self.buffer[done:filled]
            self._filled = filled - done
            self._done = 0

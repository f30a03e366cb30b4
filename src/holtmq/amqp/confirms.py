"""Publisher confirms of one channel, in as few frames as possible.

Owns: the numbering of publishes and the order of confirms. Must not touch: the journal; the caller
knows when the messages of a read are durable.
"""

import struct
from typing import Final

_ACK_FRAME: Final = struct.Struct(">BHIIQBB").pack
_ACK: Final = 0x003C0050
_NACK: Final = 0x003C0078


class Confirms:
    """Tags count from 1. A batch is what one socket read published; batches are confirmed in order."""

    __slots__ = ("_channel_number", "_first", "_refused", "journalled", "last", "told", "waiting")

    def __init__(self, channel_number: int) -> None:
        self._channel_number = channel_number
        self.last = 0
        self.told = 0  # the last tag whose confirm was sent
        self.waiting = 0  # batches whose journal records are not durable yet
        self._first = 1  # first tag of the batch being collected
        self.journalled = False  # a message of this batch waits for the journal
        self._refused: list[int] = []

    def note(self, journalled: bool, refused: bool) -> None:
        """Record the outcome of publish number ``last``, if it was journalled or refused."""
        if journalled:
            self.journalled = True
        elif refused:
            self._refused.append(self.last)

    @property
    def outstanding(self) -> int:
        """How many publishes are not confirmed yet."""
        return self.last - self.told

    def end_batch(self) -> "ConfirmBatch":
        """Close the batch of this read. The caller sends its frames now or when it is durable."""
        batch = ConfirmBatch(self._channel_number, self._first, self.last, self.journalled, self._refused)
        self._first = self.last + 1
        self.journalled = False
        self._refused = []
        return batch


class ConfirmBatch:
    """A run of tags that are confirmed together, except those that were refused."""

    __slots__ = ("_channel_number", "_first", "_refused", "journalled", "last")

    def __init__(self, number: int, first: int, last: int, journalled: bool, refused: list[int]) -> None:
        self._channel_number = number
        self._first = first
        self.last = last
        self._refused = refused
        self.journalled = journalled

    @property
    def accepted(self) -> int:
        """How many tags were not refused."""
        return self.last + 1 - self._first - len(self._refused)

    def frames(self, failed: bool) -> bytes:
        """Acks for the whole run, or nacks if the journal failed; ``multiple`` where possible."""
        if failed:
            return self._run(_NACK, self._first, self.last)
        if not self._refused:
            return self._run(_ACK, self._first, self.last)
        frames = []
        start = self._first
        for tag in self._refused:
            frames.append(self._run(_ACK, start, tag - 1))
            frames.append(self._run(_NACK, tag, tag))
            start = tag + 1
        frames.append(self._run(_ACK, start, self.last))
        return b"".join(frames)

    def _run(self, method: int, first: int, last: int) -> bytes:
        if last < first:
            return b""
        # Every earlier batch is confirmed by now, so ``multiple`` cannot cover an unconfirmed tag.
        multiple = 1 if last > first else 0
        return _ACK_FRAME(1, self._channel_number, 13, method, last, multiple, 0xCE)

"""Counting deliveries of different lengths without parsing each one.

Owns: the proof of the count. A delivery is recognised by its method and consumer tag, which no body contains;
a channel numbers its deliveries 1, 2, 3, so the last one of a read must have the counted number.
Must not touch: sockets and clocks.
"""

from __future__ import annotations

import struct
from typing import Final

from holtmq.amqp.frames import FRAME_METHOD, FRAME_OVERHEAD
from holtmq.load import frames
from holtmq.load.delivery_stream import refuse_or_ignore
from holtmq.load.errors import LoadError
from holtmq.load.read_buffer import ReadBuffer
from holtmq.load.varied_blob import VariedBlob

_TAG: Final = struct.Struct(">Q")
_BUFFER_BYTES: Final = 1024 * 1024
_BODY_SIZE_AT: Final = frames.FRAME_HEAD.size + 4


class VariedStream(ReadBuffer):
    """The deliveries of one consumer of varied messages."""

    def __init__(self, consumer_tag: str, blob: VariedBlob) -> None:
        super().__init__(_BUFFER_BYTES)
        self._mark = struct.pack(">I", frames.BASIC_DELIVER) + frames.short(consumer_tag)
        self._blob = blob

    def added(self, size: int) -> int:
        """Process ``size`` bytes written into ``room()``; return how many deliveries they completed."""
        self._filled = total = self._filled + size
        buffer, mark = self.buffer, self._mark
        seen = buffer.count(mark, 0, total)
        if not seen:
            self._done = self._others(0)
            return 0
        last = buffer.rfind(mark, 0, total)
        start = last - frames.FRAME_HEAD.size
        tag_at = last + len(mark)
        if tag_at + 8 <= total and _TAG.unpack_from(buffer, tag_at)[0] != self.count + seen:
            raise LoadError(f"{self.count + seen} deliveries counted, the last one has another number")
        end = self._content_end(start)
        if end < 0:
            seen -= 1
            end = start
        else:
            end = self._others(end)
        self.count += seen
        self._done = end
        return seen

    def _frame_end(self, at: int) -> int:
        """Where the frame at ``at`` ends; -1 when it is incomplete."""
        if at + FRAME_OVERHEAD > self._filled:
            return -1
        end = int(at + FRAME_OVERHEAD + frames.FRAME_HEAD.unpack_from(self.buffer, at)[2])
        return end if end <= self._filled else -1

    def _content_end(self, start: int) -> int:
        """Where the message whose deliver frame begins at ``start`` ends; -1 when it is incomplete."""
        header_at = self._frame_end(start)
        if header_at < 0 or (at := self._frame_end(header_at)) < 0:
            return -1
        (left,) = _TAG.unpack_from(self.buffer, header_at + _BODY_SIZE_AT)
        header = bytes(self.buffer[header_at:at])
        body = b""
        while len(body) < left:
            end = self._frame_end(at)
            if end < 0:
                return -1
            body += self.buffer[at + frames.FRAME_HEAD.size : end - 1]
            at = end
        if not self._blob.is_published(header, body):
            raise LoadError("a delivered message is not one that was published")
        return at

    def _others(self, at: int) -> int:
        """Skip complete frames that are not deliveries; return the offset of the first other frame."""
        while (end := self._frame_end(at)) > 0:
            key = int.from_bytes(self.buffer[at + 7 : at + 11], "big")
            if self.buffer[at] == FRAME_METHOD and key == frames.BASIC_DELIVER:
                break
            if self.buffer[at] == FRAME_METHOD:
                refuse_or_ignore(key, bytes(self.buffer[at + 7 : end - 1]))
            at = end
        return at

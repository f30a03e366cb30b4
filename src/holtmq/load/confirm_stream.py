"""Counting publisher confirms, however a broker groups and orders them.

Owns: how many publishes, from the first on, are confirmed without a gap. Must not touch: sockets, clocks.
"""

from __future__ import annotations

import struct
from typing import Final

from holtmq.amqp.frames import FRAME_METHOD, FRAME_OVERHEAD
from holtmq.load import frames
from holtmq.load.delivery_stream import refuse_or_ignore
from holtmq.load.errors import LoadError

_ACK: Final = struct.Struct(">BHIIQBB")
_ACK_SIZE_FIELD: Final = 13


class ConfirmStream:
    """The confirms of one publisher's channel."""

    def __init__(self) -> None:
        self.confirmed = 0  # number of publishes confirmed
        self._upto = 0  # all tags up to here are confirmed
        self._beyond: set[int] = set()  # single confirms that arrived out of order
        self._left = b""

    def feed(self, data: bytes) -> None:
        if self._left:
            data = self._left + data
        at, end = 0, len(data)
        while True:
            if end - at >= frames.ACK_BYTES:
                _, _, size, key, tag, multiple, _ = _ACK.unpack_from(data, at)
                if key == frames.BASIC_ACK and size == _ACK_SIZE_FIELD:
                    at += frames.ACK_BYTES
                    if multiple:
                        self._confirm_upto(tag)
                    elif tag == self._upto + 1 and not self._beyond:
                        self._upto = tag
                        self.confirmed += 1
                    else:
                        self._confirm_one(tag)
                    continue
            after = self._skip_other(data, at, end)
            if after == at:
                break
            at = after
        self._left = data[at:]

    def _confirm_upto(self, tag: int) -> None:
        if tag <= self._upto:
            return
        inside = {one for one in self._beyond if one <= tag}
        self._beyond -= inside
        self.confirmed += tag - self._upto - len(inside)
        self._upto = tag
        self._close_gap()

    def _confirm_one(self, tag: int) -> None:
        if tag <= self._upto or tag in self._beyond:
            raise LoadError(f"the broker confirmed publish {tag} twice")
        self.confirmed += 1
        self._beyond.add(tag)
        self._close_gap()

    def _close_gap(self) -> None:
        beyond = self._beyond
        while self._upto + 1 in beyond:
            self._upto += 1
            beyond.remove(self._upto)

    def _skip_other(self, data: bytes, at: int, end: int) -> int:
        """The offset after a frame that is not an ack; ``at`` when the frame is incomplete."""
        if at + FRAME_OVERHEAD > end:
            return at
        kind, _, size = frames.FRAME_HEAD.unpack_from(data, at)
        after = int(at + FRAME_OVERHEAD + size)
        if after > end:
            return at
        payload = data[at + 7 : after - 1]
        key = int.from_bytes(payload[:4], "big")
        if kind == FRAME_METHOD and key == frames.BASIC_NACK:
            raise LoadError("the broker refused a publish (basic.nack)")
        if kind == FRAME_METHOD:
            refuse_or_ignore(key, payload)
        return after

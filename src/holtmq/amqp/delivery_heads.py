"""Cached bytes between the parts of a delivery. They depend on channel number and lengths only.

Owns: the heads of header and body frames for one channel number. Channels with the same number share them
across connections, and only low numbers are cached, so all tables together take a few megabytes at most.
Must not touch: messages.
"""

import struct
from typing import Final
from weakref import WeakValueDictionary

_END_AND_FRAME: Final = struct.Struct(">BBHI").pack
_LENGTHS_MAX: Final = 1_024  # longer ones vary too much to repeat
_NUMBERS_MAX: Final = 64
_HEADER: Final = 2
_BODY: Final = 3


class FrameHeads:
    """The end byte of a frame and the head of the next one, by the length of the next one."""

    __slots__ = ("__weakref__", "_number", "body", "header")

    def __init__(self, channel_number: int) -> None:
        self._number = channel_number
        self.header: dict[int, bytes] = {}
        self.body: dict[int, bytes] = {0: b""}  # an empty body has no frame

    def before_header(self, length: int) -> bytes:
        """The bytes between the method and a header of this length."""
        return self._make(self.header, _HEADER, length)

    def before_body(self, length: int) -> bytes:
        """The bytes between the header and a body of this length, which fits one frame."""
        return self._make(self.body, _BODY, length)

    def _make(self, table: dict[int, bytes], kind: int, length: int) -> bytes:
        made = _END_AND_FRAME(0xCE, kind, self._number, length)
        if length <= _LENGTHS_MAX and self._number <= _NUMBERS_MAX:
            table[length] = made
        return made


_BY_NUMBER: Final[WeakValueDictionary[int, FrameHeads]] = WeakValueDictionary()


def frame_heads(channel_number: int) -> FrameHeads:
    """The table shared by all channels with this number."""
    found = _BY_NUMBER.get(channel_number)
    if found is None:
        found = _BY_NUMBER[channel_number] = FrameHeads(channel_number)
    return found

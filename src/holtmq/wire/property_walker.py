"""Generated functions, one per property flags word, that read what publishing needs in one pass.

Owns: the walkers and their number. A walker reads the receive buffer directly, without decoding.
Must not touch: what needs the general path (``expiration``, ``user_id``, direct reply-to, a ``CC`` or ``BCC``
header, inconsistent lengths); a walker returns ``SPECIAL`` for those.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from holtmq.wire.properties import FLAG_EXPIRATION, FLAG_REPLY_TO, FLAG_USER_ID, PROPERTY_FLAGS, Form

PropertyWalker = Callable[[bytes, int, int], int]

SPECIAL: Final = -1  # this message needs the general path
PERSISTENT: Final = 256  # added to the priority
_FORBIDDEN: Final = FLAG_EXPIRATION | FLAG_USER_ID | 0b11
_DIRECT_REPLY_TO: Final = b"\x15amq.rabbitmq.reply-to"
_WALKERS_MAX: Final = 256  # applications use a few; messages beyond these take the general path
_SEEN_BEFORE: Final = 8  # messages before a walker is made, which takes 0.2 ms


class PropertyWalkers:
    """The walkers in use, by flags word."""

    __slots__ = ("_seen", "by_flags")

    def __init__(self) -> None:
        self.by_flags: dict[int, PropertyWalker] = {}
        self._seen: dict[int, int] = {}

    def note(self, flags: int) -> None:
        """Count a message with these flags on the general path; the eighth creates the walker."""
        if flags in self.by_flags or flags & _FORBIDDEN or len(self.by_flags) >= _WALKERS_MAX:
            return
        seen = self._seen.get(flags, 0) + 1
        if seen < _SEEN_BEFORE:
            self._seen[flags] = seen
            return
        self._seen.pop(flags, None)
        self.by_flags[flags] = make_walker(flags)


def make_walker(flags: int) -> PropertyWalker:
    """Make the function of (buffer, first byte after the flags, end of the header) for these flags.

    It returns the priority, plus ``PERSISTENT`` for delivery mode 2; or ``SPECIAL``. With a wrong length in
    the header it may read past the end of the header; the end offset then differs and it returns ``SPECIAL``.
    """
    if flags & _FORBIDDEN:
        return _special
    lines: list[str] = []
    step = 0  # size of the fixed-size values since ``at`` was last advanced
    mode = priority = "0"
    for flag, name, form in PROPERTY_FLAGS:
        if not flags & flag:
            continue
        here = f"at + {step}" if step else "at"
        if form is Form.OCTET:
            lines.append(f"{name} = data[{here}]")
            mode = name if name == "delivery_mode" else mode
            priority = name if name == "priority" else priority
            step += 1
        elif form is Form.TIMESTAMP:
            step += 8
        elif form is Form.TABLE:
            lines.append(f"end = {here} + 4 + u32(data, {here})[0]")
            lines.append(f"if find(data, b'CC', {here}, end) >= 0: return -1")
            lines.append("at = end")
            step = 0
        else:
            if flag == FLAG_REPLY_TO:
                lines.append(f"if starts(data, direct, {here}): return -1")
            lines.append(f"at += data[{here}] + {step + 1}")
            step = 0
    where = f"at + {step}" if step else "at"
    lines.append(f"if {where} != stop: return -1")
    result = f"({priority} + 256 if {mode} == 2 else {priority})" if mode != "0" else priority
    lines.append(f"return {result}")
    source = "def walk(data, at, stop):\n try:\n" + "".join(f"  {line}\n" for line in lines)
    source += " except (IndexError, error):\n  return -1\n"
    names: dict[str, object] = {
        "u32": struct.Struct(">I").unpack_from,
        "find": bytes.find,
        "starts": bytes.startswith,
        "direct": _DIRECT_REPLY_TO,
        "error": struct.error,
    }
    # The source is built from constants only.
    exec(compile(source, f"<properties {flags:#06x}>", "exec"), names)
    walker: PropertyWalker = names["walk"]  # type: ignore[assignment]
    return walker


def _special(data: bytes, at: int, stop: int) -> int:
    return SPECIAL

"""The last messages of an ``x-recent-history`` exchange, which each newly bound queue receives.

Owns: which messages are kept, bounded in number and in bytes. Must not touch: routing, queues, the journal;
a restart forgets them.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from holtmq.broker.errors import Conflict
from holtmq.broker.message import Message
from holtmq.broker.topology.equivalence import shown

LENGTH_ARGUMENT: Final = "x-recent-history-length"
_NOT_STORED: Final = "x-recent-history-no-store"
_DEFAULT_LENGTH: Final = 20
_MOST_MESSAGES: Final = 10_000
_MOST_BYTES: Final = 16 << 20  # of bodies and headers, for one exchange


class RecentHistory:
    """The newest messages of one exchange."""

    __slots__ = ("_bytes", "_kept", "_length")

    def __init__(self, arguments: Mapping[str, object]) -> None:
        length = arguments.get(LENGTH_ARGUMENT, _DEFAULT_LENGTH)
        if not isinstance(length, int) or isinstance(length, bool) or not 0 <= length <= _MOST_MESSAGES:
            raise Conflict(
                f"Invalid argument, '{LENGTH_ARGUMENT}' must be an integer from 0 to {_MOST_MESSAGES}, "
                f"not '{shown(length)}'"
            )
        self._length = length
        self._kept: deque[Message] = deque()
        self._bytes = 0

    def keep(self, message: Message, headers: Mapping[str, object]) -> None:
        """Keep a copy of the message, unless it asks not to be stored."""
        if headers.get(_NOT_STORED) is True or not self._length:
            return
        self._kept.append(message)
        self._bytes += _size(message)
        while len(self._kept) > self._length or (self._bytes > _MOST_BYTES and self._kept):
            self._bytes -= _size(self._kept.popleft())

    def of_same_length(self) -> "RecentHistory":
        """An empty one, for messages that are not published yet."""
        return RecentHistory({LENGTH_ARGUMENT: self._length})

    def keep_all(self, others: "RecentHistory") -> None:
        """Keep the messages of another one, which are newer."""
        for message in others._kept:
            self.keep(message, {})

    def messages(self) -> list[Message]:
        """What is kept, the oldest first."""
        return list(self._kept)


def _size(message: Message) -> int:
    return len(message.body) + len(message.header)

"""How many connections, channels and queues came and went.

Owns: the counters, which only go up. Must not touch: what is counted, clocks.
"""

from typing import Final


class Churn:
    """Totals since the node's start."""

    __slots__ = (
        "channel_closed",
        "channel_created",
        "connection_closed",
        "connection_created",
        "queue_created",
        "queue_declared",
        "queue_deleted",
    )

    def __init__(self) -> None:
        self.channel_closed = 0
        self.channel_created = 0
        self.connection_closed = 0
        self.connection_created = 0
        self.queue_created = 0
        self.queue_declared = 0  # including declarations of queues that exist
        self.queue_deleted = 0

    def totals(self) -> tuple[int, ...]:
        """The counters in the order of ``NAMES``."""
        return tuple(getattr(self, name) for name in NAMES)


NAMES: Final = Churn.__slots__

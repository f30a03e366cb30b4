"""Management API: ``idle_since`` of queues and channels.

Owns: after how long something is idle, and how a time is written. Must not touch: clocks.
"""

from datetime import UTC, datetime
from typing import Final

_IDLE_SECONDS: Final = 5


def idle(used: float, now: float) -> dict[str, object]:
    """``idle_since`` as RabbitMQ writes it, for what was not used in the last seconds."""
    if now - used < _IDLE_SECONDS:
        return {}
    return {"idle_since": datetime.fromtimestamp(used, UTC).isoformat(timespec="milliseconds")}

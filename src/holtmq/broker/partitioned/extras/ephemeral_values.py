"""Values of ephemeral queues: how one is configured, what it delivers, its figures.

Owns: nothing that changes. Must not touch: the queues.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

NAMELESS: Final = "__QUEUE_MODE__"  # the group of consumers that name none


@dataclass(frozen=True, slots=True)
class EphemeralConfig:
    max_bytes: int = 64 << 20
    max_length: int = 100_000
    drops_oldest: bool = False
    ttl_seconds: float = 0
    lease_seconds: float = 60
    retry_limit: int = 3
    window_ms: float = 0
    window_count: int = 0


class Handed(NamedTuple):
    """A message delivered to a worker."""

    partition: str
    number: int
    attempts: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Gauges:
    length: int
    size: int
    partitions: int
    dropped: int
    groups: dict[str, tuple[int, int]]  # (waiting, delivered and unsettled)

    @property
    def pending(self) -> int:
        """Messages waiting for the group with the largest backlog; named groups take precedence."""
        named = [waiting for name, (waiting, _) in self.groups.items() if name != NAMELESS]
        return max(named) if named else self.groups.get(NAMELESS, (self.length, 0))[0]

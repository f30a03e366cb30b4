"""The state of the replica, as the node sees it.

Owns: those values. Must not touch: PostgreSQL; nodes without its driver import this module too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

GONE: Final = "gone"  # the role of a former owner that has not come back


class Role(StrEnum):
    STARTING = "starting"
    STANDBY = "standby"
    OWNER = "owner"


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node of the log, as the owner sees it."""

    name: str
    role: str
    address: str
    behind_bytes: int
    behind_seconds: float
    seen_seconds_ago: float

    @property
    def is_gone(self) -> bool:
        """It owned the log before and has not come back."""
        return self.role == GONE

    @property
    def lag_seconds(self) -> float:
        """How old the newest state is that this node is known to have."""
        return self.behind_seconds + self.seen_seconds_ago


@dataclass(slots=True)
class ReplicaView:
    """The replica's state. The replica's threads write single fields, the event loop reads them.

    ``hand_over_to`` is written by the event loop: the owner's next heartbeat asks for it in PostgreSQL.
    """

    role: Role = Role.STARTING
    owner: str = ""
    epoch: int = 0
    behind_bytes: int = 0
    behind_seconds: float = 0.0
    answered_at: float = field(default_factory=time.monotonic)  # when PostgreSQL last answered
    successor: str = ""  # the owner is asked to hand over to this node
    peers: tuple[Peer, ...] = ()  # known to the owner only
    hand_over_to: str = ""
    trouble: str = ""
    short_of_standbys: bool = False  # the owner waits for PostgreSQL to have enough synchronous standbys


class StoppedWaiting(Exception):
    """The node was told to stop before it owned the log."""

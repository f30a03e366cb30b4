"""What the node sees of its replica.

Owns: those values. Must not touch: PostgreSQL; this page is read by nodes that have no driver for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    STARTING = "starting"
    STANDBY = "standby"
    OWNER = "owner"


@dataclass(slots=True)
class ReplicaView:
    """What the node may know of its replica. Its threads write single fields, the loop reads them."""

    role: Role = Role.STARTING
    owner: str = ""
    epoch: int = 0
    behind_bytes: int = 0
    behind_seconds: float = 0.0
    answered_at: float = field(default_factory=time.monotonic)  # PostgreSQL last answered
    successor: str = ""  # the owner is asked to hand over to this node
    trouble: str = ""


class StoppedWaiting(Exception):
    """The node was told to stop before it owned the log."""

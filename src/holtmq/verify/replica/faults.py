"""What can happen to two nodes and the network behind them, and which of it happens next.

Owns: the list and the choice. Must not touch: processes and sockets.
"""

from enum import StrEnum
from random import Random
from typing import Final


class Fault(StrEnum):
    """What the check does to the owner, the standby or the network between them and PostgreSQL."""

    KILL = "owner killed"
    FREEZE = "owner frozen past the takeover, then woken"
    CUT = "owner cut off from PostgreSQL past the takeover"
    BLIP = "connection to PostgreSQL reset"
    ANSWER_LOST = "connection lost in COMMIT"
    NO_ANSWERS = "owner hears nothing from PostgreSQL"
    NO_QUESTIONS = "PostgreSQL hears nothing from the owner"
    SLOW = "slow network to PostgreSQL"
    DISK_LOST = "owner killed and its disk lost"
    BOTH = "both nodes killed, both started at once"
    FAR_BEHIND = "standby cut off while the owner goes on"
    SWITCHOVER = "switchover under load"
    CLOCK = "clock of the owner jumps"
    POSTGRES_KILLED = "PostgreSQL killed and restarted"
    POSTGRES_FAILOVER = "PostgreSQL fails over to its synchronous standby"


_OF_OUR_OWN: Final = (Fault.CLOCK, Fault.POSTGRES_KILLED, Fault.POSTGRES_FAILOVER)
# What a user's own PostgreSQL and an unmodified node can be asked to bear.
FOR_USERS: Final = tuple(fault for fault in Fault if fault not in _OF_OUR_OWN)

# No node can take over before PostgreSQL is back, before the nodes' processes run, or before an owner has
# handed over, which serves until the other one's copy is complete.
LATER: Final = (Fault.BOTH, Fault.POSTGRES_KILLED, Fault.POSTGRES_FAILOVER, Fault.SWITCHOVER)


def plan(faults: tuple[Fault, ...], rounds: int, random: Random) -> list[Fault]:
    """Every fault before any comes again, in an order of the dice."""
    chosen: list[Fault] = []
    while len(chosen) < rounds:
        chosen += random.sample(faults, len(faults))
    return chosen[:rounds]

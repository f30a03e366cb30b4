"""Why an owner has ended: killed, asked to, replaced, or without need.

Owns: that verdict, and which faults make which end legitimate. It rests on the process and on PostgreSQL's
list of epochs; what the node says about its end can only count against it (docs/decisions/0435). Must not
touch: processes.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from holtmq.verify.replica.faults import Fault


class End(StrEnum):
    """Why a process that owned the log is gone."""

    KILLED = "killed"  # by the check
    ASKED = "asked to hand over"
    REPLACED = "replaced"  # it ended after another node had raised the epoch
    NEEDLESS = "without need"  # its epoch was valid when it ended


ENDS: Final = {
    Fault.KILL: End.KILLED,
    Fault.DISK_LOST: End.KILLED,
    Fault.BOTH: End.KILLED,
    Fault.SWITCHOVER: End.ASKED,
    Fault.FREEZE: End.REPLACED,
    Fault.CUT: End.REPLACED,
    Fault.NO_ANSWERS: End.REPLACED,
    Fault.NO_QUESTIONS: End.REPLACED,
}  # the other faults leave the owner in charge, unless it is too slow to reconnect in time


def why_ended(
    fault: Fault,
    was_killed: bool,
    ended_at: float,
    knows_successor: bool,
    owners: Sequence[tuple[str, float]],
    successor: str,
) -> End:
    """The end of an owner. ``owners``: the node and the beginning of each epoch, the oldest first.

    An owner that was replaced ends after its successor's first epoch has begun, and because it has learned of
    it. One that gives up usually ends before. On a busy machine its process may also end after its successor
    has taken over; but it has not said who that is. Both times are those of this machine: neither is taken
    from a node, whose clock may jump.
    """
    if was_killed:
        return End.KILLED
    if ENDS.get(fault) is End.ASKED:
        return End.ASKED
    replaced_at = None
    for name, began in reversed(owners):
        if name != successor:
            break
        replaced_at = began
    is_replaced = replaced_at is not None and replaced_at <= ended_at
    return End.REPLACED if is_replaced and knows_successor else End.NEEDLESS

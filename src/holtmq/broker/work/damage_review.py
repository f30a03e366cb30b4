"""Which messages of work queues are in damaged parts of the log.

Owns: finding them by position. Must not touch: the list of damage itself (``broker/damage.py``), files.
"""

from collections.abc import Iterable

from holtmq.broker.damage import DamageList
from holtmq.broker.topology.vhosts import VHosts
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal.interface import RecordUnreadable


def note_unreadable(queues: Iterable[WorkQueue], damage: DamageList, error: RecordUnreadable) -> None:
    """Part of the log cannot be read: list the messages stored there as damaged."""
    stretch = range(error.position, error.position + max(error.size, 1))
    for queue in queues:
        for run in queue.store.positions():
            if not run or max(run) < stretch.start or min(run) >= stretch.stop:
                continue
            for position in run:
                if position in stretch:
                    found = RecordUnreadable(str(error), position, error.reason)
                    damage.note("queue", queue.vhost, queue.name, found)


def review(vhosts: VHosts, damage: DamageList) -> None:
    """After a start: remove entries of the damage list that no longer matter."""
    held: dict[tuple[str, str], set[int]] = {}
    for row in damage.rows:
        if row.where == "queue":
            held.setdefault((row.vhost, row.name), set()).add(row.position)
    for (vhost_name, name), positions in held.items():
        vhost = vhosts.get(vhost_name)
        queue = None if vhost is None else vhost.queues.get(name)
        runs = queue.store.positions() if isinstance(queue, WorkQueue) else ()
        here = {position for run in runs for position in positions.intersection(run)}
        # Settled since: a consumer got it from memory, where it was whole.
        damage.forget_some("queue", vhost_name, name, positions - here)
    damage.look_again()

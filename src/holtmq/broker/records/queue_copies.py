"""The work queues of a checkpoint, as they are at its moment, although most are copied before it.

Owns: which copies are up to date. Must not touch: how a queue is copied and encoded, which is in
``queue_contents.py``.

Very many queues are copied in steps, while clients go on. A queue that changes after it was copied is copied
again. That repeats until few have changed; those are copied at the moment. Every change of a queue marks it
for the turn (``Flow.touch``), which then notes it in ``Flow.changed``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Final

from holtmq.broker.broker import Broker
from holtmq.broker.message import Message
from holtmq.broker.records.queue_contents import QueueContents, arrays
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.leases import Lease

_ROUNDS: Final = 5  # of copies in steps: if queues change faster than they are copied, the moment is longer


class QueueCopies:
    """``copy_some`` as often as is wanted, then ``complete`` at the moment, or ``give_up``.

    After ``complete``, ``live`` and ``states`` may be called in another thread.
    """

    __slots__ = ("_broker", "_changed", "_leases", "_left", "_rounds")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._leases: list[Lease] = []
        self._rounds: list[QueueContents] = []
        self._changed: list[set[Queue]] = []  # after each round had begun, and before the next one
        self._left: Iterator[int] = iter(())  # ids of queues to be copied in this round

    def copy_some(self, most: int) -> bool:
        """Copy so many queues; return whether only as many are left for the moment."""
        by_id = self._broker.queues_by_id
        if not self._rounds:
            if len(by_id) <= most:
                return True
            self._begin_round(array("Q", by_id))
        ids = list(islice(self._left, most))
        self._rounds[-1].copy([queue for number in ids if (queue := by_id.get(number)) is not None])
        if len(ids) == most:
            return False
        changed = self._changed[-1]
        if len(changed) <= most or len(self._rounds) == _ROUNDS:
            return True
        self._begin_round(array("Q", [queue.id for queue in changed]))
        return False

    def _begin_round(self, ids: array[int]) -> None:
        self._left = iter(ids)
        self._rounds.append(QueueContents())
        self._changed.append(set())
        self._broker.flow.changed[self] = self._changed[-1]

    def complete(self) -> None:
        """Copy what has changed, or everything if nothing was copied before: this is the moment."""
        broker = self._broker
        flow, by_id = broker.flow, broker.queues_by_id
        last = QueueContents()
        if self._rounds:
            changed = self._changed[-1]
            changed.update(flow.dirty)  # in this turn
            last.copy([queue for queue in changed if queue.id in by_id])
        else:
            last.copy(by_id.values())
        self._rounds.append(last)
        self._leases = [lease for session in broker.sessions for lease in session.outstanding()]
        self.give_up()

    def give_up(self) -> None:
        """Changes need not be noted any more."""
        self._broker.flow.changed.pop(self, None)

    def live(self) -> Iterator[array[int]]:
        """The positions of all messages, in any order."""
        self._mark_outdated()
        leased = (lease.message.position for lease in self._leases)
        yield from arrays(position for position in leased if position)
        for contents in self._rounds:
            yield from contents.live()

    def states(self) -> Iterator[bytes]:
        """The encoded states of the queues that survive a restart."""
        self._mark_outdated()
        leased: dict[Queue, list[Message]] = {}
        for lease in self._leases:
            leased.setdefault(lease.queue, []).append(lease.message)
        for contents in self._rounds:
            yield from contents.states(leased)

    def _mark_outdated(self) -> None:
        outdated: set[Queue] = set()
        for contents, changed in zip(self._rounds[-2::-1], self._changed[::-1], strict=True):
            outdated |= changed
            contents.outdated = frozenset(outdated)

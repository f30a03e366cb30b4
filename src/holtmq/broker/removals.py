"""Removal of very many queues in steps: those of a deleted vhost, those of a closed connection.

Owns: which vhosts and which connections' queues are being removed, and that what a queue has cast out is
dead-lettered in steps before it is. Must not touch: how one queue is removed.
A queue is journalled as deleted in its step; the vhost itself goes last, as in RabbitMQ. After a crash in
between, the vhost is there with the queues that are left, and its deletion was not reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Final

from holtmq.broker.errors import Protected
from holtmq.broker.work.work_queue import WorkQueue

if TYPE_CHECKING:
    from holtmq.broker.broker import Broker
    from holtmq.broker.topology.destinations import Queue
    from holtmq.broker.topology.vhost import VHost

STEP: Final = 200  # queues: about 6 ms


class Removals:
    """The removals in progress. Few queues are removed at once."""

    __slots__ = ("_broker", "_closed", "_vhosts")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._vhosts: dict[str, Iterator[None]] = {}
        self._closed: set[object] = set()  # owners of exclusive queues that are left

    def delete_vhost(self, name: str) -> None:
        """Begin to delete a vhost and everything in it; ``is_leaving`` until that is done.

        Raises Protected if it must not be deleted.
        """
        known = self._broker.users.vhost(name)
        if known is not None and known.protected_from_deletion:
            raise Protected(f"Refusing to delete virtual host '{name}' because it is protected from deletion")
        if name not in self._vhosts:
            steps = self._vhosts[name] = self._vhost_steps(self._broker.vhost(name))
            self._broker.long_changes.add(steps, STEP)

    def remove(self, queue: Queue) -> None:
        """Delete a queue that is no longer used, after what it has cast out is dead-lettered."""
        if self.is_long(queue):
            self._broker.long_changes.add(self._queue_steps(queue), 1)
        else:
            self._broker.remove_queue(queue)

    def is_long(self, queue: Queue | None) -> bool:
        """Whether to dead-letter in steps what a queue has cast out, before it is deleted."""
        return isinstance(queue, WorkQueue) and self._broker.flow.dead_lettering.is_long(queue)

    def cast_out(self, queue: Queue | None, at_once: int = 0) -> Generator[None, None, None]:
        """Dead-letter what a queue has cast out; 0: as many at once as in a turn."""
        if isinstance(queue, WorkQueue):
            flow = self._broker.flow
            yield from flow.dead_lettering.cast_out_in_steps(queue, at_once or flow.per_turn.dead_letters)

    def _queue_steps(self, queue: Queue, at_once: int = 0) -> Iterator[None]:
        yield from self.cast_out(queue, at_once)
        if not queue.deleted:
            self._broker.remove_queue(queue)

    def is_leaving(self, vhost: str) -> bool:
        """Whether this vhost is being deleted."""
        return vhost in self._vhosts

    def complete(self, vhost: str) -> None:
        """Delete what is left of this vhost at once, if it is being deleted."""
        if vhost in self._vhosts:
            deque(self._vhosts[vhost], maxlen=0)

    def _vhost_steps(self, vhost: VHost) -> Iterator[None]:
        broker = self._broker
        try:
            broker.expel(vhost.name)
            for _ in broker.access.forget_rights(vhost.name):
                yield from repeat(None, STEP)  # each in a step of its own
            while vhost.queues:  # again for what was declared meanwhile
                for queue in _popped(vhost.queues.values()):
                    if broker.journal.failed is not None:
                        return
                    yield from self._queue_steps(queue, 1)
                    yield
            broker.expel(vhost.name)  # who has connected meanwhile
            if broker.journal.failed is None:
                broker.forget_vhost(vhost.name)
        finally:
            del self._vhosts[vhost.name]

    def connection_closed(self, owner: object) -> None:
        """Delete the exclusive queues of a connection."""
        self._closed.add(owner)
        self._broker.long_changes.add(self._owner_steps(owner), STEP)

    def _owner_steps(self, owner: object) -> Iterator[None]:
        try:
            while queues := self._broker.exclusive_queues_of(owner):
                for queue in _popped(queues):
                    yield from self._queue_steps(queue, 1)
                    yield
        finally:
            self._closed.discard(owner)

    def is_orphan(self, queue: Queue) -> bool:
        """Whether this queue is exclusive to a closed connection, and will be removed."""
        return queue.owner in self._closed


def _popped(queues: Iterable[Queue]) -> Iterator[Queue]:
    """These queues. They are not kept: 100,000 that are removed must not be freed at one moment. To take the
    first one of a dict again and again would go over the gaps of all that were removed."""
    left = list(queues)
    left.reverse()
    while left:
        yield left.pop()

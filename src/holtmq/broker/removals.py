"""Removal of very many queues in steps: those of a deleted vhost, those of a closed connection.

Owns: which vhosts and which connections' queues are being removed. Must not touch: how one queue is removed.
A queue is journalled as deleted in its step; the vhost itself goes last, as in RabbitMQ. After a crash in
between, the vhost is there with the queues that are left, and its deletion was not reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from holtmq.broker.errors import Protected

if TYPE_CHECKING:
    from holtmq.broker.broker import Broker
    from holtmq.broker.topology.destinations import Queue
    from holtmq.broker.topology.vhost import VHost

STEP: Final = 500  # queues: about 15 ms


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
            while vhost.queues:
                if broker.journal.failed is not None:
                    return
                broker.remove_queue(next(iter(vhost.queues.values())))
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
            while (queue := self._broker.exclusive_queue_of(owner)) is not None:
                self._broker.remove_queue(queue)
                yield
        finally:
            self._closed.discard(owner)

    def is_orphan(self, queue: Queue) -> bool:
        """Whether this queue is exclusive to a closed connection, and will be removed."""
        return queue.owner in self._closed

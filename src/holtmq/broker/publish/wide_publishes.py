"""One message for very many queues: it is placed in some at a time, so that other work can run in between.

Owns: the steps. Must not touch: who waits for the last one (``amqp/channel.py``, ``http/``), how a message
enters a few queues (``publishing.py``).

Each step has its own journal record and sequence number: others publish to the same queues meanwhile, and
both numbers and positions must rise in the order in which messages enter a queue. A crash in between leaves
the message in some of its queues. The publisher is told after the last step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from holtmq.broker.message import Message
from holtmq.broker.topology.destinations import Queue

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow

_PARTS_MAX: Final = 50  # of a route, looked at in one step: about 10 ms, if they compare headers
# Enqueues a message on those of these queues that accept it; how many do, and whether a record was written.
Enqueue = Callable[[Message, Sequence[Queue]], tuple[int, bool]]


class QueuesInParts:
    """The queues of a message, each once, found part by part."""

    __slots__ = ("_parts", "_seen", "_waiting", "looked_at")

    def __init__(self, parts: Iterator[Sequence[Queue]]) -> None:
        self._parts = parts
        self._seen: set[str] = set()
        self._waiting: list[Queue] = []  # found and not taken
        self.looked_at = False  # there are no further parts

    def find(self, enough: int) -> list[Queue]:
        """Look at some parts, until there are more than ``enough`` queues; return those not taken yet."""
        for _ in range(_PARTS_MAX):
            if self.looked_at or len(self._waiting) > enough:
                break
            part = next(self._parts, None)
            if part is None:
                self.looked_at = True
            elif part:
                self._add(part)
        return self._waiting

    def _add(self, part: Sequence[Queue]) -> None:
        seen = self._seen
        for queue in part:
            if queue.name not in seen:
                seen.add(queue.name)
                self._waiting.append(queue)

    def take(self, count: int) -> list[Queue]:
        """The next of those that were found."""
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken


def in_steps(
    flow: Flow, message: Message, queues: QueuesInParts, enqueue: Enqueue
) -> Generator[None, None, tuple[int, int, bool]]:
    """Place a message; return how many queues it was for, how many accepted it, and whether it is journalled.

    Queues that are deleted before their step are left out. To find the first queues was a step of its own.
    """
    wanted = accepted = 0
    journalled = False
    yield
    while True:
        at_once = max(1, flow.per_turn.copies)
        queues.find(at_once - 1)
        some = [queue for queue in queues.take(at_once) if not queue.deleted]
        if some:
            wanted += len(some)
            # Those before it may have arrived later than the message was published.
            flow.seq += 1
            copy = msgspec.structs.replace(message, seq=flow.seq, arrived_ms=flow.now_ms, position=0)
            count, recorded = enqueue(copy, some)
            accepted += count
            journalled = journalled or recorded
        elif queues.looked_at:
            return wanted, accepted, journalled
        yield from between_steps(flow)


def between_steps(flow: Flow) -> Iterator[None]:
    """Wait for two turns if one is not enough for the queues of a step: each turn looks at all that wait."""
    yield
    if len(flow.dirty) > flow.per_turn.queues:
        yield

"""Which consumers of a work queue get the next messages.

Owns: priorities, and round-robin between consumers of the same priority. Must not touch: messages, the queue.
"""

from collections.abc import Sequence

from holtmq.broker.topology.destinations import Consumer

Takers = list[tuple[Consumer, int]]  # with the room that each has


def only(consumer: Consumer) -> Takers:
    """This consumer, if it can take messages now."""
    room = consumer.room()
    return [(consumer, room)] if room > 0 else []


def next_takers(consumers: Sequence[Consumer], turn: int, waiting: int) -> Takers:
    """The consumers of the highest priority that has room, at most one for each waiting message.

    ``consumers`` are sorted by priority. ``turn`` counts the messages delivered so far; it decides which
    consumer of a priority comes first.
    """
    if len(consumers) == 1:
        return only(consumers[0])
    takers: Takers = []
    at = 0
    while at < len(consumers) and not takers:
        level = consumers[at].priority
        end = at
        while end < len(consumers) and consumers[end].priority == level:
            end += 1
        size = end - at
        start = turn % size
        for step in range(size):
            consumer = consumers[at + (start + step) % size]
            room = consumer.room()
            if room > 0:
                takers.append((consumer, room))
                if len(takers) >= waiting:
                    break
        at = end
    return takers

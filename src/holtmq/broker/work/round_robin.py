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
        end = len(consumers)
        if consumers[-1].priority != level:
            end = at + 1
            while consumers[end].priority == level:
                end += 1
        start = at + turn % (end - at)
        for part in (range(start, end), range(at, start)):  # there may be 100,000
            for place in part:
                consumer = consumers[place]
                room = consumer.room()
                if room > 0:
                    takers.append((consumer, room))
                    if len(takers) >= waiting:
                        return takers
        at = end
    return takers

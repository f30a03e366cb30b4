"""Stretches of the messages that a queue has in memory, in the order of their seqs.

Owns: how a stretch is found, and how part of it is taken out. Must not touch: what is paged out.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from itertools import islice

from holtmq.broker.message import Message


def seq_of(message: Message) -> int:
    """The key of the order."""
    return message.seq


def behind(held: deque[Message], seq: int, limit: int, most_bytes: int) -> list[Message]:
    """The messages behind this seq, until one of the limits is reached."""
    found: list[Message] = []
    size, first = 0, bisect_right(held, seq, key=seq_of)
    held.rotate(-first)  # 1 ns for each message before it; to step over one takes 5
    for message in islice(held, len(held) - first):
        found.append(message)
        size += len(message.body)
        if len(found) >= limit or size >= most_bytes:
            break
    held.rotate(first)
    return found


def cut(held: deque[Message], messages: list[Message]) -> list[Message]:
    """Remove those of these messages that are here; return the others, which are behind."""
    here = bisect_right(messages, held[-1].seq, key=seq_of) if held else 0
    if not here:
        return messages
    first = bisect_left(held, messages[0].seq, key=seq_of)
    gone = {message.seq for message in messages[:here]}
    # Turned, so that the stretch is at the left end: 1 ns for each message before it.
    held.rotate(-first)
    stretch: list[Message] = []
    while gone:
        message = held.popleft()
        if message.seq in gone:
            gone.remove(message.seq)
        else:
            stretch.append(message)
    held.extend(stretch)
    held.rotate(first + len(stretch))
    return messages[here:]

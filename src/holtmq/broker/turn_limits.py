"""How much work one turn of the broker does, so that it does not hold the event loop.

Owns: the numbers. Must not touch: the work. What is left is done in the next turns.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """The limits of a turn. The times were measured."""

    queues: int = 2_500  # about 5 ms; a queue that is paged out, or delivers many messages, counts more
    dead_letters: int = 150  # about 7 ms
    expired: int = 1_000  # messages of one queue
    copies: int = 5_000  # queues that one message enters: about 15 ms
    returned: int = 3_000  # unacked messages of one channel: about 5 ms
    of_groups: int = 300  # likewise of consumer groups: 6 ms, each in its partition; 25 ms, each in its queue
    verdicts: int = 1_000  # of groups, on messages that are rejected, and their partitions: about 12 ms
    timers: int = 300  # about 15 ms, if each of them places a delayed message

"""How much work one turn of the broker does, so that it does not hold the event loop.

Owns: the numbers. Must not touch: the work. What is left is done in the next turns.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """The limits of a turn, for all queues together but ``expired``. The times were measured."""

    queues: int = 2_500  # about 5 ms; a queue that is paged out counts more
    dead_letters: int = 150  # about 7 ms
    expired: int = 1_000  # messages of one queue
    timers: int = 300  # about 15 ms, if each of them places a delayed message

"""A paused queue takes messages and hands out none, until an operator resumes it.

Owns: what is remembered of a pause. Must not touch: queues; each kind checks its own
pause before it delivers.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pause:
    """Since when a queue is paused, by which user, and why."""

    since_ms: int
    by: str
    reason: str = ""

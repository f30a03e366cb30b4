"""What goes wrong in a simulated history, and who looks for it.

Owns: the two errors, and what every kind of client owes the schedule. Must not touch: the broker.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

Action = Callable[[], None]


class BrokenRule(AssertionError):
    """The broker did something that it must never do."""


class BrokenPromise(BrokenRule):
    """A seed whose history breaks a promise; the text says how to see it again."""

    def __init__(self, seed: int, step: int, what: str) -> None:
        super().__init__(
            f"seed {seed}, step {step}: {what}\n  PYTHONPATH=tests python -m simulation --seed {seed}"
        )
        self.seed = seed


class SimulatedClients(Protocol):
    """The clients of one kind of queue, with their own record of what they were promised."""

    @property
    def actions(self) -> Mapping[Action, int]:
        """What may happen next, and how often."""

    @property
    def confirmed(self) -> int:
        """Promises received so far."""

    def prepare(self) -> None:
        """The broker is open: make the queues that are not there."""

    def turned(self) -> None:
        """A turn of the loop is over: read what it brought."""

    def flushed(self) -> None:
        """Everything that had been appended when the last turn ended is durable."""

    def died(self) -> None:
        """The broker is gone, and every connection with it."""

    def recovered(self) -> str:
        """Compare with what came back; what is wrong, or nothing."""

    def check(self) -> None:
        """What must hold between any two turns; BrokenRule if it does not."""

    def read_all_back(self) -> None:
        """Read from the disk whatever was confirmed and not settled; BrokenRule at a byte that differs."""

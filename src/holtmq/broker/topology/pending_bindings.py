"""Bindings of imported definitions that are in the journal already, and are added to exchanges in steps.

Owns: the rest of the import, and which exchanges and queues it leads from and to. Must not touch: exchanges,
clocks; it runs the iterator that the import gives it, as one of the broker's long changes.

The journal has the whole import before any later change. So that memory agrees with it, a change that would
remove one of these bindings, exchanges or queues first completes the import at once (``settle``).
"""

from collections import deque
from collections.abc import Iterator, Set
from typing import Final

from holtmq.broker.topology.long_changes import LongChanges

STEP: Final = 1_000  # bindings: about 10 ms

End = tuple[str, bool, str]  # vhost, whether it is an exchange, name


class PendingBindings:
    """At most one import at a time."""

    __slots__ = ("_ends", "_steps")

    def __init__(self) -> None:
        self._steps: Iterator[object] | None = None
        self._ends: Set[End] = frozenset()

    def __bool__(self) -> bool:
        return self._steps is not None

    def begin(self, steps: Iterator[object], ends: Set[End], changes: LongChanges) -> None:
        """Run ``steps``, each of which adds a binding between some of ``ends``."""
        assert self._steps is None
        self._ends = ends
        self._steps = self._run(steps)
        changes.add(self._steps, STEP)

    def settle(self, vhost: str, is_exchange: bool, name: str) -> None:
        """Call before a change that takes bindings away from this exchange or queue."""
        if self._steps is not None and (vhost, is_exchange, name) in self._ends:
            self.finish()

    def finish(self) -> None:
        """Add all that are left."""
        if self._steps is not None:
            deque(self._steps, maxlen=0)

    def _run(self, steps: Iterator[object]) -> Iterator[object]:
        try:
            yield from steps
        finally:
            self._steps, self._ends = None, frozenset()

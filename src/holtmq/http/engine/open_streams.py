"""How many streamed answers are being sent, and how much of each may be in memory.

Owns: the count, and each answer's share of a fixed budget. Must not touch: what is sent.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

BUDGET_BYTES: Final = 64 << 20  # for all answers together
PIECE_MAX: Final = 4 << 20
PIECE_MIN: Final = 128 << 10  # smaller ones cost more than they save


@dataclass(slots=True)
class OpenStreams:
    """One per node, on the loop's thread."""

    count: int = 0

    @contextmanager
    def another(self) -> Iterator[None]:
        """Count one more answer while the context is open."""
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1

    def piece_bytes(self) -> int:
        """How large the next piece of an answer should be."""
        return max(PIECE_MIN, min(PIECE_MAX, BUDGET_BYTES // max(1, self.count)))

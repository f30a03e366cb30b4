"""A second place for what the checkpointer puts into the folder.

Owns: the shape of it. Must not touch: where that place is.
"""

from __future__ import annotations

from typing import Protocol


class Mirror(Protocol):
    """Called in the checkpointer's thread; an error ends the step."""

    def published(self, position: int) -> None:
        """This checkpoint counts from now on. Nothing was reclaimed yet on the strength of it."""

    def reclaimed(self) -> None:
        """Segments were deleted or compacted."""

    def close(self) -> None:
        """Nothing more comes."""

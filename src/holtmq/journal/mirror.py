"""The interface of a second store for the checkpoints and reclaimed segments of the folder.

Owns: the interface. Must not touch: where that store is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Mirror(Protocol):
    """Called in the checkpointer's thread; an error ends the step."""

    def published(self, position: int) -> None:
        """This checkpoint is valid now. Nothing that it replaces has been reclaimed yet."""

    def reclaimed(self, sealed: Collection[int], deleted: Collection[int]) -> None:
        """Of the ``sealed`` segments (their bases) some were ``deleted``, others perhaps compacted."""

    def close(self) -> None:
        """No more calls follow."""

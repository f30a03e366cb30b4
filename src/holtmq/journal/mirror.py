"""A second store for the segments and checkpoints of the folder.

Owns: its interface. Must not touch: where that store is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Mirror(Protocol):
    """Called in the checkpointer's thread; an error ends the step."""

    def published(self, position: int, older: int | None) -> None:
        """This checkpoint is valid now, ``older`` is kept beside it. Nothing has been reclaimed yet."""

    def reclaimed(self, sealed: Collection[int], deleted: Collection[int]) -> None:
        """Of the ``sealed`` segments (their bases) some were ``deleted``, others perhaps compacted."""

    def refetch(self, base: int, *, is_open: bool) -> bool:
        """Replace a damaged segment of the folder; False when the store has no better one.

        ``is_open``: it is being written. May be called in any thread. JournalError when the store does not
        answer.
        """

    def close(self) -> None:
        """No more calls follow."""

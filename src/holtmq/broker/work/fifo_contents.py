"""The messages of a fifo at one moment, for a checkpoint that is encoded while the fifo goes on.

Owns: which of its parts are copies, and what is computed from them. Must not touch: the fifo.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from holtmq.broker.message import Message
from holtmq.broker.work.spilled_run import positions_of


class FifoContents(NamedTuple):
    """Nothing in here changes with the fifo. Messages never change, and a list of them is a copy."""

    aside: array[int]  # the fifo replaces it when there are more
    ready: list[Message]
    runs: list[tuple[array[int], int]]  # positions, and how many of them: the fifo may append to the array
    withdrawn: frozenset[int]  # of these positions
    spilled_bytes: int  # of transient messages that are paged out
    inbox: list[Message]

    def positions(self) -> Iterator[array[int]]:
        """Journal positions of all messages in the journal: unreadable ones, head, paged-out middle, tail."""
        if self.aside:
            yield self.aside
        yield positions_of(self.ready)
        for run, length in self.runs:
            if self.withdrawn:
                yield array("Q", [position for position in run[:length] if position not in self.withdrawn])
            else:
                yield run[:length]
        if self.inbox:
            yield positions_of(self.inbox)

    def transient_bytes(self) -> int:
        """Size of the bodies that do not survive a restart."""
        held = sum([len(message.body) for message in self.ready if not message.persistent])
        held += sum([len(message.body) for message in self.inbox if not message.persistent])
        return held + self.spilled_bytes

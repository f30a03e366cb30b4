"""A run of messages that were paged out together because some of them are not in the journal.

Owns: what memory keeps of such a run, and the account of one that was lost. Must not touch: reading and
writing; ``paging`` does both.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from holtmq.broker.message import Message
from holtmq.broker.work.paging import SpilledBytes
from holtmq.journal.interface import RecordUnreadable


class LostRun(NamedTuple):
    """Transient messages that were spilled together and cannot be read back."""

    messages: int
    size: int  # of their bodies
    reason: str


Missing = RecordUnreadable | LostRun


class SpilledRun:
    """Messages paged out together, of which at least one is not in the journal."""

    __slots__ = ("positions", "seqs", "spilled", "transient_bytes")

    def __init__(self, messages: list[Message], spilled: SpilledBytes) -> None:
        self.spilled = spilled
        self.seqs = array("Q", [message.seq for message in messages])
        self.positions = positions_of(messages)  # of those in the journal
        self.transient_bytes = sum([len(m.body) for m in messages if not m.persistent])

    def __len__(self) -> int:
        return len(self.seqs)


def positions_of(messages: Iterable[Message]) -> array[int]:
    return array("Q", [message.position for message in messages if message.position and message.persistent])

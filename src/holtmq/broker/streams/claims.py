"""The partitions that a member of a consumer group has claimed, and its verdicts on their messages.

Owns: the order in which verdicts count: the group's cursor moves only over messages that have one. Must not
touch: the group, the journal, other consumers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from holtmq.broker.message import Message
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.requests import HeldPartition, SettledRun


class Claim:
    """One claimed partition, among the others of its member. ``over``: the member holds nothing of it.
    ``is_awaited``: an open transaction settles messages of it."""

    __slots__ = ("_others", "_verdicts", "_waiting", "held", "is_awaited", "over")

    def __init__(self, held: HeldPartition, others: dict[int, Claim]) -> None:
        others[held.partition] = self
        self._others = others
        self.held = held
        self.over = self.is_awaited = False
        self._waiting: deque[int] = deque()
        self._verdicts: dict[int, AckStatus] = {}

    def take(self, positions: Iterable[int]) -> None:
        """Note messages that were delivered, behind those that were before."""
        self._waiting.extend(positions)

    def settle(self, verdicts: dict[int, AckStatus]) -> None:
        """Note verdicts, by position."""
        self._verdicts.update(verdicts)

    def take_settled(self) -> SettledRun | None:
        """Remove the verdicts up to the first message without one; None if that is the first message.

        A returned message ends the claim: it is delivered again, with all that follow.
        """
        waiting, verdicts = self._waiting, self._verdicts
        if self.over or not verdicts:
            return None
        if len(verdicts) == len(waiting) and AckStatus.RETRY not in verdicts.values():  # hot case
            self._end()
            return SettledRun(self.held, verdicts, True)
        settled: dict[int, AckStatus] = {}
        while waiting and (status := verdicts.pop(waiting[0], None)) is not None:
            settled[waiting.popleft()] = status
            if status is AckStatus.RETRY:
                waiting.clear()
        if not waiting:
            self._end()
        return SettledRun(self.held, settled, self.over) if settled else None

    def _end(self) -> None:
        self.over, self._verdicts = True, {}
        if self._others.get(self.held.partition) is self:  # else it was claimed again, after a seek
            del self._others[self.held.partition]


class ClaimedMessage(Message, gc=False, eq=False, array_like=True):
    """A message for a member of a group. Not tracked by the garbage collector, as it is in no cycle: a claim
    refers to no message."""

    claim: Claim | None = None
    place: int = 0  # its position in the partition
    redelivered: bool = False


def claimed(message: Message, claim: Claim, place: int, redelivered: bool) -> ClaimedMessage:
    """The message, with the claim that it belongs to."""
    return ClaimedMessage(
        message.seq,
        message.address,
        message.header,
        message.body,
        message.arrived_ms,
        message.expires_ms,
        message.priority,
        message.persistent,
        message.position,
        claim,
        place,
        redelivered,
    )


Verdicts = dict[Claim, dict[int, AckStatus]]


def take_settled(verdicts: Verdicts) -> list[SettledRun]:
    """Note these verdicts; return what can be settled now."""
    for claim, said in verdicts.items():
        claim.settle(said)
    return [run for claim in verdicts if (run := claim.take_settled()) is not None]


def by_claim(messages: Iterable[Message], status: AckStatus) -> Verdicts:
    """The same verdict on these messages, for each claim that is not over. A plain reader has no claims."""
    found: Verdicts = {}
    for message in messages:
        if type(message) is not ClaimedMessage:
            continue
        claim = message.claim
        if claim is None or claim.over:  # its member has left, or it is delivered again with an earlier one
            continue
        verdicts = found.get(claim)
        if verdicts is None:
            verdicts = found[claim] = {}
        verdicts[message.place] = status
    return found

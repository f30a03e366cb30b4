"""The partitions that a member of a consumer group has claimed, and its verdicts on their messages.

Owns: the order in which verdicts count: the group's cursor moves only over messages that have one. Must not
touch: the group, the journal, other consumers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from holtmq.broker.message import Message
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.requests import HeldPartition, SettledRun


class Claim:
    """One claimed partition, among the others of its member. ``over``: the member holds nothing of it.
    ``is_awaited``: an open transaction settles messages of it. ``in_line``: some of its verdicts take effect
    in a later step (``settling_claims.py``). ``is_left``: then it ends, since its member has left."""

    __slots__ = (
        "_others",
        "_verdicts",
        "_waiting",
        "files",
        "held",
        "in_line",
        "is_awaited",
        "is_left",
        "over",
    )

    def __init__(self, held: HeldPartition, others: dict[int, Claim]) -> None:
        others[held.partition] = self
        self._others = others
        self.held = held
        self.over = self.is_awaited = self.in_line = self.is_left = False
        self.files = False  # some verdicts file dead letters
        self._waiting: deque[int] = deque()
        self._verdicts: dict[int, AckStatus] = {}

    def take(self, positions: Iterable[int]) -> None:
        """Note messages that were delivered, behind those that were before."""
        self._waiting.extend(positions)

    def settle(self, verdicts: dict[int, AckStatus]) -> None:
        """Note verdicts, by position."""
        self.files = self.files or AckStatus.DEAD_LETTER in verdicts.values()
        self._verdicts.update(verdicts)

    def take_settled(self, most: int, through: int = -1) -> SettledRun | None:
        """Remove the verdicts up to the first message without one; None if that is the first message.

        If some file dead letters, at most so many, or all up to position ``through``: ``has_rest`` tells
        whether there are more. A returned message ends the claim: it is delivered again, with all that
        follow.
        """
        waiting, verdicts, files = self._waiting, self._verdicts, self.files
        if self.over or not verdicts:
            return None
        is_all = len(verdicts) == len(waiting) and (not files or len(verdicts) <= most)
        if is_all and AckStatus.RETRY not in verdicts.values():  # hot case
            self._end()
            return SettledRun(self.held, verdicts, True)
        settled: dict[int, AckStatus] = {}
        is_slow = False  # acknowledgments by themselves take little time
        while waiting and (status := verdicts.get(position := waiting[0])) is not None:
            is_slow = is_slow or status is AckStatus.DEAD_LETTER
            if is_slow and len(settled) >= most and position > through:
                break
            del verdicts[position]
            settled[waiting.popleft()] = status
            if status is AckStatus.RETRY:
                waiting.clear()
        if not waiting:
            self._end()
        self.files = files and bool(self._verdicts)
        return SettledRun(self.held, settled, self.over) if settled else None

    @property
    def waiting_rejections(self) -> int:
        """At most so many rejections wait for the verdict on an earlier message."""
        return len(self._verdicts) if self.files else 0

    def would_settle(self, said: dict[int, AckStatus]) -> Iterator[AckStatus]:
        """The verdicts that a commit with these takes along, up to the last of them; others come before."""
        last = max(said)
        for position in list(self._waiting):
            status = said.get(position, self._verdicts.get(position))
            if status is None or position > last:
                return
            yield status

    @property
    def has_rest(self) -> bool:
        """Whether ``take_settled`` has left something that can be settled now."""
        return not self.over and bool(self._waiting) and self._waiting[0] in self._verdicts

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


def add(all_verdicts: Verdicts, verdicts: Verdicts) -> None:
    """Add these to all."""
    for claim, said in verdicts.items():
        all_verdicts.setdefault(claim, {}).update(said)


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

"""Pushes timed messages when they are due, under the id they were assigned.

Owns: when the next one is due, and that each is pushed once: the push and the timer's removal are one
commit. Must not touch: clocks (the node calls at the planned time), wire names.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from holtmq.broker.errors import LimitReached
from holtmq.broker.partitioned.commands.pushing import PushDecision
from holtmq.broker.partitioned.commands.spool import Spool
from holtmq.broker.partitioned.events import IdsGiven
from holtmq.broker.partitioned.extras.timers import Timed, TimedChange, TimedMessages
from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.log.bodies import Body, UnreadableBody
from holtmq.broker.partitioned.pending_commit import PendingCommit
from holtmq.broker.partitioned.queue_config import US
from holtmq.broker.partitioned.requests import PushItem, PushResult
from holtmq.broker.partitioned.store import PartitionedStore
from holtmq.broker.partitioned.waiting.waiting_pops import WaitingLine

_Decided = tuple[str, Sequence[PushItem], PushDecision]
_TRY_AGAIN: Final = 1.0


class DecidePushes(Protocol):
    def __call__(
        self,
        items: Sequence[PushItem],
        now: float,
        pending: PendingCommit,
        *,
        apart: bool,
    ) -> list[_Decided]: ...


class CountPushes(Protocol):
    def __call__(self, items: Sequence[PushItem], decided: Sequence[_Decided]) -> list[PushResult]: ...


class Late(NamedTuple):
    """A timed message that is due and cannot be pushed, the earliest of its queue."""

    queue: str
    key: str
    due_us: int
    reason: str


class Firing:
    """Pushes due timers. ``wanted``: a timer is due, and the next turn calls ``fire``."""

    def __init__(
        self,
        store: PartitionedStore,
        timed: TimedMessages,
        spool: Spool,
        line: WaitingLine,
        decide: DecidePushes,
        count: CountPushes,
    ) -> None:
        self._store = store
        self._timed = timed
        self._spool = spool
        self._line = line
        self._decide = decide
        self._count = count
        self._fires_at_us: int | None = None
        self._refused: list[Timed] = []
        self._late: dict[str, Late] = {}  # by queue; looked at by ``late``
        self.wanted = False

    def late(self) -> list[Late]:
        """The earliest timed message of each queue that does not take those that are due."""
        for queue, one in list(self._late.items()):
            timer = self._timed.get(queue, one.key)
            if timer is None or timer.due_us != one.due_us:  # pushed, moved or cancelled
                del self._late[queue]
        return list(self._late.values())

    def plan(self) -> None:
        """Schedule a call for when the next timer is due."""
        due_us = self._timed.next_due_us()
        if due_us is not None and (self._fires_at_us is None or due_us < self._fires_at_us):
            self._fires_at_us = due_us
            self._line.at(due_us / US, self._due)

    def _due(self) -> None:
        self._fires_at_us = None
        self.wanted = True
        self._line.on_dirty()

    def fire(self, now: float) -> None:
        """Push timers that are due. Those that a full queue refuses or no key decrypts stay due."""
        self.wanted = False
        if self._store.journal.failed is not None:
            return  # they are still due after a restart
        if self._spool.holds:
            # Timers are durable already, and the spool would lose their ids.
            self._line.at(now + _TRY_AGAIN, self._due)
            return
        timers = self._timed.due(micros(now))
        try:
            self._push_or_keep(timers, now)
        except BaseException:  # not in the line any more; those that were pushed are not found again
            self._timed.put_back(timers)
            self._line.at(now + _TRY_AGAIN, self._due)
            raise
        self.plan()

    def _push_or_keep(self, timers: Sequence[Timed], now: float) -> None:
        try:
            self._push(timers, now)
        except (LimitReached, UnreadableBody):
            # One full queue must not block the timers of others: push one by one, retry the refused later.
            for timer in timers:
                try:
                    self._push([timer], now)
                except (LimitReached, UnreadableBody) as refusal:
                    self._refused.append(timer)
                    known = self._late.get(timer.queue)
                    if known is None or timer.due_us < known.due_us:
                        self._late[timer.queue] = Late(timer.queue, timer.key, timer.due_us, str(refusal))
            # Refused timers stay out of the line until then: otherwise they would be due again at once.
            self._line.at(now + _TRY_AGAIN, self._retry)

    def _retry(self) -> None:
        refused, self._refused = self._refused, []
        self._timed.put_back(refused)
        self._due()

    def _push(self, timers: Sequence[Timed], now: float) -> None:
        if not timers:
            return
        # Offsets must follow the order of ids, and these ids were assigned earlier: see ``decide_push``.
        timers = sorted(timers, key=lambda timer: timer.message_id)
        items = [
            PushItem(
                timer.queue,
                timer.partition,
                Body(timer.transaction_id, self._timed.payload(timer), timer.trace_id, timer.producer),
            )
            for timer in timers
        ]
        ids = {id(item): timer.message_id for item, timer in zip(items, timers, strict=True)}
        ended = self._timed.record(TimedChange([], [(timer.queue, timer.key) for timer in timers]))
        pending = PendingCommit(self._store, ended)
        decided = self._decide(items, now, pending, apart=True)
        for _, mine, decision in decided:
            given = tuple(
                (offset, ids[id(item)])
                for place, (item, offset) in enumerate(zip(mine, decision.offsets, strict=True))
                if place not in decision.duplicates
            )
            if decision.event is not None:
                number = next(number for number, event in pending.changes if event is decision.event)
                pending.changes.append((number, IdsGiven(given)))
        pending.write()
        self._count(items, decided)

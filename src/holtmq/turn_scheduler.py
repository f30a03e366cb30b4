"""The turns of a node: what runs on the event loop after each round of sockets.

Owns: the order of work in a turn, the loop's timer, the broker's time. Must not touch: rules, protocols.
"""

import asyncio
import math
from collections.abc import Callable

from holtmq.broker.flow import Flow
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.journal import Journal, JournalFailed


class TurnScheduler:
    """Runs the broker's turns on the loop. ``attach`` comes before the first turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._flow: Flow
        self._partitioned: PartitionedService
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.flush: Callable[[], None] = _nothing  # writes what the turn has produced for clients
        self.on_end: Callable[[], None] = _nothing  # called at the end of each turn, before the timer is set

    def attach(self, flow: Flow, partitioned: PartitionedService) -> None:
        """Run turns of this broker."""
        self._flow, self._partitioned = flow, partitioned
        self.refresh_clock()

    def refresh_clock(self) -> None:
        """Set the broker's time from the clock."""
        self._flow.now_ms = int(self._clock() * 1000)

    def wake(self) -> None:
        """Schedule a turn, after the sockets of this loop iteration have been read."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        self.refresh_clock()  # the caller of ``wake`` may not have done so
        try:
            self._flow.turn()
        finally:  # an error in one half must not cost the other half the turn it has asked for
            try:
                self.flush()
                self._partitioned.turn(self._clock())
            finally:
                self.on_end()
                self._arm_timer()

    def defer_commit(self, hand_over: Callable[[], None]) -> None:
        """Commit the journal's group after the sockets of this loop iteration have been read."""
        self._loop.call_soon(self._commit, hand_over)

    def _commit(self, hand_over: Callable[[], None]) -> None:
        """Hand the journal's group to its writer, after a turn that appends the acks of this iteration.
        Otherwise a publish could be confirmed while an earlier ack of its connection is lost to a crash."""
        try:
            self._flow.turn()
        finally:
            hand_over()

    def tick(self) -> None:
        """Run the timers that are due."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self.refresh_clock()
        self._flow.tick()
        self.wake()

    def tick_if_late(self) -> None:
        """Run timers that are due by the clock: it was set forward, which loop timers ignore."""
        due = self._flow.timers.next_due()
        if due is not None and due <= self._clock():
            self.tick()

    def at(self, at: float, action: Callable[[], None]) -> None:
        """Run an action at this time of the clock."""
        self._flow.at(math.ceil(at * 1000), action)
        self.wake()

    async def settle(self, journal: Journal) -> None:
        """Wait until no turn is due and all that was appended is durable (or never will be)."""
        while self._is_due or (journal.failed is None and journal.backlog):
            if self._is_due:
                await asyncio.sleep(0)
                continue
            await all_appended_is_durable(journal)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm_timer(self) -> None:
        due = self._flow.timers.next_due()
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(max(0.0, due - self._clock()), self.tick)


async def all_appended_is_durable(journal: Journal) -> None:
    """Wait until what was appended so far is durable (or never will be)."""
    durable = asyncio.Event()

    def told(_: JournalFailed | None) -> None:
        durable.set()

    journal.on_durable(told)
    await durable.wait()


def _nothing() -> None:
    return None

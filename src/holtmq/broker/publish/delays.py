"""Delayed messages: they wait in the journal, and enter their queues when they are due.

Owns: which positions wait until when. Must not touch: clocks; how a message is placed (``placings.py``). The
publisher was answered long ago, so a message that has a queue to go to is never dropped here.

A full queue that refuses publishers (``reject-publish``) cannot refuse what is confirmed already. Such a
message goes on waiting, behind earlier ones for that queue, and is tried again every second.

Messages that enter very many queues as soon as possible are here, too, until they are in all of them.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from holtmq.broker.message import Message
from holtmq.broker.publish.delayed_run import DelayedRun
from holtmq.broker.publish.due_message import DueMessage, Origin, number_of, origin_of
from holtmq.broker.publish.placings import TRY_AGAIN_MS, Placing, Placings
from holtmq.broker.publish.record_batch import Accepted, Where
from holtmq.broker.publish.wide_publishes import QueuesInParts
from holtmq.broker.records.changes import Kind
from holtmq.broker.records.message_records import decode_delayed, encode_delayed
from holtmq.broker.timer_wheel import ActionTimer
from holtmq.broker.topology.destinations import Queue
from holtmq.journal.interface import RecordUnreadable

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow
    from holtmq.broker.topology.routing import RouteWalk

_ENTERED: Final = 20_000  # messages of a large transaction at once: about 5 ms
_AT_ONCE: Final = 250  # messages tried for one queue before other work has its turn


class DelayedMessage(NamedTuple):
    """A message that waits for its delay to end, and the queues it would enter now."""

    position: int
    due_ms: int
    vhost: str
    exchange: str
    queues: list[str]
    message: Message


class Delays:
    """The delayed messages of a node."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._waiting: dict[int, tuple[bool, int]] = {}
        # Those of large transactions, still to be put there.
        self._entering: deque[Iterator[tuple[int, tuple[bool, int]]]] = deque()
        self._timers: dict[int, ActionTimer] = {}
        self._runs: set[DelayedRun] = set()  # messages whose timers are here
        self._lines: dict[int, deque[int]] = {}  # queue id -> positions that it had no room for
        self._unfinished: list[int] = []  # after a restart: messages of transactions, oldest first
        self.placings = Placings(flow, self)
        self._committed: list[int] | None = None  # positions of the batch that is being committed
        self.in_steps: Callable[[Iterator[None]], object] = _exhaust  # runs them, with other work in between

    @property
    def waiting(self) -> dict[int, tuple[bool, int]]:
        """The messages that wait: position -> persistent, due time."""
        while self._entering:
            self._enter(sys.maxsize)
        return self._waiting

    def add(self, message: Message, vhost: str, exchange: str, due_ms: int) -> None:
        """Accept a message that is routed by this exchange at its time."""
        self.write(encode_delayed(message, vhost, exchange, due_ms), message.persistent, due_ms)

    def write(self, payload: bytes, persistent: bool, due_ms: int) -> None:
        """Accept a message by its record."""
        flow = self._flow
        kind = Kind.DELAYED if persistent else Kind.PAGED
        batch = flow.batch
        if batch is not None:
            batch.delays.append((batch.add(kind, payload), persistent, due_ms))
            return
        self.schedule(flow.journal.append(kind, payload), persistent, due_ms)

    def schedule(self, position: int, persistent: bool, due_ms: int) -> None:
        """Set a timer for a message in the journal (also after a restart)."""
        self.waiting[position] = (persistent, due_ms)
        if self._committed is not None:
            self._committed.append(position)
        self._timers[position] = self._flow.timers.schedule(due_ms / 1000, lambda: self.ended(position))

    def prepare(self) -> DelayedRun:
        """For many messages that are accepted at one moment."""
        return DelayedRun(self._flow.timers, self.ended, self._runs)

    def start(self, run: DelayedRun, base: int) -> None:
        """Schedule the messages of a run, whose record was written at this position."""
        self._entering.append(run.start(base))
        self.in_steps(self._enter_in_steps())

    def _enter_in_steps(self) -> Iterator[None]:
        yield
        while self._entering:
            self._enter(_ENTERED)
            yield

    def _enter(self, most: int) -> None:
        before = len(self._waiting)
        self._waiting.update(islice(self._entering[0], most))
        if len(self._waiting) - before < most:
            self._entering.popleft()

    def commit(self) -> list[int]:
        """Commit the open batch; return the positions of the messages that it delays."""
        positions: list[int] = []
        self._committed = positions
        try:
            self._flow.commit()
        finally:
            self._committed = None
        return positions

    def accept(self, message: Message, where: Where, origin: Origin, is_kept: bool) -> Accepted:
        """With the open batch, accept a message that is placed in steps, as soon as possible."""
        batch = self._flow.batch
        assert batch is not None
        number = number_of(message, origin)
        kind = Kind.DELAYED if is_kept else Kind.PAGED
        index = batch.add(kind, encode_delayed(message, *where, number))
        accepted = Accepted(index, is_kept, number, where)
        batch.accept(accepted)
        return accepted

    def begin(self, accepted: Accepted, position: int) -> None:
        """The batch that accepted this message was written."""
        self.waiting[position] = accepted.is_kept, accepted.number
        if accepted.placing is None:
            self.placings.line_up(accepted.where, position)
        else:
            accepted.placing.position = position
            self.placings.positions.add(position)

    def resume(self, due_ms: Mapping[int, int]) -> None:
        """Let messages wait, or go on with them, after a restart."""
        at_once: list[tuple[int, int]] = []
        for position, due in due_ms.items():
            if origin_of(due) is Origin.DELAY:
                self.schedule(position, True, due)
            else:
                at_once.append((due, position))
        for number, position in sorted(at_once):
            self.waiting[position] = True, number
            if origin_of(number) is Origin.PUBLISH:
                self._unfinished.append(position)
            else:
                self._go_on(position)

    def finish_transactions(self) -> None:
        """After ``resume``, before there are clients: place what transactions had still to place.

        Otherwise a client could publish to the same queues, and its message would overtake them.
        """
        unfinished, self._unfinished = self._unfinished, []
        for position in unfinished:
            self.placings.place_now(position)

    def _go_on(self, position: int) -> None:
        try:
            _, vhost, exchange, _, _ = decode_delayed(self._read(position, True))
        except RecordUnreadable as error:
            self.unreadable(position, error)
        else:
            self.placings.line_up((vhost, exchange), position)

    def look_at(self, position: int) -> DelayedMessage:
        """A message that waits. Raises RecordUnreadable, and reports it as damaged."""
        flow = self._flow
        try:
            record = self._read(position, self.waiting[position][0])
        except RecordUnreadable as error:
            flow.damage.note("delayed", "", "", error)
            raise
        due_ms, vhost_name, exchange_name, message, only = decode_delayed(record)
        vhost = flow.vhosts.get(vhost_name)
        exchange = vhost.exchanges.get(exchange_name) if vhost is not None else None
        names: dict[str, None] = {}
        if vhost is not None and (exchange is not None or only):
            properties = flow.publish_properties.of(message.header)
            due = DueMessage(vhost, exchange_name, message, properties, True, due_ms)
            for part in due.parts(exchange, only, []):
                names.update(dict.fromkeys([queue.name for queue in part]))
        if origin_of(due_ms) is not Origin.DELAY:
            due_ms = message.arrived_ms
        return DelayedMessage(position, due_ms, vhost_name, exchange_name, list(names), message)

    def deliver(self, position: int) -> bool:
        """End a delay now. False: the message goes on waiting, for room in a full queue.

        The caller has checked that it waits and can be read.
        """
        if position in self.placings.positions:
            return True
        if any(position in line for line in self._lines.values()):
            return False
        self.stop(position)
        return self.ended(position)

    def cancel(self, position: int) -> None:
        """Drop a message. The caller has checked that it waits."""
        if self.waiting[position][0]:
            self._flow.journal.append(Kind.DELAY_ENDED, position.to_bytes(8, "little"))
        del self.waiting[position]
        self.stop(position)

    def stop(self, position: int) -> None:
        """Cancel the timer of a message."""
        timer = self._timers.pop(position, None)
        if timer is not None:
            timer.cancel()
            return
        for run in self._runs:
            if run.stop(position):
                break  # it may have left the set

    def ended(self, position: int) -> bool:
        """Place a message, or begin to. False when it goes on waiting for a full queue."""
        self._timers.pop(position, None)
        flow = self._flow
        if position not in self.waiting or flow.journal.failed:
            self.waiting.pop(position, None)
            return True
        try:
            if self._place(position):
                self.waiting.pop(position, None)
                return True
        except RecordUnreadable as error:
            self.unreadable(position, error)
            return True
        except BaseException:
            flow.abort()
            waiting = self.waiting[position]
            self.schedule(position, waiting[0], flow.now_ms + TRY_AGAIN_MS)
            self.waiting[position] = waiting
            raise
        return position in self.placings.positions

    def unreadable(self, position: int, error: RecordUnreadable) -> None:
        """Report a message as damaged. It stays in the journal, without a timer, unless it was dropped."""
        flow = self._flow
        flow.damage.note("delayed", "", "", error)
        if error.dropped:
            is_kept, _ = self.waiting.pop(position)
            if is_kept:
                flow.journal.append(Kind.DELAY_ENDED, position.to_bytes(8, "little"))

    def open(self, position: int) -> Placing | None:
        """Read a message that is placed now; None, and its wait ends, if there is no exchange any more."""
        flow = self._flow
        is_kept = self.waiting[position][0]
        due_ms, vhost_name, exchange_name, message, only = decode_delayed(self._read(position, is_kept))
        vhost = flow.vhosts.get(vhost_name)
        exchange = vhost.exchanges.get(exchange_name) if vhost is not None else None
        if vhost is None or (exchange is None and not only):
            if is_kept:
                flow.journal.append(Kind.DELAY_ENDED, position.to_bytes(8, "little"))
            del self.waiting[position]
            return None
        properties = flow.publish_properties.of(message.header)
        due = DueMessage(vhost, exchange_name, message, properties, is_kept, due_ms)
        walks: list[RouteWalk[Queue]] = []
        found = QueuesInParts(due.parts(exchange, only, walks))
        return Placing(position, due, found, walks, is_rest=bool(only))

    def _read(self, position: int, is_kept: bool) -> bytes:
        return self._flow.journal.read(position, Kind.DELAYED if is_kept else Kind.PAGED)[1]

    def _place(self, position: int) -> bool:
        placing = self.open(position)
        if placing is None:
            return True
        due, found = placing.due, placing.found
        where, widest = (due.vhost.name, due.exchange), due.vhost.widest
        must_queue = self.placings.has_line(where) and not placing.is_rest
        queues = [] if must_queue else found.find(widest)
        if len(queues) > widest or not found.looked_at:
            self.placings.line_up(where, position)
            return False
        if len(queues) == 1 and self.placings.must_wait(queues[0], due):
            self._line_up(position, queues[0])
            return False
        self.placings.place(placing, queues, [])
        return True

    def _line_up(self, position: int, queue: Queue) -> None:
        line = self._lines.get(queue.id)
        if line is None:
            line = self._lines[queue.id] = deque()
            self._plan(queue, TRY_AGAIN_MS)
        line.append(position)

    def _plan(self, queue: Queue, wait_ms: int) -> None:
        self._flow.at(self._flow.now_ms + wait_ms, lambda: self._try_again(queue))

    def _try_again(self, queue: Queue) -> None:
        """Place what has room now, the oldest first."""
        line = self._lines[queue.id]
        wait_ms = 0
        try:
            for _ in range(min(len(line), _AT_ONCE)):
                position = line.popleft()
                if self.ended(position) or not line or line[-1] != position:
                    continue
                wait_ms = TRY_AGAIN_MS
                if len(queue):  # no room; but what an empty queue refuses is too large, and lets others pass
                    line.rotate(1)
                    break
        finally:
            if line:
                self._plan(queue, wait_ms)
            else:
                del self._lines[queue.id]


def _exhaust(steps: Iterator[None]) -> None:
    deque(steps, maxlen=0)

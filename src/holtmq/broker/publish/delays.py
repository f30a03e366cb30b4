"""Delayed messages: they wait in the journal, and enter their queues when they are due.

Owns: which positions wait until when, and that the end of a delay and the message in its queues are one
record. Must not touch: clocks. The publisher was answered long ago, so a message that has a queue to
go to is never dropped here.

A full queue that refuses publishers (``reject-publish``) cannot refuse what is confirmed already. Such a
message goes on waiting, behind earlier ones for that queue, and is tried again every second.

A message for very many queues enters some of them at a time. Each step is one record: the message in these
queues, the end of its delay, and the message again, delayed until now for the queues that are left.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holtmq.broker.message import Message, unplaced
from holtmq.broker.publish.delayed_run import DelayedRun
from holtmq.broker.publish.wide_publishes import QueuesInParts
from holtmq.broker.records.changes import Kind
from holtmq.broker.records.message_records import decode_delayed, encode_delayed
from holtmq.broker.timer_wheel import ActionTimer
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.queue_options import Overflow
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal.interface import RecordUnreadable
from holtmq.wire.properties import PROPERTIES_AT, with_headers

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow
    from holtmq.broker.publish.publish_properties import PublishProperties
    from holtmq.broker.topology.routing import RouteWalk
    from holtmq.broker.topology.vhost import QueueExchange, VHost

_TRY_AGAIN_MS: Final = 1_000
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


class _Due(NamedTuple):
    """A message whose delay has ended, as it was published."""

    vhost: VHost
    exchange: str
    message: Message
    properties: PublishProperties
    persistent: bool


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
        self._placing: set[int] = set()  # positions of messages that are placed in steps
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
        self._write(encode_delayed(message, vhost, exchange, due_ms), message.persistent, due_ms)

    def _write(self, payload: bytes, persistent: bool, due_ms: int) -> None:
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

    def accept(self, run: DelayedRun, base: int) -> None:
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
            for part in _parts(vhost, exchange, message, properties, only, []):
                names.update(dict.fromkeys([queue.name for queue in part]))
        return DelayedMessage(position, due_ms, vhost_name, exchange_name, list(names), message)

    def deliver(self, position: int) -> bool:
        """End a delay now. False: the message goes on waiting, for room in a full queue.

        The caller has checked that it waits and can be read.
        """
        if position in self._placing:
            return True
        if any(position in line for line in self._lines.values()):
            return False
        self._stop(position)
        return self.ended(position)

    def cancel(self, position: int) -> None:
        """Drop a message. The caller has checked that it waits."""
        if self.waiting[position][0]:
            self._flow.journal.append(Kind.DELAY_ENDED, position.to_bytes(8, "little"))
        del self.waiting[position]
        self._stop(position)

    def _stop(self, position: int) -> None:
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
        waiting = self.waiting.pop(position, None)
        if waiting is None or flow.journal.failed:
            return True
        try:
            if self._place(position, waiting[0]):
                return True
        except RecordUnreadable as error:
            flow.damage.note("delayed", "", "", error)
            if not error.dropped:
                self.waiting[position] = waiting  # without a timer: it stays in the journal
            elif waiting[0]:
                flow.journal.append(Kind.DELAY_ENDED, position.to_bytes(8, "little"))
            return True
        except BaseException:
            flow.abort()
            self.schedule(position, waiting[0], flow.now_ms + _TRY_AGAIN_MS)
            self.waiting[position] = waiting
            raise
        self.waiting[position] = waiting  # so that a checkpoint keeps it
        return position in self._placing

    def _read(self, position: int, persistent: bool) -> bytes:
        return self._flow.journal.read(position, Kind.DELAYED if persistent else Kind.PAGED)[1]

    def _place(self, position: int, persistent: bool) -> bool:
        flow = self._flow
        _, vhost_name, exchange_name, message, only = decode_delayed(self._read(position, persistent))
        vhost = flow.vhosts.get(vhost_name)
        exchange = vhost.exchanges.get(exchange_name) if vhost is not None else None
        if vhost is None or (exchange is None and not only):
            if persistent:
                flow.journal.append(Kind.DELAY_ENDED, position.to_bytes(8, "little"))
            return True
        properties = flow.publish_properties.of(message.header)
        walks: list[RouteWalk[Queue]] = []
        found = QueuesInParts(_parts(vhost, exchange, message, properties, only, walks))
        due = _Due(vhost, exchange_name, message, properties, persistent)
        queues = found.find(vhost.widest)
        if len(queues) > vhost.widest or not found.looked_at:
            self._placing.add(position)
            self.in_steps(self._place_in_steps(position, due, found, walks))
            return False
        if len(queues) == 1 and self._must_wait(queues[0], message):
            self._line_up(position, queues[0])
            return False
        self._place_some(position, due, queues, [], walks)
        return True

    def _place_in_steps(
        self, position: int, due: _Due, found: QueuesInParts, walks: list[RouteWalk[Queue]]
    ) -> Iterator[None]:
        """Place a message in very many queues, unless it is cancelled meanwhile."""
        flow = self._flow
        try:
            yield
            while not found.looked_at:
                found.find(sys.maxsize)
                yield
            left = found.take(sys.maxsize)
            ids = [queue.id for queue in left]
            while position in self.waiting and flow.journal.failed is None:
                count = max(1, flow.per_turn.copies)
                some, left, ids = left[:count], left[count:], ids[count:]
                following = self._place_some(
                    position, due, [queue for queue in some if not queue.deleted], ids, walks
                )
                del self.waiting[position]
                if not left:
                    return
                self._placing.discard(position)
                position, walks = following, []
                self._placing.add(position)
                self._stop(position)
                yield
        except Exception:
            flow.abort()
            self.schedule(position, due.persistent, flow.now_ms + _TRY_AGAIN_MS)
            raise
        finally:
            self._placing.discard(position)

    def _place_some(
        self, position: int, due: _Due, queues: list[Queue], left: list[int], walks: list[RouteWalk[Queue]]
    ) -> int:
        """Place a message in these queues, and delay it for the full ones and for those that are left.

        Return the position of the last.
        """
        flow, message, vhost = self._flow, due.message, due.vhost
        flow.begin()
        assert flow.batch is not None
        full = dict.fromkeys(queue for queue in queues if self._must_wait(queue, message))
        for queue in full:
            payload = encode_delayed(message, vhost.name, due.exchange, flow.now_ms, [queue.id])
            self._write(payload, due.persistent and queue.persisted, flow.now_ms)
        if left:
            payload = encode_delayed(message, vhost.name, due.exchange, flow.now_ms, left)
            self._write(payload, due.persistent, flow.now_ms)
        arrived = self._arrive(message, due.properties)
        for history in dict.fromkeys(history for walk in walks for history in walk.histories):
            history.keep(unplaced(arrived), due.properties.headers)
        accepting = [queue for queue in queues if queue not in full]
        flow.publishing.place_unconfirmed(vhost, accepting, arrived)
        if due.persistent:
            flow.batch.add(Kind.DELAY_ENDED, position.to_bytes(8, "little"))
        positions: list[int] = []
        self._committed = positions
        try:
            flow.commit()
        finally:
            self._committed = None
        return positions[len(full)] if left else 0

    def _arrive(self, delayed: Message, properties: PublishProperties) -> Message:
        flow = self._flow
        message = msgspec.structs.replace(delayed)
        flow.seq += 1
        message.seq = flow.seq
        if message.expires_ms:
            message.expires_ms += flow.now_ms - message.arrived_ms
        message.arrived_ms = flow.now_ms
        if properties.delay_ms:
            message.header = _delay_served(message.header, properties)
        return message

    def _must_wait(self, queue: Queue, message: Message) -> bool:
        if not queue.refuses_when_full:
            return False
        if isinstance(queue, WorkQueue) and queue.options.overflow is Overflow.REJECT_PUBLISH_DLX:
            letters_to = queue.options.dead_letter_exchange
            if letters_to in self._flow.vhosts[queue.vhost].exchanges:
                return False  # it becomes a dead letter
        return self._flow.publishing.is_full(queue, message)

    def _line_up(self, position: int, queue: Queue) -> None:
        line = self._lines.get(queue.id)
        if line is None:
            line = self._lines[queue.id] = deque()
            self._plan(queue, _TRY_AGAIN_MS)
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
                wait_ms = _TRY_AGAIN_MS
                if len(queue):  # no room; but what an empty queue refuses is too large, and lets others pass
                    line.rotate(1)
                    break
        finally:
            if line:
                self._plan(queue, wait_ms)
            else:
                del self._lines[queue.id]


def _parts(
    vhost: VHost,
    exchange: QueueExchange | None,
    message: Message,
    properties: PublishProperties,
    only: Collection[int],
    walks: list[RouteWalk[Queue]],
) -> Iterator[list[Queue]]:
    """The queues that a message enters when its delay ends; adds the walks to them."""
    if only:  # its other queues have it already
        ids = frozenset(only)
        yield [queue for queue in vhost.queues.values() if queue.id in ids]
        return
    assert exchange is not None
    for key in (message.routing_key, *properties.extra_keys):
        walk = vhost.walk(exchange, key, properties.headers, properties.hash_properties(), delay_served=True)
        walks.append(walk)
        yield from walk


def _exhaust(steps: Iterator[None]) -> None:
    deque(steps, maxlen=0)


def _delay_served(header: bytes, properties: PublishProperties) -> bytes:
    """Negate x-delay, as RabbitMQ's plugin does, to show that the message has waited; remove BCC."""
    headers = {key: value for key, value in properties.headers.items() if key != "BCC"}
    headers["x-delay"] = -properties.delay_ms
    property_bytes = with_headers(header[PROPERTIES_AT:], headers, drop_expiration=False)
    return header[:PROPERTIES_AT] + property_bytes

"""Delayed messages: they wait in the journal, and enter their queues when they are due.

Owns: which positions wait until when, and that the end of a delay and the message in its queues are one
record. Must not touch: clocks. The publisher was answered long ago, so a message that has a queue to
go to is never dropped here.

A full queue that refuses publishers (``reject-publish``) cannot refuse what is confirmed already. Such a
message goes on waiting, behind earlier ones for that queue, and is tried again every second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, NamedTuple

from holtmq.broker.message import Message, unplaced
from holtmq.broker.records.changes import Kind
from holtmq.broker.records.message_records import decode_delayed, encode_delayed
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.queue_options import Overflow
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal.interface import RecordUnreadable
from holtmq.wire.properties import PROPERTIES_AT, with_headers

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow
    from holtmq.broker.publish.publish_properties import PublishProperties
    from holtmq.broker.timer_wheel import Timer
    from holtmq.broker.topology.recent_history import RecentHistory
    from holtmq.broker.topology.vhost import QueueExchange, VHost

_TRY_AGAIN_MS: Final = 1_000
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
        self.waiting: dict[int, tuple[bool, int]] = {}  # position -> persistent, due time
        self._timers: dict[int, Timer[Callable[[], object]]] = {}
        self._lines: dict[int, deque[int]] = {}  # queue id -> positions that it had no room for

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
        self._timers[position] = self._flow.timers.schedule(due_ms / 1000, lambda: self._ended(position))

    def look_at(self, position: int) -> DelayedMessage:
        """A message that waits. Raises RecordUnreadable."""
        flow = self._flow
        record = flow.journal.read(position)[1]
        due_ms, vhost_name, exchange_name, message, only = decode_delayed(record)
        vhost = flow.vhosts.get(vhost_name)
        exchange = vhost.exchanges.get(exchange_name) if vhost is not None else None
        queues: dict[str, Queue] = {}
        if vhost is not None and exchange is not None:
            properties = flow.publish_properties.of(message.header)
            queues, _ = self._queues(vhost, exchange, message, properties, only)
        return DelayedMessage(position, due_ms, vhost_name, exchange_name, list(queues), message)

    def deliver(self, position: int) -> bool:
        """End a delay now. False: the message goes on waiting, for room in a full queue.

        The caller has checked that it waits and can be read.
        """
        if any(position in line for line in self._lines.values()):
            return False
        self._stop(position)
        return self._ended(position)

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

    def _ended(self, position: int) -> bool:
        """Place a message. False when it goes on waiting for a full queue."""
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
        return False

    def _place(self, position: int, persistent: bool) -> bool:
        flow = self._flow
        _, vhost_name, exchange_name, message, only = decode_delayed(flow.journal.read(position)[1])
        vhost = flow.vhosts.get(vhost_name)
        exchange = vhost.exchanges.get(exchange_name) if vhost is not None else None
        flow.begin()
        assert flow.batch is not None
        if vhost is not None and exchange is not None:
            properties = flow.publish_properties.of(message.header)
            queues, histories = self._queues(vhost, exchange, message, properties, only)
            full = [queue for queue in queues.values() if self._must_wait(queue, message)]
            if full and len(queues) == 1:
                flow.abort()
                self._line_up(position, full[0])
                return False
            for queue in full:
                payload = encode_delayed(message, vhost_name, exchange_name, flow.now_ms, [queue.id])
                self._write(payload, persistent and queue.persisted, flow.now_ms)
                del queues[queue.name]
            self._arrive(message, properties)
            for history in histories:
                history.keep(unplaced(message), properties.headers)
            flow.publishing.place_unconfirmed(vhost, queues.values(), message)
        if persistent:
            flow.batch.add(Kind.DELAY_ENDED, position.to_bytes(8, "little"))
        flow.commit()
        return True

    def _queues(
        self,
        vhost: VHost,
        exchange: QueueExchange,
        message: Message,
        properties: PublishProperties,
        only: Collection[int],
    ) -> tuple[dict[str, Queue], dict[RecentHistory, None]]:
        """Where a message goes when its delay ends, and which exchanges keep a copy."""
        if only:  # its other queues have it already
            return {queue.name: queue for queue in vhost.queues.values() if queue.id in only}, {}
        queues: dict[str, Queue] = {}
        histories: dict[RecentHistory, None] = {}
        for key in (message.routing_key, *properties.extra_keys):
            result = vhost.route(
                exchange, key, properties.headers, properties.hash_properties(), delay_served=True
            )
            queues.update((queue.name, queue) for queue in result.queues)
            histories.update(dict.fromkeys(result.histories))
        return queues, histories

    def _arrive(self, message: Message, properties: PublishProperties) -> None:
        flow = self._flow
        flow.seq += 1
        message.seq = flow.seq
        if message.expires_ms:
            message.expires_ms += flow.now_ms - message.arrived_ms
        message.arrived_ms = flow.now_ms
        if properties.delay_ms:
            message.header = _delay_served(message.header, properties)

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
                if self._ended(position) or not line or line[-1] != position:
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


def _delay_served(header: bytes, properties: PublishProperties) -> bytes:
    """Negate x-delay, as RabbitMQ's plugin does, to show that the message has waited; remove BCC."""
    headers = {key: value for key, value in properties.headers.items() if key != "BCC"}
    headers["x-delay"] = -properties.delay_ms
    property_bytes = with_headers(header[PROPERTIES_AT:], headers, drop_expiration=False)
    return header[:PROPERTIES_AT] + property_bytes

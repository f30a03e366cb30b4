"""Messages that a queue casts out: dead-lettered or dropped.

Owns: that a removal and its dead letter are one atomic record. Must not touch: why a message leaves its queue
(``work/``), how it gets into others (``publish/``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from holtmq.broker.message import Message, make_address, unplaced
from holtmq.broker.publish.due_message import Origin
from holtmq.broker.records.changes import Kind
from holtmq.broker.records.message_records import encode_settled
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.recent_history import RecentHistory
from holtmq.broker.topology.vhost import VHost
from holtmq.broker.work.dead_letter import DeadLetter, dead_letter, last_death, letter_work
from holtmq.broker.work.outcasts import Outcast, Reason
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal.interface import JournalFailed

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow

_CAST_OUT_BYTES: Final = 16 << 20  # bodies per record: a record's size is limited, a queue's overflow is not


_DROPS: Final = 20  # messages without a dead-letter exchange that are as much work as a dead letter
_COPIES: Final = 10  # likewise: queues that a dead letter reaches


class DeadLettering:
    """What happens to the outcasts of all queues."""

    __slots__ = ("_flow", "_work_left", "count")

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._work_left = 0
        self.count = 0  # of dead letters that reached a queue

    def record_leaving(self, queue: WorkQueue, outcasts: list[Outcast]) -> None:
        """Add to the open batch what leaves a queue: its outcasts, and what was settled."""
        flow = self._flow
        assert flow.batch is not None
        if outcasts:
            self._bury(queue, outcasts)
        if queue.settled:
            flow.batch.add(Kind.SETTLED, take_settled(queue))

    def begin_turn(self) -> None:
        """Allow as much work as a turn may do, for all queues together."""
        self._work_left = self._flow.per_turn.dead_letters

    def cast_out_some(self, queue: WorkQueue) -> bool:
        """Do what a turn may do of ``cast_out``; return whether that was all."""
        if self._work_left <= 0:
            return False
        count, work = _affordable(queue, self._work_left)
        self._work_left -= work
        is_all = count == len(queue.outcasts)
        self._cast_out_first(queue, count)
        return is_all

    def is_long(self, queue: WorkQueue) -> bool:
        """Whether ``cast_out`` would take longer than a turn may."""
        return _affordable(queue, self._flow.per_turn.dead_letters)[0] < len(queue.outcasts)

    def cast_out_in_steps(self, queue: WorkQueue, work: int) -> Iterator[None]:
        """``cast_out`` what there is now. The queue may be deleted meanwhile; after a failure, it ends."""
        left = len(queue.outcasts)
        while left > 0 and queue.outcasts and not queue.deleted and self._flow.journal.failed is None:
            left -= self.cast_out_for(queue, work)
            yield

    def cast_out(self, queue: WorkQueue) -> None:
        """Dead-letter or drop the queue's outcasts."""
        self._cast_out_first(queue, len(queue.outcasts))

    def cast_out_for(self, queue: WorkQueue, work: int) -> int:
        """Dead-letter or drop the oldest outcasts, as much as this work; return how many."""
        count, _ = _affordable(queue, work)
        self._cast_out_first(queue, count)
        return count

    def _cast_out_first(self, queue: WorkQueue, count: int) -> None:
        """Dead-letter or drop the oldest outcasts. A removal and its dead letter are in one atomic record.

        On an error the rest stay in ``outcasts``. After a journal failure only messages that need no record
        are dead-lettered; a restart restores the others. What this does is proportional to ``count``: there
        may be very many outcasts, and this is called for each few of them.
        """
        flow, outcasts = self._flow, queue.outcasts
        left = min(count, len(outcasts))
        while left > 0:
            failed = flow.journal.failed is not None
            leaving = outcasts.first(1 if failed else left, _CAST_OUT_BYTES)
            try:
                self._cast_out(queue, leaving)
            except JournalFailed:
                if not failed:
                    continue  # again, one message at a time
            outcasts.remove(len(leaving))
            left -= len(leaving)

    def _cast_out(self, queue: WorkQueue, outcasts: list[Outcast]) -> None:
        flow = self._flow
        if flow.journal.failed:
            queue.settled.clear()  # as at the end of the turn: a restart brings these back
            queue.settled_bytes = 0
        settled, settled_bytes = queue.settled[:], queue.settled_bytes
        try:
            flow.begin()
            self.record_leaving(queue, outcasts)
            flow.commit()
        except BaseException:
            flow.abort()
            queue.settled, queue.settled_bytes = settled, settled_bytes
            raise

    def _bury(self, queue: WorkQueue, outcasts: list[Outcast]) -> None:
        flow = self._flow
        vhost = flow.vhosts[queue.vhost]
        name = queue.options.dead_letter_exchange
        exchange = vhost.exchanges.get(name) if name is not None else None
        for reason, message in outcasts:
            queue.returned.pop(message.seq, None)
            if message.persistent and queue.persisted and message.position:
                queue.settled.append(message.position)
                queue.settled_bytes += len(message.body)
            if exchange is not None:
                self.dead_letter(vhost, queue, exchange.name, reason, message)

    def dead_letter(
        self, vhost: VHost, queue: WorkQueue, exchange: str, reason: Reason, message: Message
    ) -> None:
        """Route a message to a dead-letter exchange, within the open batch."""
        flow = self._flow
        routing_key = queue.options.dead_letter_routing_key
        letter: DeadLetter = dead_letter(
            message.header,
            message.exchange,
            message.routing_key,
            queue.name,
            reason.value,
            flow.now_ms // 1000,
            keep_cc=routing_key is None,
        )
        keys = [routing_key] if routing_key is not None else letter.routing_keys
        start = vhost.exchanges[exchange]
        properties = (
            flow.publish_properties.of(letter.header).hash_properties() if start.needs_properties else None
        )
        queues: dict[str, Queue] = {}
        delays: dict[str, int] = {}
        histories: list[RecentHistory] = []
        widest = vhost.widest if flow.journal.failed is None else sys.maxsize
        is_wide = self._must_wait(vhost, exchange)
        for key in [] if is_wide else keys:
            result = vhost.route(start, key, letter.headers, properties, widest=widest)
            if result.is_wide or len(queues) + len(result.queues) > widest:
                is_wide = True
                self._work_left -= widest // _COPIES
                break
            delays.update((delay.exchange.name, delay.delay_ms) for delay in result.delays)
            histories += result.histories
            for found in result.queues:
                if not letter.cycles_through(found.name):
                    queues[found.name] = found
        if not queues and not delays and not histories and not is_wide:
            return
        flow.seq += 1
        moved = Message(
            flow.seq,
            make_address(exchange, keys[0]),
            letter.header,
            message.body,
            flow.now_ms,
            0,
            message.priority,
            message.persistent,
        )
        if is_wide:
            flow.delays.accept(moved, (vhost.name, exchange), Origin.LETTER, moved.persistent)
            return
        for history in dict.fromkeys(histories):
            history.keep(unplaced(moved), letter.headers)
        if not queues and not delays:
            return
        self._work_left -= len(queues) // _COPIES
        placed = flow.publishing.place_unconfirmed(vhost, queues.values(), moved, queue)
        if placed or delays:
            self.count += 1
            queue.figures.dead_lettered(flow.now_ms)
        for waits_at, delay_ms in delays.items():
            flow.delays.add(moved, vhost.name, waits_at, flow.now_ms + delay_ms)

    def _must_wait(self, vhost: VHost, exchange: str) -> bool:
        """Whether an earlier letter of this exchange is not in all its queues, since they are very many."""
        flow, where = self._flow, (vhost.name, exchange)
        assert flow.batch is not None
        return where in flow.batch.lined_up or (
            flow.delays.placings.has_line(where) and flow.journal.failed is None
        )

    def placed(self, vhost: VHost, letter: Message) -> None:
        """Count a letter that had to wait."""
        self.count += 1
        death = last_death(letter.header)
        queue = vhost.queues.get(death.queue) if death is not None else None
        if isinstance(queue, WorkQueue):
            queue.figures.dead_lettered(self._flow.now_ms)


def _affordable(queue: WorkQueue, most: int) -> tuple[int, int]:
    """How many of a queue's outcasts are at most so much work, but at least one; and how much work."""
    outcasts = queue.outcasts
    if queue.options.dead_letter_exchange is None:
        count = min(len(outcasts), most * _DROPS)
        return count, count // _DROPS + 1
    count = work = 0
    for _, message in outcasts.first(most, _CAST_OUT_BYTES):
        more = letter_work(message.header)
        if count and work + more > most:
            return count, most
        count, work = count + 1, work + more
    return count, most if count < len(outcasts) else work


def take_settled(queue: WorkQueue) -> bytes:
    """The record of what was settled in a queue since the last one."""
    payload = encode_settled(queue.id, queue.settled_bytes, queue.settled)
    queue.settled.clear()
    queue.settled_bytes = 0
    return payload

"""Message flow: publish, settle, deliver, expire and dead-letter, turn by turn.

Owns: the order of work within a turn, and which changes form one atomic record. Must not touch: topology
changes (``broker.py``), sockets, clocks: the caller sets ``now_ms``. How a message gets into its queues is
in ``publishing.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holtmq.broker.message import Message, make_address, unplaced
from holtmq.broker.publish.publishing import Publishing, PublishOutcome
from holtmq.broker.records.changes import Kind
from holtmq.broker.records.message_records import (
    encode_mark,
    encode_returned,
    encode_settled,
)
from holtmq.broker.topology.recent_history import RecentHistory
from holtmq.broker.topology.vhost import VHost
from holtmq.broker.work.dead_letter import DeadLetter, dead_letter
from holtmq.broker.work.leases import Lease
from holtmq.broker.work.paging import Spill
from holtmq.broker.work.work_queue import Reason, WorkQueue
from holtmq.journal.interface import Journal, JournalFailed

__all__ = ["Flow", "PublishOutcome"]

_EXPIRE_AT_ONCE: Final = 1_000
_TIMERS_AT_ONCE: Final = 300  # about 15 ms, if each of them places a delayed message
_CAST_OUT_BYTES: Final = 16 << 20  # bodies per record: a record's size is limited, a queue's overflow is not


class Flow(Publishing):
    """The part of the broker that moves messages. Runs on one thread, turn by turn."""

    __slots__ = ("dead_lettered", "used")

    def __init__(self, journal: Journal, vhosts: dict[str, VHost], spill: Spill | None = None) -> None:
        super().__init__(journal, vhosts, spill)
        self.dead_lettered = 0
        self.used: set[WorkQueue] = set()  # queues used since the last sample of the figures

    def commit(self, settled: Iterable[WorkQueue] = ()) -> bool:
        """Write the batch and what left these queues, then enqueue its messages. True if journalled."""
        for queue in settled:
            outcasts, queue.outcasts = queue.outcasts, []
            self._record_leaving(queue, outcasts)
        return self._write_batch()

    def _record_leaving(self, queue: WorkQueue, outcasts: list[tuple[Reason, Message]]) -> None:
        assert self.batch is not None
        if outcasts:
            self._bury(queue, outcasts)
        if queue.settled:
            self.batch.add(Kind.SETTLED, _take_settled(queue))

    def _write_batch(self) -> bool:
        assert self.batch is not None
        for letter in self.batch.passed_on:  # grows in the loop; ends, since no letter passes a queue twice
            if letter[2] in letter[0].exchanges:
                self._dead_letter(*letter)
        return super().commit()

    def ack(self, leases: Iterable[Lease]) -> None:
        """Acknowledge messages. An ack of a revoked lease counts if no other consumer took the message."""
        queue: WorkQueue | None = None
        done: list[Message] = []  # of this queue
        for lease in leases:
            if lease.queue is not queue:
                if queue is not None:
                    self.settle(queue, done)
                queue, done = lease.queue, []
            if lease.holder is not None:
                done.append(lease.message)
            elif queue.withdraw(lease.message):
                self.touch(queue)
        if queue is not None:
            self.settle(queue, done)

    def settle(self, queue: WorkQueue, messages: list[Message]) -> None:
        """Acknowledge messages of one queue, whose leases the caller has ended."""
        if messages:
            queue.settle_all(messages)
            self.touch(queue)

    def reject(self, leases: Iterable[Lease]) -> None:
        """Reject messages: dead-letter or drop them."""
        for lease in leases:
            queue = lease.queue
            if lease.holder is None:
                if not queue.take_out(lease.message):
                    continue
                queue.unacked += 1  # so that it is removed like a leased message
            queue.reject(lease.message)
            self.touch(queue)

    def release(self, leases: Iterable[Lease], failed: bool = False) -> None:
        """Return messages to their old places in the queue; ``failed``: their consumer was lost."""
        by_queue: dict[int, list[Lease]] = {}
        for lease in leases:
            by_queue.setdefault(id(lease.queue), []).append(lease)
        for part in by_queue.values():
            queue = part[0].queue
            if queue.deleted:
                continue
            waiting = queue.release(part, self.pager, failed)
            self._record_returned(queue, part)
            if waiting:
                self._hold_back(queue, waiting)
            if queue.limited:
                self._enforce_limits(queue)
            self.touch(queue)

    def _record_returned(self, queue: WorkQueue, leases: list[Lease]) -> None:
        if queue.persisted and queue.options.deliveries_allowed is not None and not self.journal.failed:
            payload = encode_returned(
                (queue.id, lease.message.seq, queue.returned.get(lease.message.seq, 0))
                for lease in leases
                if lease.message.persistent
            )
            if payload and self.batch is not None:
                self.batch.add(Kind.RETURNED, payload)
            elif payload:
                self.journal.append(Kind.RETURNED, payload)

    def _hold_back(self, queue: WorkQueue, waiting: dict[int, list[Message]]) -> None:
        for wait_ms, part in waiting.items():
            queue.held_back[id(part)] = part
            self.at(self.now_ms + wait_ms, lambda part=part: self._offer_again(queue, part))  # type: ignore[misc]

    def _offer_again(self, queue: WorkQueue, messages: list[Message]) -> None:
        if queue.held_back.pop(id(messages), None) is not None and not queue.deleted:
            queue.restore(messages, self.pager)
            if queue.limited:
                self._enforce_limits(queue)
            self.touch(queue)

    def turn(self) -> None:
        """Complete this turn: deliver, expire, dead-letter, journal, page out."""
        self.write_gathered()
        while self.dirty:
            dirty, self.dirty = self.dirty, []
            self.used.update(dirty)
            done = 0
            try:
                for queue in dirty:
                    done += 1
                    queue.dirty = False
                    if not queue.deleted:
                        self._turn_queue(queue)
            finally:
                if done < len(dirty):  # an error in one queue must not stall the others
                    self.dirty += dirty[done:]
                    self.on_dirty()

    def _turn_queue(self, queue: WorkQueue) -> None:
        store = queue.store
        takes_acks = not queue.persisted or not (self.journal.failed or self.journal.stalled)
        if queue.consumers and takes_acks:  # without a durable ack the message would be redelivered
            queue.dispatch(self.now_ms, self.pager)
        if queue.expiring and len(store):
            self._expire(queue)
        if queue.outcasts:
            self.cast_out(queue)
        if store.unreadable:
            self._pass_over(queue)
        journal = self.journal
        if journal.failed:
            queue.settled.clear()  # nothing more can be written; a restart brings these back
            return
        if queue.settled:
            journal.append(Kind.SETTLED, _take_settled(queue))
        if queue.delivered_upto > queue.delivered_recorded and (queue.unacked or queue.returned):
            queue.delivered_recorded = queue.delivered_upto
            journal.append(Kind.DELIVERED, encode_mark(queue.id, queue.delivered_upto))
        self._bound_memory(queue)

    def _bound_memory(self, queue: WorkQueue) -> None:
        """Keep the ready messages of all queues within the node's memory budget."""
        memory, store = self.memory, queue.store
        memory.note(queue, queue.bytes_in_memory)
        is_short = memory.is_exceeded
        if is_short or not queue.is_all_in_memory:
            store.spill(self.pager, queue.bytes, is_short)
            memory.note(queue, queue.bytes_in_memory)
            if is_short and memory.is_exceeded:
                largest = memory.largest()
                if largest is not None and largest is not queue:
                    self.touch(largest)  # it is handled within this turn

    def _pass_over(self, queue: WorkQueue) -> None:
        """List the queue's unreadable messages as damaged, and continue without them."""
        for error in queue.take_unreadable():
            self.damage.note("queue", queue.vhost, queue.name, error)
            queue.bytes = max(0, queue.bytes - error.size)
            if error.dropped and queue.persisted:  # a repair has dropped it: it will not come back
                queue.settled.append(error.position)
        if not len(queue):
            queue.bytes = 0

    def _expire(self, queue: WorkQueue) -> None:
        queue.expire(self.now_ms, self.pager, _EXPIRE_AT_ONCE)
        deadline = queue.store.next_deadline(queue.deadline_ms, self.pager)
        if not deadline:
            queue.expiring = queue.options.message_ttl_ms is not None or len(queue.store) > 0
        elif deadline <= self.now_ms:
            self.touch(queue)  # more expired messages than one turn handles
        elif not queue.deadline_scheduled_ms or deadline < queue.deadline_scheduled_ms:
            queue.deadline_scheduled_ms = deadline
            self.at(deadline, lambda: self._deadline_reached(queue))

    def _deadline_reached(self, queue: WorkQueue) -> None:
        queue.deadline_scheduled_ms = 0
        self.touch(queue)

    def tick(self) -> None:
        """Run timers that are due at ``now_ms``; of very many only some, since other work waits."""
        due = self.timers.advance(self.now_ms / 1000, _TIMERS_AT_ONCE)
        done = 0
        try:
            for timer in due:
                done += 1
                timer.payload()
        finally:
            for timer in due[done:]:  # an error in one timer must not lose the others
                self.timers.schedule(timer.at, timer.payload)

    def cast_out(self, queue: WorkQueue) -> None:
        """Dead-letter or drop the queue's outcasts. A removal and its dead letter are in one atomic record.

        On an error the rest stay in ``outcasts``. After a journal failure only messages that need no record
        are dead-lettered; a restart restores the others.
        """
        leaving, queue.outcasts = queue.outcasts, []
        gone = 0
        try:
            while gone < len(leaving):
                failed = self.journal.failed is not None
                count = 1 if failed else _fit_a_record(leaving, gone)
                try:
                    self._cast_out(queue, leaving[gone : gone + count])
                except JournalFailed:
                    if not failed:
                        continue  # again, one message at a time
                gone += count
        finally:
            queue.outcasts[:0] = leaving[gone:]

    def _cast_out(self, queue: WorkQueue, outcasts: list[tuple[Reason, Message]]) -> None:
        if self.journal.failed:
            queue.settled.clear()  # as at the end of the turn: a restart brings these back
            queue.settled_bytes = 0
        settled, settled_bytes = queue.settled[:], queue.settled_bytes
        try:
            self.begin()
            self._record_leaving(queue, outcasts)
            self._write_batch()
        except BaseException:
            self.abort()
            queue.settled, queue.settled_bytes = settled, settled_bytes
            raise

    def _bury(self, queue: WorkQueue, outcasts: list[tuple[Reason, Message]]) -> None:
        vhost = self.vhosts[queue.vhost]
        name = queue.options.dead_letter_exchange
        exchange = vhost.exchanges.get(name) if name is not None else None
        for reason, message in outcasts:
            queue.returned.pop(message.seq, None)
            if message.persistent and queue.persisted and message.position:
                queue.settled.append(message.position)
                queue.settled_bytes += len(message.body)
            if exchange is not None:
                self._dead_letter(vhost, queue, exchange.name, reason, message)

    def _dead_letter(
        self, vhost: VHost, queue: WorkQueue, exchange: str, reason: Reason, message: Message
    ) -> None:
        routing_key = queue.options.dead_letter_routing_key
        letter: DeadLetter = dead_letter(
            message.header,
            message.exchange,
            message.routing_key,
            queue.name,
            reason.value,
            self.now_ms // 1000,
            keep_cc=routing_key is None,
        )
        keys = [routing_key] if routing_key is not None else letter.routing_keys
        start = vhost.exchanges[exchange]
        properties = (
            self.publish_properties.of(letter.header).hash_properties() if start.needs_properties else None
        )
        queues: dict[str, WorkQueue] = {}
        delays: dict[str, int] = {}
        histories: list[RecentHistory] = []
        for key in keys:
            result = vhost.route(start, key, letter.headers, properties)
            delays.update((delay.exchange.name, delay.delay_ms) for delay in result.delays)
            histories += result.histories
            for found in result.queues:
                if not letter.cycles_through(found.name):
                    queues[found.name] = found
        if not queues and not delays and not histories:
            return
        self.seq += 1
        moved = Message(
            self.seq,
            make_address(exchange, keys[0]),
            letter.header,
            message.body,
            self.now_ms,
            0,
            message.priority,
            message.persistent,
        )
        for history in dict.fromkeys(histories):
            history.keep(unplaced(moved), letter.headers)
        if not queues and not delays:
            return
        placed = self.place_unconfirmed(vhost, queues.values(), moved, queue)
        if placed or delays:
            self.dead_lettered += 1
            queue.figures.dead_lettered(self.now_ms)
        for waits_at, delay_ms in delays.items():
            self.delays.add(moved, vhost.name, waits_at, self.now_ms + delay_ms)


def _fit_a_record(outcasts: list[tuple[Reason, Message]], start: int) -> int:
    """How many outcasts from ``start`` on fit into one record; at least one."""
    size = 0
    for count in range(len(outcasts) - start):
        size += len(outcasts[start + count][1].body)
        if count and size > _CAST_OUT_BYTES:
            return count
    return len(outcasts) - start


def _take_settled(queue: WorkQueue) -> bytes:
    payload = encode_settled(queue.id, queue.settled_bytes, queue.settled)
    queue.settled.clear()
    queue.settled_bytes = 0
    return payload

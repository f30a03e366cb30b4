"""A partitioned queue: one sequence of messages, partitions as indexes into it, and consumer groups.

Owns: the queue's state, and ``apply``, the only way to change durable state. The ``decide_*`` functions of
other modules read this state and return events; applying the same events in the same order gives the same
queue. Must not touch: bodies, clocks, files, wire names.

Over 400 lines: ``apply`` has a case for every event, over one state.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from holtmq.broker.errors import NotFound
from holtmq.broker.partitioned.events import (
    Acked,
    DeadLettersRemoved,
    GroupDeleted,
    GroupStarted,
    HandedOut,
    IdsGiven,
    Leased,
    LeaseReleased,
    MessageDeleted,
    PartitionsDeleted,
    Pushed,
    QueueConfigured,
    QueueDeleted,
    QueueEvent,
    QueuePaused,
    QueueResumed,
    Sought,
    Trimmed,
)
from holtmq.broker.partitioned.groups.further import Further, Looks
from holtmq.broker.partitioned.groups.group import LOOKS, Delivery, Group, micros
from holtmq.broker.partitioned.groups.partition_leases import PartitionLease
from holtmq.broker.partitioned.id_search import IdSearch
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetter, DeadLetterStore
from holtmq.broker.partitioned.log.dedup import MAX_ENTRIES, DedupIndex, Fingerprinter, fingerprint
from holtmq.broker.partitioned.log.delivery_log import DeliveryLog
from holtmq.broker.partitioned.log.identifiers import message_id
from holtmq.broker.partitioned.log.message_log import (
    GONE,
    NO_FINGERPRINT,
    NO_PARTITION,
    MessageLog,
    Partition,
)
from holtmq.broker.partitioned.log.removal import (
    GivenIds,
    drop_from_lease,
    forget_head,
    forget_partitions,
    trim,
)
from holtmq.broker.partitioned.room import Room
from holtmq.broker.pausing import Pause

# (offset, journal position) -> the message's transaction id; None when it cannot be read.
TransactionIdReader = Callable[[int, int], str | None]


@dataclass(frozen=True, slots=True)
class Claim:
    """The result of a claim. ``events`` (auto-ack only) must be applied before the next command."""

    deliveries: list[Delivery]
    events: tuple[Acked, ...] = ()

    @property
    def count(self) -> int:
        return sum(len(delivery.offsets) for delivery in self.deliveries)


@dataclass(frozen=True, slots=True)
class Extension:
    """The result of renewing a lease: how many partitions were renewed, and their earliest expiry."""

    renewed: int
    expires_at: float | None
    known: bool  # the lease exists; if nothing was renewed, it has expired


class PartitionedQueue:
    """State of one queue. ``number`` identifies it in events and ids and is never reused."""

    def __init__(
        self,
        number: int,
        configured: QueueConfigured,
        read_transaction_id: TransactionIdReader,
        *,
        fingerprint: Fingerprinter = fingerprint,
        max_dedup_entries: int = MAX_ENTRIES,
    ) -> None:
        self.number = number
        self.name = configured.name
        self.namespace = configured.namespace
        self.task = configured.task
        self.config = configured.config
        self.created_us = configured.created_us
        self.paused: Pause | None = None
        self.log = MessageLog()
        self.partitions: list[Partition] = []
        self.indexes: dict[str, int] = {}  # partition name -> index
        self.groups: dict[str, Group] = {}
        self.next_group = 0
        self.dead_letters = DeadLetterStore()
        self.deliveries = DeliveryLog()
        self.given_ids = GivenIds()
        self.dedup = DedupIndex(self.log, max_dedup_entries)
        self.fingerprint = fingerprint
        self.progress = 0  # grows when something may have made room: acks, trims, deletions
        self.trim_hand = 0  # the partition that retention visited last
        self._room: Room | None = None  # if it has a limit and a push has asked
        # (partition, id) -> position, of ids that were looked up in steps for a request that goes on
        self.looked_up: dict[tuple[int, str], int | None] | None = None
        self._read_transaction_id = read_transaction_id
        self._numbered: dict[int, Group] = {}
        self._woken: set[str] = set()

    def claim(
        self,
        group: str,
        lease_id: str,
        limit: int,
        now: float,
        *,
        partition: str | None = None,
        most_partitions: int = 1,
        lease_seconds: float | None = None,
        auto_ack: bool = False,
        looks: Looks | None = None,
        further: Further | None = None,
    ) -> Claim:
        """Claim the next messages, of one partition or of any. The group must have joined.

        If nothing is claimable or the partition is unknown, the claim is empty. If no ``looks`` are left, it
        has not looked at all partitions.
        """
        reader = self.groups.get(group)
        if reader is None:
            raise NotFound(f"group {group} has not joined queue {self.name}")
        ttl = lease_seconds or self.config.lease_length
        held_as = "" if auto_ack else lease_id
        if partition is None:
            deliveries = reader.claim_any(
                held_as, limit, most_partitions, now, ttl, self.config, looks or Looks(LOOKS), further
            )
        else:
            reader.advance(now)
            index = self.indexes.get(partition)
            one = None if index is None else reader.claim(index, held_as, limit, now, ttl, self.config)
            deliveries = [] if one is None else [one]
        if not auto_ack:
            return Claim(deliveries)
        at_us = micros(now)
        return Claim(
            deliveries, tuple(Acked(reader.number, d.partition, d.end, 0, at_us) for d in deliveries)
        )

    def delivered(self, delivery: Delivery, transaction_ids: Sequence[str]) -> None:
        """Tell a lease which ids were delivered under it, so that their acks need no search."""
        if delivery.lease is not None and not delivery.continues:  # a holder that continues acks by position
            delivery.lease.delivered(transaction_ids, delivery.positions)

    def read_ids(self, partition: int, lease: PartitionLease) -> Iterator[None]:
        """Read the ids that were delivered under a lease before a restart, one in each step."""
        where = self.partitions[partition]
        first = max(lease.end - 1 if lease.conflated else lease.first, where.first)
        read: list[tuple[int, int, str]] = []  # offset, position, id
        for position in range(first, lease.end):
            offset = where.offsets[position - where.first] if position >= where.first else None
            if offset is None or self.log.partition(offset) == GONE:
                continue
            ((_, journal_position, _),) = self.log.refs((offset,))
            found = self._read_transaction_id(offset, journal_position)
            if found is not None:
                read.append((offset, position, found))
            yield
        there = [row for row in read if self.log.partition(row[0]) != GONE]
        lease.delivered([row[2] for row in there], [row[1] for row in there])

    def leave_out(self, group: str, delivery: Delivery) -> None:
        """Return one partition of a claim that is not delivered after all; the next pop may claim it."""
        reader = self.groups[group]
        if delivery.lease is not None and delivery.continues:
            delivery.lease.end = delivery.first
        elif delivery.lease is not None:
            reader.leases.give_back(delivery.partition)
        self._offer(reader, delivery.partition)

    def extend(self, lease_id: str, seconds: float, now: float) -> Extension:
        """Renew every partition held under a lease; an expired lease cannot be renewed."""
        renewed, known = 0, False
        expires_at: float | None = None
        for group in self.groups.values():
            leases, here = group.leases.extend(lease_id, now + seconds, now)
            known = known or here
            renewed += len(leases)
            for lease in leases:
                expires_at = lease.expires_at if expires_at is None else min(expires_at, lease.expires_at)
        return Extension(renewed, expires_at, known)

    def knows_lease(self, lease_id: str) -> bool:
        """Whether a lease with this id exists, including expired ones that were not removed yet."""
        return any(group.leases.knows(lease_id) for group in self.groups.values())

    def release(self, group: str, partition: int, lease_id: str) -> None:
        """Release a lease without settling anything."""
        reader = self.groups[group]
        if reader.leases.has(partition, lease_id):  # not ended by its record
            reader.leases.give_back(partition)
        self._offer(reader, partition)

    def end_held(self, group: str, partition: int, lease_id: str) -> bool:
        """End a lease whose messages have reached its holder; False if it has ended before."""
        reader = self.groups.get(group)
        if reader is None or not reader.leases.has(partition, lease_id):
            return False
        reader.leases.end(partition)
        self._offer(reader, partition)
        return True

    def take_woken(self) -> set[str]:
        """Groups that may have something to claim because of events since the last call."""
        woken = self._woken
        if woken:
            self._woken = set()
        return woken

    def apply(self, event: QueueEvent, positions: Sequence[int] = ()) -> None:
        """Apply an event. ``positions`` are the journal positions of a push's messages, which stay invisible
        until ``show``."""
        match event:
            case Pushed():
                self._pushed(event, positions)
            case Acked():
                self._acked(event)
            case Trimmed():
                self._trimmed(event)
            case GroupStarted():
                self._group_started(event)
            case GroupDeleted():
                self._numbered.pop(event.group)
                self.groups = {name: g for name, g in self.groups.items() if g.number != event.group}
                self.progress += 1
            case Sought():
                self._sought(event)
            case DeadLettersRemoved():
                gone = self.dead_letters.remove(event.numbers)
                self.given_ids.forget([o for o in gone if self.log.partition(o) == GONE], self.dead_letters)
            case MessageDeleted():
                self._deleted(event)
            case PartitionsDeleted():
                forget_partitions(event, self.partitions, self.indexes, self.groups.values())
            case IdsGiven():
                self.given_ids.add(event)
            case HandedOut():
                leases = self._numbered[event.group].leases
                for partition, attempt, end in event.rows:
                    leases.mark(partition, attempt, end)
            case Leased():
                for lease in event.rows:
                    self._numbered[event.group].record(lease)
            case LeaseReleased():
                self._numbered[event.group].leases.release(event.partition)
            case QueueConfigured():
                self.namespace, self.task, self.config = event.namespace, event.task, event.config
                self._room = None
                for group in self.groups.values():
                    group.lined_up = False  # delays and windows may have changed: check all partitions again
                    self._woken.add(group.name)
            case QueuePaused():
                self.paused = event.pause
            case QueueResumed():
                self.paused = None
                self._woken.update(self.groups)
            case QueueDeleted():
                pass  # the store drops the queue

    def _pushed(self, event: Pushed, positions: Sequence[int]) -> None:
        indexes, first = event.partitions, event.first_offset
        assert first == self.log.next_offset, "a push was decided on another state"
        assert len(positions) == len(indexes)
        for name in event.new_partitions:
            self.indexes[name] = len(self.partitions)
            self.partitions.append(Partition(name, event.created_us))
        self.log.append(positions, event.created_us, indexes, event.fingerprints)
        if not self.dedup.add(first, event.fingerprints):
            self.expire_ids(event.created_us, 2 * len(indexes) + 64)
        partitions = self.partitions
        if indexes.count(indexes[0]) == len(indexes):
            partitions[indexes[0]].offsets.extend(range(first, first + len(indexes)))
        else:
            for offset, index in enumerate(indexes, first):
                partitions[index].offsets.append(offset)

    def expire_ids(self, now_us: int, most: int) -> bool:
        """Forget some ids that are older than the window; return whether there may be more."""
        return self.dedup.expire(now_us - self.config.dedup_window_us, most)

    def bridge(self, gap: int, created_us: int) -> None:
        """Add rows of deleted messages before a push at this time: a repair has dropped their records."""
        log, first = self.log, self.log.next_offset
        offsets = range(first, first + gap)
        prints = array("Q", [NO_FINGERPRINT | offset for offset in offsets])
        log.append([0] * gap, created_us - gap, array("I", bytes(4 * gap)), prints)
        if len(self.partitions) != 1:  # of unknown partitions
            log.forget(offsets)
            return
        where = self.partitions[0]
        for position, offset in enumerate(offsets, where.end):
            where.offsets.append(offset)
            log.punch(offset)
            where.punch(position)
        self._trim(where, where.first)

    def show(self, event: Pushed) -> None:
        """Make pushed messages visible: their record is durable."""
        indexes = event.partitions
        self.log.durable_end = event.first_offset + len(indexes)
        touched = (indexes[0],) if indexes.count(indexes[0]) == len(indexes) else set(indexes)
        for group in self.groups.values():
            group.offer(touched)
        self._woken.update(self.groups)

    def _acked(self, event: Acked) -> None:
        group, index = self._numbered[event.group], event.partition
        where = self.partitions[index]
        old = group.cursor(index)
        if old is None:
            old = where.first
        leases = group.leases
        retries, held = leases.retries.get(index, 0), leases.held(index)
        self.deliveries.settled(event, old, retries, held, self.dead_letters.next_number)
        offsets = [where.offsets[filed.position - where.first] for filed in event.dead_letters]
        for filed, (offset, journal_position, created_us) in zip(
            event.dead_letters, self.log.refs(offsets), strict=True
        ):
            self.dead_letters.file(
                DeadLetter(
                    self.dead_letters.next_number,
                    group.name,
                    index,
                    filed.position,
                    offset,
                    journal_position,
                    created_us,
                    event.at_us,
                    filed.retry_count,
                    filed.error,
                )
            )
        leases.settle(index, old, event.cursor, event.retry_count, event.hold_until_us, event.at_us)
        if event.released:
            leases.end(index)
            leases.recorded.pop(index, None)
            if held is not None and event.answers is not None:
                group.remember_release(held.id, index, event.answers)
        else:
            leases.shrink(index, event.cursor)
        self.progress += 1
        if event.cursor < where.end:
            self._offer(group, index)

    def _trimmed(self, event: Trimmed) -> None:
        trimmed = dict(zip(event.partitions, event.firsts, strict=True))
        heads = [
            (group, index, group.cursor(index))
            for group in self.groups.values()
            for index in group.leases.with_history(trimmed)
        ]
        for index, first in trimmed.items():
            self._trim(self.partitions[index], first)
        for group, index, cursor in heads:
            head = self.partitions[index].first
            if cursor is not None and cursor < head and forget_head(group, index, head):
                self._offer(group, index)
        self.log.drop_dead(self.dedup.floor)
        self.progress += 1

    def _trim(self, where: Partition, first: int) -> None:
        gone = trim(where, where.live_from(first), self.log)
        self.given_ids.forget(gone, self.dead_letters)

    def _deleted(self, event: MessageDeleted) -> None:
        index, position = event.partition, event.position
        where = self.partitions[index]
        offset = where.offsets[position - where.first]
        self.dedup.forget(self.log.fingerprint(offset), offset)
        self.log.punch(offset)
        where.punch(position)
        self.given_ids.forget((offset,), self.dead_letters)
        for group in self.groups.values():
            if drop_from_lease(group, index, position, where):
                self._offer(group, index)
        self._trim(where, where.first)  # the oldest position is never a hole
        self.log.drop_dead(self.dedup.floor)
        self.progress += 1

    def _group_started(self, event: GroupStarted) -> None:
        group = self._numbered.get(event.group)
        if group is None:
            group = Group(event.name, event.group, self.partitions, self.log)
            group.conflates = event.conflates
            self.groups[event.name] = self._numbered[event.group] = group
            self.next_group = max(self.next_group, event.group + 1)
        group.start(event.start_us, event.partition)
        if event.partition in self.indexes:
            group.offer((self.indexes[event.partition],))
        self._count_again()
        self._woken.add(group.name)

    def _sought(self, event: Sought) -> None:
        group = self._numbered[event.group]
        if event.partition is None:
            group.seek_all(event.offset)
        elif self.partitions[event.partition] is not NO_PARTITION:
            group.leases.seek(event.partition, self.partitions[event.partition].position_of(event.offset))
            group.offer((event.partition,))
        self._count_again()
        self._woken.add(group.name)

    @property
    def room(self) -> Room | None:
        """How many messages it may take; None: as many as come."""
        if not self.config.max_size:
            return None
        if self._room is None:
            self._room = Room()
        return self._room

    def _count_again(self) -> None:
        """More messages may be unsettled now than were counted."""
        if self._room is not None:
            self._room.outdated()

    def _offer(self, group: Group, partition: int) -> None:
        group.offer((partition,))
        self._woken.add(group.name)

    def adopt(self, group: Group) -> None:
        """Add a group restored from a checkpoint."""
        self.groups[group.name] = self._numbered[group.number] = group

    def find(self, partition: int, transaction_id: str, near: int | None = None) -> int | None:
        """Position of a message by its transaction id; None when it is not stored or not visible yet.

        ``near`` is a cursor; by default the newest message. See ``IdSearch``.
        """
        if partition >= len(self.partitions):
            return None
        search = IdSearch(self, partition, near)
        if self.looked_up is not None and (partition, transaction_id) in self.looked_up:
            return search.confirmed(self.looked_up[partition, transaction_id], transaction_id)
        return search.find(transaction_id)

    def was_found(self, partition: int, transaction_id: str, offset: int) -> bool:
        """Whether this message was looked up, and has the id."""
        position = None if self.looked_up is None else self.looked_up.get((partition, transaction_id))
        if position is None:
            return False
        where = self.partitions[partition]
        return where.first <= position < where.end and where.offsets[position - where.first] == offset

    def carries(self, offset: int, transaction_id: str) -> bool:
        """Whether a message with the id's fingerprint really has the id.

        If the body is gone or unreadable, the 60-bit fingerprint is trusted.
        """
        if self.log.partition(offset) == GONE:
            return True
        stored = self._read_transaction_id(offset, self.log.position(offset))
        return stored is None or stored == transaction_id

    def letter_carries(self, letter: DeadLetter, transaction_id: str) -> bool:
        return self._read_transaction_id(letter.offset, letter.journal_position) == transaction_id

    def offset_of(self, partition: int, position: int) -> int:
        where = self.partitions[partition]
        return where.offsets[position - where.first]

    def id_of(self, offset: int, created_us: int) -> str:
        """The message id that clients see."""
        return self.given_ids.get(offset) or message_id(self.number, offset, created_us)

    def live_positions(self) -> Iterator[int]:
        """Journal positions that must be kept: those of stored messages and of dead letters."""
        for offset in self.log.live_offsets(0, self.log.next_offset):
            yield self.log.position(offset)
        for letter in self.dead_letters:
            yield letter.journal_position

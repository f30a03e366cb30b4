"""Random histories in which messages and partitions leave by every door, with a restart at any point.

Owns: the commands, what must hold after each of them, and the comparison with what the journal gives back.
Must not touch: clocks and disks; a seed says all about its history, and a failure names it.
"""

from collections.abc import Callable, Iterator
from random import Random

import pytest

from holtmq.broker.partitioned.captured import Captured, StateRecord
from holtmq.broker.partitioned.commands import admin
from holtmq.broker.partitioned.commands.pushing import decide_push
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.groups.group import QUEUE_MODE, micros
from holtmq.broker.partitioned.log import message_log
from holtmq.broker.partitioned.log import snapshot as snapshots
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.log.message_log import GONE, NO_PARTITION, Partition
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.queue_config import US, OptionValue
from holtmq.broker.partitioned.requests import AckRequest, PopRequest, PushItem, Run
from holtmq.broker.partitioned.service import PartitionedService, Settings
from holtmq.broker.partitioned.statistics import group_counts, partition_counts, queue_counts
from holtmq.journal import MemoryJournal
from snapshots import restore, snapshot

HISTORIES = 200
GROUPS = (QUEUE_MODE, "g", "h")
FROM_THE_START = Settings(lookback=0, default_mode="all")
LONGER_THAN_A_LEASE = 100_000
VERDICTS = (*[AckStatus.COMPLETED] * 3, AckStatus.FAILED, AckStatus.RETRY, AckStatus.DEAD_LETTER)

Cursors = dict[tuple[str, int], int]  # by group and partition
Contents = tuple[list[StateRecord], list[int]]


class History:
    """A node with one queue, what was done to it, and which of its messages must still be there."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.now = 1000.0
        self.done: list[str] = []
        self.journal = MemoryJournal()
        self.service = PartitionedService(self.journal, FROM_THE_START)
        self.pushed: dict[int, str] = {}  # transaction ids by offset, also of what has left
        self.alive: set[int] = set()  # offsets
        self.handed_out: list[tuple[PopRequest, Run]] = []
        self.ids = self.pops = 0  # how many so far
        self.moments: list[tuple[Contents, Captured]] = []  # of checkpoints that are written at the end
        options: dict[str, OptionValue] = {
            "dedup_window_seconds": dice.choice((0, 5, 3600)),
            "retry_limit": dice.choice((0, 1, 3)),
            "retention_enabled": True,
            "retention_seconds": dice.choice((0, 30)),
            "completed_retention_seconds": dice.choice((0, 10)),
        }
        admin.configure(self.service, "q", "", "", options, self.now)

    @property
    def queue(self) -> PartitionedQueue:
        return self.service.store.queues["q"]

    def partitions(self) -> Iterator[tuple[int, Partition]]:
        return ((n, where) for n, where in enumerate(self.queue.partitions) if where is not NO_PARTITION)

    def stored(self) -> set[int]:
        return set(self.queue.log.live_offsets(0, self.queue.log.next_offset))

    def step(self) -> None:
        """Some time, one command, and a look at everything."""
        self.now += self.dice.choice((0, 0.1, 1, 7))
        command = self.dice.choice(COMMANDS)
        self.done.append(command.__name__)
        before = self.cursors()
        command(self)
        check(self)
        if command is not History.seek:
            no_cursor_went_back(self, before)

    def push(self) -> None:
        items: list[PushItem] = []
        for _ in range(self.dice.randint(1, 5)):
            self.ids += 1
            number = self.dice.randint(1, self.ids) if self.dice.random() < 0.2 else self.ids
            items.append(PushItem("q", self.dice.choice("xyz"), Body(f"t{number}", b"1")))

        results = self.service.push(items, self.now)

        assert results is not None
        for item, result in zip(items, results, strict=True):
            if result.duplicate:
                assert self.pushed[result.offset] == item.body.transaction_id
            else:
                self.pushed[result.offset] = item.body.transaction_id
                self.alive.add(result.offset)
        if self.dice.random() < 0.8:
            self.journal.flush()  # before that they are invisible

    def pop(self) -> None:
        limit, most = self.dice.randint(1, 6), self.dice.randint(1, 3)
        self.take(self.dice.choice(GROUPS), limit, most, auto_ack=self.dice.random() < 0.2)

    def take(self, group: str, limit: int, most: int, *, auto_ack: bool) -> list[Run]:
        self.pops += 1
        request = PopRequest(
            f"lease-{self.pops}", "q", group=group, limit=limit, most_partitions=most, auto_ack=auto_ack
        )
        reader = self.queue.groups.get(group)
        ready = 0 if reader is None else group_counts(self.queue, reader, self.now).ready

        popped = self.service.pop(request, self.now)

        runs = popped.runs if popped else []
        assert runs or not ready, "what is said to be ready is handed out"
        for run in runs:
            offsets = [offset for offset, _, _ in run.rows]
            names = [body.transaction_id for body in run.bodies]
            assert offsets == sorted(set(offsets) & self.alive), "handed out: what is there, in order"
            assert names == [self.pushed[offset] for offset in offsets]
            assert {self.queue.log.partition(offset) for offset in offsets} == {run.delivery.partition}
            self.handed_out.append((request, run))
        assert sum(len(run.rows) for run in runs) <= limit
        return runs

    def ack(self) -> None:
        """Of one of the last pops: its lease may be over by now, its messages may have left."""
        if self.handed_out:
            pop, run = self.dice.choice(self.handed_out[-8:])
            verdict, lease_id = self.dice.choice(VERDICTS), self.dice.choice((*[pop.lease_id] * 4, ""))
            number, index = self.queue.number, run.delivery.partition
            some = [body.transaction_id for body in run.bodies if self.dice.random() < 0.7]
            acks = [AckRequest(number, index, pop.group, name, verdict, lease_id) for name in some]
            self.service.ack(acks, self.now)

    def delete(self) -> None:
        in_sight = [offset for offset in sorted(self.alive) if offset < self.queue.log.durable_end]
        if in_sight:
            wanted = self.dice.choice(in_sight)
            index, name = self.queue.log.partition(wanted), self.pushed[wanted]
            where, position = self.queue.partitions[index], self.queue.find(index, name)
            assert position is not None
            found = self.queue.offset_of(index, position)  # another one when the id came twice
            heads = {group: where.live_from(at) for (group, n), at in self.cursors().items() if n == index}

            assert admin.delete_message(self.service, self.queue, index, name)

            assert self.pushed[found] == name
            assert self.repeats(where.name, [name]) == {}, "the id is free again"
            for group in (group for group, head in heads.items() if head == position):
                assert index not in self.queue.groups[group].leases.retries, "the next in line starts anew"
            self.alive.remove(found)
            rows_that_nobody_needs_are_freed(self)

    def retain(self) -> None:
        config = self.queue.config
        limits = (config.retention_seconds, config.completed_retention_seconds)
        youngest_us = micros(self.now) - int(min((at for at in limits if at), default=0) * US)
        ages = {offset: self.queue.log.created_us(offset) for offset in self.alive}

        self.service.retain(self.now)

        gone = self.alive - self.stored()
        assert not gone or any(limits), "retention takes nothing without a limit"
        assert all(ages[offset] < youngest_us for offset in gone), "retention takes only what is old"
        self.alive -= gone
        if gone:
            rows_that_nobody_needs_are_freed(self)

    def drop_idle(self) -> None:
        self.now += self.dice.choice((0, 10, 4000))
        while self.service.drop_idle(self.now, days=0):
            pass

    def seek(self) -> None:
        if self.queue.indexes and self.dice.random() < 0.3:
            group, to = self.dice.choice("gh"), self.dice.choice((None, 0, micros(self.now) - 5 * US))

            admin.seek(self.service, group, "q", to, None)

            leases = self.queue.groups[group].leases
            assert not list(leases.live(self.now)), "a lease survived the removal"

    def checkpoint(self) -> None:
        store = self.service.store
        self.moments.append((contents(store.capture()), store.capture()))
        self.journal.flush()
        self.journal.checkpoint(*self.service.store.capture())
        self.journal.flush()

    def restart(self) -> None:
        before, remembered = picture(self.queue), self.remembered()
        self.journal.flush()

        self.journal, recovery = self.journal.restart()
        self.service = PartitionedService(self.journal, FROM_THE_START)
        for kind, payload in recovery.checkpoint:
            self.service.store.fold(0, kind, payload)
        for position, kind, payload in recovery.records:
            self.service.store.fold(position, kind, payload)

        assert picture(self.queue) == before
        assert self.remembered() == remembered
        every_body_can_be_read(self)

    def repeats(self, partition: str, names: list[str]) -> dict[str, int]:
        """Which ids would be duplicates now, and of which message."""
        decision = decide_push(self.queue, [(partition, name) for name in names], self.now)
        return {names[place]: decision.offsets[place] for place in decision.duplicates}

    def remembered(self) -> dict[str, dict[str, int]]:
        """The same for every id that was ever pushed, by partition."""
        names = sorted(set(self.pushed.values()))
        return {where.name: self.repeats(where.name, names) for _, where in self.partitions()}

    def cursors(self) -> Cursors:
        """Of every group, where it has one."""
        return {
            (name, index): cursor
            for name, group in self.queue.groups.items()
            for index, _ in self.partitions()
            if (cursor := group.cursor(index)) is not None
        }

    def waiting(self, group: str) -> list[int]:
        """Offsets that a group has not settled."""
        reader = self.queue.groups.get(group)
        found: list[int] = []
        for index, where in self.partitions():
            cursor = where.first if reader is None else reader.cursor(index)
            assert cursor is not None
            found += [offset for offset in where.offsets[cursor - where.first :] if offset in self.alive]
        return sorted(found)

    def drain(self, group: str) -> list[int]:
        """What a group gets when no other client holds a lease."""
        self.now += LONGER_THAN_A_LEASE
        got: list[int] = []
        while runs := self.take(group, 5, 3, auto_ack=True):
            got += [offset for run in runs for offset, _, _ in run.rows]
        return sorted(got)


COMMANDS: tuple[Callable[[History], None], ...] = (
    *[History.push] * 3,
    *[History.pop] * 2,
    *[History.delete] * 2,
    History.ack,
    History.retain,
    History.drop_idle,
    History.seek,
    History.checkpoint,
    History.restart,
)


def check(history: History) -> None:
    what_was_pushed_and_did_not_leave_is_there(history)
    partitions_know_their_messages_and_holes(history)
    figures_add_up(history)
    cursors_and_leases_lie_within_their_partitions(history)
    a_dead_letter_or_a_lease_keeps_its_partition(history)
    a_snapshot_gives_the_same_queue(history)


def what_was_pushed_and_did_not_leave_is_there(history: History) -> None:
    log = history.queue.log
    assert history.stored() == history.alive
    assert log.live == log.count_live(0, log.next_offset) == len(history.alive)
    assert log.first_offset == min(history.alive, default=log.next_offset)


def partitions_know_their_messages_and_holes(history: History) -> None:
    queue, placed = history.queue, 0
    assert queue.indexes == {where.name: index for index, where in history.partitions()}
    for index, where in history.partitions():
        holes = where.holes
        assert holes is None or holes == sorted(set(holes)) != []
        assert all(where.first < hole < where.end for hole in holes or ()), "the oldest is never a hole"
        for position, offset in enumerate(where.offsets, where.first):
            queue.log.created_us(offset)  # the row is kept, also a hole's
            is_hole = holes is not None and position in holes
            assert queue.log.partition(offset) == (GONE if is_hole else index)
        placed += where.count(where.first)
    assert placed == len(history.alive), "each message is in one partition"


def figures_add_up(history: History) -> None:
    queue, now = history.queue, history.now
    for index, where in history.partitions():
        counts = partition_counts(queue, index, now)
        assert counts.total == len(history.alive.intersection(where.offsets))
        assert min(counts.pending, counts.processing, counts.completed) >= 0
        assert counts.pending + counts.processing + counts.completed == counts.total
    assert queue_counts(queue, now).total == len(history.alive)
    for name, group in queue.groups.items():
        figures = group_counts(queue, group, now)
        assert figures.lag == len(history.waiting(name))
        assert 0 <= figures.ready <= figures.lag


def cursors_and_leases_lie_within_their_partitions(history: History) -> None:
    queue = history.queue
    for (_, index), cursor in history.cursors().items():
        assert queue.partitions[index].first <= cursor <= queue.partitions[index].end
    for group in queue.groups.values():
        for lease in group.leases.live(history.now):
            where = queue.partitions[lease.partition]
            assert lease.first <= lease.end <= where.end
            if where.first <= lease.first:  # else retention took the oldest of it
                assert where.count(lease.first, lease.end), "a lease is over something"


def a_dead_letter_or_a_lease_keeps_its_partition(history: History) -> None:
    named = {letter.partition for letter in history.queue.dead_letters}
    for group in history.queue.groups.values():
        named |= {lease.partition for lease in group.leases.live(history.now)}
    assert named <= {index for index, _ in history.partitions()}


def a_snapshot_gives_the_same_queue(history: History) -> None:
    again = restore(snapshot(history.queue), history.service.store.read_transaction_id)
    assert picture(again) == picture(history.queue)


def no_cursor_went_back(history: History, before: Cursors) -> None:
    after = history.cursors()
    assert not {place for place, cursor in before.items() if after.get(place, cursor) < cursor}


def every_body_can_be_read(history: History) -> None:
    """From the journal: nothing is in memory after a restart."""
    store, log = history.service.store, history.queue.log
    for offset in history.alive:
        assert store.body(log.position(offset)).transaction_id == history.pushed[offset]
    for letter in history.queue.dead_letters:
        assert store.body(letter.journal_position).transaction_id == history.pushed[letter.offset]


def rows_that_nobody_needs_are_freed(history: History) -> None:
    """Whenever something leaves: no chunk is kept for ids that left the dedup window."""
    base, next_offset, _, _, columns = history.queue.log.capture()
    needed = {offset for _, where in history.partitions() for offset in where.offsets}
    first = base * message_log.CHUNK_ROWS
    for column in columns:
        rows = range(first, first + message_log.CHUNK_ROWS)
        if rows.stop <= min(history.queue.dedup.floor, next_offset):
            assert bool(column) == bool(needed.intersection(rows))
        first = rows.stop


def contents(captured: Captured) -> Contents:
    """What a checkpoint writes, and the positions that it keeps."""
    live = sorted(at for found in captured.live for at in found)
    return list(captured.records), live


def picture(queue: PartitionedQueue) -> dict[str, object]:
    """All that a queue must still know after a restart, and what it derives from that; named for the diff."""
    log = queue.log
    seen: dict[str, object] = {
        "log": list(log.capture().columns()),
        "live": (log.live, log.first_offset),
        "dedup floor": queue.dedup.floor,
        "indexes": queue.indexes,
        "letters": list(queue.dead_letters),
    }
    for index, where in enumerate(queue.partitions):
        seen[f"partition {index}"] = (where.name, where.first, where.offsets, where.holes)
        seen[f"times of partition {index}"] = (where.created_us, where.last_us)
    for name, group in queue.groups.items():
        leases = group.leases
        seen[f"group {name}"] = (group.number, group.start_us, group.partition_starts)
        seen[f"cursors of {name}"] = leases.cursors
        seen[f"work of {name}"] = (leases.consumed, leases.settled_at)
        seen[f"failures of {name}"] = (leases.retries, leases.holds)
    return seen


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_whatever_leaves_the_rest_is_counted_kept_and_handed_out(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = Random(seed)
    shrink_chunks(monkeypatch, dice.choice((1, 2, 3)))
    history = History(dice)
    try:
        for _ in range(dice.randint(20, 100)):
            history.step()
        history.checkpoint()
        history.restart()
        for group in GROUPS:
            assert history.waiting(group) == history.drain(group)
            check(history)
        for then, captured in history.moments:
            assert contents(captured) == then, "what happened later is in the checkpoint"
    except Exception as failure:
        failure.add_note(f"seed {seed}, {len(history.done)} commands: {' '.join(history.done)}")
        raise


def shrink_chunks(monkeypatch: pytest.MonkeyPatch, shift: int) -> None:
    """So that a dozen messages fill several, and one becomes free every few steps. Long ones have records."""
    monkeypatch.setattr(snapshots, "ALONE", 2)
    monkeypatch.setattr(message_log, "CHUNK_SHIFT", shift)
    monkeypatch.setattr(message_log, "CHUNK_ROWS", 1 << shift)
    monkeypatch.setattr(message_log, "_MASK", (1 << shift) - 1)

"""Each record of a log is damaged once, and repaired: what depended on it is lost, and nothing else.

Partitioned queues depend on their history more than work queues do: events count offsets and positions. No
later event may be lost because an earlier one is, and no group may skip a message.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from holtmq.broker.broker import Broker
from holtmq.broker.partitioned.commands.staging_records import StagedRow, Winner
from holtmq.broker.partitioned.events import Acked, decode_all
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.log.bodies import Body, transaction_id_of
from holtmq.broker.partitioned.requests import AckRequest, PopRequest, PushItem
from holtmq.broker.partitioned.service import PartitionedService, Settings
from holtmq.broker.partitioned.store import UNREADABLE, MessagesSetAside
from holtmq.broker.records.changes import Kind
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.records.recovery import recover
from holtmq.broker.records.rehearsal import live_positions
from holtmq.journal import FileJournal, JournalOptions, open_journal
from holtmq.journal.dumping import dump
from holtmq.journal.fake_disk import FakeDisk
from holtmq.journal.inspection import check
from holtmq.journal.records import FRAME_SIZE
from holtmq.journal.repair import apply_repair, plan_repair
from holtmq.journal.segment import HEADER_SIZE
from holtmq.journal.viewing import ViewingJournal

GROUPS = ("workers", "audit")
SETTINGS = Settings(0, "all")


@dataclass
class Running:
    """A service on a disk in memory, without threads and sockets."""

    disk: FakeDisk
    names: int = 0
    done: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by group

    def __post_init__(self) -> None:
        self.journal: FileJournal
        self.journal, recovery = open_journal("", JournalOptions(segment_bytes=1 << 14), disk=self.disk)
        self.broker = Broker(self.journal)
        self.service = PartitionedService(self.journal, SETTINGS)
        self.broker.attach(self.service)
        recover(self.broker, recovery, self.service.store)
        self.journal.flush()

    def push(self, queue: str, *partitions: str) -> None:
        self.service.push([PushItem(queue, partition, self.body()) for partition in partitions], 1.0)
        self.journal.flush()

    def body(self) -> Body:
        self.names += 1
        return Body(f"m{self.names}", b'"x"')

    def finish(self, queue: str, partition: str, count: int, status: AckStatus) -> None:
        """A worker takes and settles."""
        request = PopRequest("lease", queue, partition, group=GROUPS[0], limit=count)
        popped = self.service.pop(request, 1.0)
        assert popped is not None
        acks = [
            AckRequest(
                run.queue.number, run.delivery.partition, GROUPS[0], body.transaction_id, status, "lease"
            )
            for run in popped.runs
            for body in run.bodies
        ]
        self.service.ack(acks, 1.0)
        if status is AckStatus.COMPLETED:
            self.done[queue].update(ack.transaction_id for ack in acks)
        self.journal.flush()

    def stage_and_commit(self, queue: str, batch: int) -> None:
        for task in (1, 0):
            rows = [StagedRow(queue, f"p{row}", self.body()) for row in range(2)]
            self.service.staging.stage("job", batch, task, 0, 0, rows, 1.0)
            self.journal.flush()
        winners = [Winner(task, 0, 2) for task in (0, 1)]
        for _ in self.service.staging.commit("job", batch, winners, 1.0):
            pass
        self.journal.flush()

    def checkpoint(self) -> None:
        assert self.journal.checkpoint(*snapshot(self.broker, self.service.store))
        self.journal.flush()

    def stored(self) -> dict[str, list[str]]:
        """By queue: the transaction ids of all messages that can be read, as the log has them."""
        store = self.service.store
        found: dict[str, list[str]] = {}
        for queue in store.queues.values():
            found[queue.name] = []
            for offset in list(queue.log.live_offsets(0, queue.log.next_offset)):
                with suppress(MessagesSetAside):
                    found[queue.name].append(store.body(queue.log.position(offset)).transaction_id)
        return found

    def delivered(self, queue: str, group: str) -> set[str]:
        """All that a group still gets, dead letters included."""
        found: set[str] = set()
        request = PopRequest("again", queue, group=group, limit=100, most_partitions=100, auto_ack=True)
        while (popped := self.service.pop(request, 2.0)) is not None:
            found.update(body.transaction_id for run in popped.runs for body in run.bodies)
            self.journal.flush()
        return found

    def letters(self, queue: str) -> set[str]:
        store = self.service.store
        found = store.queues[queue]
        return {store.letter_body(found, letter).transaction_id for letter in found.dead_letters}


def written(disk: FakeDisk) -> Running:
    """Queues before the checkpoint; behind it, a log of everything that a push may meet."""
    running = Running(disk)
    for queue in ("many", "one"):
        running.push(queue, *(["only"] if queue == "one" else ["p0", "p1", "p0"]))
        for group in GROUPS:
            partition = "only" if queue == "one" else "p0"
            running.service.pop(PopRequest(f"start-{group}", queue, partition, group=group), 0.0)
            running.service.store.queues[queue].release(group, 0, f"start-{group}")
    running.checkpoint()
    running.push("many", "p0", "p1")
    running.push("one", "only", "only")
    running.finish("many", "p0", 2, AckStatus.COMPLETED)
    running.push("many", "p2", "p0")  # a new partition
    running.push("one", "only")
    running.finish("one", "only", 2, AckStatus.DEAD_LETTER)
    running.stage_and_commit("many", 1)
    running.push("many", "p2", "p3", "p1")
    running.finish("many", "p0", 1, AckStatus.DEAD_LETTER)
    running.push("one", "only")
    running.finish("many", "p1", 2, AckStatus.COMPLETED)
    running.push("many", "p0", "p0", "p1")
    running.stage_and_commit("one", 2)
    running.finish("one", "only", 2, AckStatus.COMPLETED)
    running.finish("many", "p0", 4, AckStatus.DEAD_LETTER)
    running.push("many", "p3", "p1", "p0")
    running.finish("many", "p1", 2, AckStatus.COMPLETED)
    running.journal.close()
    return running


def dependents(disk: FakeDisk) -> tuple[dict[int, set[str]], set[int]]:
    """By position of a record, the messages that are lost with it; and which records file dead letters."""
    found: dict[int, set[str]] = {}
    filing: set[int] = set()
    loose: list[str] = []
    staged: list[str] = []
    for record in dump(disk, check(disk)):
        if record.position is None:
            continue
        named: list[str] = []
        if record.kind == Kind.PARTITIONED_BODY:
            named = [transaction_id_of(record.payload)]
            loose += named
        elif record.kind == Kind.PARTITIONED:
            named, loose = loose, []
            if any(
                isinstance(event, Acked) and event.dead_letters for _, event in decode_all(record.payload)
            ):
                filing.add(record.position)
        elif record.kind == Kind.STAGED:
            staged, loose = staged + loose, []
            named = list(staged)
        elif record.kind == Kind.STAGE_COMMITTED:
            named, staged = staged, []
        found[record.position] = set(named)
    return found, filing


def repair(disk: FakeDisk) -> None:
    while (plan := plan_repair(disk, lambda recovery: live_positions(ViewingJournal(disk), recovery))).needed:
        apply_repair(disk, plan)
    assert not plan.report.refusal, plan.report.refusal


def test_a_damaged_record_takes_only_what_depends_on_it() -> None:
    whole = written(FakeDisk())
    needed, filing = dependents(whole.disk)
    read = Running(whole.disk.copy())
    promised = read.stored()
    letters = {queue: read.letters(queue) for queue in promised}
    (segment,) = [name for name in whole.disk.list() if name.endswith(".seg")]
    assert len(needed) > 50
    assert all(letters.values())

    for position, lost in needed.items():
        disk = whole.disk.copy()
        disk.flip(segment, position + HEADER_SIZE + 10)
        repair(disk)

        running = Running(disk)

        case = f"without the record at {position}"
        stored = running.stored()
        for queue, names in promised.items():
            kept = [name for name in names if name not in lost]
            assert [name for name in stored[queue] if name not in lost] == kept, case
            assert len(set(stored[queue])) == len(stored[queue]), case
        running.checkpoint()
        running.journal.close()
        again = Running(disk)
        assert again.stored() == stored, case
        for queue, names in promised.items():
            for group in GROUPS:
                wanted, got = set(names) - lost, again.delivered(queue, group)
                if group == GROUPS[0]:
                    assert again.letters(queue) - {UNREADABLE} <= letters[queue], case
                    got |= again.letters(queue) | whole.done[queue]
                    got |= letters[queue] if position in filing else set()
                assert wanted <= got, f"{case}: {group} of {queue}"
        again.names = 1000
        again.push("many", "p0", "p3", "p9")
        assert len(again.stored()["many"]) == len(stored["many"]) + 3
        again.journal.close()


@pytest.mark.parametrize("how", ["push", "stage"])
@pytest.mark.parametrize("gone", range(5))
def test_a_batch_that_lost_its_head_and_first_bodies_keeps_the_others(how: str, gone: int) -> None:
    running = Running(FakeDisk())
    running.push("many", "p0")
    before = running.journal.end
    if how == "push":
        running.push("many", *[f"p{number % 2}" for number in range(5)])
    else:
        rows = [StagedRow("many", "p0", running.body()) for _ in range(5)]
        running.service.staging.stage("job", 1, 0, 0, 0, rows, 1.0)
        running.journal.flush()
        for _ in running.service.staging.commit("job", 1, [Winner(0, 0, 5)], 1.0):
            pass
        running.journal.flush()
    running.push("many", "p1")
    promised = running.stored()["many"]
    running.journal.close()
    disk = running.disk
    bodies = [
        record.position
        for record in dump(disk, check(disk))
        if record.kind == Kind.PARTITIONED_BODY and record.position is not None and record.position > before
    ]
    (segment,) = [name for name in disk.list() if name.endswith(".seg")]
    data = bytearray(disk.content(segment))
    first, stop = bodies[0] - FRAME_SIZE + HEADER_SIZE, bodies[gone] + HEADER_SIZE
    data[first:stop] = bytes(stop - first)
    disk.replace(segment, bytes(data))

    repair(disk)
    again = Running(disk)

    assert again.stored()["many"] == [promised[0], *promised[1 + gone :]]
    again.journal.close()

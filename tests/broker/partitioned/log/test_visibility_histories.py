"""Random histories in which pushes are on their way to the disk while everything else goes on.

Owns: the commands, and what must hold after each of them: no pop returns what is not durable, no pop
waits while messages are there, every lease has a holder. Must not touch: clocks and disks.
The oracle reads everything without scheduling a wake-up; a turn runs only when the broker asks for one.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random

import pytest

from holtmq.broker.errors import BrokerError
from holtmq.broker.partitioned.commands import admin
from holtmq.broker.partitioned.commands.atomic_commit import PartitionedPart, transact
from holtmq.broker.partitioned.commands.clean_acks import CleanRun
from holtmq.broker.partitioned.commands.staging_records import StagedRow, Winner
from holtmq.broker.partitioned.events import PartitionsDeleted
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.groups.group import QUEUE_MODE, Group, micros
from holtmq.broker.partitioned.groups.subscriptions import StartMode, StartRequest
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.log.message_log import NO_PARTITION
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.queue_config import OptionValue
from holtmq.broker.partitioned.requests import AckRequest, Popped, PopRequest, PushItem, Waiter
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.partitioned.waiting.wide_pops import matches
from holtmq.journal import MemoryJournal

HISTORIES, STEPS = 160, 120
QUEUES, NAMESPACES, TASKS, PARTITIONS = ("a", "b", "c"), ("", "x"), ("", "t"), "pqr"
NEW, CONFLATES = "new", "conflates"
GROUPS = (QUEUE_MODE, "g", NEW, CONFLATES)


class History:
    """One service on a journal that is durable when it is flushed. ``now`` moves by command."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.now = 1000.0
        self.journal = MemoryJournal()
        self.service = PartitionedService(self.journal)
        self.service._popping.most_bytes = self.dice.choice((64 << 20, 120, 1))
        self.service.line.on_dirty = self._wake
        self.service.line.at = self._at
        self.numbers = 0
        self.wanted = False  # a turn
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        self.popped: list[Popped] = []
        self.waiters: list[Waiter] = []
        self.pushed: list[tuple[PartitionedQueue, int, int]] = []  # queue, next offset, end of the journal
        self.handed_out: set[tuple[str, int, int]] = set()  # lease, queue, partition

    def _wake(self) -> None:
        self.wanted = True

    def _at(self, at: float, action: Callable[[], None]) -> None:
        self.due.append((at, self.number(), action))

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def step(self) -> None:
        command = self.dice.choice(COMMANDS)
        with suppress(BrokerError):  # there is no such queue, the lease is over, ...
            command(self)
        for queue in self.service.store.by_number.values():
            self.pushed.append((queue, queue.log.next_offset, self.journal.end))
        while self.wanted:
            self.wanted = False
            self.service.turn(self.now)
        check(self)

    def pushes(self) -> None:
        self.service.push([self.item() for _ in range(self.dice.randint(1, 3))], self.now)

    def item(self) -> PushItem:
        return PushItem(self.dice.choice(QUEUES), self.dice.choice(PARTITIONS), self.body())

    def body(self) -> Body:
        return Body(f"i{self.number()}", b"1")

    def transacts(self) -> None:
        acks = self.acks_of(self.popped.pop(), (AckStatus.COMPLETED,)) if self.popped else []
        transact(self.service, PartitionedPart([self.item()], acks, self.now))

    def stages(self) -> None:
        writer, staging = f"w{self.number()}", self.service.staging
        rows = [StagedRow(*self.item()) for _ in range(2)]
        staging.stage(writer, 1, 0, 0, 0, rows, self.now)
        if self.dice.random() < 0.5:
            self.journal.flush()
        for _ in staging.commit(writer, 1, [Winner(0, 0, 2)], self.now):
            pass

    def flushes(self) -> None:
        self.journal.flush()

    def pops(self) -> None:
        request = self.request()
        popped = self.service.pop(request, self.now)
        if popped is not None:
            self.got(popped)
        elif self.dice.random() < 0.6:
            self.waiters.append(Waiter(request, self.got))
            self.service.wait(self.waiters[-1], self.now)
        else:
            assert self.service.spool.pops_paused or not self.claimable(request), "something was there"

    def request(self) -> PopRequest:
        dice, group = self.dice, self.dice.choice(GROUPS)
        wide = dice.random() < 0.3
        start = StartRequest(StartMode.NEW) if group == NEW else StartRequest(explicit=False)
        return PopRequest(
            f"l{self.number()}",
            "" if wide else dice.choice(QUEUES),
            "" if wide else dice.choice(("", *PARTITIONS)),
            dice.choice(NAMESPACES) if wide else "",
            dice.choice(TASKS) if wide else "",
            group,
            dice.randint(1, 3),
            dice.randint(1, 3),
            auto_ack=group != CONFLATES and dice.random() < 0.2,
            conflates=group == CONFLATES,
            start=start,
        )

    def got(self, popped: Popped) -> None:
        for run in popped.runs:
            assert all(offset < self.durable_end(run.queue) for offset, _, _ in run.rows), "not durable yet"
            self.handed_out.add((popped.request.lease_id, run.queue.number, run.delivery.partition))
        if not popped.request.auto_ack:
            self.popped.append(popped)

    def withdraws(self) -> None:
        if self.waiters:
            self.service.withdraw(self.dice.choice(self.waiters))

    def acks(self) -> None:
        """Late and repeated ones, too."""
        if self.popped:
            popped = self.dice.choice(self.popped[-8:])
            if self.dice.random() < 0.5:
                self.service.ack(self.acks_of(popped, tuple(AckStatus)), self.now)
                return
            for run in popped.runs:
                names = [body.transaction_id for body in run.bodies[: self.dice.randint(1, 3)]]
                clean = [CleanRun(run.delivery.partition, popped.request.lease_id, names)]
                self.service.settle_clean(run.queue.number, popped.request.group, clean, self.now)

    def acks_of(self, popped: Popped, statuses: tuple[AckStatus, ...]) -> list[AckRequest]:
        lease_id = popped.request.lease_id if self.dice.random() < 0.9 else ""
        return [
            AckRequest(
                run.queue.number,
                run.delivery.partition,
                popped.request.group,
                body.transaction_id,
                self.dice.choice(statuses),
                lease_id,
            )
            for run in popped.runs
            for body in run.bodies[: self.dice.randint(1, 3)]
        ]

    def gives_back(self) -> None:
        if self.popped:
            popped = self.popped.pop()
            for run in popped.runs:
                partition, lease_id = run.delivery.partition, popped.request.lease_id
                self.service.give_back(run.queue, popped.request.group, partition, lease_id)

    def renews(self) -> None:
        if self.popped:
            self.service.extend(self.dice.choice(self.popped).request.lease_id, 3.0, self.now)

    def time_passes(self) -> None:
        self.now += self.dice.choice((0.125, 1.0, 5.0, 31.0))  # exact in binary
        passed = sorted(entry for entry in self.due if entry[0] <= self.now)
        self.due = [entry for entry in self.due if entry[0] > self.now]
        for _, _, action in passed:
            action()

    def configures(self) -> None:
        dice = self.dice
        options: dict[str, OptionValue] = {
            "lease_seconds": 5,
            "priority": dice.randint(0, 2),
            "delayed_processing": dice.choice((0, 0, 1)),
            "window_buffer": dice.choice((0, 0, 1)),
            "retry_delay_ms": dice.choice((None, 500)),
            "retry_limit": dice.choice((0, 1, 3)),
            "dedup_window_seconds": dice.choice((0, 1, 3600)),
            "retention_enabled": dice.random() < 0.3,
            "retention_seconds": dice.choice((0, 4)),
            "completed_retention_seconds": dice.choice((0, 2)),
            "max_wait_seconds": dice.choice((0, 0, 3)),
        }
        name, namespace, task = dice.choice(QUEUES), dice.choice(NAMESPACES), dice.choice(TASKS)
        admin.configure(self.service, name, namespace, task, options, self.now)

    def retains(self) -> None:
        self.service.retain(self.now)

    def deletes_a_queue(self) -> None:
        admin.delete_queue(self.service, self.dice.choice(QUEUES))

    def deletes_a_group(self) -> None:
        group, queue = self.dice.choice(GROUPS), self.dice.choice((None, *QUEUES))
        records = self.dice.random() < 0.5
        steps = admin.delete_group(self.service, group, queue, with_records=records, check=lambda _: None)
        deque(steps, maxlen=0)

    def deletes_a_message(self) -> None:
        for queue in self.some_queue():
            offset = self.dice.choice(list(queue.log.live_offsets(0, queue.log.next_offset)) or [None])
            if offset is not None:
                name = self.service.store.read_transaction_id(offset, queue.log.position(offset))
                admin.delete_message(self.service, queue, queue.log.partition(offset), str(name))

    def deletes_partitions(self) -> None:
        """What is left of them after they were cleared, pushes on their way and all."""
        for queue in self.some_queue():
            for _ in admin.clear(self.service, queue, self.dice.choice(PARTITIONS)):
                pass
            lettered = {letter.partition for letter in queue.dead_letters}
            empty = [
                index
                for index, where in enumerate(queue.partitions)
                if where is not NO_PARTITION and not where.offsets and index not in lettered
            ]
            if empty:
                self.service.store.commit([(queue.number, PartitionsDeleted(tuple(empty)))])

    def some_queue(self) -> Iterator[PartitionedQueue]:
        found = self.service.store.queues.get(self.dice.choice(QUEUES))
        if found is not None:
            yield found

    def seeks(self) -> None:
        group, to = self.dice.choice(GROUPS), self.dice.choice((None, 0, micros(self.now - 2)))
        admin.seek(self.service, group, self.dice.choice(QUEUES), to, self.dice.choice((None, "p")))

    def pauses(self) -> None:
        if self.service.spool.pops_paused:
            self.service.spool.switch(pops_paused=False)
            self.service.line.wake_all()
        elif self.dice.random() < 0.3:
            self.service.spool.switch(pops_paused=True)

    def durable_end(self, queue: PartitionedQueue) -> int:
        durable = [end for one, end, at in self.pushed if one is queue and at <= self.journal.durable]
        return max(durable, default=0)

    def claimable(self, request: PopRequest) -> list[str]:
        """What a pop should find, by looking everywhere."""
        return [
            f"{queue.name}/{where.name}"
            for queue in self.service.store.queues.values()
            if (queue.name == request.queue if request.queue else self._matches(request, queue))
            and (group := queue.groups.get(request.group)) is not None
            for index, where in enumerate(queue.partitions)
            if where is not NO_PARTITION
            and request.partition in ("", where.name)
            and self._visible(queue, group, index)
        ]

    @staticmethod
    def _matches(request: PopRequest, queue: PartitionedQueue) -> bool:
        return matches(request.namespace, request.task, queue)

    def _visible(self, queue: PartitionedQueue, group: Group, index: int) -> bool:
        where, config, now_us = queue.partitions[index], queue.config, micros(self.now)
        cursor = group.cursor(index)
        held = group.leases.lease(index, self.now) is not None or group.leases.holds.get(index, 0) > now_us
        if held or cursor is None or cursor >= where.end:
            return False
        created = queue.log.created_us
        if config.window_buffer and created(where.offsets[-1]) + config.window_us > now_us:
            return False
        durable_end, holes = self.durable_end(queue), where.holes or ()
        return any(
            offset < durable_end and position not in holes and created(offset) + config.delay_us <= now_us
            for position, offset in enumerate(where.offsets, where.first)
            if position >= cursor
        )


def check(history: History) -> None:
    service = history.service
    for queue in service.store.by_number.values():
        assert queue.log.durable_end == history.durable_end(queue)
        for group in queue.groups.values():
            for lease in group.leases.live(history.now):
                held = (lease.id, queue.number, lease.partition)
                assert held in history.handed_out, "a lease has no holder"
    history.waiters = [waiter for waiter in history.waiters if not waiter.done]
    if not service.spool.pops_paused:
        for waiter in history.waiters:
            assert not history.claimable(waiter.request), "a pop waits for what is there"


COMMANDS: list[Callable[[History], None]] = [
    *[History.pushes, History.acks] * 4,
    *[History.pops] * 8,
    *[History.flushes, History.seeks] * 3,
    *[History.time_passes, History.configures] * 2,
    History.transacts,
    History.stages,
    History.withdraws,
    History.gives_back,
    History.renews,
    History.retains,
    History.deletes_a_queue,
    History.deletes_a_group,
    History.deletes_a_message,
    History.deletes_partitions,
    History.pauses,
]


@pytest.mark.parametrize("part", range(4))
def test_nobody_gets_what_is_not_durable_and_nobody_waits_for_what_is(part: int) -> None:
    for seed in range(part, HISTORIES, 4):
        history = History(seed)
        for number in range(STEPS):
            try:
                history.step()
            except AssertionError as broken:
                raise AssertionError(f"history {seed}, step {number}: {broken}") from broken

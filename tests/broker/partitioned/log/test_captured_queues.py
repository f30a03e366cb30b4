"""Partitioned queues that are captured in steps: a checkpoint has them as they were at its moment."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from holtmq.broker.errors import NotFound
from holtmq.broker.partitioned.captured import Captured, StateRecord
from holtmq.broker.partitioned.commands import admin
from holtmq.broker.partitioned.events import GroupStarted
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.log.captured_queues import CapturedQueues
from holtmq.broker.partitioned.requests import AckRequest, PopRequest, PushItem, Run
from holtmq.broker.partitioned.service import PartitionedService, Settings
from holtmq.broker.pausing import Pause
from holtmq.journal import MemoryJournal

HISTORIES = 100
QUEUES = tuple("abcdef")
FROM_THE_START = Settings(lookback=0, default_mode="all")
VERDICTS = tuple(AckStatus)


class History:
    """Queues that are pushed to, read, changed, deleted and made again."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.now = 1000.0
        self.journal = MemoryJournal()
        self.service = PartitionedService(self.journal, FROM_THE_START)
        self.ids = self.pops = 0
        self.handed_out: list[tuple[PopRequest, Run]] = []

    def step(self) -> None:
        self.now += self.dice.choice((0, 0.1, 1, 7))
        with suppress(NotFound):  # a queue that was deleted
            self.dice.choice(COMMANDS)(self)
        if self.dice.random() < 0.7:
            self.journal.flush()

    @property
    def name(self) -> str:
        return self.dice.choice(QUEUES)

    def push(self) -> None:
        items: list[PushItem] = []
        for _ in range(self.dice.randint(1, 3)):
            self.ids += 1
            items.append(PushItem(self.name, self.dice.choice("xy"), Body(f"t{self.ids}", b"1")))
        self.service.push(items, self.now)

    def pop(self) -> None:
        self.pops += 1
        request = PopRequest(f"lease-{self.pops}", self.name, group=self.dice.choice("gh"), limit=3)
        popped = self.service.pop(request, self.now)
        self.handed_out += [] if popped is None else [(request, run) for run in popped.runs]

    def ack(self) -> None:
        if self.handed_out:
            pop, run = self.dice.choice(self.handed_out[-8:])
            verdict = self.dice.choice(VERDICTS)
            self.service.ack(
                [
                    AckRequest(
                        run.queue.number,
                        run.delivery.partition,
                        pop.group,
                        body.transaction_id,
                        verdict,
                        pop.lease_id,
                    )
                    for body in run.bodies
                ],
                self.now,
            )

    def record_deliveries(self) -> None:
        self.service.record_deliveries()

    def delete_message(self) -> None:
        queue = admin.queue_named(self.service, self.name)
        for offset in queue.log.live_offsets(0, queue.log.durable_end):
            index, position = queue.log.partition(offset), queue.log.position(offset)
            admin.delete_message(self.service, queue, index, self.service.store.body(position).transaction_id)
            return

    def delete(self) -> None:
        admin.delete_queue(self.service, self.name)

    def pause(self) -> None:
        admin.pause(self.service, admin.queue_named(self.service, self.name).name, Pause(1, "guest", "test"))

    def configure(self) -> None:
        options: dict[str, int | bool | str] = {
            "retention_enabled": True,
            "retention_seconds": self.dice.choice((0, 5)),
            "dedup_window_seconds": self.dice.choice((0, 3)),
        }
        admin.configure(self.service, self.name, "", "", options, self.now)

    def retain(self) -> None:
        self.service.retain(self.now)

    def seek(self) -> None:
        admin.seek(self.service, "g", admin.queue_named(self.service, self.name).name, 0, None)


COMMANDS: tuple[Callable[[History], None], ...] = (
    *[History.push] * 5,
    *[History.pop] * 3,
    *[History.ack] * 3,
    History.record_deliveries,
    History.delete_message,
    History.delete,
    History.pause,
    History.configure,
    History.retain,
    History.seek,
)


def contents(captured: Captured) -> tuple[list[StateRecord], list[int]]:
    live = sorted(at for found in captured.live for at in found)
    return list(captured.records), live


def capture_all_in_steps(first: int, stop: int) -> int:
    return sum(map(capture_in_steps, range(first, stop)))


def capture_in_steps(seed: int) -> int:
    """A history with captures; return how many of them went on while commands were executed."""
    dice = Random(seed)
    history, in_steps = History(dice), 0
    for _ in range(5):
        for _ in range(dice.randint(0, 20)):
            history.step()
        store, waits = history.service.store, 0
        then = contents(store.capture())
        captured = store.begin_capture()
        while not store.capture_more(dice.choice((0, 1))):
            waits += 1
            history.step()
        in_steps += waits > 1
        assert contents(captured) == then, f"seed {seed}: what happened later is in the checkpoint"
    return in_steps


@pytest.mark.parametrize("first", range(0, HISTORIES, 20))
def test_queues_are_captured_as_they_were_whatever_happens_in_between(first: int) -> None:
    assert capture_all_in_steps(first, first + 20) > 40


def test_a_queue_that_changes_before_it_is_captured_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CapturedQueues, "before_change", lambda captured, number: None)

    with pytest.raises(AssertionError, match="what happened later"):
        capture_all_in_steps(0, HISTORIES)


def test_a_second_capture_completes_the_first_as_it_was() -> None:
    history = History(Random(1))
    for _ in range(20):
        history.push()
    store = history.service.store
    then = contents(store.capture())
    first = store.begin_capture()
    store.capture_more(1)

    second = store.begin_capture()
    history.push()
    store.capture_more()

    assert contents(first) == then
    assert contents(second) == then


def test_a_queue_with_many_groups_is_captured_in_a_step_of_its_own() -> None:
    history = History(Random(1))
    history.push()
    store = history.service.store
    queue = next(iter(store.queues.values()))
    for number in range(20):
        store.commit([(queue.number, GroupStarted(f"many-{number}", queue.next_group, 0))])
    captured = CapturedQueues(dict.fromkeys(range(5), queue))

    steps = 0
    while not captured.is_complete:
        captured.capture(20)
        steps += 1

    assert steps == 6


def test_live_positions_after_the_records_are_refused() -> None:
    history = History(Random(1))
    history.push()
    captured = history.service.store.capture()
    assert list(captured.records)

    with pytest.raises(AssertionError, match="after the records"):
        list(captured.live)

"""Random appends, checkpoints, faults and crashes against a model: a list of what was done.

The caller here is a tiny queue: "add" records stay live until a "drop" names them. After any crash the
recovered queue must be one that the model went through, no older than the last one reported durable.
"""

from __future__ import annotations

import os
from array import array
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holtmq.journal import FileJournal, JournalFailed, JournalOptions, Recovery, open_journal
from holtmq.journal.fake_disk import FakeDisk, Keep

ADD, DROP, STATE = 20, 21, 40
OPTIONS = JournalOptions(segment_bytes=700, compact_below=0.6, read_handles=2)
EXAMPLES = int(os.environ.get("HOLT_MODEL_EXAMPLES", "500"))


class Queue:
    """The caller's state: live positions in order, and how many steps led here."""

    def __init__(self) -> None:
        self.live: list[int] = []
        self.steps = 0

    def apply(self, position: int, kind: int, payload: bytes) -> None:
        step = int(payload.split(b":")[0])
        assert self.steps <= step <= self.steps + 1
        self.steps = step
        if kind == ADD:
            self.live.append(position)
        else:
            self.live.remove(int(payload.split(b":")[1]))

    def snapshot(self) -> list[tuple[int, bytes]]:
        return [(STATE, b"%d" % self.steps), *((STATE, b"%d" % position) for position in self.live)]

    def restore(self, recovery: Recovery) -> None:
        state = [int(payload) for kind, payload in recovery.checkpoint if kind == STATE]
        if state:
            self.steps, self.live = state[0], state[1:]
        for position, kind, payload in recovery.records:
            self.apply(position, kind, payload)


class CrashMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1 << 32))
    def start(self, seed: int) -> None:
        self.disk = FakeDisk(seed)
        self.dice = Random(seed)
        self.bodies: dict[int, bytes] = {}
        self.history: list[list[int]] = [[]]  # the live positions after each step
        self.durable_steps = 0
        self.queue = Queue()
        self.journal = self.open()

    def open(self) -> FileJournal:
        journal, recovery = open_journal("", OPTIONS, disk=self.disk, clock=lambda: 0.0)
        self.queue = Queue()
        self.queue.restore(recovery)
        return journal

    def did(self, *records: tuple[int, bytes]) -> None:
        """One step: a record, or a batch of which all or nothing must survive."""
        step = self.queue.steps + 1
        encoded = [(kind, b"%d:%s" % (step, text)) for kind, text in records]
        try:
            if len(encoded) == 1:
                positions = [self.journal.append(*encoded[0])]
            else:
                positions = self.journal.append_batch(encoded)
        except JournalFailed:
            return
        for position, (kind, payload) in zip(positions, encoded, strict=True):
            self.queue.apply(position, kind, payload)
            self.bodies[position] = payload
        del self.history[step:]
        self.history.append(list(self.queue.live))

        def durable(error: JournalFailed | None) -> None:
            if error is None:
                assert step > self.durable_steps
                self.durable_steps = step

        self.journal.on_durable(durable)

    @rule(sizes=st.lists(st.sampled_from([0, 1, 30, 200, 1500]), min_size=1, max_size=4))
    def a_batch_arrives(self, sizes: list[int]) -> None:
        self.did(*((ADD, bytes([97 + size % 26]) * size) for size in sizes))

    @rule(count=st.integers(1, 20), keep=st.integers(1, 5))
    def a_busy_while_passes(self, count: int, keep: int) -> None:
        """Many come and most go again: what leaves sparse segments behind."""
        for number in range(count):
            self.did((ADD, b"busy" * (number % 7)))
        self.journal.flush()
        for position in [at for index, at in enumerate(self.queue.live) if index % keep]:
            self.did((DROP, b"%d" % position))
        self.journal.flush()

    @rule(count=st.integers(1, 6), where=st.floats(0, 0.99))
    def messages_leave(self, count: int, where: float) -> None:
        for _ in range(count):
            if self.queue.live:
                position = self.queue.live[int(where * len(self.queue.live))]
                self.did((DROP, b"%d" % position))

    @rule()
    def a_message_moves_in_one_batch(self) -> None:
        if self.queue.live:
            self.did((DROP, b"%d" % self.queue.live[0]), (ADD, b"moved"), (ADD, b"copied"))

    @rule()
    def the_loop_turns(self) -> None:
        self.journal.flush()

    @rule()
    def the_caller_checkpoints(self) -> None:
        if self.journal.failed is None:
            live = sorted(self.queue.live)
            self.journal.checkpoint(
                self.queue.snapshot(), [array("Q", live[::2]), array("Q", live[1::2]), array("Q", live[:1])]
            )

    @rule(keep=st.sampled_from(Keep))
    def the_machine_crashes(self, keep: Keep) -> None:
        self.disk.crash(keep)
        self.come_back()

    @precondition(lambda self: self.dice.random() < 0.3)  # else most runs do little but fail
    @rule(operations=st.integers(0, 40))
    def the_power_is_about_to_fail(self, operations: int) -> None:
        self.disk.cut_power_after(operations)

    @rule(keep=st.sampled_from(Keep), operations=st.integers(0, 40))
    def the_power_fails_again_during_recovery(self, keep: Keep, operations: int) -> None:
        self.disk.crash(keep)
        self.disk.cut_power_after(operations)
        try:
            journal, recovery = open_journal("", OPTIONS, disk=self.disk)
            recovery.drain()
            journal.append(ADD, b"0:never flushed, so it never was")
        except JournalFailed:
            pass
        self.disk.crash(Keep.SECTORS)
        self.come_back()

    @precondition(lambda self: self.dice.random() < 0.3)
    @rule(nth=st.integers(1, 3), partial=st.integers(0, 300))
    def a_write_will_fail(self, nth: int, partial: int) -> None:
        self.disk.fail_write(nth, partial=partial)

    @precondition(lambda self: self.dice.random() < 0.3)
    @rule(nth=st.integers(1, 4))
    def a_sync_will_fail(self, nth: int) -> None:
        self.disk.fail_sync(nth)

    @precondition(lambda self: self.journal.failed is None)
    @rule()
    def the_node_restarts_in_good_order(self) -> None:
        self.journal.close()
        if self.journal.failed is None:
            self.durable_steps = max(self.durable_steps, self.queue.steps)
        self.disk.crash(Keep.NOTHING)
        self.come_back()

    def come_back(self) -> None:
        self.journal = self.open()
        steps = self.queue.steps
        assert self.durable_steps <= steps < len(self.history)
        assert self.queue.live == self.history[steps]
        self.durable_steps = steps
        for position in self.queue.live:
            assert self.journal.read(position)[1] == self.bodies[position]

    @invariant()
    def every_live_message_can_be_read(self) -> None:
        if self.journal.failed is None and self.disk._cut_at is None:
            found = self.journal.read_many(self.queue.live)
            assert [payload for _, payload in found] == [self.bodies[at] for at in self.queue.live]


CrashMachine.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=30)


@pytest.mark.model
class TestAnyCrashLeavesAQueueThatOnceWas(CrashMachine.TestCase):  # type: ignore[misc, valid-type]
    pass


@pytest.mark.parametrize(("moved", "warned"), [(-3600.0, True), (-1.0, False), (0.0, False), (3600.0, False)])
def test_a_clock_that_was_set_back_is_said_at_the_start(
    moved: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FakeDisk()
    journal, recovery = open_journal("", OPTIONS, disk=disk, clock=lambda: 1_800_000_000.0)
    recovery.drain()
    journal.append(20, b"x")
    journal.flush()
    disk.crash(Keep.EVERYTHING)

    _, recovery = open_journal("", OPTIONS, disk=disk, clock=lambda: 1_800_000_000.0 + moved)
    recovery.drain()

    assert ("the clock was set back" in caplog.text) is warned

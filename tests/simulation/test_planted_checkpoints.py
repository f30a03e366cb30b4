"""Checkpoints that forget something are found: the history after them reads it back, or misses it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

import pytest

from holtmq.broker.message import Message
from holtmq.broker.partitioned.log.captured_queues import CapturedQueues
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.records import queue_contents
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.records.queue_copies import QueueCopies
from holtmq.broker.work.fifo_contents import FifoContents
from holtmq.broker.work.spilling_fifo import SpillingFifo
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal import compaction, live
from holtmq.testing.views import raw_messages
from simulation import world as world_module
from simulation.planted import find
from simulation.world import World

pytestmark = pytest.mark.timeout(600)  # two minutes on a machine with a load of 15


@pytest.mark.parametrize("refuses", [True, False])
def test_live_positions_searched_in_the_order_they_came_are_found(
    monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    monkeypatch.setattr(live, "rising", lambda positions: positions)
    if not refuses:
        # Neither the journal's own check nor the failure it counts: only reading back is left.
        monkeypatch.setattr(compaction, "PositionNotHeld", _Nothing)
        monkeypatch.setattr(World, "checkpoint", _careless_checkpoint)

    find(*LOSSES)


# A record that cannot be read is met as such, or its message has no name any more.
LOSSES = ("position", "a checkpoint was incomplete", "'?'", "expected")


RETURNED = ("lost=['", "undone=['", "counts")


class _Nothing(Exception):
    """Never raised."""


def _careless_checkpoint(world: World) -> None:
    world.journal.checkpoint(*snapshot(world.broker, world.partitioned.store))


def _stored(world: World) -> set[int]:
    return {at for queue in _logs(world) for run in queue.log.capture().positions() for at in run}


def _letters(world: World) -> set[int]:
    return {letter.journal_position for queue in _logs(world) for letter in queue.dead_letters}


def _logs(world: World) -> list[PartitionedQueue]:
    return list(world.partitioned.store.queues.values())


def _waiting(world: World) -> set[int]:
    queues = world.broker.work_queues()
    return {message.position for queue in queues for message in raw_messages(world.broker, queue)}


FORGOTTEN: dict[str, Callable[[World], set[int]]] = {
    "what was pushed": _stored,
    "what is staged": lambda world: {
        at for _, _, part in world.partitioned.staging.parts() for at in (part.header, *part.positions)
    },
    "what is spooled": lambda world: {at for _, _, at in world.partitioned.spool.waiting()},
    "what waits": _waiting,
    "what is leased": lambda world: {
        lease.message.position for session in world.broker.sessions for lease in session.outstanding()
    },
    "what is delayed": lambda world: set(world.broker.flow.delayed),
    "dead letters that outlive their message": lambda world: _letters(world) - _stored(world),
}


def test_a_checkpoint_without_messages_that_wait_to_be_dead_lettered_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outstanding = queue_contents.outstanding

    def forgetful(queue: WorkQueue) -> list[Message]:
        waiting = {message.seq for _, message in queue.outcasts}
        return [message for message in outstanding(queue) if message.seq not in waiting]

    monkeypatch.setattr(queue_contents, "outstanding", forgetful)

    find(*RETURNED, "position")


class _Late(QueueCopies):
    """The contents of queues when they are encoded, after some have changed."""

    def complete(self) -> None:
        self._leases = [lease for session in self._broker.sessions for lease in session.outstanding()]
        self.give_up()

    def live(self) -> Iterator[array[int]]:
        return self._now().live()

    def states(self) -> Iterator[bytes]:
        return self._now().states()

    def _now(self) -> QueueCopies:
        copies = QueueCopies(self._broker)
        copies.complete()
        copies._leases = self._leases
        return copies


def test_queues_that_are_captured_too_late_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module, "QueueCopies", _Late)
    monkeypatch.setattr(World, "_check", lambda world, queues: None)

    find(*LOSSES, *RETURNED)


@pytest.mark.parametrize("checked", [True, False])
def test_copies_made_before_a_checkpoint_that_are_not_made_again_are_found(
    monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    monkeypatch.setattr(QueueCopies, "_mark_outdated", lambda copies: None)
    if not checked:
        monkeypatch.setattr(World, "_check", lambda world, queues: None)

    find(*LOSSES, *RETURNED, "not up to date")


def test_partitioned_queues_that_change_before_they_are_captured_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CapturedQueues, "before_change", lambda captured, number: None)

    find(*LOSSES, *RETURNED)


def test_a_fifo_that_changes_under_a_checkpoint_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = SpillingFifo.contents

    def shared(fifo: SpillingFifo) -> FifoContents:
        return contents(fifo)._replace(ready=fifo.ready)  # type: ignore[arg-type]

    monkeypatch.setattr(SpillingFifo, "contents", shared)

    find(*LOSSES, *RETURNED)


@pytest.mark.parametrize("what", FORGOTTEN)
def test_positions_that_a_checkpoint_does_not_name_are_found(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def forgetful(world: World) -> None:
        records, named = snapshot(world.broker, world.partitioned.store)
        gone = FORGOTTEN[what](world)
        kept = [array("Q", [at for at in run if at not in gone]) for run in named]
        world.journal.checkpoint(records, kept)

    monkeypatch.setattr(World, "checkpoint", forgetful)

    find(*LOSSES)

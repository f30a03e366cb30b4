"""Work queues that are copied for a checkpoint before its moment: what changes meanwhile is copied again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from core_support import Bench, Session

from holtmq.broker.records.checkpoint import Snapshot
from holtmq.broker.records.queue_copies import QueueCopies
from queue_copies_checked import differences

QUEUES: Final = 8
Change = Callable[[Bench, Session], object]

CHANGES: Final[dict[str, Change]] = {
    "publish": lambda bench, _: bench.publish("q1", b"second", turn=False),
    "get": lambda _, session: session.get("q1"),
    "get and ack": lambda _, session: session.ack(session.get("q1").number),  # type: ignore[union-attr]
    "ack": lambda _, session: session.ack(1),
    "release": lambda _, session: session.release(1),
    "reject": lambda _, session: session.reject(1),
    "close": lambda _, session: session.close(),
    "consume": lambda _, session: session.consume("q2"),
    "purge": lambda bench, _: bench.broker.purge_queue(bench.vhost, "q1"),
    "delete": lambda bench, _: bench.broker.delete_queue(bench.vhost, "q1"),
    "declare": lambda bench, _: bench.declare("another"),
}


def _filled(arguments: dict[str, object]) -> tuple[Bench, Session]:
    bench = Bench()
    for number in range(QUEUES):
        bench.declare(f"q{number}", arguments)
        bench.publish(f"q{number}", b"first")
    session = bench.session()
    assert session.get("q0") is not None
    bench.sync()
    return bench, session


def _copied(bench: Bench) -> QueueCopies:
    copies = QueueCopies(bench.broker)
    steps = 1
    while not copies.copy_some(1):
        steps += 1
    assert steps >= QUEUES
    return copies


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 3}], ids=["one level", "priorities"])
def test_a_queue_that_changes_after_it_was_copied_is_copied_again(
    change: Change, arguments: dict[str, object]
) -> None:
    bench, session = _filled(arguments)
    copies = _copied(bench)

    change(bench, session)
    bench.turn()
    snapshot = Snapshot(bench.broker, queues=copies)

    assert list(differences(bench.broker, copies)) == []
    assert copies not in bench.flow.changed
    state = {name: bench.bodies(name) for name in bench.vhost.queues}
    held = sorted(lease.message.body for lease in session.ledger.outstanding())
    assert bench.journal.checkpoint(list(snapshot.records()), list(snapshot.live()))
    bench.sync()
    bench.crash()
    again = {name: bench.bodies(name) for name in bench.vhost.queues}
    assert sum(map(len, again.values())) == sum(map(len, state.values())) + len(held)
    assert again.keys() == state.keys()


def test_a_queue_that_changes_in_the_same_turn_is_copied_again() -> None:
    bench, session = _filled({})
    copies = _copied(bench)

    session.ack(1)
    copies.complete()

    assert list(differences(bench.broker, copies)) == []


@pytest.mark.parametrize("change", [name for name in CHANGES if name not in ("declare", "consume")])
def test_a_change_of_which_the_copies_do_not_hear_is_found(change: str) -> None:
    """Else the comparison could not fail, and nothing held changes to marking their queue."""
    bench, session = _filled({})
    copies = _copied(bench)
    bench.flow.changed.pop(copies)

    CHANGES[change](bench, session)
    bench.turn()
    copies.complete()

    assert list(differences(bench.broker, copies))


def test_queues_that_change_faster_than_they_are_copied_are_copied_at_the_moment() -> None:
    bench, _ = _filled({})
    copies = QueueCopies(bench.broker)
    steps = 1
    while not copies.copy_some(1):
        steps += 1
        bench.fill("q0", b"more")
        bench.fill("q1", b"more")
        bench.fill("q2", b"more")

    assert steps <= 5 * (QUEUES + 1)
    copies.complete()
    assert list(differences(bench.broker, copies)) == []


def test_copies_that_are_given_up_hear_of_no_more_changes() -> None:
    bench, _ = _filled({})
    copies = _copied(bench)
    assert copies in bench.flow.changed

    copies.give_up()

    assert copies not in bench.flow.changed

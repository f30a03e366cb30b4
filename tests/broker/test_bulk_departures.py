"""Very many messages that leave a queue at once: in steps, and none is lost or doubled."""

import pytest
from core_support import Bench

from holtmq.broker import removals
from holtmq.broker.turn_limits import TurnLimits
from holtmq.broker.work import work_queue
from holtmq.journal.fake_disk import FakeDisk

COUNT = 50
BODIES = [f"{number}".encode() for number in range(COUNT)]
LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(work_queue.WorkQueue.shed_excess, "__defaults__", (6,))
    bench = Bench(FakeDisk())
    bench.flow.per_turn = TurnLimits(dead_letters=7)
    bench.declare("dead", durable=True)
    return bench


def reject_all(bench: Bench) -> None:
    bench.declare("q", durable=True, arguments=LETTERS)
    bench.fill("q", *BODIES)
    session = bench.session()
    session.consume("q")
    bench.turn()
    session.reject(*range(1, COUNT + 1))
    session.close()
    bench.turn()


def turns(bench: Bench) -> int:
    """How many turns are asked for until nothing is left to do."""
    count = 0
    while bench.broker.flow.dirty:
        bench.turn()
        count += 1
    return count


def test_rejected_messages_are_dead_lettered_in_steps_in_their_order(bench: Bench) -> None:
    reject_all(bench)

    assert 0 < len(bench.bodies("dead")) < COUNT
    assert turns(bench) >= COUNT // 7 - 1
    assert bench.bodies("dead") == BODIES
    assert not bench.queue("q").outcasts


@pytest.mark.parametrize("with_checkpoint", [False, True])
@pytest.mark.parametrize("purged", [False, True])
def test_a_crash_between_the_steps_loses_and_doubles_nothing(
    bench: Bench, with_checkpoint: bool, purged: bool
) -> None:
    reject_all(bench)
    if purged:
        bench.fill("q", b"purged")
        bench.broker.purge_queue(bench.vhost, "q")
    if with_checkpoint:
        bench.checkpoint()
    bench.sync()

    bench.crash()

    # Those that were not dead-lettered yet are back in their queue.
    done = bench.bodies("dead")
    assert done == BODIES[: len(done)]
    assert sorted(done + bench.bodies("q")) == sorted(BODIES)


def test_a_queue_that_is_no_longer_used_is_deleted_after_its_dead_letters_went_in_steps(bench: Bench) -> None:
    reject_all(bench)
    queue = bench.queue("q")
    before = len(bench.bodies("dead"))

    bench.broker.removals.remove(queue)

    assert bench.vhost.queues["q"] is queue
    assert len(bench.bodies("dead")) == before + 7
    for _ in range(COUNT):
        bench.advance(1)  # the next step alone, without a turn
    assert "q" not in bench.vhost.queues
    assert bench.bodies("dead") == BODIES
    bench.sync()
    bench.crash()
    assert bench.bodies("dead") == BODIES
    assert "q" not in bench.vhost.queues


def test_an_exclusive_queue_dead_letters_in_steps_when_its_connection_is_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removals, "STEP", 5)
    owner = object()
    bench.broker.declare_queue(bench.vhost, "q", exclusive=True, owner=owner, arguments=LETTERS)
    bench.fill("q", *BODIES)
    session = bench.session()
    session.consume("q")
    bench.turn()
    session.reject(*range(1, COUNT + 1))
    session.close()

    bench.broker.drop_exclusive_queues(owner)

    assert bench.bodies("dead") == BODIES[:5]
    for _ in range(COUNT):
        bench.advance(1)
    assert bench.bodies("dead") == BODIES
    assert "q" not in bench.vhost.queues


def test_a_queue_that_is_deleted_dead_letters_what_was_rejected_first(bench: Bench) -> None:
    reject_all(bench)

    bench.broker.delete_queue(bench.vhost, "q")

    assert bench.bodies("dead") == BODIES


def test_a_stopping_node_completes_them(bench: Bench) -> None:
    reject_all(bench)

    bench.broker.flow.complete()

    assert bench.bodies("dead") == BODIES


@pytest.mark.parametrize("letters", [False, True])
def test_messages_that_expire_together_leave_in_steps(bench: Bench, letters: bool) -> None:
    bench.declare("q", durable=True, arguments={"x-message-ttl": 1_000, **(LETTERS if letters else {})})
    bench.fill("q", *BODIES)
    bench.turn()

    bench.advance(2_000)

    turns(bench)
    assert bench.bodies("q") == []
    assert bench.bodies("dead") == (BODIES if letters else [])


def test_a_policy_drops_the_oldest_in_steps(bench: Bench) -> None:
    bench.declare("q", durable=True, arguments=LETTERS)
    bench.fill("q", *BODIES)
    bench.turn()

    bench.broker.policy_changes.put("/", "short", "^q$", {"max-length": 10})

    assert len(bench.bodies("q")) == COUNT - 6
    turns(bench)
    assert bench.bodies("q") == BODIES[-10:]
    assert bench.bodies("dead") == BODIES[:-10]


def test_after_a_restart_a_queue_is_within_its_limit_at_once(bench: Bench) -> None:
    bench.declare("q", durable=True, arguments=LETTERS)
    bench.fill("q", *BODIES)
    bench.turn()
    bench.broker.policy_changes.put("/", "short", "^q$", {"max-length": 10})
    bench.sync()

    bench.crash()

    assert bench.bodies("q") == BODIES[-10:]

"""Changes of very many things go step by step, and what they change is right from the first step on."""

from collections.abc import Iterator

import pytest
from core_support import Bench

from holtmq.broker import policy_changes
from holtmq.broker.topology import long_changes
from holtmq.broker.topology.long_changes import LongChanges
from holtmq.journal.fake_disk import FakeDisk


@pytest.fixture
def bench() -> Bench:
    return Bench(FakeDisk())


def counted(count: int, done: list[int]) -> Iterator[int]:
    for number in range(count):
        done.append(number)
        yield number


def test_a_short_change_is_complete_at_once() -> None:
    done: list[int] = []
    changes = LongChanges()

    changes.add(counted(9, done), step=10)

    assert (len(done), len(changes)) == (9, 0)


def test_a_long_change_goes_step_by_step_the_oldest_first() -> None:
    planned: list[object] = []
    one: list[int] = []
    other: list[int] = []
    changes = LongChanges()
    changes.later = planned.append

    changes.add(counted(25, one), step=10)
    changes.add(counted(10, other), step=10)

    assert (len(one), len(other), len(planned)) == (10, 10, 1)
    changes.step()
    assert (len(one), len(changes)) == (20, 2)
    changes.step()
    assert (len(one), len(changes)) == (25, 1)
    changes.step()
    assert len(changes) == 0


def run_out(bench: Bench) -> int:
    """Let the timers finish what is under way; how many steps that took."""
    steps = 0
    while len(bench.broker.long_changes):
        bench.advance(1)
        bench.turn()
        steps += 1
        assert steps < 1_000
    return steps


def bind_many(bench: Bench, count: int) -> None:
    bench.broker.exchanges.declare(bench.vhost, "many", "topic", durable=True)
    bench.declare("q")
    for number in range(count):
        bench.broker.bind(bench.vhost, "many", "q", f"key.{number}")


def test_a_deleted_exchange_is_gone_at_once_and_its_bindings_step_by_step(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_changes.LongChanges.add, "__defaults__", (10,))
    bind_many(bench, 100)

    bench.broker.exchanges.delete(bench.vhost, "many")

    assert "many" not in bench.vhost.exchanges
    assert list(bench.vhost.bindings_to(bench.queue("q"))) == []
    assert run_out(bench) >= 10


def test_an_exchange_made_again_while_the_old_one_is_taken_apart_keeps_its_bindings(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_changes.LongChanges.add, "__defaults__", (1,))
    bind_many(bench, 20)
    bench.broker.exchanges.delete(bench.vhost, "many")

    bind_many(bench, 3)
    run_out(bench)

    assert len(list(bench.vhost.bindings_to(bench.queue("q")))) == 3
    bench.publish("key.1", b"1", exchange="many")
    assert bench.bodies("q") == [b"1"]
    bench.broker.delete_queue(bench.vhost, "q")
    assert bench.vhost.exchanges["many"].is_unused


def test_a_deleted_queue_gets_nothing_more_and_its_successor_only_what_is_bound_to_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_changes.LongChanges.add, "__defaults__", (1,))
    bind_many(bench, 20)
    bench.broker.delete_queue(bench.vhost, "q")
    assert len(bench.broker.long_changes) == 1

    bench.declare("q")
    bench.broker.bind(bench.vhost, "many", "q", "key.7")
    for key in ("key.6", "key.7"):
        bench.publish(key, key.encode(), exchange="many")

    assert bench.bodies("q") == [b"key.7"]
    assert [binding.routing_key for binding in bench.vhost.exchanges["many"].bindings()] == ["key.7"]
    run_out(bench)
    bench.publish("key.7", b"again", exchange="many")
    assert bench.bodies("q") == [b"key.7", b"again"]


def test_an_auto_delete_exchange_goes_with_its_last_queue_however_many_bindings_that_had(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_changes.LongChanges.add, "__defaults__", (1,))
    bench.broker.exchanges.declare(bench.vhost, "auto", "direct", auto_delete=True)
    bench.declare("q")
    for number in range(20):
        bench.broker.bind(bench.vhost, "auto", "q", str(number))

    bench.broker.delete_queue(bench.vhost, "q")

    assert "auto" not in bench.vhost.exchanges
    run_out(bench)


def test_a_policy_reaches_its_queues_step_by_step(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_changes, "_POLICY_STEP", 5)
    for number in range(30):
        bench.declare(f"q{number}")
        bench.fill(f"q{number}", b"1", b"2")

    bench.broker.policy_changes.put("/", "short", "^q", {"max-length": 1})

    assert [len(bench.queue(f"q{number}")) for number in (0, 29)] == [1, 2]
    assert run_out(bench) >= 5
    assert {len(bench.queue(f"q{number}")) for number in range(30)} == {1}


def test_very_many_policies_make_the_steps_of_a_policy_smaller(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_changes, "_POLICIES_PER_ITEM", 5)
    for number in range(20):
        bench.broker.policy_changes.put("/", f"other-{number}", f"^other-{number}$", {"max-length": 9})
    for number in range(8):
        bench.declare(f"q{number}")
    monkeypatch.setattr(policy_changes, "_POLICY_STEP", 20)
    bench.broker.long_changes.later = lambda step: None

    bench.broker.policy_changes.put("/", "all", "^q", {"max-length": 3})

    changed = [bench.queue(f"q{number}").options.max_length for number in range(8)]
    assert changed == [3] * 4 + [None] * 4
    bench.broker.long_changes.step()
    bench.broker.long_changes.step()
    assert all(bench.queue(f"q{number}").options.max_length == 3 for number in range(8))


def test_policies_that_change_while_they_are_applied_are_one_more_round_not_a_round_each() -> None:
    bench = Bench()
    for number in range(300):
        bench.declare(f"q{number}")

    for number in range(50):
        bench.broker.policy_changes.put("/", f"p{number}", "^q", {"max-length": number + 1}, priority=number)

    assert len(bench.broker.long_changes) == 1
    steps = 0
    while len(bench.broker.long_changes):
        bench.broker.long_changes.step()
        steps += 1
    assert steps < 50
    queues = [bench.queue(f"q{number}") for number in range(300)]
    assert {(queue.policy, queue.options.max_length) for queue in queues} == {("p49", 50)}

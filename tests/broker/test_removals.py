"""Very many queues are removed in steps; whatever happens between two of them, nothing is half there."""

import gc

import pytest
from core_support import Bench

from holtmq.auth.permissions import Action, Permissions
from holtmq.auth.topic_permissions import TopicPermission
from holtmq.auth.users import Grant, User
from holtmq.broker import removals
from holtmq.broker.errors import ResourceLocked
from holtmq.broker.topology import access_changes
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal.fake_disk import FakeDisk

MANY = 40


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(removals, "STEP", 7)
    bench = Bench(FakeDisk())
    bench.broker.put_vhost("large")
    vhost = bench.broker.vhost("large")
    for number in range(MANY):
        bench.broker.declare_queue(vhost, f"q{number}", durable=True)
        bench.broker.bind(vhost, "amq.topic", f"q{number}", "key")
    return bench


def run_out(bench: Bench) -> None:
    for _ in range(1_000):
        if not len(bench.broker.long_changes):
            return
        bench.advance(1)
        bench.turn()
    raise AssertionError("it does not end")


def test_a_vhost_goes_when_its_last_queue_has_gone(bench: Bench) -> None:
    expelled: list[str] = []
    bench.broker.access.on_expelled = lambda reason, _: expelled.append(reason)

    bench.broker.removals.delete_vhost("large")

    assert bench.broker.removals.is_leaving("large")
    assert len(bench.broker.vhost("large").queues) == MANY - 7
    bench.broker.declare_queue(bench.broker.vhost("large"), "late", durable=True)  # too late
    run_out(bench)
    assert not bench.broker.removals.is_leaving("large")
    assert list(bench.broker.vhosts) == ["/"]
    assert len(expelled) == 2  # also those that have connected meanwhile
    bench.sync()
    bench.crash()
    assert list(bench.broker.vhosts) == ["/"]
    assert bench.broker.queues_by_id == {}


def test_after_a_crash_between_two_steps_the_rest_is_there_and_can_be_deleted(bench: Bench) -> None:
    bench.broker.removals.delete_vhost("large")
    bench.sync()

    bench.crash()

    assert len(bench.broker.vhost("large").queues) == MANY - 7
    bench.broker.delete_vhost("large")
    assert list(bench.broker.vhosts) == ["/"]


def test_a_vhost_made_again_meanwhile_is_a_new_one(bench: Bench) -> None:
    bench.broker.removals.delete_vhost("large")

    bench.broker.put_vhost("large")

    bench.broker.declare_queue(bench.broker.vhost("large"), "q39", durable=True)
    run_out(bench)
    assert list(bench.broker.vhost("large").queues) == ["q39"]
    bench.sync()
    bench.crash()
    assert list(bench.broker.vhost("large").queues) == ["q39"]


def test_two_deletions_are_one(bench: Bench) -> None:
    bench.broker.removals.delete_vhost("large")
    bench.broker.removals.delete_vhost("large")

    run_out(bench)

    assert list(bench.broker.vhosts) == ["/"]


def test_a_checkpoint_between_two_steps_has_what_is_left(bench: Bench) -> None:
    bench.broker.removals.delete_vhost("large")
    bench.checkpoint()
    left = set(bench.broker.vhost("large").queues)

    bench.crash()

    assert set(bench.broker.vhost("large").queues) == left


def test_exclusive_queues_of_a_lost_connection_can_be_declared_again_at_once(bench: Bench) -> None:
    old, new = object(), object()
    for number in range(MANY):
        bench.broker.declare_queue(bench.vhost, f"mine-{number}", exclusive=True, owner=old)

    bench.broker.drop_exclusive_queues(old)

    waiting = [name for name in bench.vhost.queues if name.startswith("mine-")]
    assert len(waiting) == MANY - 7
    again, _ = bench.broker.declare_queue(bench.vhost, waiting[-1], exclusive=True, owner=new)
    with pytest.raises(ResourceLocked):
        bench.broker.declare_queue(bench.vhost, waiting[-1], exclusive=True, owner=object())
    run_out(bench)
    assert [queue for queue in bench.vhost.queues.values() if queue.owner is not None] == [again]


@pytest.mark.parametrize("are_exclusive", [False, True])
def test_what_is_removed_is_not_kept_until_all_is(are_exclusive: bool, bench: Bench) -> None:
    """A hundred thousand queues would be freed at one moment."""
    broker, owner = bench.broker, object()
    name = f"unique {id(owner)}"
    broker.put_vhost(name)
    vhost = broker.vhost(name)
    for number in range(MANY):
        queue = "q" + str(number)
        broker.declare_queue(vhost, queue, exclusive=are_exclusive, owner=owner if are_exclusive else None)
    broker.flow.turn()

    if are_exclusive:
        broker.drop_exclusive_queues(owner)
    else:
        broker.removals.delete_vhost(name)
    broker.flow.turn()
    broker.flow.used.clear()  # as the sampler does

    assert len(vhost.queues) == MANY - 7
    gc.collect()
    alive = [one for one in gc.get_objects() if isinstance(one, WorkQueue) and one.vhost == name]
    assert len(alive) <= MANY - 6  # one is in its step


@pytest.mark.parametrize("is_made_again", [False, True])
def test_rights_of_very_many_users_go_in_steps_those_on_topics_last(
    bench: Bench, is_made_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_changes, "STEP", 3)
    access, users = bench.broker.access, bench.broker.users
    for number in range(5):
        users.put_user(User(f"u{number}", "", ()))
        users.set_permissions(Grant(f"u{number}", "large", Permissions(".*", ".*", ".*")))
        access.topic_permissions.put(TopicPermission(f"u{number}", "large", "amq.topic", "a", "a"))
    seen = users.access("u1", "large")

    bench.broker.removals.delete_vhost("large")

    assert users.grants(vhost="large") == ()
    assert not seen.may(Action.READ, "q1")
    assert len(access.topic_permissions.all(vhost="large")) == 5
    if is_made_again:
        bench.broker.put_vhost("large")
    run_out(bench)
    assert access.topic_permissions.all(vhost="large") == []
    assert ("large" in bench.broker.vhosts) == is_made_again
    assert users.grants(vhost="large") == ()

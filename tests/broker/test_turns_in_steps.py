"""Very many queues with work at once: a turn handles some of them, and writes what a confirm relies on."""

import pytest
from core_support import Bench

from holtmq.broker import flow
from holtmq.broker.turn_limits import TurnLimits
from holtmq.broker.work import work_queue
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal.fake_disk import FakeDisk

NAMES = [f"q{number}" for number in range(10)]
AT_ONCE = 3


@pytest.fixture
def bench() -> Bench:
    bench = Bench(FakeDisk())
    bench.broker.exchanges.declare(bench.vhost, "all", "fanout", durable=True)
    for name in NAMES:
        bench.declare(name)
        bench.broker.bind(bench.vhost, "all", name, "")
    bench.turn()
    bench.flow.per_turn = TurnLimits(queues=AT_ONCE)
    return bench


def test_consumers_of_some_queues_are_served_in_each_turn_and_all_in_order(bench: Bench) -> None:
    takers = [bench.session().consume(name) for name in NAMES]
    bench.flow.complete()
    for body in (b"first", b"second"):
        bench.publish("", body, exchange="all", turn=False)

    served = []
    while bench.flow.dirty:
        bench.turn()
        served.append(sum(1 for taker in takers if taker.got))

    assert served == [3, 6, 9, 10]
    assert [taker.got for taker in takers] == [[b"first", b"second"]] * len(NAMES)


def test_a_queue_that_gets_more_work_meanwhile_keeps_its_place(bench: Bench) -> None:
    takers = [bench.session().consume(name) for name in NAMES]
    bench.flow.complete()

    bench.publish("", b"x", exchange="all", turn=False)
    for _ in range(4):  # a busy publisher must not keep the last queues waiting
        bench.turn()
        bench.publish("q0", b"more", turn=False)

    assert all(taker.got for taker in takers)


def test_every_ack_is_written_before_the_next_confirm(bench: Bench) -> None:
    bench.publish("", b"x", exchange="all", turn=False)
    bench.flow.complete()
    session = bench.session()
    for name in NAMES:
        session.consume(name, turn=False)
    bench.flow.complete()

    session.ack(*range(1, len(NAMES) + 1))
    bench.publish("", b"later", exchange="all", turn=False)
    bench.sync()  # one turn, as before a group is handed to the journal's writer
    bench.crash()

    assert [bench.bodies(name) for name in NAMES] == [[b"later"]] * len(NAMES)


def test_a_crash_between_the_steps_loses_nothing(bench: Bench) -> None:
    bench.publish("", b"x", exchange="all", turn=False)
    bench.sync()

    bench.checkpoint()
    bench.crash()

    assert [bench.bodies(name) for name in NAMES] == [[b"x"]] * len(NAMES)


def test_a_queue_that_is_deleted_between_the_steps_is_left_out(bench: Bench) -> None:
    bench.publish("", b"x", exchange="all", turn=False)
    bench.turn()

    for name in NAMES[5:]:
        bench.broker.delete_queue(bench.vhost, name)
    bench.flow.complete()

    assert [bench.bodies(name) for name in NAMES[:5]] == [[b"x"]] * 5
    assert set(bench.vhost.queues) == set(NAMES[:5])


def test_an_error_in_one_queue_does_not_lose_those_that_wait(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    takers = [bench.session().consume(name) for name in NAMES]
    bench.flow.complete()
    bench.publish("", b"x", exchange="all", turn=False)
    dispatch = WorkQueue.dispatch

    def fail_once(queue: WorkQueue, *arguments: object) -> None:
        monkeypatch.setattr(WorkQueue, "dispatch", dispatch)
        raise RuntimeError("a bug")

    monkeypatch.setattr(WorkQueue, "dispatch", fail_once)
    with pytest.raises(RuntimeError, match="a bug"):
        bench.turn()
    bench.flow.complete()

    assert [taker.got for taker in takers[1:]] == [[b"x"]] * (len(NAMES) - 1)


def test_a_turn_delivers_some_of_very_many_messages_and_the_next_one_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "_DELIVERED", 1)
    bodies = [b"%d" % number for number in range(5)]
    for body in bodies:
        bench.publish("", body, exchange="all", turn=False)
    bench.flow.complete()
    takers = [bench.session().consume(name, turn=False) for name in NAMES]

    served = []
    while bench.flow.dirty:
        bench.turn()
        served.append(sum(1 for taker in takers if taker.got))

    assert served == list(range(1, len(NAMES) + 1))
    assert all(taker.got == bodies for taker in takers)


def test_one_queue_with_very_many_consumers_is_served_in_several_turns(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (flow, work_queue):
        monkeypatch.setattr(module, "DELIVERED_AT_ONCE", 6)
    bench.declare("some", {"x-max-length": 30, "x-message-ttl": 0})
    for number in range(30):
        bench.publish("some", b"%d" % number, turn=False)
    takers = [bench.session().consume("some", prefetch=2, turn=False) for _ in range(15)]
    monkeypatch.setattr(work_queue, "_SHARE", 6)

    got = []
    while bench.flow.dirty:
        bench.turn()
        got.append(sum(len(taker.got) for taker in takers))

    assert got == [6, 12, 18, 24, 30, 30]

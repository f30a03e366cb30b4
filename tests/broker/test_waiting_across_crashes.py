"""Messages that wait for a reason (a pause, a delayed retry) across crashes, starts and checkpoints."""

import pytest
from core_support import Bench

from holtmq.journal.fake_disk import FakeDisk

LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
RETRIES = {
    "x-queue-type": "quorum",
    "x-delayed-retry-type": "all",
    "x-delayed-retry-min": 1_000,
    "x-delayed-retry-max": 5_000,
    "x-delivery-limit": 3,
    **LETTERS,
}


@pytest.fixture
def bench() -> Bench:
    bench = Bench(FakeDisk())
    bench.declare("dead", durable=True)
    return bench


def again(bench: Bench, how: str) -> None:
    if how == "checkpoint and crash":
        bench.checkpoint()
    bench.sync()
    if how == "restart":
        bench.restart()
    else:
        bench.crash()


WAYS = ["restart", "crash", "checkpoint and crash"]


@pytest.mark.parametrize("how", WAYS)
def test_a_paused_queue_dead_letters_what_expires_before_and_after_a_start(bench: Bench, how: str) -> None:
    bench.declare("q", durable=True, arguments={"x-message-ttl": 1_000, **LETTERS})
    bench.fill("q", b"old")
    bench.advance(600)
    bench.fill("q", b"young")
    bench.broker.pauses.pause(bench.queue("q"), "me", "a test")

    again(bench, how)
    assert bench.queue("q").paused is not None
    taker = bench.session().consume("q")
    bench.advance(400)

    assert bench.bodies("q") == [b"young"]
    assert bench.bodies("dead") == [b"old"]
    again(bench, how)
    bench.advance(600)
    assert bench.bodies("q") == []
    assert bench.bodies("dead") == [b"old", b"young"]
    assert not taker.held
    again(bench, how)
    bench.broker.pauses.resume(bench.queue("q"))
    assert bench.bodies("dead") == [b"old", b"young"]
    assert bench.bodies("q") == []


@pytest.mark.parametrize("how", WAYS)
def test_a_delayed_retry_is_not_lost_and_keeps_its_count(bench: Bench, how: str) -> None:
    bench.declare("q", durable=True, arguments=RETRIES)
    bench.fill("q", b"a", b"b")

    for count in (1, 2, 3):
        session = bench.session()
        lease = session.get("q")
        assert lease is not None
        assert lease.message.body == b"a"
        bench.flow.release(session._end([lease.number]), failed=True)
        bench.turn()
        assert bench.bodies("q") == [b"b"]
        again(bench, how)
        # After a start it is offered at once: the wait is not kept, the count is.
        assert bench.bodies("q") == [b"a", b"b"]
        assert list(bench.queue("q").returned.values()) == [count]

    session = bench.session()
    lease = session.get("q")
    assert lease is not None
    bench.flow.release(session._end([lease.number]), failed=True)
    bench.turn()
    again(bench, how)
    assert bench.bodies("q") == [b"b"]
    assert bench.bodies("dead") == [b"a"]

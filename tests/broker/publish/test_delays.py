"""A delayed message that was confirmed waits or is in its queues at every moment, once in each."""

from contextlib import suppress

import pytest
from core_support import Bench, headers_of

from holtmq.broker.publish.publishing import Publishing
from holtmq.broker.records.checkpoint import snapshot
from holtmq.journal import JournalFailed, JournalOptions
from holtmq.journal.fake_disk import FakeDisk, Keep

FULL: dict[str, object] = {"x-max-length": 1, "x-overflow": "reject-publish"}
SECOND = 1_000


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk(7)


@pytest.fixture
def bench(disk: FakeDisk) -> Bench:
    """A broker whose segments are so small that every checkpoint compacts."""
    return Bench(disk, options=JournalOptions(segment_bytes=1024, compact_below=0.95))


def late(bench: Bench, *queues: str, arguments: dict[str, object] | None = None) -> None:
    """A delayed exchange with the key ``k`` for all the queues."""
    bench.broker.exchanges.declare(
        bench.vhost, "late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
    )
    for name in queues:
        bench.declare(name, arguments)
        bench.broker.bind(bench.vhost, "late", name, "k")


def delay(bench: Bench, *bodies: bytes, ms: int = 50, persistent: bool = True) -> None:
    for body in bodies:
        bench.publish("k", body, exchange="late", persistent=persistent, headers={"x-delay": ms})


def take(bench: Bench, queue: str) -> bytes:
    """Get one message and ack it."""
    session = bench.session()
    lease = session.get(queue)
    assert lease is not None
    body = lease.message.body
    session.ack(lease.number)
    session.close()
    bench.turn()
    return body


def test_a_crash_at_any_byte_of_the_placing_leaves_the_message_once() -> None:
    cut, is_placed = 0, False
    while not is_placed:
        disk = FakeDisk(cut)
        bench = Bench(disk)
        late(bench, "a", "b")
        delay(bench, b"m" * 40)
        bench.sync()
        disk.fail_write(1, partial=cut)
        bench.advance(50)
        bench.sync()

        bench.crash(Keep.EVERYTHING)

        is_placed = not bench.flow.delayed
        assert len(bench.bodies("a")) == len(bench.bodies("b")) == is_placed, cut
        bench.advance(0)
        assert bench.bodies("a") == bench.bodies("b") == [b"m" * 40], cut
        cut += 1
    assert cut > 100  # the record was cut in every place


@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_power_cut_after_any_operation_keeps_the_message(keep: Keep, checkpoint: bool) -> None:
    for operations in range(40):
        disk = FakeDisk(operations)
        bench = Bench(disk, options=JournalOptions(segment_bytes=1024, compact_below=0.95))
        late(bench, "q")
        delay(bench, b"m" * 300, b"n" * 300)
        bench.sync()
        disk.cut_power_after(operations)
        with suppress(OSError, JournalFailed):
            bench.advance(50)
            bench.sync()
            if checkpoint:
                bench.broker.journal.checkpoint(*snapshot(bench.broker))
                bench.sync()

        bench.crash(keep)
        bench.advance(0)

        assert sorted(bench.bodies("q")) == [b"m" * 300, b"n" * 300], operations


def test_a_clock_that_is_set_back_or_forward_loses_nothing(bench: Bench) -> None:
    late(bench, "q")
    delay(bench, b"early", b"late")
    bench.advance(-3_600_000)
    assert bench.bodies("q") == []
    bench.sync()
    bench.crash()
    bench.advance(0)
    assert bench.bodies("q") == []

    bench.advance(7_200_000)

    assert bench.bodies("q") == [b"early", b"late"]


@pytest.mark.parametrize("restart", ["", "crash", "checkpoint"])
def test_a_full_queue_gets_the_message_when_it_has_room(bench: Bench, restart: str) -> None:
    late(bench, "q", arguments=FULL)
    bench.publish("q", b"first")
    delay(bench, b"second", b"third")

    bench.advance(50)
    assert (bench.bodies("q"), len(bench.flow.delayed)) == ([b"first"], 2)
    if restart == "checkpoint":
        bench.checkpoint()
    bench.sync()
    if restart:
        bench.crash()
        bench.advance(0)
    assert (bench.bodies("q"), len(bench.flow.delayed)) == ([b"first"], 2)

    assert take(bench, "q") == b"first"
    bench.advance(SECOND)
    assert take(bench, "q") == b"second"
    bench.advance(SECOND)
    assert take(bench, "q") == b"third"
    bench.advance(SECOND)
    bench.sync()
    bench.crash()
    bench.advance(SECOND)
    assert (bench.bodies("q"), len(bench.flow.delayed)) == ([], 0)


@pytest.mark.parametrize("restart", [False, True])
def test_a_full_queue_does_not_hold_up_the_others(bench: Bench, restart: bool) -> None:
    late(bench, "full", arguments=FULL)
    late(bench, "free")
    bench.publish("full", b"first")
    delay(bench, b"m")

    bench.advance(50)
    assert (bench.bodies("full"), bench.bodies("free")) == ([b"first"], [b"m"])
    bench.sync()
    if restart:
        bench.crash()
        bench.advance(0)
    assert take(bench, "full") == b"first"
    bench.advance(SECOND)

    assert (bench.bodies("full"), bench.bodies("free")) == ([b"m"], [b"m"])
    assert headers_of(bench.waiting("full")[0])["x-delay"] == -50
    bench.sync()
    bench.crash()
    bench.advance(SECOND)
    assert (bench.bodies("full"), bench.bodies("free"), len(bench.flow.delayed)) == ([b"m"], [b"m"], 0)


def test_a_full_queue_with_dead_letters_makes_it_one(bench: Bench) -> None:
    bench.declare("dead")
    late(
        bench,
        "q",
        arguments={
            "x-max-length": 1,
            "x-overflow": "reject-publish-dlx",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        },
    )
    bench.publish("q", b"first")
    delay(bench, b"second")

    bench.advance(50)

    assert (bench.bodies("q"), bench.bodies("dead"), len(bench.flow.delayed)) == ([b"first"], [b"second"], 0)


def test_what_no_queue_of_that_size_takes_lets_others_pass(bench: Bench) -> None:
    late(bench, "q", arguments={"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
    bench.publish("q", b"0123456789")
    delay(bench, b"much too large", b"fits")
    bench.advance(50)
    take(bench, "q")

    bench.advance(SECOND)

    assert (bench.bodies("q"), len(bench.flow.delayed)) == ([b"fits"], 1)


def test_a_queue_that_is_deleted_meanwhile_ends_the_wait(bench: Bench) -> None:
    late(bench, "q", arguments=FULL)
    bench.publish("q", b"first")
    delay(bench, b"second")
    bench.advance(50)

    bench.broker.delete_queue(bench.vhost, "q")
    bench.advance(SECOND)

    assert len(bench.flow.delayed) == 0


def test_many_messages_for_a_full_queue_arrive_in_order(bench: Bench) -> None:
    late(bench, "q", arguments={"x-max-length": 700, "x-overflow": "reject-publish"})
    bench.fill("q", *[b"old"] * 700)
    bodies = [b"%d" % number for number in range(700)]
    delay(bench, *bodies)
    for _ in range(3):
        bench.advance(50)
    bench.broker.purge_queue(bench.vhost, "q")
    bench.turn()

    bench.advance(SECOND)
    for _ in range(3):
        bench.advance(1)

    assert bench.bodies("q") == bodies


def test_very_many_that_are_due_at_once_take_turns_with_other_work(bench: Bench) -> None:
    late(bench, "q")
    delay(bench, *[b"m"] * 1_200)

    bench.advance(50)
    assert 0 < len(bench.bodies("q")) < 1_200
    for _ in range(3):
        bench.advance(0)

    assert len(bench.bodies("q")) == 1_200


def test_an_error_in_placing_is_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    late(bench, "q")
    delay(bench, b"m")
    with monkeypatch.context() as patch:
        patch.setattr(Publishing, "place_unconfirmed", _raise)
        with pytest.raises(LookupError):
            bench.advance(50)
    assert (bench.flow.in_batch, len(bench.flow.delayed)) == (False, 1)

    bench.advance(SECOND)

    assert bench.bodies("q") == [b"m"]


def _raise(*_: object) -> None:
    raise LookupError("planted")

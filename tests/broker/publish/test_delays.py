"""A delayed message that was confirmed waits or is in its queues at every moment, once in each."""

from contextlib import suppress

import pytest
from core_support import Bench, headers_of

from holtmq.broker.publish.publishing import Publishing
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.turn_limits import TurnLimits
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


def in_steps(bench: Bench) -> None:
    """A message for more than one queue is placed in one at a time."""
    bench.vhost.widest = 1
    bench.flow.per_turn = TurnLimits(copies=1)


def finish(bench: Bench) -> None:
    bench.advance(0)
    while bench.broker.long_changes:
        bench.advance(0)
        bench.turn()


def counts(bench: Bench) -> list[int]:
    return [len(bench.queue(name)) for name in ("a", "b", "c")]


def test_a_message_for_very_many_queues_is_placed_in_steps(bench: Bench) -> None:
    late(bench, "a", "b", "c")
    in_steps(bench)
    delay(bench, b"m")
    seen = []

    bench.advance(50)
    while bench.broker.long_changes:
        seen.append((counts(bench), len(bench.flow.delayed)))
        bench.advance(0)

    assert seen == [([0, 0, 0], 1), ([0, 0, 0], 1), ([1, 0, 0], 1), ([1, 1, 0], 1)]  # two look for queues
    assert counts(bench) == [1, 1, 1]
    assert headers_of(bench.waiting("c")[0])["x-delay"] == -50
    assert not bench.flow.delayed


@pytest.mark.parametrize("steps", range(2, 5))
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("keep", list(Keep))
def test_a_crash_between_steps_leaves_the_message_once_in_each_queue(
    disk: FakeDisk, steps: int, checkpoint: bool, keep: Keep
) -> None:
    bench = Bench(disk, options=JournalOptions(segment_bytes=1024, compact_below=0.95))
    late(bench, "a", "b", "c")
    in_steps(bench)
    delay(bench, b"m" * 300)
    bench.sync()
    bench.advance(50)
    for step in range(steps):
        bench.advance(0)
        if step == 2:
            bench.sync()
    if checkpoint:
        bench.broker.journal.checkpoint(*snapshot(bench.broker))
        bench.sync()

    bench.crash(keep)
    in_steps(bench)
    finish(bench)

    assert counts(bench) == [1, 1, 1]
    assert not bench.flow.delayed


def test_a_crash_at_any_byte_of_a_step_leaves_the_message_once() -> None:
    cut, is_placed = 0, False
    while not is_placed:
        disk = FakeDisk(cut)
        bench = Bench(disk)
        late(bench, "a", "b", "c")
        in_steps(bench)
        delay(bench, b"m" * 40)
        bench.sync()
        bench.advance(50)
        while counts(bench) == [0, 0, 0]:
            bench.advance(0)
        disk.fail_write(1, partial=cut)
        bench.sync()

        bench.crash(Keep.EVERYTHING)

        is_placed = counts(bench) == [1, 0, 0]
        assert is_placed or counts(bench) == [0, 0, 0], cut
        assert cut < 2_000
        in_steps(bench)
        finish(bench)
        assert counts(bench) == [1, 1, 1], cut
        cut += 1
    assert cut > 100  # the record was cut in every place


def test_queues_that_are_deleted_or_full_between_steps_do_not_stop_it(bench: Bench) -> None:
    late(bench, "a", "b", "c")
    bench.declare("full", FULL)
    bench.broker.bind(bench.vhost, "late", "full", "k")
    bench.fill("full", b"old")
    in_steps(bench)
    delay(bench, b"m")
    bench.advance(50)
    bench.advance(0)
    bench.advance(0)

    bench.broker.delete_queue(bench.vhost, "b")
    finish(bench)

    assert (len(bench.queue("a")), len(bench.queue("c"))) == (1, 1)
    assert bench.bodies("full") == [b"old"]
    take(bench, "full")
    bench.advance(SECOND)
    bench.advance(SECOND)
    assert bench.bodies("full") == [b"m"]


def test_a_message_that_is_cancelled_between_steps_enters_no_further_queue(bench: Bench) -> None:
    late(bench, "a", "b", "c")
    in_steps(bench)
    delay(bench, b"m")
    bench.advance(50)
    bench.advance(0)
    bench.advance(0)
    (position,) = bench.flow.delayed

    assert bench.flow.delays.deliver(position)  # it is under way
    bench.flow.delays.cancel(position)
    finish(bench)

    assert counts(bench) == [1, 0, 0]
    assert not bench.flow.delayed


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

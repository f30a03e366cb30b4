"""What leaves a queue without an ack, or waits for its time, is not lost when it cannot be written."""

from collections.abc import Sequence

import pytest
from core_support import Bench, headers_of

from holtmq.broker import dead_lettering
from holtmq.broker.flow import PublishOutcome
from holtmq.broker.message import Message
from holtmq.broker.publish import publishing
from holtmq.journal import JournalFailed, file_journal
from holtmq.journal.fake_disk import FakeDisk

TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def reject_all(bench: Bench, name: str) -> None:
    """Take everything out of a queue and refuse it; the turn is still to come."""
    session = bench.session()
    taker = session.consume(name)
    session.reject(*taker.numbers())


def declare_late(bench: Bench) -> None:
    """A delayed exchange that leads to queue ``q``."""
    bench.declare("q")
    bench.broker.exchanges.declare(
        bench.vhost, "late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
    )
    bench.broker.bind(bench.vhost, "late", "q", "")


def refuse_writes(bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Every write raises this, from here on."""

    def append(kind: int, payload: bytes) -> int:
        if isinstance(error, JournalFailed):
            bench.journal.fail(str(error))
        raise error

    def append_batch(records: Sequence[tuple[int, bytes]]) -> list[int]:
        raise AssertionError(append(*records[0]))

    monkeypatch.setattr(bench.journal, "append", append)
    monkeypatch.setattr(bench.journal, "append_batch", append_batch)


def test_when_the_journal_fails_under_dead_letters_those_that_were_never_to_last_still_flow(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.declare("dead")
    bench.declare("q", TO_DEAD)
    bench.publish("q", b"lasts")
    bench.publish("q", b"brief", persistent=False)
    bench.sync()
    reject_all(bench, "q")

    refuse_writes(bench, monkeypatch, JournalFailed("no space left"))
    bench.turn()

    assert bench.bodies("dead") == [b"brief"]
    bench.crash()
    assert (bench.bodies("q"), bench.bodies("dead")) == ([b"lasts"], [])


def test_after_a_failure_dead_letters_that_were_never_to_last_still_flow(bench: Bench) -> None:
    bench.declare("full", {"x-max-length": 0, "x-overflow": "reject-publish-dlx", **TO_DEAD})
    bench.declare("dead")
    bench.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "full"})
    bench.publish("q", b"lasts")
    bench.publish("q", b"brief", persistent=False)
    bench.sync()
    session = bench.session()
    taker = session.consume("q")
    bench.journal.fail("no space left")

    session.reject(*taker.numbers())
    bench.turn()

    assert bench.bodies("dead") == [b"brief"]
    deaths = headers_of(bench.waiting("dead")[0])["x-death"]
    assert isinstance(deaths, list)
    assert len(deaths) == 2


def test_dead_letters_that_could_not_be_written_are_still_to_go(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.declare("dead")
    bench.declare("q", TO_DEAD)
    bench.fill("q", b"a", b"b")
    bench.publish("q", b"acked")
    bench.sync()
    session = bench.session()
    first, second, third = session.consume("q").numbers()
    session.reject(first, second)
    session.ack(third)

    with monkeypatch.context() as patch:
        refuse_writes(bench, patch, ValueError("too much"))
        with pytest.raises(ValueError, match="too much"):
            bench.turn()

    assert bench.bodies("dead") == []
    bench.flow.touch(bench.queue("q"))
    bench.sync()
    bench.crash()
    assert (bench.bodies("q"), bench.bodies("dead")) == ([], [b"a", b"b"])


def test_a_checkpoint_knows_what_is_still_to_go(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.declare("dead")
    bench.declare("q", TO_DEAD)
    bench.fill("q", b"a", b"b")
    bench.sync()
    reject_all(bench, "q")

    with monkeypatch.context() as patch:
        refuse_writes(bench, patch, ValueError("too much"))
        with pytest.raises(ValueError, match="too much"):
            bench.turn()
    bench.checkpoint()
    bench.crash()

    assert (bench.bodies("q"), bench.queue("q").bytes) == ([b"a", b"b"], 2)


def test_more_dead_letters_than_one_record_may_hold_take_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_lettering, "_CAST_OUT_BYTES", 2_000)
    monkeypatch.setattr(file_journal, "MAX_PAYLOAD", 8_000)  # which a segment of 4 KiB makes sure to look at
    bench = Bench(FakeDisk())
    bench.declare("dead")
    bench.declare("q", TO_DEAD)
    bodies = [b"%03d" % n * 100 for n in range(40)]
    bench.fill("q", *bodies)

    bench.broker.policy_changes.put("/", "short", "^q$", {"max-length": 0})
    bench.flow.complete()
    bench.sync()
    bench.crash()

    assert (bench.bodies("q"), bench.bodies("dead")) == ([], bodies)


def test_a_delayed_message_that_could_not_be_written_comes_after_a_restart(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_late(bench)
    bench.publish("", b"late", exchange="late", headers={"x-delay": 50})
    bench.publish("", b"later", exchange="late", headers={"x-delay": 60})
    bench.sync()

    with monkeypatch.context() as patch:
        refuse_writes(bench, patch, ValueError("too much"))
        with pytest.raises(ValueError, match="too much"):
            bench.advance(60)
    bench.advance(0)
    assert bench.bodies("q") == [b"later"]  # its timer was due in the same moment, behind the other's

    bench.checkpoint()
    bench.crash()
    bench.advance(0)
    assert bench.bodies("q") == [b"later", b"late"]


def test_a_delayed_message_that_cannot_be_placed_leaves_no_batch_open(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_late(bench)
    bench.publish("", b"late", exchange="late", headers={"x-delay": 50})

    def broken(message: Message, queue_ids: bytes) -> bytes:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "encode_message", broken)
        with pytest.raises(RuntimeError, match="a bug"):
            bench.advance(50)

    assert bench.publish("q", b"m") is PublishOutcome.JOURNALLED
    assert bench.bodies("q") == [b"m"]

"""Messages that wait to be dead-lettered: the work for each is the same however many wait, and few wait."""

import pytest
from core_support import Bench

from holtmq.broker.message import Message
from holtmq.broker.publish.publishing import PublishOutcome
from holtmq.broker.turn_limits import TurnLimits
from holtmq.broker.work import outcasts
from holtmq.broker.work.outcasts import Outcast, Outcasts, Reason
from holtmq.journal.fake_disk import FakeDisk
from holtmq.wire.tables import FieldTable

COUNT = 600
MOST = 20
BODIES = [f"{number}".encode() for number in range(COUNT)]
LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


class CountingOutcasts(Outcasts):
    """Counts the messages that it touches."""

    touched = 0

    def add(self, reason: Reason, message: Message) -> None:
        self.touched += 1
        super().add(reason, message)

    def first(self, count: int, most_bytes: int) -> list[Outcast]:
        found = super().first(count, most_bytes)
        self.touched += len(found)
        return found

    def remove(self, count: int) -> None:
        self.touched += count
        super().remove(count)

    def take_all(self) -> list[Outcast]:
        self.touched += len(self)
        return super().take_all()

    def append(self, newer: Outcasts) -> None:
        self.touched += len(newer)
        super().append(newer)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(outcasts, "MOST", MOST)
    bench = Bench(FakeDisk())
    bench.flow.per_turn = TurnLimits(dead_letters=7, expired=50)
    bench.declare("dead")
    return bench


def most_outcasts(bench: Bench, queue: str = "q") -> int:
    """End turns until nothing is left to do; the most messages that waited after one of them."""
    most = len(bench.queue(queue).outcasts)
    while bench.flow.dirty:
        bench.turn()
        most = max(most, len(bench.queue(queue).outcasts))
    return most


@pytest.mark.parametrize("at_once", [1, 7])
def test_each_is_touched_as_often_however_many_wait(bench: Bench, at_once: int) -> None:
    queue = bench.declare("q", LETTERS)
    bench.fill("q", *BODIES)
    session = bench.session()
    session.consume("q")
    queue.outcasts = counting = CountingOutcasts()
    session.reject(*range(1, COUNT + 1))
    session.close()

    for _ in bench.broker.removals.cast_out(queue, at_once):
        pass

    assert counting.touched == 4 * COUNT  # added, found twice, removed; a copied list touches 100 times
    assert bench.bodies("dead") == BODIES


def test_a_publisher_waits_for_the_dead_letters_of_a_full_queue(bench: Bench) -> None:
    queue = bench.declare("q", {"x-max-length": 5, **LETTERS})
    longest = most = 0

    for body in BODIES:
        bench.publish("q", body, turn=False)
        longest, most = max(longest, len(queue)), max(most, len(queue.outcasts))

    assert longest <= 6
    assert most <= MOST
    most_outcasts(bench)
    assert bench.bodies("q") == BODIES[-5:]
    assert bench.bodies("dead") == BODIES[:-5]


def test_a_publisher_brings_a_queue_back_to_a_new_limit(bench: Bench) -> None:
    queue = bench.declare("q", LETTERS)
    bench.fill("q", *BODIES[:300])
    bench.broker.policy_changes.put("/", "short", "^q$", {"max-length": 5})

    for body in BODIES[300:]:
        bench.publish("q", body, turn=False)

    assert len(queue) <= 6
    most_outcasts(bench)
    assert bench.bodies("q") == BODIES[-5:]
    assert bench.bodies("dead") == BODIES[:-5]


def test_messages_of_one_transaction_wait_in_the_queue(bench: Bench) -> None:
    queue = bench.declare("q", {"x-max-length": 5, **LETTERS})

    bench.flow.begin()
    for body in BODIES:
        bench.publish("q", body, turn=False)
    bench.flow.commit()

    assert len(queue.outcasts) == MOST
    assert len(queue) == COUNT - MOST
    assert most_outcasts(bench) == MOST
    assert bench.bodies("q") == BODIES[-5:]
    assert bench.bodies("dead") == BODIES[:-5]


def test_large_messages_wait_in_the_queue_sooner(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcasts, "MOST_BYTES", 5_000)
    queue = bench.declare("q", {"x-max-length": 1, **LETTERS})

    bench.flow.begin()
    for number in range(9):
        bench.publish("q", b"%d" % number * 2_000, turn=False)
    bench.flow.commit()

    assert len(queue.outcasts) == 3
    assert most_outcasts(bench) == 3
    assert len(bench.bodies("dead")) == 8


def test_a_publisher_that_is_refused_keeps_pace_with_the_dead_letters(bench: Bench) -> None:
    queue = bench.declare("q", {"x-max-length": 5, "x-overflow": "reject-publish-dlx", **LETTERS})

    outcomes = [bench.publish("q", body, turn=False) for body in BODIES]

    assert outcomes[5:] == [PublishOutcome.REFUSED] * (COUNT - 5)
    assert len(queue.outcasts) <= MOST
    most_outcasts(bench)
    assert bench.bodies("dead") == BODIES[5:]


def test_a_policy_reads_a_deep_queue_no_faster_than_it_is_dead_lettered(bench: Bench) -> None:
    bench.declare("q", LETTERS)
    bench.fill("q", *BODIES)

    bench.broker.policy_changes.put("/", "short", "^q$", {"max-length": 10})

    assert most_outcasts(bench) == MOST
    assert bench.bodies("q") == BODIES[-10:]
    assert bench.bodies("dead") == BODIES[:-10]


def test_a_restart_does_not_read_all_that_is_beyond_a_limit_at_once(bench: Bench) -> None:
    bench.declare("q", LETTERS)
    bench.fill("q", *BODIES)
    bench.broker.policy_changes.put("/", "short", "^q$", {"max-length": 10})
    bench.sync()

    bench.crash()

    assert len(bench.queue("q")) > COUNT // 2
    most_outcasts(bench)
    assert bench.bodies("q") == BODIES[-10:]
    assert bench.bodies("dead") == BODIES[:-10]


def test_messages_that_expire_together_wait_in_the_queue(bench: Bench) -> None:
    bench.declare("q", {"x-message-ttl": 1_000, **LETTERS})
    bench.fill("q", *BODIES)

    bench.advance(2_000)

    assert MOST <= most_outcasts(bench) < MOST + 50
    assert bench.bodies("dead") == BODIES


def test_a_consumer_waits_for_a_message_behind_very_many_expired_ones(bench: Bench) -> None:
    queue = bench.declare("q", LETTERS)
    for body in BODIES:
        bench.publish("q", body, expiration="1000", turn=False)
    bench.publish("q", b"lives", turn=False)
    bench.now_ms += 2_000
    bench.flow.now_ms = bench.now_ms

    taker = bench.session().consume("q")

    assert taker.got == []
    assert len(queue.outcasts) < COUNT // 2
    most_outcasts(bench)
    assert taker.got == [b"lives"]
    assert bench.bodies("dead") == BODIES


def test_a_refused_message_that_was_never_in_the_queue_is_not_taken_from_its_size(bench: Bench) -> None:
    bench.declare("q", {"x-max-length": 5, "x-overflow": "reject-publish-dlx", **LETTERS})
    for body in BODIES[:40]:
        bench.publish("q", body, turn=False)
    most_outcasts(bench)
    bench.sync()

    bench.crash()

    assert bench.bodies("q") == BODIES[:5]
    assert bench.queue("q").bytes == sum(map(len, BODIES[:5]))
    assert bench.bodies("dead") == BODIES[5:40]


def test_dead_letters_with_long_headers_are_more_work_than_others(bench: Bench) -> None:
    bench.declare("q", LETTERS)
    long: FieldTable = {f"h{number}": number for number in range(200)}  # 5 times the work of another
    for body in BODIES[:8]:
        bench.publish("q", body, headers=long if int(body) < 4 else None)
    session = bench.session()
    session.consume("q")
    session.reject(*range(1, 9))

    done = []
    while bench.flow.dirty:
        bench.turn()
        done.append(len(bench.queue("dead")))

    assert done == [1, 2, 3, 6, 8]  # a turn does the work of 7 dead letters
    assert bench.bodies("dead") == BODIES[:8]


def test_a_dead_letter_of_any_length_is_made(bench: Bench) -> None:
    queue = bench.declare("q", LETTERS)
    bench.publish("q", b"x", headers={"h": "x" * 50_000})
    session = bench.session()
    session.consume("q")
    session.reject(1)

    for _ in bench.broker.removals.cast_out(queue, 1):
        pass

    assert bench.bodies("dead") == [b"x"]

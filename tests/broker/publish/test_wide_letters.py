"""A dead letter for very many queues enters some at a time, and is in the journal until it is in all."""

import pytest
from core_support import SMALL_SEGMENTS, Bench, headers_of

from holtmq.broker.turn_limits import TurnLimits
from holtmq.journal import JournalOptions
from holtmq.journal.fake_disk import FakeDisk, Keep

ALL = ("a", "b", "c", "d", "e")
TO_WIDE: dict[str, object] = {"x-dead-letter-exchange": "wide"}
OPTIONS = JournalOptions(segment_bytes=1024, compact_below=0.95)


@pytest.fixture
def bench() -> Bench:
    return prepared(FakeDisk(7))


def prepared(
    disk: FakeDisk,
    arguments: dict[str, object] = TO_WIDE,
    kind: str = "fanout",
    options: JournalOptions = OPTIONS,
) -> Bench:
    """A queue whose letters go to all others, two at a time. Those with ``one`` go to the last only."""
    bench = Bench(disk, options=options)
    bench.broker.exchanges.declare(bench.vhost, "wide", kind, durable=True)
    for name in ALL:
        bench.declare(name)
        bench.broker.bind(bench.vhost, "wide", name, "", {"to": "all"} if kind == "headers" else {})
    if kind == "headers":
        bench.broker.bind(bench.vhost, "wide", "e", "", {"to": "one"})
    bench.declare("dying", arguments)
    in_steps(bench)
    return bench


def in_steps(bench: Bench) -> None:
    bench.vhost.widest = 2
    bench.flow.per_turn = TurnLimits(copies=2)


def reject(bench: Bench, *bodies: bytes, to: str = "all") -> None:
    """Publish, get and reject these."""
    session = bench.session()
    for body in bodies:
        bench.publish("dying", body, headers={"to": to})
        lease = session.get("dying")
        assert lease is not None
        session.reject(lease.number)
    bench.turn()
    session.close()


def finish(bench: Bench) -> None:
    bench.turn()
    while bench.broker.long_changes:
        step(bench)


def step(bench: Bench) -> None:
    bench.advance(0)
    bench.turn()


def contents(bench: Bench) -> list[list[bytes]]:
    return [bench.bodies(name) for name in ALL]


def copies(bench: Bench) -> int:
    return sum(map(len, contents(bench)))


def test_a_letter_is_placed_in_steps(bench: Bench) -> None:
    seen = []

    reject(bench, b"m")
    while bench.broker.long_changes:
        seen.append((copies(bench), len(bench.flow.delayed), bench.flow.dead_lettering.count))
        step(bench)

    assert seen == [(0, 1, 0), (0, 1, 0), (2, 1, 0), (4, 1, 0)]
    assert contents(bench) == [[b"m"]] * 5
    assert not bench.flow.delayed
    assert bench.flow.dead_lettering.count == 1
    deaths = headers_of(bench.waiting("e")[0])["x-death"]
    assert isinstance(deaths, list)
    (death,) = deaths
    assert isinstance(death, dict)
    assert (death["queue"], death["reason"], death["count"]) == ("dying", "rejected", 1)


@pytest.mark.parametrize(
    ("reason", "arguments"),
    [
        ("expired", {"x-message-ttl": 10}),
        ("maxlen", {"x-max-length": 0}),
        ("maxlen", {"x-max-length": 0, "x-overflow": "reject-publish-dlx"}),
        ("delivery_limit", {"x-queue-type": "quorum", "x-delivery-limit": 0}),
    ],
)
def test_letters_of_every_reason_are_placed_in_steps(reason: str, arguments: dict[str, object]) -> None:
    bench = prepared(FakeDisk(1), TO_WIDE | arguments)

    bench.publish("dying", b"m")
    if reason == "delivery_limit":
        session = bench.session()
        lease = session.get("dying")
        assert lease is not None
        session.release(lease.number)
    bench.advance(20)
    assert bench.broker.long_changes
    finish(bench)

    assert contents(bench) == [[b"m"]] * 5
    assert headers_of(bench.waiting("a")[0])["x-last-death-reason"] == reason


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("keep", list(Keep))
def test_a_crash_between_steps_leaves_it_once_in_each_queue(steps: int, checkpoint: bool, keep: Keep) -> None:
    bench = prepared(FakeDisk(steps))
    bench.publish("dying", b"m" * 300)
    bench.sync()
    session = bench.session()
    lease = session.get("dying")
    assert lease is not None
    session.reject(lease.number)
    bench.turn()
    for number in range(steps):
        step(bench)
        if number == 2:
            bench.sync()
    if checkpoint:
        bench.checkpoint()

    bench.crash(keep)
    in_steps(bench)
    finish(bench)

    has_left = not bench.bodies("dying")
    assert has_left or not (checkpoint or steps > 2)
    assert contents(bench) == [[b"m" * 300] * has_left] * 5
    assert not bench.flow.delayed
    bench.read_back()


def test_a_crash_at_any_byte_leaves_it_in_its_queue_or_once_in_all_others() -> None:
    cut, ends = 0, set[bool]()
    while len(ends) < 2:
        bench = prepared(disk := FakeDisk(cut), options=SMALL_SEGMENTS)
        bench.publish("dying", b"m" * 40)
        bench.sync()
        disk.fail_write(1, partial=cut)
        session = bench.session()
        lease = session.get("dying")
        assert lease is not None
        session.reject(lease.number)
        bench.sync()

        bench.crash(Keep.EVERYTHING)
        in_steps(bench)
        finish(bench)

        has_left = not bench.bodies("dying")
        ends.add(has_left)
        assert contents(bench) == [[b"m" * 40] * has_left] * 5, cut
        cut += 5
        assert cut < 2_000
    assert cut > 50


@pytest.mark.parametrize("crash_after", [None, 0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_letters_behind_it_wait_for_it(crash_after: int | None, checkpoint: bool) -> None:
    bench = prepared(FakeDisk(3), kind="headers")
    reject(bench, b"1")
    reject(bench, b"2", to="one")
    reject(bench, b"3")
    reject(bench, b"4", to="one")
    assert bench.bodies("e") == []
    if crash_after is not None:
        for _ in range(crash_after):
            step(bench)
        if checkpoint:
            bench.checkpoint()
        bench.sync()
        bench.crash()
        in_steps(bench)

    reject(bench, b"5", to="one")
    finish(bench)

    assert contents(bench) == [[b"1", b"3"]] * 4 + [[b"1", b"2", b"3", b"4", b"5"]]


def test_many_letters_wait_in_the_journal_and_one_is_placed_at_a_time(bench: Bench) -> None:
    bodies = [b"%d" % number for number in range(50)]

    reject(bench, *bodies)

    assert not bench.queue("dying").outcasts
    assert len(bench.broker.long_changes) == 1
    assert len(bench.flow.delayed) == len(bodies)
    finish(bench)
    assert contents(bench) == [bodies] * 5
    assert bench.flow.dead_lettering.count == len(bodies)


def test_queues_that_wait_for_their_turn_do_not_add_up(bench: Bench) -> None:
    for number in range(20):
        bench.declare(f"more-{number}")
        bench.broker.bind(bench.vhost, "wide", f"more-{number}", "")
    reject(bench, b"m")
    bench.flow.per_turn = TurnLimits(copies=2, queues=1)
    waiting = []

    while bench.broker.long_changes:
        bench.flow.tick()
        bench.turn()
        waiting.append(len(bench.flow.dirty))

    assert max(waiting) <= 3
    assert len(bench.bodies("more-19")) == 1


def test_an_expired_letter_does_not_return_to_its_queue_and_a_rejected_one_does() -> None:
    bench = prepared(FakeDisk(1), TO_WIDE | {"x-message-ttl": 10})
    bench.broker.bind(bench.vhost, "wide", "dying", "")

    bench.publish("dying", b"expired")
    bench.advance(20)
    finish(bench)
    assert contents(bench) == [[b"expired"]] * 5
    assert bench.bodies("dying") == []

    reject(bench, b"rejected")
    finish(bench)
    assert bench.bodies("dying") == [b"rejected"]


def test_a_source_that_is_deleted_meanwhile_has_given_all_its_letters(bench: Bench) -> None:
    bench.fill("dying", b"1", b"2", b"3")
    session = bench.session()
    leases = [session.get("dying") for _ in range(3)]
    session.reject(*[lease.number for lease in leases if lease is not None])

    bench.broker.delete_queue(bench.vhost, "dying")
    finish(bench)

    assert contents(bench) == [[b"1", b"2", b"3"]] * 5


def test_a_target_that_is_deleted_meanwhile_is_left_out(bench: Bench) -> None:
    reject(bench, b"m")
    step(bench)
    step(bench)

    bench.broker.delete_queue(bench.vhost, "e")
    finish(bench)

    assert [bench.bodies(name) for name in "abcd"] == [[b"m"]] * 4


def test_letters_in_line_for_an_exchange_that_is_deleted_are_dropped(bench: Bench) -> None:
    reject(bench, b"1", b"2")
    step(bench)
    step(bench)

    bench.broker.exchanges.delete(bench.vhost, "wide")
    finish(bench)

    assert contents(bench) == [[b"1"]] * 5  # its queues were known
    assert not bench.flow.delayed


def test_a_full_target_refuses_a_letter_as_it_does_for_few_queues(bench: Bench) -> None:
    bench.declare("dead")
    bench.declare("full", {"x-max-length": 0, "x-overflow": "reject-publish"})
    bench.declare(
        "passes",
        {
            "x-max-length": 0,
            "x-overflow": "reject-publish-dlx",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        },
    )
    for name in ("full", "passes"):
        bench.broker.bind(bench.vhost, "wide", name, "")

    reject(bench, b"m")
    finish(bench)

    assert contents(bench) == [[b"m"]] * 5
    assert (bench.bodies("full"), bench.bodies("passes"), bench.bodies("dead")) == ([], [], [b"m"])
    assert not bench.flow.delayed


def test_an_exchange_on_the_way_delays_it(bench: Bench) -> None:
    bench.broker.exchanges.declare(
        bench.vhost, "late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
    )
    bench.broker.bind(bench.vhost, "wide", "late", "", to_exchange=True)
    bench.declare("later")
    bench.broker.bind(bench.vhost, "late", "later", "")

    bench.publish("dying", b"m", headers={"x-delay": 500})
    session = bench.session()
    lease = session.get("dying")
    assert lease is not None
    session.reject(lease.number)
    finish(bench)

    assert contents(bench) == [[b"m"]] * 5
    assert headers_of(bench.waiting("e")[0])["x-delay"] == 500
    assert (bench.bodies("later"), len(bench.flow.delayed)) == ([], 1)
    bench.advance(500)
    assert bench.bodies("later") == [b"m"]


def test_transient_letters_are_placed_in_steps(bench: Bench) -> None:
    bench.publish("dying", b"m", persistent=False)
    session = bench.session()
    lease = session.get("dying")
    assert lease is not None
    session.reject(lease.number)

    finish(bench)

    assert contents(bench) == [[b"m"]] * 5
    bench.sync()
    bench.crash()
    assert contents(bench) == [[]] * 5


def test_a_node_that_stops_leaves_letters_in_line_for_its_next_start(bench: Bench) -> None:
    reject(bench, b"1", b"2", b"3")

    bench.broker.complete()
    assert copies(bench) == 0
    bench.restart()
    in_steps(bench)
    finish(bench)

    assert contents(bench) == [[b"1", b"2", b"3"]] * 5


def test_delayed_messages_that_are_due_together_are_placed_one_after_the_other(bench: Bench) -> None:
    bodies = [b"%d" % number for number in range(40)]
    bench.broker.exchanges.declare(
        bench.vhost, "late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
    )
    for name in ALL:
        bench.broker.bind(bench.vhost, "late", name, "")
    for body in bodies:
        bench.publish("", body, exchange="late", headers={"x-delay": 50})

    bench.advance(50)

    assert len(bench.broker.long_changes) == 1
    finish(bench)
    assert contents(bench) == [bodies] * 5

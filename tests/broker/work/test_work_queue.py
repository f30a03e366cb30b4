"""A work queue: who is served, what comes back where, what is counted."""

import pytest
from core_support import Bench, Session, Taker, drain

from holtmq.broker.errors import AccessRefused
from holtmq.broker.flow import PublishOutcome


class SharedRoom(Taker):
    """A consumer whose channel has one limit for all its consumers."""

    limit = 1

    def room(self) -> int:
        return self.limit - len(self.session.ledger)


def share_room(session: Session, queue: str) -> SharedRoom:
    taker = SharedRoom(session, session.bench.queue(queue), 0, False, 0)
    session.bench.broker.consume(taker.queue, taker)
    session.consumers.append(taker)
    return taker


def test_consumers_take_turns(bench: Bench) -> None:
    bench.declare("q")
    session = bench.session()
    one, other = session.consume("q"), session.consume("q")

    bench.fill("q", *[b"%d" % n for n in range(6)])

    assert (len(one.got), len(other.got)) == (3, 3)
    assert sorted(one.got + other.got) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_single_messages_go_to_consumers_in_turn(bench: Bench) -> None:
    bench.declare("q")
    session = bench.session()
    takers = [session.consume("q") for _ in range(3)]

    for n in range(6):
        bench.publish("q", b"%d" % n)

    assert [len(taker.got) for taker in takers] == [2, 2, 2]


def test_a_consumer_never_gets_more_than_its_prefetch(bench: Bench) -> None:
    bench.declare("q")
    session = bench.session()
    taker = session.consume("q", prefetch=3)

    bench.fill("q", *[b"%d" % n for n in range(10)])
    assert taker.got == [b"0", b"1", b"2"]

    session.ack(1)
    bench.turn()
    assert taker.got == [b"0", b"1", b"2", b"3"]


def test_consumers_of_a_higher_priority_are_served_first_until_they_are_full(bench: Bench) -> None:
    bench.declare("q")
    session = bench.session()
    low = session.consume("q", prefetch=10)
    high = session.consume("q", prefetch=2, priority=5)

    bench.fill("q", *[b"%d" % n for n in range(5)])

    assert (high.got, low.got) == ([b"0", b"1"], [b"2", b"3", b"4"])


def test_two_consumers_that_share_a_channels_limit_do_not_exceed_it(bench: Bench) -> None:
    bench.declare("q")
    session = bench.session()
    one, other = share_room(session, "q"), share_room(session, "q")

    bench.fill("q", b"a", b"b", b"c")

    assert one.got + other.got == [b"a"]
    assert bench.bodies("q") == [b"b", b"c"]
    assert bench.queue("q").unacked == 1


def test_a_limit_shared_by_some_lets_nobody_overtake(bench: Bench) -> None:
    bench.declare("q")
    shared, alone = bench.session(), bench.session()
    share_room(shared, "q")
    share_room(shared, "q")
    other = alone.consume("q", prefetch=10, turn=False)

    bench.fill("q", *[b"%d" % n for n in range(6)])

    assert other.got == sorted(other.got)
    assert bench.queue("q").unacked == 6


def test_a_single_active_consumer_gets_everything_and_the_next_one_follows(bench: Bench) -> None:
    bench.declare("q", {"x-single-active-consumer": True})
    session = bench.session()
    first, second = session.consume("q", prefetch=2), session.consume("q")
    bench.fill("q", b"a", b"b", b"c")
    assert (first.got, second.got) == ([b"a", b"b"], [])

    session.cancel(first)
    bench.turn()

    assert second.got == [b"a", b"b", b"c"]


def test_an_exclusive_consumer_is_alone(bench: Bench) -> None:
    bench.declare("q")
    session = bench.session()
    session.consume("q", exclusive=True)

    with pytest.raises(AccessRefused, match="in exclusive use"):
        session.consume("q")


def test_nobody_becomes_exclusive_beside_others(bench: Bench) -> None:
    bench.declare("q")
    session = bench.session()
    taker = session.consume("q")

    with pytest.raises(AccessRefused, match="in exclusive use"):
        session.consume("q", exclusive=True)
    session.cancel(taker)
    session.consume("q", exclusive=True)


def test_a_no_ack_consumer_leaves_nothing_behind(bench: Bench) -> None:
    bench.declare("q")
    taker = bench.session().consume("q", no_ack=True)

    bench.fill("q", b"a", b"b")
    bench.sync()
    bench.crash()

    assert taker.got == [b"a", b"b"]
    assert (bench.bodies("q"), bench.queue("q").bytes) == ([], 0)


@pytest.mark.usefixtures("small_pages")
def test_what_many_consumers_give_back_in_any_order_ends_in_arrival_order(bench: Bench) -> None:
    bench.declare("q")
    bodies = [b"%03d" % n for n in range(60)]
    bench.fill("q", *bodies)
    sessions = [bench.session() for _ in range(4)]
    for session in sessions:
        session.consume("q", prefetch=9, turn=False)
    bench.turn()

    for at in (2, 0, 3, 1):
        sessions[at].close()
        bench.turn()

    assert bench.bodies("q") == bodies
    assert (bench.queue("q").unacked, bench.queue("q").bytes) == (0, 180)


def test_a_released_message_is_redelivered_at_its_old_place(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"a", b"b")
    session = bench.session()
    lease = session.get("q")
    assert lease is not None

    session.release(lease.number)
    bench.turn()
    taker = session.consume("q")

    assert (taker.got, taker.redelivered) == ([b"a", b"b"], [b"a"])


def test_a_cancelled_consumers_messages_go_back_and_a_late_ack_removes_one(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"a", b"b")
    session = bench.session()
    numbers = session.cancel(session.consume("q"))
    assert bench.bodies("q") == [b"a", b"b"]

    session.ack(numbers[0])
    bench.sync()

    assert bench.bodies("q") == [b"b"]
    bench.crash()
    assert bench.bodies("q") == [b"b"]


def test_a_late_ack_of_what_another_took_is_ignored(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"a")
    session, other = bench.session(), bench.session()
    (number,) = session.cancel(session.consume("q"))
    lease = other.get("q")

    session.ack(number)
    bench.turn()

    assert lease is not None
    assert bench.queue("q").unacked == 1
    other.release(lease.number)
    assert bench.bodies("q") == [b"a"]


@pytest.mark.usefixtures("small_pages")
def test_late_acks_find_their_messages_after_they_were_paged_out_and_in(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", *[b"%02d" % n for n in range(30)])
    session = bench.session()
    numbers = session.cancel(session.consume("q", prefetch=20))
    bench.turn()
    peeked = bench.queue("q").store.peek(bench.flow.pager)
    assert peeked is not None

    session.ack(*numbers)
    bench.turn()

    assert bench.bodies("q") == [b"%02d" % n for n in range(20, 30)]
    assert bench.queue("q").bytes == 20


def test_a_late_ack_finds_a_message_that_waits_out_its_retry_delay(bench: Bench) -> None:
    bench.declare("q", {"x-retry-delay": 1000})
    bench.fill("q", b"a", b"b")
    session = bench.session()
    numbers = session.cancel(session.consume("q"))

    session.ack(numbers[0])
    bench.advance(1000)

    assert bench.bodies("q") == [b"b"]


def test_a_late_rejection_of_a_message_that_waits_out_its_delay_buries_it(bench: Bench) -> None:
    bench.declare("dead")
    bench.declare(
        "q", {"x-retry-delay": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    )
    bench.fill("q", b"a")
    session = bench.session()
    numbers = session.cancel(session.consume("q"))

    session.reject(*numbers)
    bench.advance(1000)

    assert (bench.bodies("q"), bench.bodies("dead")) == ([], [b"a"])
    assert bench.queue("q").unacked == 0


def test_a_retry_delay_grows_with_its_multiplier(bench: Bench) -> None:
    bench.declare("q", {"x-retry-delay": 100, "x-retry-multiplier": 3})
    bench.fill("q", b"a")
    session = bench.session()

    waited = []
    for _ in range(3):
        lease = session.get("q")
        assert lease is not None
        session.release(lease.number)
        bench.turn()
        waits = 0
        while not bench.bodies("q"):
            bench.advance(10)
            waits += 10
        waited.append(waits)

    assert waited == [100, 300, 900]


def test_a_delivery_limit_buries_a_message_that_came_back_once_too_often(bench: Bench) -> None:
    bench.declare("dead")
    bench.declare(
        "q", {"x-delivery-limit": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    )
    bench.fill("q", b"a")
    session = bench.session()

    for _ in range(3):
        lease = session.get("q")
        assert lease is not None
        session.release(lease.number)
        bench.turn()

    assert (bench.bodies("q"), bench.bodies("dead")) == ([], [b"a"])
    assert bench.queue("q").returned == {}


def test_a_purge_spares_what_is_unacked_and_its_count_of_returns(bench: Bench) -> None:
    bench.declare("q", {"x-delivery-limit": 1})
    bench.fill("q", b"a", b"b")
    session = bench.session()
    lease = session.get("q")
    assert lease is not None
    session.release(lease.number)
    lease = session.get("q")
    assert lease is not None

    assert bench.broker.purge_queue(bench.vhost, "q") == (1, True)
    session.release(lease.number)
    bench.turn()

    assert bench.bodies("q") == []  # its second return: over the limit


def test_a_queue_that_is_empty_remembers_no_returns(bench: Bench) -> None:
    queue = bench.declare("q")
    queue.returned[12345] = 3  # a message that recovery could not tell from one that is gone
    bench.fill("q", b"a")

    assert drain(bench, "q") == [b"a"]

    assert queue.returned == {}


def test_a_message_expires_when_its_time_is_over(bench: Bench) -> None:
    bench.declare("q", {"x-message-ttl": 100})
    bench.fill("q", b"a")

    bench.advance(99)
    assert bench.bodies("q") == [b"a"]
    bench.advance(1)
    assert (bench.bodies("q"), bench.queue("q").bytes) == ([], 0)


def test_the_lower_of_two_times_counts(bench: Bench) -> None:
    bench.declare("q", {"x-message-ttl": 100})
    bench.publish("q", b"a", expiration="30")

    bench.advance(30)

    assert bench.bodies("q") == []


def test_a_time_of_zero_delivers_now_or_never(bench: Bench) -> None:
    bench.declare("q", {"x-message-ttl": 0})
    bench.publish("q", b"lost")
    taker = bench.session().consume("q", prefetch=1)

    bench.publish("q", b"taken")
    bench.publish("q", b"too many")

    assert taker.got == [b"taken"]
    assert bench.bodies("q") == []


def test_a_message_that_comes_back_still_expires_although_the_queue_had_forgotten_times(
    bench: Bench,
) -> None:
    bench.declare("q")
    bench.publish("q", b"a", expiration="1000")
    session = bench.session()
    lease = session.get("q")
    assert lease is not None
    bench.publish("q", b"b", expiration="10")
    bench.advance(10)
    assert bench.bodies("q") == []

    session.release(lease.number)
    bench.turn()
    bench.advance(990)

    assert bench.bodies("q") == []


def test_a_message_behind_one_that_lives_expires_when_it_reaches_the_head(bench: Bench) -> None:
    bench.declare("q")
    bench.publish("q", b"lives")
    bench.publish("q", b"dies", expiration="10")
    bench.advance(10)
    assert bench.bodies("q") == [b"lives", b"dies"]

    assert drain(bench, "q") == [b"lives"]


def test_a_thousand_and_more_expire_in_several_turns(bench: Bench) -> None:
    bench.declare("q", {"x-message-ttl": 10})
    bench.fill("q", *[b"%d" % n for n in range(2500)])

    bench.advance(10)
    assert len(bench.queue("q")) == 1500
    bench.turn()
    bench.turn()

    assert (len(bench.queue("q")), bench.queue("q").bytes) == (0, 0)


def test_the_oldest_leaves_when_there_are_too_many(bench: Bench) -> None:
    bench.declare("q", {"x-max-length": 2})

    bench.fill("q", b"a", b"b", b"c")

    assert bench.bodies("q") == [b"b", b"c"]


def test_a_limit_in_bytes_drops_until_it_holds(bench: Bench) -> None:
    bench.declare("q", {"x-max-length-bytes": 5})

    bench.fill("q", b"aa", b"bb", b"cccc")

    assert (bench.bodies("q"), bench.queue("q").bytes) == ([b"cccc"], 4)


def test_consumers_are_served_before_the_limit_bites(bench: Bench) -> None:
    bench.declare("q", {"x-max-length": 0})
    taker = bench.session().consume("q", prefetch=1)

    bench.fill("q", b"a", b"b")

    assert (taker.got, bench.bodies("q")) == ([b"a"], [])


def test_a_limit_holds_for_what_comes_back(bench: Bench) -> None:
    bench.declare("q", {"x-max-length": 2})
    bench.fill("q", b"a", b"b")
    session = bench.session()
    session.consume("q", prefetch=2)
    bench.fill("q", b"c", b"d")

    session.close()
    bench.turn()

    assert bench.bodies("q") == [b"c", b"d"]


def test_a_queue_that_refuses_never_drops_what_it_has(bench: Bench) -> None:
    bench.declare("q", {"x-max-length": 2, "x-overflow": "reject-publish"})
    bench.fill("q", b"a", b"b")
    session = bench.session()
    session.consume("q", prefetch=1)

    assert bench.publish("q", b"c") is PublishOutcome.JOURNALLED
    session.close()
    bench.turn()

    assert bench.bodies("q") == [b"a", b"b", b"c"]
    assert bench.publish("q", b"d") is PublishOutcome.REFUSED


def test_a_queue_that_refuses_counts_the_bytes_of_the_newcomer(bench: Bench) -> None:
    bench.declare("q", {"x-max-length-bytes": 10, "x-overflow": "reject-publish"})

    assert bench.publish("q", b"123456") is PublishOutcome.JOURNALLED
    assert bench.publish("q", b"123456") is PublishOutcome.REFUSED
    assert bench.publish("q", b"1234") is PublishOutcome.JOURNALLED

    assert bench.bodies("q") == [b"123456", b"1234"]


def test_a_transaction_cannot_overfill_a_queue_that_refuses(bench: Bench) -> None:
    bench.declare("q", {"x-max-length": 2, "x-overflow": "reject-publish"})

    bench.flow.begin()
    outcomes = [bench.publish("q", b"%d" % n, turn=False) for n in range(4)]
    bench.flow.commit()
    bench.turn()

    assert outcomes == [
        PublishOutcome.JOURNALLED,
        PublishOutcome.JOURNALLED,
        PublishOutcome.REFUSED,
        PublishOutcome.REFUSED,
    ]
    assert bench.bodies("q") == [b"0", b"1"]


def test_what_is_refused_can_go_to_the_dead_letters(bench: Bench) -> None:
    bench.declare("dead")
    bench.declare(
        "q",
        {
            "x-max-length": 1,
            "x-overflow": "reject-publish-dlx",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        },
    )

    assert bench.publish("q", b"a") is PublishOutcome.JOURNALLED
    assert bench.publish("q", b"b") is PublishOutcome.REFUSED

    assert (bench.bodies("q"), bench.bodies("dead")) == ([b"a"], [b"b"])
    bench.sync()
    bench.crash()
    assert (bench.bodies("q"), bench.bodies("dead")) == ([b"a"], [b"b"])


def test_a_full_priority_queue_drops_the_least_urgent(bench: Bench) -> None:
    bench.declare("q", {"x-max-priority": 5, "x-max-length": 2})

    for body, priority in ((b"low", 1), (b"high", 5), (b"mid", 3)):
        bench.publish("q", body, priority=priority)

    assert bench.bodies("q") == [b"high", b"mid"]

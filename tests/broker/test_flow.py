"""Messages in motion: what is one record, what a turn finishes, what a failed journal still allows."""

from collections.abc import Sequence

import pytest
from core_support import START_MS, Bench, Taker, content_header, drain, headers_of

from holtmq.broker.flow import PublishOutcome
from holtmq.broker.message import Message, make_address, placed
from holtmq.broker.records.changes import Kind
from holtmq.broker.topology.destinations import Queue
from holtmq.journal import JournalFailed
from holtmq.wire.properties import encode_header

TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def kinds(bench: Bench) -> list[Kind]:
    """The records written so far, in order."""
    return [Kind(kind) for kind, _ in bench.journal._records.values()]


def test_a_persistent_message_in_a_durable_queue_is_journalled(bench: Bench) -> None:
    bench.declare("q")

    assert bench.publish("q", b"a") is PublishOutcome.JOURNALLED


def test_a_transient_message_is_placed_without_a_record(bench: Bench) -> None:
    bench.declare("q")
    before = bench.journal.end

    assert bench.publish("q", b"a", persistent=False) is PublishOutcome.PLACED
    assert bench.journal.end == before


def test_a_persistent_message_in_queues_that_do_not_last_is_not_journalled(bench: Bench) -> None:
    bench.declare("q", durable=False)

    assert bench.publish("q", b"a") is PublishOutcome.PLACED


def test_a_message_for_nobody_is_unrouted(bench: Bench) -> None:
    assert bench.publish("nobody", b"a") is PublishOutcome.UNROUTED


def test_a_body_on_many_queues_is_written_once(bench: Bench) -> None:
    for name in ("a", "b", "c"):
        bench.declare(name)
        bench.broker.bind(bench.vhost, "amq.fanout", name, "")

    bench.publish("", b"x" * 100, exchange="amq.fanout")

    assert kinds(bench).count(Kind.MESSAGE) == 1
    bench.sync()
    bench.crash()
    assert [bench.bodies(name) for name in ("a", "b", "c")] == [[b"x" * 100]] * 3


def test_one_publish_to_more_queues_than_a_short_number_counts_is_in_all_of_them(bench: Bench) -> None:
    names = [f"q{n}" for n in range(65_536)]
    bench.vhost.widest = len(names)
    for name in names:
        bench.declare(name)
        bench.broker.bind(bench.vhost, "amq.fanout", name, "")

    outcome = bench.publish("", b"m", exchange="amq.fanout", turn=False)

    assert outcome is PublishOutcome.JOURNALLED
    assert {len(bench.queue(name)) for name in names} == {1}
    records = [payload for kind, payload in bench.journal._records.values() if kind == Kind.MESSAGE]
    ids = {bench.queue(name).id for name in names}
    assert [set(placed(payload)[3]) for payload in records] == [ids]  # what a restart goes by


def test_extra_keys_reach_each_queue_once(bench: Bench) -> None:
    for name in ("a", "b"):
        bench.declare(name)

    bench.publish("a", b"m", headers={"CC": ["b", "a"], "BCC": ["b"]})

    assert (bench.bodies("a"), bench.bodies("b")) == ([b"m"], [b"m"])
    assert "BCC" not in headers_of(bench.waiting("b")[0])


def test_a_refused_copy_does_not_keep_the_others_out(bench: Bench) -> None:
    bench.declare("full", {"x-max-length": 0, "x-overflow": "reject-publish"})
    bench.declare("free")

    outcome = bench.publish("full", b"m", headers={"CC": ["free"]})

    assert outcome is PublishOutcome.REFUSED
    assert bench.bodies("free") == [b"m"]


def test_a_batch_is_one_record_with_publishes_and_acks(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"old")
    session = bench.session()
    lease = session.get("q")
    assert lease is not None
    bench.sync()

    bench.flow.begin()
    bench.publish("q", b"new", turn=False)
    session.ack(lease.number)
    assert bench.bodies("q") == []
    bench.flow.commit([bench.queue("q")])
    bench.turn()

    assert bench.bodies("q") == [b"new"]
    bench.sync()
    bench.crash()
    assert bench.bodies("q") == [b"new"]


def test_a_rejection_in_a_batch_is_part_of_its_record(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.declare("dead")
    bench.declare("q", TO_DEAD)
    bench.fill("q", b"old")
    session = bench.session()
    lease = session.get("q")
    assert lease is not None
    bench.turn()
    batches: list[list[int]] = []
    original = bench.journal.append_batch

    def append_batch(records: Sequence[tuple[int, bytes]]) -> list[int]:
        batches.append([kind for kind, _ in records])
        return original(records)

    monkeypatch.setattr(bench.journal, "append_batch", append_batch)

    bench.flow.begin()
    bench.publish("q", b"new", turn=False)
    session.reject(lease.number)
    bench.flow.commit([bench.queue("q")])
    bench.turn()

    assert batches == [[Kind.MESSAGE, Kind.MESSAGE, Kind.SETTLED]]
    assert (bench.bodies("q"), bench.bodies("dead")) == ([b"new"], [b"old"])


def test_a_delayed_publish_in_a_batch_waits_for_the_commit(bench: Bench) -> None:
    late(bench)
    before = kinds(bench)

    bench.flow.begin()
    bench.publish("q", b"m", exchange="late", headers={"x-delay": 50}, turn=False)
    assert kinds(bench) == before
    bench.flow.commit()
    bench.advance(50)

    assert bench.bodies("q") == [b"m"]


def test_a_batch_goes_where_the_topology_of_its_commit_leads(bench: Bench) -> None:
    bench.declare("q")
    route = bench.broker.resolve(bench.vhost, "", "q", make_address("", "q"))
    bench.broker.delete_queue(bench.vhost, "q")
    bench.declare("q")
    header = content_header(b"m")

    bench.flow.begin()
    bench.flow.publishing.publish(route, bench.flow.publish_properties.of(header), header, b"m")
    bench.flow.commit()
    bench.turn()

    assert bench.bodies("q") == [b"m"]


def test_an_aborted_batch_leaves_nothing(bench: Bench) -> None:
    bench.declare("q")
    bench.flow.begin()
    bench.publish("q", b"m", turn=False)

    bench.flow.abort()
    bench.flow.begin()
    bench.flow.commit()

    assert bench.bodies("q") == []


def test_a_dead_letter_leaves_and_arrives_in_one_record(bench: Bench) -> None:
    bench.declare("dead")
    bench.declare("q", TO_DEAD)
    bench.fill("q", b"m")
    session = bench.session()
    lease = session.get("q")
    assert lease is not None
    bench.sync()

    session.reject(lease.number)
    bench.turn()

    assert kinds(bench)[-2:] == [Kind.MESSAGE, Kind.SETTLED]
    bench.crash()
    assert (bench.bodies("q"), bench.bodies("dead")) == ([b"m"], [])


def test_a_message_dies_although_its_headers_are_nonsense(bench: Bench) -> None:
    bench.declare("dead")
    bench.declare("q", {**TO_DEAD, "x-max-length": 0})
    properties = (0x3000).to_bytes(2, "big") + (5).to_bytes(4, "big") + b"\xff\xff\xff\xff\xff" + b"\x02"
    header = encode_header(1, properties)
    route = bench.broker.resolve(bench.vhost, "", "q", make_address("", "q"))

    bench.flow.publishing.publish(route, bench.flow.publish_properties.of(header), header, b"m")
    bench.turn()

    assert bench.bodies("dead") == [b"m"]
    assert headers_of(bench.waiting("dead")[0])["x-last-death-reason"] == "maxlen"


def test_a_dead_letter_routing_key_takes_the_carbon_copies_away(bench: Bench) -> None:
    for name in ("dead", "copy"):
        bench.declare(name)
    bench.declare("q", {**TO_DEAD, "x-max-length": 0})

    bench.publish("q", b"m", headers={"CC": ["nobody"]})

    assert "CC" not in headers_of(bench.waiting("dead")[0])


def test_without_a_dead_letter_routing_key_the_copies_die_with_it(bench: Bench) -> None:
    bench.broker.exchanges.declare(bench.vhost, "dlx", "direct", durable=True)
    for name in ("dead", "copy"):
        bench.declare(name)
        bench.broker.bind(bench.vhost, "dlx", name, name)
    bench.declare("q", {"x-dead-letter-exchange": "dlx", "x-max-length": 0})
    bench.broker.bind(bench.vhost, "amq.direct", "q", "dead")

    bench.publish("dead", b"m", exchange="amq.direct", headers={"CC": ["copy"]})

    assert (bench.bodies("dead"), bench.bodies("copy")) == ([b"m"], [b"m"])


def test_a_circle_without_a_rejection_ends(bench: Bench) -> None:
    bench.declare("a", {"x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})
    bench.declare("b", {"x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"})
    bench.publish("a", b"m")

    bench.advance(10)
    assert bench.bodies("b") == [b"m"]
    bench.advance(10)

    assert (bench.bodies("a"), bench.bodies("b")) == ([], [])


def test_a_rejected_message_may_go_round_for_ever(bench: Bench) -> None:
    bench.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    bench.publish("q", b"m")
    session = bench.session()

    for count in (1, 2, 3):
        lease = session.get("q")
        assert lease is not None
        session.reject(lease.number)
        bench.turn()
        deaths = headers_of(bench.waiting("q")[0])["x-death"]
        assert isinstance(deaths, list)
        assert isinstance(deaths[0], dict)
        assert (len(deaths), deaths[0]["count"]) == (1, count)


def test_an_expired_message_loses_its_own_time_and_keeps_its_priority(bench: Bench) -> None:
    bench.declare("dead", {"x-max-priority": 5})
    bench.declare("q", TO_DEAD)
    bench.publish("q", b"m", expiration="10", priority=4)

    bench.advance(10)

    (found,) = bench.waiting("dead")
    assert (found.expires_ms, found.priority) == (0, 4)


def test_a_dead_letter_exchange_that_is_missing_lets_the_message_go(bench: Bench) -> None:
    bench.declare("q", {"x-dead-letter-exchange": "nowhere", "x-max-length": 0})

    bench.publish("q", b"m")
    bench.sync()
    bench.crash()

    assert (bench.bodies("q"), bench.queue("q").bytes) == ([], 0)


def test_a_dead_letter_can_be_delayed(bench: Bench) -> None:
    late(bench)
    bench.declare(
        "src", {"x-dead-letter-exchange": "late", "x-dead-letter-routing-key": "q", "x-max-length": 0}
    )

    bench.publish("src", b"m", headers={"x-delay": 50})
    bench.sync()
    bench.crash()
    assert bench.bodies("q") == []
    bench.advance(50)

    assert bench.bodies("q") == [b"m"]


def late(bench: Bench) -> None:
    """A delayed exchange that leads to queue ``q``."""
    bench.declare("q")
    bench.broker.exchanges.declare(
        bench.vhost, "late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
    )
    bench.broker.bind(bench.vhost, "late", "q", "q")


def test_a_delayed_message_comes_when_it_is_due_and_says_that_it_waited(bench: Bench) -> None:
    late(bench)
    bench.publish("q", b"m", exchange="late", headers={"x-delay": 50})

    bench.advance(49)
    assert bench.bodies("q") == []
    bench.advance(1)

    assert headers_of(bench.waiting("q")[0])["x-delay"] == -50


def test_a_delayed_message_with_copies_arrives_once_in_each_queue(bench: Bench) -> None:
    late(bench)
    for name in ("cc", "bcc"):
        bench.declare(name)
        bench.broker.bind(bench.vhost, "late", name, name)
    bench.publish("q", b"m", exchange="late", headers={"x-delay": 50, "CC": ["cc"], "BCC": ["bcc"]})

    bench.advance(50)

    assert [bench.bodies(name) for name in ("q", "cc", "bcc")] == [[b"m"]] * 3
    assert "BCC" not in headers_of(bench.waiting("q")[0])


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_delay_goes_on_after_a_restart(bench: Bench, checkpoint: bool) -> None:
    late(bench)
    bench.publish("q", b"lasts", exchange="late", headers={"x-delay": 50})
    bench.publish("q", b"goes", exchange="late", persistent=False, headers={"x-delay": 50})
    bench.advance(20)
    if checkpoint:
        bench.checkpoint()
    bench.sync()

    bench.crash()
    bench.advance(29)
    assert bench.bodies("q") == []
    bench.advance(1)

    assert bench.bodies("q") == [b"lasts"]
    bench.sync()
    bench.crash()
    bench.advance(100)
    assert bench.bodies("q") == [b"lasts"]


def test_a_messages_own_time_begins_when_its_delay_ends(bench: Bench) -> None:
    late(bench)
    bench.publish("q", b"m", exchange="late", expiration="30", headers={"x-delay": 50})

    bench.advance(50)
    assert bench.bodies("q") == [b"m"]
    bench.advance(30)

    assert bench.bodies("q") == []


def fail(bench: Bench) -> None:
    bench.journal.fail("no space left")


def test_after_a_failure_a_persistent_message_is_refused_aloud(bench: Bench) -> None:
    bench.declare("q")
    fail(bench)

    with pytest.raises(JournalFailed, match="no space left"):
        bench.publish("q", b"m")
    bench.turn()
    assert bench.bodies("q") == []


def test_after_a_failure_what_was_never_to_last_still_flows(bench: Bench) -> None:
    bench.declare("q", durable=False)
    fail(bench)

    bench.publish("q", b"m", persistent=False)

    assert drain(bench, "q") == [b"m"]


def test_acks_after_a_failure_come_back_after_the_restart(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"a", b"b")
    bench.sync()
    session = bench.session()
    taker = session.consume("q")
    fail(bench)

    session.ack(*taker.numbers())
    bench.turn()
    bench.crash()

    assert bench.bodies("q") == [b"a", b"b"]
    assert bench.queue("q").bytes == 2


def test_after_a_failure_nothing_is_delivered_whose_ack_could_not_be_kept(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"a")
    bench.sync()
    fail(bench)

    taker = bench.session().consume("q")
    bench.turn()

    assert taker.got == []
    with pytest.raises(JournalFailed):
        bench.session().get("q")
    bench.crash()
    assert drain(bench, "q") == [b"a"]


def test_after_a_failure_a_rejection_ends_the_lease_and_the_turn_goes_on(bench: Bench) -> None:
    bench.declare("dead")
    bench.declare("q", TO_DEAD)
    bench.fill("q", b"a")
    bench.sync()
    session = bench.session()
    lease = session.get("q")
    assert lease is not None
    fail(bench)

    session.reject(lease.number)
    bench.turn()
    bench.crash()

    assert (bench.bodies("q"), bench.bodies("dead")) == ([b"a"], [])


def test_after_a_failure_a_delay_that_ends_hurts_nobody(bench: Bench) -> None:
    late(bench)
    bench.publish("q", b"m", exchange="late", headers={"x-delay": 50})
    bench.sync()
    fail(bench)

    bench.advance(50)
    bench.crash()
    bench.advance(0)

    assert bench.bodies("q") == [b"m"]


def test_after_a_failure_a_release_with_a_delivery_limit_still_works(bench: Bench) -> None:
    bench.declare("q", {"x-delivery-limit": 5})
    bench.fill("q", b"a")
    session = bench.session()
    lease = session.get("q")
    assert lease is not None
    fail(bench)

    session.release(lease.number)
    bench.turn()

    assert bench.bodies("q") == [b"a"]


@pytest.mark.usefixtures("small_pages")
class Broken(Taker):
    """A consumer with a bug."""

    def deliver(self, queue: Queue, messages: list[Message]) -> None:
        raise RuntimeError("a bug")


def test_one_queues_trouble_does_not_leave_the_others_waiting(bench: Bench) -> None:
    woken: list[int] = []
    session = bench.session()
    for name in ("bad", "good"):
        bench.declare(name)
    broken = Broken(session, bench.queue("bad"), 0, False, 0)
    bench.broker.consume(broken.queue, broken)
    taker = session.consume("good", turn=False)
    bench.turn()
    bench.flow.on_dirty = lambda: woken.append(1)
    bench.publish("bad", b"m", turn=False)
    bench.publish("good", b"m", turn=False)
    woken.clear()

    with pytest.raises(RuntimeError, match="a bug"):
        bench.turn()
    assert woken == [1]
    bench.turn()

    assert taker.got == [b"m"]


def test_the_first_queue_that_becomes_dirty_wakes_the_node_once(bench: Bench) -> None:
    woken: list[int] = []
    bench.declare("q")
    bench.turn()
    bench.flow.on_dirty = lambda: woken.append(1)

    bench.publish("q", b"a", turn=False)
    bench.publish("q", b"b", turn=False)

    assert woken == [1]


@pytest.mark.usefixtures("small_pages")
def test_bytes_and_counts_are_exact_through_everything(bench: Bench) -> None:
    bench.declare("q", {"x-max-priority": 3, "x-max-length": 60, "x-delivery-limit": 2})
    session, other = bench.session(), bench.session()
    for n in range(100):
        bench.publish("q", b"x" * (n % 7), priority=n % 5, persistent=n % 3 > 0, turn=n % 4 == 0)
    taker = session.consume("q", prefetch=15)
    other.consume("q", prefetch=4, priority=2)
    session.release(*taker.numbers()[::2])
    bench.turn()
    session.ack(*taker.numbers()[:5])
    late_numbers = session.cancel(taker)
    session.ack(*late_numbers[:3])
    other.close()
    bench.turn()

    queue = bench.queue("q")
    waiting = bench.waiting("q")

    assert len(queue) == len(waiting)
    assert queue.bytes == sum(len(found.body) for found in waiting)
    assert queue.unacked == 0
    assert bench.now_ms == START_MS

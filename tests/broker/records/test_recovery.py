"""State is a fold over the journal: what a restart finds, with a checkpoint and without."""

from __future__ import annotations

from array import array

import msgspec
import pytest
from core_support import START_MS, Bench, drain, headers_of, shrink_paging

from holtmq.auth.permissions import Permissions
from holtmq.auth.users import User
from holtmq.broker.policy_changes import PolicyChanges
from holtmq.broker.records import recovered_queue
from holtmq.broker.records.changes import Kind
from holtmq.broker.records.checkpoint import Snapshot, snapshot
from holtmq.broker.records.queue_contents import QueueState
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.priority_levels import Levels
from holtmq.journal.fake_disk import FakeDisk, Keep

TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def lasting(bench: Bench) -> tuple[object, ...]:
    """Everything of a broker that should last."""
    broker = bench.broker
    exchanges = [
        (vhost.name, e.name, e.kind.value, e.durable, e.auto_delete, e.internal, str(e.arguments))
        for vhost in broker.vhosts.values()
        for e in vhost.exchanges.values()
    ]
    bindings = [
        (vhost.name, e.name, b.destination.name, b.to_exchange, b.routing_key, str(b.arguments))
        for vhost in broker.vhosts.values()
        for e in vhost.exchanges.values()
        for b in e.bindings()
    ]
    queues = {
        queue.name: (
            queue.id,
            queue.options,
            queue.policy,
            bench.bodies(queue.name),
            queue.bytes,
            queue.redelivered_upto,
            queue.returned,
            queue.expiring,
        )
        for queue in bench.broker.work_queues()
    }
    users = [(user.name, user.password_hash, user.tags) for user in broker.users.users()]
    # Where something waits for its time in the log depends on what else was written.
    delays = sorted(broker.flow.delayed.values())
    numbers = broker.flow.seq, broker.last_queue_id
    return sorted(exchanges), sorted(bindings), queues, users, broker.users.grants(), delays, numbers


def populate(bench: Bench) -> None:
    """A bit of everything."""
    broker = bench.broker
    broker.put_vhost("other")
    broker.access.put_user(User("ann", "hash", ("management",)))
    broker.access.set_permissions("ann", "/", Permissions("^a", ".*", ""))
    broker.policy_changes.put("/", "cap", "^capped", {"max-length": 3}, priority=2)
    broker.policy_changes.put("/", "roof", ".*", {"message-ttl": 60_000}, operator=True)
    broker.exchanges.declare(
        bench.vhost, "x", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"}
    )
    broker.exchanges.declare(
        bench.vhost, "late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
    )
    broker.exchanges.declare(bench.vhost, "gone", "direct")
    bench.declare("dead")
    bench.declare("plain")
    bench.declare("capped.1")
    bench.declare("urgent", {"x-max-priority": 4, **TO_DEAD})
    bench.declare("counted", {"x-delivery-limit": 3})
    bench.declare("brief", durable=False)
    broker.bind(bench.vhost, "x", "plain", "a.#")
    broker.bind(bench.vhost, "x", "brief", "a.#")
    broker.bind(bench.vhost, "late", "plain", "")
    broker.bind(bench.vhost, "x", "late", "late", to_exchange=True)
    broker.declare_queue(bench.vhost, "deleted", durable=True)
    broker.delete_queue(bench.vhost, "deleted")
    for n in range(30):
        bench.publish("a.b", b"plain-%02d" % n, exchange="x", persistent=n % 4 > 0, turn=n % 3 == 0)
        bench.publish("urgent", b"urgent-%02d" % n, priority=n % 6)
        bench.publish("capped.1", b"capped-%02d" % n)
        bench.publish("counted", b"counted-%02d" % n, expiration="5000" if n == 7 else None)
    bench.publish("", b"later", exchange="late", headers={"x-delay": 5_000})


def stir(bench: Bench) -> None:
    """Leases in every state."""
    session = bench.session()
    plain = session.consume("plain", prefetch=8)
    urgent = session.consume("urgent", prefetch=6)
    counted = session.consume("counted", prefetch=4)
    session.ack(*plain.numbers()[1::2])
    session.reject(*urgent.numbers()[:2])
    session.release(*counted.numbers()[:3])
    bench.turn()
    session.ack(*urgent.numbers()[2:4])
    bench.turn()


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("on_disk", [False, True])
def test_the_log_alone_a_checkpoint_and_a_checkpoint_with_a_tail_give_the_same_broker(on_disk: bool) -> None:
    found = []
    for checkpoints in ((), ("after populate",), ("after stir",), ("after populate", "after stir")):
        bench = Bench(FakeDisk() if on_disk else None)
        populate(bench)
        if "after populate" in checkpoints:
            bench.checkpoint()
        stir(bench)
        if "after stir" in checkpoints:
            bench.checkpoint()
        bench.sync()
        bench.crash()
        found.append(lasting(bench))

    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.usefixtures("small_pages")
def test_restarting_twice_changes_nothing_more(bench: Bench) -> None:
    populate(bench)
    stir(bench)
    bench.restart()
    once = lasting(bench)

    bench.checkpoint()
    bench.restart()

    assert lasting(bench) == once


@pytest.mark.usefixtures("small_pages")
def test_compaction_after_a_checkpoint_takes_nothing_that_is_needed() -> None:
    bench = Bench(FakeDisk())
    bench.declare("q")
    bench.declare("brief", durable=False)
    session = bench.session()
    kept: list[bytes] = []
    for n in range(300):
        body = b"%04d" % n + b"x" * 60
        bench.publish("q", body, persistent=n % 5 > 0, headers={"CC": ["brief"]} if n % 7 == 0 else None)
        if n % 10:
            lease = session.get("q")
            assert lease is not None
            if n % 50 == 1:
                session.release(lease.number)
            else:
                session.ack(lease.number)
        if n % 40 == 39:
            bench.checkpoint()
    kept = bench.bodies("q")

    assert bench.bodies("brief") == drain(bench, "brief")
    assert kept == drain(bench, "q")
    assert bench._journal.stats().compactions > 0


@pytest.mark.usefixtures("small_pages")
def test_persistent_messages_in_a_queue_that_does_not_last_survive_compaction_while_paged() -> None:
    bench = Bench(FakeDisk())
    bench.declare("brief", durable=False)
    bodies = [b"%04d" % n + b"x" * 100 for n in range(100)]
    bench.fill("brief", *bodies)
    bench.declare("noise")
    for _ in range(4):
        for _ in range(60):
            bench.publish("noise", b"y" * 200)
        drain(bench, "noise")
        bench.checkpoint()

    assert drain(bench, "brief") == bodies


@pytest.mark.usefixtures("small_pages")
def test_what_was_out_keeps_its_place_in_a_checkpoint_although_later_ones_were_paged(bench: Bench) -> None:
    bench.declare("q")
    bodies = [b"%02d" % n for n in range(40)]
    bench.fill("q", *bodies)
    session, keeper = bench.session(), bench.session()
    taker = session.consume("q", prefetch=20)
    ninth = taker.held.pop(9)
    ninth.holder = keeper.gets
    keeper.ledger.by_number[9] = keeper.gets.held[9] = session.ledger.by_number.pop(9)
    session.close()
    bench.turn()

    bench.checkpoint()
    bench.crash()

    assert bench.bodies("q") == bodies


def test_bytes_of_transient_messages_do_not_outlive_them(bench: Bench) -> None:
    bench.declare("q", {"x-max-length-bytes": 1000})
    bench.publish("q", b"x" * 300, persistent=False)
    bench.publish("q", b"y" * 100)
    session = bench.session()
    session.get("q")

    bench.checkpoint()
    bench.crash()

    assert (bench.bodies("q"), bench.queue("q").bytes) == ([b"y" * 100], 100)


def test_the_lease_of_an_open_transaction_is_in_the_checkpoint(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"a", b"b")
    session = bench.session()
    lease = session.get("q")
    assert lease is not None
    ended = session.ledger.end(lease.number)
    assert ended is not None
    session.ledger.set_aside([ended])

    bench.checkpoint()
    bench.crash()

    assert bench.bodies("q") == [b"a", b"b"]


def test_the_lease_of_an_open_transaction_survives_a_purge(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"a", b"b")
    session = bench.session()
    lease = session.get("q")
    assert lease is not None
    ended = session.ledger.end(lease.number)
    assert ended is not None
    session.ledger.set_aside([ended])

    bench.broker.purge_queue(bench.vhost, "q")
    bench.sync()
    bench.crash()

    assert bench.bodies("q") == [b"a"]


def test_a_new_message_is_not_redelivered_because_a_forgotten_one_was(bench: Bench) -> None:
    bench.declare("q")
    bench.publish("q", b"lasts")
    for _ in range(5):
        bench.publish("q", b"goes", persistent=False)
    session = bench.session()
    session.consume("q", prefetch=6)
    bench.sync()

    bench.crash()
    taker = bench.session().consume("q")
    bench.publish("q", b"new")

    assert taker.got == [b"lasts", b"new"]
    assert taker.redelivered == [b"lasts"]


def test_what_was_handed_out_before_a_restart_is_redelivered_and_the_rest_is_not(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"a", b"b", b"c")
    bench.session().consume("q", prefetch=2)
    bench.sync()

    bench.crash()
    taker = bench.session().consume("q")

    assert (taker.got, taker.redelivered) == ([b"a", b"b", b"c"], [b"a", b"b"])


def test_what_was_handed_out_and_given_back_in_one_turn_is_redelivered_after_a_restart(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"a")
    session = bench.session()
    lease = session.get("q")
    assert lease is not None
    session.release(lease.number)
    bench.sync()

    bench.crash()

    assert bench.session().consume("q").redelivered == [b"a"]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_returns_are_counted_across_restarts(bench: Bench, checkpoint: bool) -> None:
    bench.declare("dead")
    bench.declare("q", {"x-delivery-limit": 2, **TO_DEAD})
    bench.fill("q", b"a")

    for _ in range(3):
        assert bench.bodies("dead") == []
        session = bench.session()
        lease = session.get("q")
        assert lease is not None
        session.release(lease.number)
        if checkpoint:
            bench.checkpoint()
        bench.sync()
        bench.crash()

    assert (bench.bodies("q"), bench.bodies("dead")) == ([], [b"a"])


def test_a_retry_delay_ends_with_a_restart(bench: Bench) -> None:
    bench.declare("q", {"x-retry-delay": 60_000})
    bench.fill("q", b"a", b"b")
    session = bench.session()
    lease = session.get("q")
    assert lease is not None
    session.release(lease.number)
    bench.checkpoint()

    bench.crash()

    assert bench.bodies("q") == [b"a", b"b"]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_time_goes_on_while_the_broker_is_down(bench: Bench, checkpoint: bool) -> None:
    bench.declare("q")
    bench.publish("q", b"dies", expiration="100")
    bench.publish("q", b"lives")
    if checkpoint:
        bench.checkpoint()
    bench.sync()
    bench.now_ms = START_MS + 100

    bench.crash()

    assert bench.bodies("q") == [b"lives"]


def test_a_leased_message_still_expires_after_a_checkpoint_that_found_the_queue_without_times(
    bench: Bench,
) -> None:
    bench.declare("q")
    bench.publish("q", b"a", expiration="1000")
    bench.publish("q", b"b", expiration="10")
    session = bench.session()
    session.get("q")
    bench.advance(10)
    assert not bench.queue("q").expiring
    bench.checkpoint()

    bench.crash()
    bench.advance(990)

    assert bench.bodies("q") == []


def test_a_limit_holds_after_a_crash_between_a_message_and_the_one_it_pushes_out(bench: Bench) -> None:
    bench.declare("dead")
    bench.declare("q", {"x-max-length": 2, **TO_DEAD})
    bench.fill("q", b"a", b"b")
    bench.publish("q", b"c", turn=False)
    bench._journal.flush()  # the message is durable, the drop of the oldest is not

    bench.crash()

    assert (bench.bodies("q"), bench.bodies("dead")) == ([b"b", b"c"], [b"a"])


def test_a_purge_lasts_and_spares_what_was_out(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"a", b"b", b"c")
    bench.session().consume("q", prefetch=1)
    bench.broker.purge_queue(bench.vhost, "q")
    bench.publish("q", b"d")
    bench.sync()

    bench.crash()

    assert (bench.bodies("q"), bench.queue("q").bytes) == ([b"a", b"d"], 2)


def test_levels_above_a_lowered_ceiling_are_merged_in_order_of_arrival() -> None:
    bench = Bench(max_priority=9)
    bench.declare("q", {"x-max-priority": 9})
    for n in range(10):
        bench.publish("q", b"%d" % n, priority=(9, 5, 7)[n % 3])
    bench.checkpoint()
    bench.max_priority = 5

    bench.crash()
    session = bench.session()
    lease = session.get("q")
    assert lease is not None
    session.release(lease.number)
    bench.turn()

    assert bench.bodies("q") == [b"%d" % n for n in range(10)]


def test_settled_messages_are_forgotten_in_the_fold_and_no_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovered_queue, "_TRIM", 4)
    bench.declare("q")
    bench.fill("q", *[b"%d" % n for n in range(30)])
    session = bench.session()
    for _ in range(23):  # over the limit several times, each with a record of its own
        lease = session.get("q")
        assert lease is not None
        session.ack(lease.number)
        bench.turn()
    bench.sync()

    bench.crash()

    assert bench.bodies("q") == [b"%d" % n for n in range(23, 30)]


def test_exclusive_queues_and_queues_that_are_not_durable_are_gone(bench: Bench) -> None:
    bench.declare("mine", owner=object())
    bench.declare("brief", durable=False)
    bench.publish("mine", b"m")
    bench.sync()

    bench.crash()

    assert list(bench.vhost.queues) == []


def test_a_queue_declared_anew_does_not_get_the_old_ones_messages(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"old")
    bench.broker.delete_queue(bench.vhost, "q")
    bench.declare("q")
    bench.publish("q", b"new")
    bench.sync()

    bench.crash()

    assert bench.bodies("q") == [b"new"]


def test_queue_numbers_are_not_used_twice_after_a_restart(bench: Bench) -> None:
    first = bench.declare("a").id
    bench.broker.delete_queue(bench.vhost, "a")
    bench.checkpoint()

    bench.crash()

    assert bench.declare("b").id > first


def test_a_deleted_vhost_stays_deleted_with_all_that_was_in_it(bench: Bench) -> None:
    bench.broker.put_vhost("v")
    bench.broker.access.put_user(User("ann", "hash"))
    bench.broker.access.set_permissions("ann", "v", Permissions(".*", ".*", ".*"))
    bench.broker.policy_changes.put("v", "p", ".*", {"max-length": 1})
    bench.broker.declare_queue(bench.broker.vhost("v"), "q", durable=True)
    bench.broker.delete_vhost("v")
    bench.sync()

    bench.crash()

    assert list(bench.broker.vhosts) == ["/"]
    assert list(bench.broker.users.grants()) == []
    assert bench.broker.queues_by_id == {}


def test_a_snapshot_names_positions_without_tags(bench: Bench) -> None:
    populate(bench)
    stir(bench)

    _, live = snapshot(bench.broker)

    assert all(0 < position < bench.broker.journal.end for run in live for position in run)


def test_a_checkpoint_that_was_not_finished_does_not_count() -> None:
    bench = Bench(FakeDisk())
    bench.declare("q")
    bench.fill("q", b"a")
    bench.sync()
    bench.publish("q", b"b")
    bench._journal.checkpoint(*snapshot(bench.broker))

    bench.crash(Keep.SECTORS)

    assert bench.bodies("q") == [b"a"]


def test_a_dead_letter_is_in_one_place_wherever_the_power_fails() -> None:
    for operations in range(12):
        disk = FakeDisk(seed=operations)
        bench = Bench(disk)
        bench.declare("dead")
        bench.declare("q", TO_DEAD)
        bench.fill("q", b"a", b"b", b"c")
        bench.sync()
        session = bench.session()
        taker = session.consume("q")
        session.reject(*taker.numbers())
        bench.turn()
        disk.cut_power_after(operations)
        bench._journal.flush()

        disk.crash(Keep.SECTORS)
        bench.crash(Keep.EVERYTHING)

        assert sorted(bench.bodies("q") + bench.bodies("dead")) == [b"a", b"b", b"c"]
        assert all("x-death" in headers_of(found) for found in bench.waiting("dead"))


def test_a_restart_looks_at_each_queue_for_all_policies_together(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(FakeDisk())
    for number in range(20):
        bench.declare(f"q{number}")
    for number in range(20):
        bench.broker.policy_changes.put("/", f"p{number}", f"q{number}$", {"max-length": number + 1})
    bench.broker.policy_changes.delete("/", "p7")
    bench.sync()
    applied: list[str] = []
    apply = PolicyChanges.apply

    def counted(changes: PolicyChanges, queue: Queue) -> bool:
        applied.append(queue.name)
        return apply(changes, queue)

    monkeypatch.setattr(PolicyChanges, "apply", counted)

    bench.crash()

    assert [bench.queue(f"q{number}").options.max_length for number in (6, 7, 8)] == [7, None, 9]
    assert len(applied) <= 2 * 20  # when it is restored, and at the end


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 5}], ids=str)
def test_a_snapshot_of_messages_that_are_paged_out_is_not_changed_by_what_follows(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, object]
) -> None:
    for module, constant, value in shrink_paging():
        monkeypatch.setattr(module, constant, value)
    bench = Bench(FakeDisk(1))
    names = ("one", "two", "taken")
    for count, name in zip((1, 2, 8), names, strict=True):
        bench.declare(name, arguments)
        for number in range(count):
            bench.publish(name, b"%s %d" % (name.encode(), number))
    bench.sync()
    bench.crash()
    session = bench.session()
    worker = session.consume("taken", prefetch=5)  # as many as are paged in at once
    held = [lease.message.position for lease in worker.held.values()]
    store = bench.queue("taken").store
    fifo = store.fifos[0] if isinstance(store, Levels) else store
    assert fifo.only_run() is not None
    there = {name: [found.position for found in bench.waiting(name)] for name in names}

    taken = Snapshot(bench.broker)
    for name in names:
        for number in range(3):
            bench.publish(name, b"later %d" % number)
    bench.turn()
    for _ in range(2):
        lease = session.get("two")
        assert lease is not None
        session.ack(lease.number)
    bench.turn()

    states = {
        state.id: array("Q", state.levels[0]).tolist()
        for kind, payload in taken.records()
        if kind == Kind.QUEUE_STATE
        for state in [msgspec.msgpack.decode(payload, type=QueueState)]
    }
    assert states == {
        bench.queue("one").id: there["one"],
        bench.queue("two").id: there["two"],
        bench.queue("taken").id: [*held, *there["taken"]],
    }
    live = sorted(position for run in taken.live() for position in run)
    assert live == sorted([*held, *(p for some in there.values() for p in some)])


def test_a_snapshot_has_the_unreadable_messages_of_a_level() -> None:
    bench = Bench(FakeDisk(1))
    bench.declare("ranked", {"x-max-priority": 5})
    bench.publish("ranked", b"1", priority=2)
    bench.sync()
    store = bench.queue("ranked").store
    assert isinstance(store, Levels)
    (there,) = bench.waiting("ranked")
    store.fifos[2].aside = array("Q", [7])

    taken = Snapshot(bench.broker)

    (state,) = (
        msgspec.msgpack.decode(payload, type=QueueState)
        for kind, payload in taken.records()
        if kind == Kind.QUEUE_STATE
    )
    assert array("Q", state.levels[2]).tolist() == [7, there.position]

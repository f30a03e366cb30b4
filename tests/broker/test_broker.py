"""Commands from the edges: topology, policies, exclusivity, life and death of queues, a failed journal."""

import pytest
from core_support import Bench, drain

from holtmq.auth.permissions import Permissions
from holtmq.auth.users import User
from holtmq.broker.errors import AccessRefused, Conflict, NotFound, ResourceLocked
from holtmq.broker.flow import PublishOutcome
from holtmq.journal import JournalFailed

TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def test_a_nameless_queue_gets_a_name(bench: Bench) -> None:
    one, other = bench.declare(""), bench.declare("")

    assert one.name.startswith("amq.gen-")
    assert one.name != other.name


def test_a_reserved_name_is_refused(bench: Bench) -> None:
    with pytest.raises(AccessRefused, match="reserved prefix"):
        bench.declare("amq.mine")


def test_declaring_again_gives_the_same_queue(bench: Bench) -> None:
    assert bench.declare("q", {"x-max-length": 5}) is bench.declare("q", {"x-max-length": 5})


def test_declaring_again_with_other_arguments_names_the_difference(bench: Bench) -> None:
    bench.declare("q", {"x-max-length": 5})

    with pytest.raises(Conflict, match="x-max-length") as raised:
        bench.declare("q", {"x-max-length": 6})

    assert all(part in str(raised.value) for part in ("5", "6", "'q'"))


def test_an_exclusive_queue_is_its_owners_alone(bench: Bench) -> None:
    owner = object()
    bench.declare("mine", owner=owner)

    with pytest.raises(ResourceLocked, match="locked queue 'mine'"):
        bench.vhost.queue("mine", object())
    assert bench.vhost.queue("mine", owner).name == "mine"


def test_exclusive_queues_go_with_their_owner(bench: Bench) -> None:
    owner = object()
    bench.declare("mine", owner=owner)
    bench.declare("hers", owner=object())

    bench.broker.drop_exclusive_queues(owner)

    assert list(bench.vhost.queues) == ["hers"]


def test_an_auto_delete_queue_goes_with_its_last_consumer_only(bench: Bench) -> None:
    bench.declare("q", auto_delete=True)
    session = bench.session()
    one, other = session.consume("q"), session.consume("q")

    session.cancel(one)
    assert "q" in bench.vhost.queues
    session.cancel(other)

    assert "q" not in bench.vhost.queues


def test_what_was_rejected_in_its_last_turn_outlives_an_auto_delete_queue(bench: Bench) -> None:
    bench.declare("dead")
    bench.declare("q", TO_DEAD, auto_delete=True)
    bench.fill("q", b"m")
    session = bench.session()
    taker = session.consume("q")

    session.reject(*taker.numbers())
    session.cancel(taker)
    bench.turn()

    assert "q" not in bench.vhost.queues
    assert bench.bodies("dead") == [b"m"]


def test_a_deleted_queue_takes_its_messages_consumers_and_bindings_along(bench: Bench) -> None:
    bench.declare("q")
    bench.broker.bind(bench.vhost, "amq.fanout", "q", "")
    bench.fill("q", b"a", b"b")
    session = bench.session()
    taker = session.consume("q", prefetch=1)

    assert bench.broker.delete_queue(bench.vhost, "q") == (1, True)

    assert taker.lost_queue
    assert bench.publish("", b"m", exchange="amq.fanout") is PublishOutcome.UNROUTED
    session.ack(*taker.numbers())
    session.close()
    bench.turn()


def test_deleting_what_is_not_there_is_no_error(bench: Bench) -> None:
    assert bench.broker.delete_queue(bench.vhost, "nothing") == (0, False)


def test_a_queue_in_use_or_not_empty_is_not_deleted_if_asked_so(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"m")
    with pytest.raises(Conflict, match="not empty"):
        bench.broker.delete_queue(bench.vhost, "q", if_empty=True)
    bench.session().consume("q")

    with pytest.raises(Conflict, match="in use"):
        bench.broker.delete_queue(bench.vhost, "q", if_unused=True)


def test_an_unused_queue_expires(bench: Bench) -> None:
    bench.declare("q", {"x-expires": 100})

    bench.advance(99)
    assert "q" in bench.vhost.queues
    bench.advance(1)

    assert "q" not in bench.vhost.queues


def test_use_keeps_a_queue_alive(bench: Bench) -> None:
    bench.declare("q", {"x-expires": 100})
    session = bench.session()
    bench.advance(60)
    session.get("q")
    bench.advance(60)
    taker = session.consume("q")
    bench.advance(500)
    assert "q" in bench.vhost.queues

    session.cancel(taker)
    bench.advance(100)

    assert "q" not in bench.vhost.queues


def test_changing_policies_again_and_again_leaves_one_timer_per_queue(bench: Bench) -> None:
    bench.declare("q", {"x-expires": 1_000_000})
    before = len(bench.flow.timers)

    for n in range(20):
        bench.broker.policy_changes.put("/", "p", "q", {"max-length": n + 1})

    assert len(bench.flow.timers) == before


def test_a_deleted_queue_leaves_no_timer_behind(bench: Bench) -> None:
    # A timer keeps its queue in memory, with its figures and its last consumers, for the whole TTL.
    before = len(bench.flow.timers)

    for number in range(3):
        bench.declare(f"q{number}", {"x-expires": 1_000_000, "x-message-ttl": 100_000_000})
        bench.fill(f"q{number}", b"m")
        bench.turn()
        assert len(bench.flow.timers) == before + 2
        bench.broker.delete_queue(bench.vhost, f"q{number}")

    assert len(bench.flow.timers) == before


def test_a_purge_counts_what_it_drops(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"a", b"b", b"c")
    bench.session().consume("q", prefetch=1)

    assert bench.broker.purge_queue(bench.vhost, "q") == (2, True)
    assert (bench.bodies("q"), bench.queue("q").bytes, bench.queue("q").unacked) == ([], 0, 1)


def test_an_auto_delete_exchange_goes_with_its_last_binding(bench: Bench) -> None:
    bench.broker.exchanges.declare(bench.vhost, "x", "fanout", durable=True, auto_delete=True)
    bench.declare("q")
    bench.broker.bind(bench.vhost, "x", "q", "")

    bench.broker.delete_queue(bench.vhost, "q")
    bench.sync()

    assert "x" not in bench.vhost.exchanges
    bench.crash()
    assert "x" not in bench.vhost.exchanges


def test_an_exchange_in_use_is_not_deleted_if_asked_so(bench: Bench) -> None:
    bench.broker.exchanges.declare(bench.vhost, "x", "fanout")
    bench.declare("q")
    bench.broker.bind(bench.vhost, "x", "q", "")

    with pytest.raises(Conflict, match="in use"):
        bench.broker.exchanges.delete(bench.vhost, "x", if_unused=True)


def test_predeclared_exchanges_stay(bench: Bench) -> None:
    for name in ("amq.direct", ""):
        with pytest.raises(AccessRefused):
            bench.broker.exchanges.delete(bench.vhost, name)


def test_nothing_is_published_to_an_internal_exchange(bench: Bench) -> None:
    bench.broker.exchanges.declare(bench.vhost, "inner", "fanout", internal=True)

    with pytest.raises(AccessRefused, match="internal exchange 'inner'"):
        bench.publish("", b"m", exchange="inner")


def test_a_binding_is_there_once_however_often_it_is_made(bench: Bench) -> None:
    bench.declare("q")

    assert bench.broker.bind(bench.vhost, "amq.direct", "q", "k")
    assert not bench.broker.bind(bench.vhost, "amq.direct", "q", "k")
    assert bench.broker.exchanges.unbind(bench.vhost, "amq.direct", "q", "k")
    assert not bench.broker.exchanges.unbind(bench.vhost, "amq.direct", "q", "k")


def test_binding_what_is_not_there_names_it(bench: Bench) -> None:
    bench.declare("q")

    with pytest.raises(NotFound, match="no queue 'nobody' in vhost '/'"):
        bench.broker.bind(bench.vhost, "amq.direct", "nobody", "")
    with pytest.raises(NotFound, match="no exchange 'nowhere' in vhost '/'"):
        bench.broker.bind(bench.vhost, "nowhere", "q", "")


def test_topology_changes_make_cached_routes_stale(bench: Bench) -> None:
    versions = [bench.vhost.version]

    bench.declare("q")
    versions.append(bench.vhost.version)
    bench.broker.bind(bench.vhost, "amq.direct", "q", "k")
    versions.append(bench.vhost.version)
    bench.broker.policy_changes.put("/", "p", ".*", {"max-length": 1})
    versions.append(bench.vhost.version)
    bench.broker.delete_queue(bench.vhost, "q")
    versions.append(bench.vhost.version)

    assert len(set(versions)) == len(versions)


def test_a_policy_bites_at_once_and_its_removal_lets_go(bench: Bench) -> None:
    bench.declare("dead")
    bench.declare("q")
    bench.fill("q", b"a", b"b", b"c")

    bench.broker.policy_changes.put(
        "/",
        "p",
        "^q$",
        {"max-length": 1, "dead-letter-exchange": "", "dead-letter-routing-key": "dead"},
    )
    bench.turn()
    assert (bench.bodies("q"), bench.bodies("dead")) == ([b"c"], [b"a", b"b"])

    bench.broker.policy_changes.delete("/", "p")
    bench.fill("q", b"d", b"e")
    assert bench.bodies("q") == [b"c", b"d", b"e"]


def test_a_shorter_time_from_a_policy_counts_for_what_waits(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"a")
    bench.advance(50)

    bench.broker.policy_changes.put("/", "p", "q", {"message-ttl": 80})
    bench.turn()
    bench.advance(29)
    assert bench.bodies("q") == [b"a"]
    bench.advance(1)

    assert bench.bodies("q") == []


def test_a_policy_that_makes_a_queue_refuse_drops_nothing(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"a", b"b", b"c")

    bench.broker.policy_changes.put("/", "p", "q", {"max-length": 1, "overflow": "reject-publish"})
    bench.turn()

    assert bench.bodies("q") == [b"a", b"b", b"c"]
    assert bench.publish("q", b"d") is PublishOutcome.REFUSED


def test_an_operator_policy_wins_where_it_is_stricter(bench: Bench) -> None:
    bench.declare("q", {"x-max-length": 5})

    bench.broker.policy_changes.put("/", "roof", ".*", {"max-length": 2}, operator=True)
    bench.fill("q", b"a", b"b", b"c")

    assert bench.bodies("q") == [b"b", b"c"]


def test_permissions_need_a_user_and_a_vhost(bench: Bench) -> None:
    everything = Permissions(".*", ".*", ".*")
    with pytest.raises(NotFound, match="no user 'nobody'"):
        bench.broker.access.set_permissions("nobody", "/", everything)
    bench.broker.access.put_user(User("ann", "hash"))

    with pytest.raises(NotFound, match="vhost nowhere not found"):
        bench.broker.access.set_permissions("ann", "nowhere", everything)


def test_a_user_who_is_not_there_cannot_be_deleted(bench: Bench) -> None:
    with pytest.raises(NotFound, match="no user 'ann'"):
        bench.broker.access.delete_user("ann")


def test_names_of_two_vhosts_do_not_meet(bench: Bench) -> None:
    bench.broker.put_vhost("other")
    bench.declare("q")
    bench.broker.declare_queue(bench.broker.vhost("other"), "q", durable=True, arguments={"x-max-length": 1})
    bench.fill("q", b"a", b"b")

    assert len(bench.broker.vhost("other").queues["q"]) == 0
    assert bench.bodies("q") == [b"a", b"b"]


def test_after_a_failure_nothing_durable_is_declared_deleted_or_purged(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"m")
    bench.journal.fail("the disk is gone")

    with pytest.raises(JournalFailed):
        bench.declare("new")
    with pytest.raises(JournalFailed):
        bench.broker.delete_queue(bench.vhost, "q")
    with pytest.raises(JournalFailed):
        bench.broker.purge_queue(bench.vhost, "q")

    assert list(bench.vhost.queues) == ["q"]
    assert bench.bodies("q") == [b"m"]


def test_after_a_failure_queues_that_never_lasted_come_and_go(bench: Bench) -> None:
    bench.journal.fail("the disk is gone")

    bench.declare("brief", durable=False)
    bench.publish("brief", b"m")
    assert drain(bench, "brief") == [b"m"]

    assert bench.broker.delete_queue(bench.vhost, "brief") == (0, False)


def test_after_a_failure_a_channel_still_closes_and_its_auto_delete_queue_goes(bench: Bench) -> None:
    bench.broker.exchanges.declare(bench.vhost, "x", "fanout", durable=True, auto_delete=True)
    bench.declare("q", auto_delete=True)
    bench.broker.bind(bench.vhost, "x", "q", "")
    bench.declare("other")
    bench.fill("other", b"m")
    session = bench.session()
    session.consume("q")
    session.consume("other")
    bench.journal.fail("the disk is gone")

    session.close()
    bench.turn()

    assert "q" not in bench.vhost.queues
    assert bench.bodies("other") == [b"m"]
    assert session.ledger not in bench.broker.sessions


def test_after_a_failure_an_expiring_queue_does_not_stop_the_clock(bench: Bench) -> None:
    bench.declare("q", {"x-expires": 100})
    bench.declare("brief", durable=False)
    bench.publish("brief", b"m", persistent=False, expiration="100")
    bench.journal.fail("the disk is gone")

    bench.advance(100)

    assert bench.bodies("brief") == []
    assert "q" not in bench.vhost.queues

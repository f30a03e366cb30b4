"""A queue or an exchange that very many exchanges lead to is deleted in steps, and does not exist from the
first step on; nor do the auto-delete exchanges that it leaves unused."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator

import pytest
from core_support import Bench
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holtmq.broker.errors import BrokerError, NotFound
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.exchange_kinds import ExchangeKind
from holtmq.broker.topology.exchanges import Exchange
from holtmq.broker.topology.long_changes import LongChanges
from holtmq.broker.topology.vhost import QueueBinding, QueueExchange, VHost
from holtmq.journal.fake_disk import FakeDisk

STEP = LongChanges.add.__defaults__


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(LongChanges.add, "__defaults__", (10,))
    return Bench(FakeDisk())


def lead(
    bench: Bench,
    to: str,
    count: int,
    *,
    kind: str = "fanout",
    auto_delete: bool = False,
    durable: bool = True,
) -> list[str]:
    """So many exchanges, each with a binding to a queue or an exchange."""
    names = [f"to-{to}-{number}" for number in range(count)]
    for name in names:
        bench.broker.exchanges.declare(bench.vhost, name, kind, durable=durable, auto_delete=auto_delete)
        bench.broker.bind(bench.vhost, name, to, "1", to_exchange=to in bench.vhost.exchanges)
    return names


def run_out(bench: Bench) -> int:
    """Do what is left; how many steps that took."""
    steps = 0
    while len(bench.broker.long_changes):
        bench.broker.long_changes.step()
        steps += 1
    return steps


def reached(bench: Bench, exchange: str, key: str = "1") -> list[str]:
    return [queue.name for queue in bench.vhost.route(bench.vhost.exchange(exchange), key).queues]


@pytest.mark.parametrize("to_exchange", [False, True])
def test_the_bindings_to_what_is_deleted_are_gone_at_once_and_are_removed_step_by_step(
    bench: Bench, to_exchange: bool
) -> None:
    bench.declare("q")
    if to_exchange:
        bench.broker.exchanges.declare(bench.vhost, "end", "fanout", durable=True)
        bench.broker.bind(bench.vhost, "end", "q", "")
    names = lead(bench, "end" if to_exchange else "q", 100)
    doomed = bench.vhost.exchanges["end"] if to_exchange else bench.queue("q")

    if to_exchange:
        bench.broker.exchanges.delete(bench.vhost, "end")
    else:
        bench.broker.delete_queue(bench.vhost, "q")

    sources = [bench.vhost.exchange(name) for name in names]
    assert sum(source.leads_to(doomed) for source in sources) > 80
    assert all(source.is_unused and not list(source.bindings()) for source in sources)
    assert [reached(bench, name) for name in names] == [[]] * 100
    assert run_out(bench) >= 10
    assert not any(source.leads_to(doomed) or source.gone for source in sources)


def test_a_cached_route_is_dropped_before_its_exchange_has_been_reached(bench: Bench) -> None:
    bench.declare("q")
    names = lead(bench, "q", 50)
    for name in names:
        bench.publish("1", b"x", exchange=name)

    bench.broker.delete_queue(bench.vhost, "q")
    bench.declare("q")
    bench.broker.bind(bench.vhost, names[7], "q", "1")
    for name in names:
        bench.publish("1", name.encode(), exchange=name)

    assert bench.bodies("q") == [names[7].encode()]
    run_out(bench)
    assert [binding.source for binding in bench.vhost.bindings_to(bench.queue("q"))] == [names[7]]


@pytest.mark.parametrize("kind", ["x-random", "x-modulus-hash", "x-consistent-hash"])
def test_an_exchange_that_chooses_does_not_choose_what_is_gone(bench: Bench, kind: str) -> None:
    bench.declare("q")
    bench.declare("other")
    names = lead(bench, "q", 30, kind=kind)
    for name in names:
        bench.broker.bind(bench.vhost, name, "other", "1")

    bench.broker.delete_queue(bench.vhost, "q")

    for name in names[:15]:
        assert [reached(bench, name, key) for key in "abcd"] == [["other"]] * 4
    bench.declare("q")
    for name in names:
        bench.broker.exchanges.unbind(bench.vhost, name, "other", "1")
        bench.broker.bind(bench.vhost, name, "q", "2")
        assert [reached(bench, name, key) for key in "abcd"] == [["q"]] * 4
    run_out(bench)
    for name in names:
        assert [reached(bench, name, key) for key in "abcd"] == [["q"]] * 4


def test_a_headers_exchange_finds_a_queue_behind_what_is_left_of_one_with_its_name(bench: Bench) -> None:
    bench.declare("q")
    names = lead(bench, "q", 30, kind="headers")
    bench.broker.delete_queue(bench.vhost, "q")

    bench.declare("q")
    for name in names:
        bench.broker.bind(bench.vhost, name, "q", "another key")
        bench.publish("1", name.encode(), exchange=name)

    assert bench.bodies("q") == [name.encode() for name in names]


def test_weights_of_a_queue_that_is_gone_do_not_count(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.broker.topology.binding_indexes.MAX_TOTAL_WEIGHT", 100)
    bench.declare("q")
    names = lead(bench, "q", 30, kind="x-consistent-hash")
    for name in names:
        bench.broker.bind(bench.vhost, name, "q", "99")

    bench.broker.delete_queue(bench.vhost, "q")

    bench.declare("q")
    for name in names:
        bench.broker.bind(bench.vhost, name, "q", "100")


def test_a_list_of_the_bindings_to_a_queue_looks_at_its_sources_one_by_one(bench: Bench) -> None:
    bench.declare("q")
    names = lead(bench, "q", 30)

    found = bench.vhost.bindings_to(bench.queue("q"))

    assert next(found).source == names[0]
    bench.broker.exchanges.unbind(bench.vhost, names[2], "q", "1")
    bench.broker.exchanges.delete(bench.vhost, names[3])
    assert next(found).source == names[1]
    bench.broker.delete_queue(bench.vhost, "q")
    assert list(found) == []


def test_an_exchange_may_be_deleted_while_its_bindings_to_what_is_gone_are_being_removed(
    bench: Bench,
) -> None:
    bench.declare("q")
    bench.declare("other")
    (name,) = lead(bench, "q", 1)
    for number in range(50):
        bench.broker.bind(bench.vhost, name, "q", f"key {number}")
    bench.broker.bind(bench.vhost, name, "other", "1")
    bench.broker.delete_queue(bench.vhost, "q")

    bench.broker.exchanges.delete(bench.vhost, name)
    lead(bench, "other", 1)
    assert run_out(bench) > 3

    assert [binding.source for binding in bench.vhost.bindings_to(bench.queue("other"))] == ["to-other-0"]


def test_a_deleted_exchange_is_freed(bench: Bench) -> None:
    bench.declare("freed")
    names = lead(bench, "freed", 50)
    bench.broker.exchanges.unbind(bench.vhost, names[0], "freed", "1")

    for name in names[:2]:
        bench.broker.exchanges.delete(bench.vhost, name)

    run_out(bench)
    left = {found.name for found in gc.get_objects() if isinstance(found, Exchange)}
    assert not left & set(names[:2])
    assert left >= set(names[2:])


def test_auto_delete_exchanges_do_not_exist_without_the_queue_and_are_deleted_step_by_step(
    bench: Bench,
) -> None:
    bench.declare("q")
    bench.declare("other")
    names = lead(bench, "q", 100, auto_delete=True)
    bench.broker.bind(bench.vhost, names[3], "other", "1")
    bench.broker.bind(bench.vhost, names[3], names[5], "1", to_exchange=True)

    bench.broker.delete_queue(bench.vhost, "q")

    assert len(bench.vhost.exchanges) > 90
    found = [name for name in names if bench.vhost.find_exchange(name) is not None]
    assert found == [names[3]]
    with pytest.raises(NotFound):
        bench.broker.bind(bench.vhost, names[5], "other", "1")
    with pytest.raises(NotFound):
        bench.broker.bind(bench.vhost, names[3], names[6], "1", to_exchange=True)
    assert not bench.broker.exchanges.unbind(bench.vhost, names[3], names[5], "1", to_exchange=True)
    assert not bench.broker.exchanges.unbind(bench.vhost, names[5], "q", "1")
    run_out(bench)
    assert [name for name in names if name in bench.vhost.exchanges] == [names[3]]
    bench.sync()
    bench.crash()
    assert [name for name in names if name in bench.vhost.exchanges] == [names[3]]


def test_an_auto_delete_exchange_declared_again_before_its_turn_is_a_new_one(bench: Bench) -> None:
    bench.declare("q")
    names = lead(bench, "q", 50, auto_delete=True)
    bench.broker.delete_queue(bench.vhost, "q")
    assert names[0] in bench.vhost.exchanges

    bench.broker.exchanges.declare(bench.vhost, names[0], "topic", durable=True, auto_delete=True)
    run_out(bench)

    assert bench.vhost.exchange(names[0]).kind is ExchangeKind.TOPIC
    bench.sync()
    bench.crash()
    assert bench.vhost.exchange(names[0]).kind is ExchangeKind.TOPIC
    assert names[1] not in bench.vhost.exchanges


def test_an_exchange_that_leads_only_to_what_is_gone_is_unused(bench: Bench) -> None:
    bench.declare("q")
    names = lead(bench, "q", 50)
    bench.broker.delete_queue(bench.vhost, "q")

    for name in names:
        bench.broker.exchanges.delete(bench.vhost, name, if_unused=True)

    run_out(bench)
    assert not any(name in bench.vhost.exchanges for name in names)


def test_a_long_chain_of_auto_delete_exchanges_is_deleted_with_its_end(bench: Bench) -> None:
    bench.declare("q")
    for number in range(3_000):
        bench.broker.exchanges.declare(bench.vhost, f"x{number}", "fanout", auto_delete=True)
        to = f"x{number - 1}" if number else "q"
        bench.broker.bind(bench.vhost, f"x{number}", to, "", to_exchange=number > 0)

    bench.broker.delete_queue(bench.vhost, "q")

    assert run_out(bench) > 1_000
    assert not any(name.startswith("x") for name in bench.vhost.exchanges)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_crash_in_between_does_not_keep_what_is_unused(bench: Bench, checkpoint: bool) -> None:
    bench.declare("q")
    names = lead(bench, "q", 50, auto_delete=True)
    before = lead(bench, names[0], 50, auto_delete=True)
    bench.broker.exchanges.declare(bench.vhost, "never-bound", "fanout", durable=True, auto_delete=True)
    bench.broker.delete_queue(bench.vhost, "q")

    bench.checkpoint() if checkpoint else bench.sync()
    assert names[0] in bench.vhost.exchanges
    bench.crash()

    run_out(bench)
    assert not any(name in bench.vhost.exchanges for name in names + before)
    assert "never-bound" in bench.vhost.exchanges
    bench.sync()
    bench.crash()
    assert not any(name in bench.vhost.exchanges for name in names + before)


@pytest.mark.parametrize("to_exchange", [False, True])
def test_an_auto_delete_exchange_that_had_other_bindings_is_there_after_a_crash_without_them(
    bench: Bench, to_exchange: bool
) -> None:
    bench.declare("q")
    if to_exchange:
        bench.broker.exchanges.declare(bench.vhost, "end", "fanout", durable=True, auto_delete=True)
        bench.broker.bind(bench.vhost, "end", "q", "")
    bench.declare("transient", durable=False)
    (name,) = lead(bench, "end" if to_exchange else "q", 1, auto_delete=True)
    bench.broker.bind(bench.vhost, name, "transient", "1")

    bench.broker.delete_queue(bench.vhost, "q")
    run_out(bench)
    bench.sync()
    bench.crash()

    assert bench.vhost.exchange(name).is_unused
    assert "end" not in bench.vhost.exchanges


def test_an_exchange_declared_again_after_one_that_was_bound_to_itself_is_there_after_a_crash(
    bench: Bench,
) -> None:
    bench.broker.exchanges.declare(bench.vhost, "x", "fanout", durable=True, auto_delete=True)
    bench.broker.bind(bench.vhost, "x", "x", "", to_exchange=True)
    bench.broker.exchanges.delete(bench.vhost, "x")
    bench.broker.exchanges.declare(bench.vhost, "x", "direct", durable=True)

    bench.sync()
    bench.crash()

    assert bench.vhost.exchange("x").kind is ExchangeKind.DIRECT


def test_a_vhost_deleted_in_between_is_not_in_the_journal_any_more(bench: Bench) -> None:
    bench.broker.put_vhost("large")
    large = bench.broker.vhost("large")
    bench.broker.declare_queue(large, "q", durable=True)
    for number in range(50):
        bench.broker.exchanges.declare(large, f"x{number}", "fanout", durable=True, auto_delete=True)
        bench.broker.bind(large, f"x{number}", "q", "")
    bench.broker.delete_queue(large, "q")
    assert len(large.exchanges) > 40

    bench.broker.delete_vhost("large")
    run_out(bench)

    assert not large.exchanges
    bench.sync()
    bench.crash()
    assert "large" not in bench.broker.vhosts


def test_a_journal_that_fails_in_between_keeps_the_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LongChanges.add, "__defaults__", (10,))
    bench = Bench()
    bench.declare("q")
    names = lead(bench, "q", 50, auto_delete=True)
    bench.broker.delete_queue(bench.vhost, "q")

    bench.journal.fail("no disk")
    run_out(bench)

    left = [bench.vhost.exchange(name) for name in names if name in bench.vhost.exchanges]
    assert len(left) > 40
    assert not any(exchange.gone or exchange.binding_count for exchange in left)


EXCHANGES = st.sampled_from(["a", "b", "c", "d"])
QUEUES = st.sampled_from(["p", "q", "r"])
KEYS = st.sampled_from(["1", "2"])
KINDS = st.sampled_from(["direct", "fanout", "topic", "x-modulus-hash"])


class SlowAndFast(RuleBasedStateMachine):
    """The same commands to a broker that goes in steps of one binding and to one that does all at once."""

    def __init__(self) -> None:
        super().__init__()
        LongChanges.add.__defaults__ = (1,)
        self.slow, self.fast = Bench(FakeDisk()), Bench(FakeDisk())

    def teardown(self) -> None:
        LongChanges.add.__defaults__ = STEP

    def both(self, command: Callable[[Bench], object]) -> None:
        # Which exchanges lead to an exchange that is unused shows only when that is deleted.
        while any(True for _ in led_to_unused(self.slow.vhost)):
            self.slow.broker.long_changes.step()
        assert outcome(command, self.slow) == outcome(command, self.fast)
        self.fast.broker.long_changes.complete()

    @rule(name=EXCHANGES, kind=KINDS, durable=st.booleans(), auto_delete=st.booleans())
    def declare_exchange(self, name: str, kind: str, durable: bool, auto_delete: bool) -> None:
        self.both(
            lambda bench: bench.broker.exchanges.declare(
                bench.vhost, name, kind, durable=durable, auto_delete=auto_delete
            )
        )

    @rule(name=QUEUES, durable=st.booleans())
    def declare_queue(self, name: str, durable: bool) -> None:
        self.both(lambda bench: bench.declare(name, durable=durable).name)

    @rule(source=EXCHANGES, destination=EXCHANGES | QUEUES, key=KEYS)
    def bind(self, source: str, destination: str, key: str) -> None:
        self.both(
            lambda bench: bench.broker.bind(
                bench.vhost, source, destination, key, to_exchange=destination in "abcd"
            )
        )

    @rule(
        sources=st.sets(EXCHANGES, min_size=2),
        destination=EXCHANGES | QUEUES,
        keys=st.sets(KEYS, min_size=1),
        kind=KINDS,
        auto_delete=st.booleans(),
    )
    def lead(self, sources: set[str], destination: str, keys: set[str], kind: str, auto_delete: bool) -> None:
        """Several exchanges, which may be new, to one destination, which may be new."""
        if destination in "pqr":
            self.declare_queue(destination, True)
        for source in sorted(sources):
            self.declare_exchange(source, kind, True, auto_delete)
            for key in sorted(keys):
                self.bind(source, destination, key)

    @rule(source=EXCHANGES, destination=EXCHANGES | QUEUES, key=KEYS)
    def unbind(self, source: str, destination: str, key: str) -> None:
        self.both(
            lambda bench: bench.broker.exchanges.unbind(
                bench.vhost, source, destination, key, to_exchange=destination in "abcd"
            )
        )

    @rule(name=EXCHANGES, if_unused=st.booleans())
    def delete_exchange(self, name: str, if_unused: bool) -> None:
        def delete(bench: Bench) -> None:  # one that is unused is still there in one of the brokers
            bench.broker.exchanges.delete(bench.vhost, name, if_unused)

        self.both(delete)

    @rule(name=QUEUES)
    def delete_queue(self, name: str) -> None:
        self.both(lambda bench: bench.broker.delete_queue(bench.vhost, name))

    @precondition(lambda self: len(self.slow.broker.long_changes) > 0)
    @rule(steps=st.integers(1, 8))
    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            self.slow.broker.long_changes.step()

    @rule()
    def checkpoint(self) -> None:
        self.both(Bench.checkpoint)

    @rule()
    def crash(self) -> None:
        for bench in (self.slow, self.fast):
            bench.sync()
            bench.crash()
        self.fast.broker.long_changes.complete()

    @invariant()
    def they_agree(self) -> None:
        while any(True for _ in led_to_unused(self.slow.vhost)):
            self.slow.broker.long_changes.step()
        assert seen(self.slow) == seen(self.fast)


def led_to_unused(vhost: VHost) -> Iterator[QueueExchange]:
    for exchange in vhost.exchanges.values():
        if exchange.is_abandoned and any(True for _ in vhost.bindings_to(exchange)):
            yield exchange


def outcome(command: Callable[[Bench], object], bench: Bench) -> object:
    try:
        return command(bench)
    except BrokerError as refused:
        return type(refused), str(refused)


def seen(bench: Bench) -> object:
    """All that a client can find out."""
    vhost = bench.vhost
    exchanges = {name: found for name in "abcd" if (found := vhost.find_exchange(name)) is not None}
    queues = {name: vhost.queues[name] for name in "pqr" if name in vhost.queues}
    bindings = {name: listed(found.bindings()) for name, found in exchanges.items()}
    for name, found in exchanges.items():
        assert found.binding_count == len(bindings[name])
    ends: list[Queue | QueueExchange] = [*exchanges.values(), *queues.values()]
    to = {
        end.name: sorted((binding.source, binding.routing_key) for binding in vhost.bindings_to(end))
        for end in ends
    }
    routes = {
        (name, key): (cached(vhost, found, key), reached(bench, name, key))  # first without a look at it
        for name, found in exchanges.items()
        for key in ("1", "2", "3")
    }
    kinds = {name: (found.kind, found.auto_delete, found.durable) for name, found in exchanges.items()}
    return kinds, list(queues), bindings, to, routes


def listed(bindings: Iterable[QueueBinding]) -> list[tuple[str, str]]:
    return [(binding.destination.name, binding.routing_key) for binding in bindings]


def cached(vhost: VHost, exchange: QueueExchange, key: str) -> list[str] | None:
    found = vhost.targets_of(exchange).find(key.encode())
    return None if found is None else [queue.name for queue in found.queues]


TestSlowAndFast = SlowAndFast.TestCase
TestSlowAndFast.settings = settings(max_examples=200, stateful_step_count=25, deadline=None)

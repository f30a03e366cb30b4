"""Exchanges that choose one of their bindings: random, by hash, by modulus."""

import time
from collections import deque
from collections.abc import Iterator

import pytest
from core_support import Bench

from holtmq.broker.errors import Conflict
from holtmq.broker.topology.exchanges import Exchange, make_exchange
from holtmq.journal.fake_disk import FakeDisk

CHOOSING = ["x-random", "x-modulus-hash", "x-consistent-hash"]


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


def delete(exchange: Exchange[Named], destination: Named) -> Iterator[None]:
    """What a vhost does; the steps remove the bindings."""
    exchange.gone[id(destination)] = destination
    yield from exchange.remove_left_over(destination)
    del exchange.gone[id(destination)]


def chosen(exchange: Exchange[Named]) -> list[str]:
    return [where.name for at in range(200) for where in exchange.route(f"key-{at}")]


@pytest.mark.parametrize("kind", CHOOSING)
def test_a_deleted_destination_is_not_chosen_while_its_bindings_are_being_removed(kind: str) -> None:
    exchange: Exchange[Named] = make_exchange("source", kind)
    doomed, kept, similar = Named("b"), Named("a"), Named("b1")
    for weight in range(1, 6):
        exchange.bind(doomed, str(weight))
    exchange.bind(doomed, "1", {"x": 1})
    exchange.bind(kept, "1")
    exchange.bind(similar, "1")

    steps = delete(exchange, doomed)
    next(steps)

    assert set(chosen(exchange)) == {"a", "b1"}
    assert len(chosen(exchange)) == 200
    assert exchange.binding_count == 2
    deque(steps, maxlen=0)
    assert exchange.binding_count == len(list(exchange.bindings())) == 2
    assert set(chosen(exchange)) == {"a", "b1"}


@pytest.mark.parametrize("kind", CHOOSING)
def test_a_new_queue_of_that_name_is_chosen_at_once(kind: str) -> None:
    exchange: Exchange[Named] = make_exchange("source", kind)
    old, new = Named("b"), Named("b")
    exchange.bind(old, "1")
    exchange.bind(old, "2")
    steps = delete(exchange, old)
    next(steps)

    exchange.bind(new, "1")

    deque(steps, maxlen=0)
    assert {id(where) for at in range(50) for where in exchange.route(str(at))} == {id(new)}
    assert exchange.binding_count == 1
    exchange.unbind(new, "1")
    assert chosen(exchange) == []


@pytest.mark.parametrize("kind", CHOOSING)
def test_a_destination_at_the_address_of_a_deleted_one_can_be_deleted_too(kind: str) -> None:
    exchange: Exchange[Named] = make_exchange("source", kind)
    destination = Named("b")
    exchange.bind(destination, "1")
    deque(delete(exchange, destination), maxlen=0)
    exchange.bind(destination, "1")
    version = exchange.version

    exchange.gone[id(destination)] = destination

    assert chosen(exchange) == []
    assert exchange.version != version


@pytest.mark.parametrize("kind", CHOOSING)
def test_a_deleted_exchange_is_taken_apart_in_a_time_that_grows_with_its_bindings(kind: str) -> None:
    def seconds(count: int) -> float:
        exchange: Exchange[Named] = make_exchange("source", kind)
        destination = Named("q")
        for number in range(count):
            exchange.bind(destination, "1", {"n": number})
        began = time.process_time()
        deque(exchange.dismantle(), maxlen=0)
        assert not exchange.bindings()
        return time.process_time() - began

    short = min(seconds(1_000) for _ in range(5))

    assert min(seconds(8_000) for _ in range(3)) < 32 * short  # with the square of them: 64


def test_modulus_keeps_its_order_whatever_the_order_of_binding() -> None:
    exchange: Exchange[Named] = make_exchange("source", "x-modulus-hash")
    for name in ("c", "a", "d", "b", "e"):
        exchange.bind(Named(name), "k")
    exchange.unbind(Named("d"), "k")
    exchange.bind(make_exchange("0", "fanout"), "k")

    # Written down once: a change here would re-route every key of every user after an upgrade.
    assert "".join(chosen(exchange)[:24]) == "aeaeaa00bccac0c0beebb0ea"


def test_the_weights_of_an_exchange_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.broker.topology.binding_indexes.MAX_TOTAL_WEIGHT", 150)
    bench = Bench(FakeDisk())
    broker, vhost = bench.broker, bench.vhost
    broker.exchanges.declare(vhost, "hashed", "x-consistent-hash", durable=True)
    broker.declare_queue(vhost, "a", durable=True)
    broker.declare_queue(vhost, "b", durable=True)
    broker.bind(vhost, "hashed", "a", "100")

    with pytest.raises(Conflict) as refused:
        broker.bind(vhost, "hashed", "b", "51")

    for part in ("51", "100", "150"):
        assert part in str(refused.value)
    broker.bind(vhost, "hashed", "b", "50")
    broker.bind(vhost, "hashed", "b", "50")  # it exists
    broker.exchanges.unbind(vhost, "hashed", "a", "100")
    broker.bind(vhost, "hashed", "b", "51")


def test_a_node_starts_with_weights_above_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(FakeDisk())
    bench.broker.exchanges.declare(bench.vhost, "hashed", "x-consistent-hash", durable=True)
    bench.broker.declare_queue(bench.vhost, "a", durable=True)
    bench.broker.bind(bench.vhost, "hashed", "a", "100")
    monkeypatch.setattr("holtmq.broker.topology.binding_indexes.MAX_TOTAL_WEIGHT", 50)

    bench.restart()

    assert [queue.name for queue in bench.vhost.route(bench.vhost.exchange("hashed"), "k").queues] == ["a"]

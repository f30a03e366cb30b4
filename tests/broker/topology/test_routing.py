from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holtmq.broker.topology.exchanges import Exchange, make_exchange
from holtmq.broker.topology.routing import RouteResult, delay_of, route


@dataclass(eq=False, slots=True)
class Box:
    name: str


A, B, C = Box("a"), Box("b"), Box("c")
BOXES = {box.name: box for box in (A, B, C)}


def exchange(name: str, kind: str = "fanout", **arguments: object) -> Exchange[Box]:
    return make_exchange(
        name, kind, arguments={key.replace("_", "-"): value for key, value in arguments.items()}
    )


def routed(
    start: Exchange[Box],
    key: str = "k",
    headers: dict[str, object] | None = None,
    known: Iterable[Exchange[Box]] = (),
    delay_served: bool = False,
) -> RouteResult[Box]:
    by_name = {x.name: x for x in known}

    def alternate_of(x: Exchange[Box]) -> Exchange[Box] | None:
        return None if x.alternate_name is None else by_name.get(x.alternate_name)

    return route(start, key, headers, BOXES.get, alternate_of, delay_served=delay_served)


def test_the_default_exchange_finds_a_queue_by_its_name() -> None:
    default = exchange("", "direct")

    assert routed(default, "b").queues == (B,)
    assert routed(default, "nobody").queues == ()


def test_bindings_between_exchanges_are_followed_each_with_its_own_rule() -> None:
    first, second = exchange("first", "direct"), exchange("second", "topic")
    first.bind(A, "k.x")
    first.bind(second, "k.x")
    second.bind(B, "k.*")
    second.bind(C, "other")

    assert routed(first, "k.x").queues == (A, B)


def test_a_queue_reached_on_two_ways_is_there_once() -> None:
    first, left, right = exchange("first"), exchange("left"), exchange("right")
    for x in (left, right):
        first.bind(x, "")
        x.bind(A, "")
    right.bind(B, "")

    assert routed(first).queues == (A, B)


def test_a_cycle_of_exchanges_ends() -> None:
    first, second = exchange("first"), exchange("second")
    first.bind(second, "")
    second.bind(first, "")
    first.bind(first, "")
    second.bind(A, "")

    assert routed(first).queues == (A,)


def test_the_alternate_takes_what_the_exchange_has_no_match_for() -> None:
    first, other = exchange("first", "direct", alternate_exchange="other"), exchange("other")
    first.bind(A, "k")
    other.bind(B, "")

    assert routed(first, "k", known=[other]).queues == (A,)
    assert routed(first, "unknown", known=[other]).queues == (B,)


def test_alternates_chain_and_a_circle_of_them_ends() -> None:
    first = exchange("first", "direct", alternate_exchange="second")
    second = exchange("second", "direct", alternate_exchange="third")
    third = exchange("third", "direct", alternate_exchange="first")

    assert routed(first, known=[first, second, third]).queues == ()
    third.bind(C, "k")
    assert routed(first, known=[first, second, third]).queues == (C,)


def test_an_alternate_that_does_not_exist_is_no_error() -> None:
    assert routed(exchange("first", alternate_exchange="gone")).queues == ()


def test_a_bound_exchange_that_leads_nowhere_still_counts_as_a_match() -> None:
    first, dead_end, other = exchange("first", alternate_exchange="other"), exchange("end"), exchange("other")
    first.bind(dead_end, "")
    other.bind(B, "")

    assert routed(first, known=[other]).queues == ()


def test_an_exchange_on_the_way_has_its_own_alternate() -> None:
    first, middle, other = (
        exchange("first"),
        exchange("middle", alternate_exchange="other"),
        exchange("other"),
    )
    first.bind(middle, "")
    other.bind(B, "")

    assert routed(first, known=[other]).queues == (B,)


def test_a_route_says_when_the_message_had_a_say_anywhere_on_the_way() -> None:
    first, by_headers = exchange("first"), exchange("by-headers", "headers")
    first.bind(A, "")
    assert not routed(first).depends_on_message

    first.bind(by_headers, "")
    by_headers.bind(B, "", {"h": 1})

    assert routed(first) == RouteResult((A,), True)
    assert routed(first, headers={"h": 1}) == RouteResult((A, B), True)


def test_a_hash_by_property_depends_on_the_message_and_sees_the_property() -> None:
    hashed = exchange("hashed", "x-consistent-hash", hash_property="message_id")
    hashed.bind(A, "1")
    hashed.bind(B, "1")

    results = [
        route(hashed, "k", None, BOXES.get, lambda _: None, properties={"message_id": str(at)})
        for at in range(50)
    ]

    assert {result.queues for result in results} == {(A,), (B,)}
    assert all(result.depends_on_message for result in results)


def test_a_delayed_exchange_stops_the_walk_and_says_for_how_long() -> None:
    first, delayed = exchange("first"), exchange("delayed", "x-delayed-message", x_delayed_type="fanout")
    first.bind(A, "")
    first.bind(delayed, "")
    delayed.bind(B, "")

    held = routed(first, headers={"x-delay": 500})

    assert held.queues == (A,)
    assert [(delay.exchange, delay.delay_ms) for delay in held.delays] == [(delayed, 500)]
    assert routed(delayed, headers={"x-delay": 500}, delay_served=True).queues == (B,)


def test_a_delayed_exchange_lets_a_message_without_delay_through_uncached() -> None:
    delayed = exchange("delayed", "x-delayed-message", x_delayed_type="fanout")
    delayed.bind(A, "")

    assert routed(delayed) == RouteResult((A,), True)


def test_a_delayed_message_is_not_offered_to_the_alternate() -> None:
    delayed = exchange("delayed", "x-delayed-message", x_delayed_type="fanout", alternate_exchange="other")
    other = exchange("other")
    other.bind(B, "")

    assert routed(delayed, headers={"x-delay": 1}, known=[other]).queues == ()
    assert routed(delayed, headers={"x-delay": 1}, known=[other], delay_served=True).queues == (B,)


@pytest.mark.parametrize(
    ("value", "delay_ms"),
    [(5, 5), (0, 0), (-5, 0), ("5", 0), (5.0, 0), (True, 0), (None, 0), (2**40, 2**32 - 1)],
)
def test_only_a_positive_integer_delays(value: object, delay_ms: int) -> None:
    assert delay_of({"x-delay": value}) == delay_ms
    assert delay_of({}) == 0


@settings(max_examples=200)
@given(
    st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5))),
    st.sets(st.tuples(st.integers(0, 5), st.integers(0, 3))),
)
def test_a_walk_reaches_exactly_what_the_graph_connects(
    arrows: set[tuple[int, int]], ends: set[tuple[int, int]]
) -> None:
    nodes = [exchange(f"x{at}") for at in range(6)]
    boxes = [Box(f"q{at}") for at in range(4)]
    for source, target in sorted(arrows):
        nodes[source].bind(nodes[target], "")
    for source, target in sorted(ends):
        nodes[source].bind(boxes[target], "")
    reached = {0}
    for _ in nodes:
        reached |= {target for source, target in arrows if source in reached}

    found = routed(nodes[0]).queues

    assert {box.name for box in found} == {f"q{target}" for source, target in ends if source in reached}
    assert len(set(found)) == len(found)

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holtmq.broker.errors import Conflict
from holtmq.broker.topology.exchange_kinds import ExchangeKind
from holtmq.broker.topology.exchanges import (
    Exchange,
    equivalence_error,
    make_exchange,
    predeclared_exchanges,
)


@dataclass(eq=False, slots=True)
class Box:
    """A queue, as far as an exchange can see."""

    name: str


def exchange(kind: str = "direct", name: str = "x", **arguments: object) -> Exchange[Box]:
    return make_exchange(
        name, kind, arguments={key.replace("_", "-"): value for key, value in arguments.items()}
    )


def names(found: list[Box | Exchange[Box]]) -> list[str]:
    return [destination.name for destination in found]


A, B, C = Box("a"), Box("b"), Box("c")


def test_direct_follows_the_exact_key() -> None:
    x = exchange("direct")
    x.bind(A, "k")
    x.bind(B, "other")
    x.bind(C, "k")

    assert names(x.route("k")) == ["a", "c"]
    assert names(x.route("K")) == []


def test_fanout_ignores_the_key() -> None:
    x = exchange("fanout")
    x.bind(A, "k")
    x.bind(B, "")

    assert names(x.route("whatever")) == ["a", "b"]


def test_a_topic_answers_in_binding_order_whatever_the_patterns() -> None:
    x = exchange("topic")
    for box, pattern in ((C, "#"), (A, "a.b"), (B, "*.b")):
        x.bind(box, pattern)

    assert names(x.route("a.b")) == ["c", "a", "b"]


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_a_destination_bound_twice_is_found_once(kind: str) -> None:
    x = exchange(kind)
    x.bind(A, "k", {"h": 1})
    x.bind(A, "k", {"i": 1})

    assert names(x.route("k", {"h": 1, "i": 1})) == ["a"]


def test_headers_routes_by_the_table_and_says_it_needs_it() -> None:
    x = exchange("headers")
    x.bind(A, "", {"kind": "order"})
    x.bind(B, "", {"kind": "order", "zone": "eu", "x-match": "any"})

    assert x.needs_headers
    assert names(x.route("", {"kind": "order"})) == ["a", "b"]
    assert names(x.route("", {"zone": "eu"})) == ["b"]
    assert names(x.route("", None)) == []


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "x-consistent-hash"])
def test_the_other_kinds_need_no_headers(kind: str) -> None:
    assert not exchange(kind).needs_headers


def test_patterns_with_very_many_headers_take_more_of_a_part_and_of_a_step() -> None:
    x = exchange("headers")
    wanted = {f"k{number}": number for number in range(79)}
    for number in range(30):
        x.bind(Box(f"q{number}"), "", {"x-match": "all", **wanted, "last": number})

    parts = list(x.route_in_parts("", {**wanted, "last": 7}, None))

    assert [one.name for part in parts for one in part] == ["q7"]
    assert len(parts) == 4  # 30 patterns of few headers would be one
    assert sum(1 for _ in x.dismantle()) > 300


def test_the_hash_exchange_picks_one_and_always_the_same() -> None:
    x = exchange("x-consistent-hash")
    x.bind(A, "1")
    x.bind(B, "1")

    picks = [names(x.route(f"key{at}")) for at in range(200)]

    assert {tuple(pick) for pick in picks} == {("a",), ("b",)}
    assert picks == [names(x.route(f"key{at}")) for at in range(200)]


def test_a_hash_exchange_can_hash_a_header_or_a_property_in_place_of_the_key() -> None:
    by_header, by_property = (
        exchange("x-consistent-hash", hash_header="id"),
        exchange("x-consistent-hash", hash_property="message_id"),
    )
    for x in (by_header, by_property):
        x.bind(A, "1")
        x.bind(B, "1")

    assert by_header.needs_headers
    assert by_property.needs_properties
    assert len({by_header.route(f"k{at}", {"id": "same"})[0].name for at in range(50)}) == 1
    assert len({by_header.route("k", {"id": at})[0].name for at in range(50)}) == 2
    assert len({by_property.route(f"k{at}", {}, {"message_id": "m"})[0].name for at in range(50)}) == 1
    assert len({by_property.route("k", {}, {"message_id": f"m{at}"})[0].name for at in range(50)}) == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"hash-header": "a", "hash-property": "message_id"}, "mutually exclusive"),
        ({"hash-header": 1}, "hash-header 1"),
        ({"hash-property": "priority"}, "priority; expected message_id, correlation_id, timestamp"),
    ],
)
def test_a_senseless_hash_argument_is_refused(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(Conflict, match=text):
        make_exchange("x", "x-consistent-hash", arguments=arguments)


def test_a_refused_binding_leaves_nothing_behind() -> None:
    x = exchange("x-consistent-hash")

    with pytest.raises(Conflict, match="'heavy'"):
        x.bind(A, "heavy")

    assert x.is_unused
    assert x.route("k") == []


@pytest.mark.parametrize(
    ("kind", "key"), [(kind.value, "1") for kind in ExchangeKind if kind is not ExchangeKind.DELAYED]
)
def test_binding_again_is_a_no_op_and_unbinding_undoes_it(kind: str, key: str) -> None:
    x = exchange(kind)

    assert x.bind(A, key, {"h": 1})
    assert not x.bind(Box("a"), key, {"h": 1})
    assert len(list(x.bindings())) == 1
    assert names(x.route("1", {"h": 1})) == ["a"]
    assert not x.unbind(A, key, {"h": 2})
    assert x.unbind(A, key, {"h": 1})
    assert not x.unbind(A, key, {"h": 1})
    assert x.route("1", {"h": 1}) == []
    assert x.is_unused


def test_arguments_of_another_type_make_another_binding() -> None:
    x = exchange("headers")

    added = [x.bind(A, "", {"h": value}) for value in (1, True, 1.0, "1", [1], [True], {"k": 1}, None, 1)]

    assert added == [True] * 8 + [False]


def test_the_order_of_arguments_makes_no_other_binding() -> None:
    x = exchange("headers")
    x.bind(A, "", {"h": 1, "i": 2})

    assert not x.bind(A, "", {"i": 2, "h": 1})


def test_a_queue_and_an_exchange_of_one_name_are_two_destinations() -> None:
    x, other = exchange("fanout"), exchange("direct", name="a")

    assert x.bind(A, "")
    assert x.bind(other, "")
    assert x.route("") == [A, other]
    assert [binding.to_exchange for binding in x.bindings()] == [False, True]


def test_a_caller_that_changes_its_arguments_later_changes_no_binding() -> None:
    x = exchange("headers")
    arguments: dict[str, object] = {"h": 1}
    x.bind(A, "", arguments)

    arguments["h"] = 2

    assert x.unbind(A, "", {"h": 1})


class ExchangeMachine(RuleBasedStateMachine):
    """Bindings come and go; the exchange against a plain list of triples."""

    def __init__(self) -> None:
        super().__init__()
        self.exchange = exchange("topic")
        self.model: list[tuple[str, str]] = []
        self.boxes = {name: Box(name) for name in "abc"}
        self.removals: list[tuple[Box, Iterator[None]]] = []

    @rule(name=st.sampled_from("abc"), key=st.sampled_from(["k", "l", "#", "*"]))
    def bind(self, name: str, key: str) -> None:
        assert self.exchange.bind(self.boxes[name], key) is ((name, key) not in self.model)
        if (name, key) not in self.model:
            self.model.append((name, key))

    @rule(name=st.sampled_from("abc"), key=st.sampled_from(["k", "l", "#", "*"]))
    def unbind(self, name: str, key: str) -> None:
        assert self.exchange.unbind(self.boxes[name], key) is ((name, key) in self.model)
        if (name, key) in self.model:
            self.model.remove((name, key))

    @rule(name=st.sampled_from("abc"))
    def replace(self, name: str) -> None:
        """A queue goes, and another of its name comes before the bindings to the first are removed."""
        gone = self.boxes[name]
        self.exchange.gone[id(gone)] = gone
        self.removals.append((gone, self.exchange.remove_left_over(gone)))
        self.boxes[name] = Box(name)
        self.model = [entry for entry in self.model if entry[0] != name]

    @precondition(lambda self: self.removals)
    @rule(data=st.data(), steps=st.integers(1, 3))
    def remove_some(self, data: st.DataObject, steps: int) -> None:
        gone, removal = data.draw(st.sampled_from(self.removals))
        for _ in range(steps):
            if next(removal, self) is self:
                self.exchange.gone.pop(id(gone), None)

    @rule()
    def finish_removals(self) -> None:
        for gone, removal in self.removals:
            for _ in removal:
                pass
            self.exchange.gone.pop(id(gone), None)
        self.removals.clear()

    @invariant()
    def routes_agree(self) -> None:
        for key in ("k", "l", "m"):
            expected = dict.fromkeys(name for name, pattern in self.model if pattern in (key, "#", "*"))
            assert names(self.exchange.route(key)) == list(expected)
        assert [(b.destination.name, b.routing_key) for b in self.exchange.bindings()] == self.model
        assert self.exchange.is_unused is (not self.model)
        for name, box in self.boxes.items():
            assert len(self.exchange.bindings_to(box)) == sum(entry[0] == name for entry in self.model)


TestExchange = ExchangeMachine.TestCase
TestExchange.settings = settings(max_examples=200, stateful_step_count=25, deadline=None)


def test_an_unknown_type_is_refused_by_name() -> None:
    with pytest.raises(Conflict, match=r"^unknown exchange type 'foo'$"):
        make_exchange("x", "foo")


def test_a_delayed_exchange_routes_as_its_inner_type() -> None:
    x = exchange("x-delayed-message", x_delayed_type="topic")
    x.bind(A, "*.b")

    assert x.is_delayed
    assert x.inner_kind is ExchangeKind.TOPIC
    assert names(x.route("a.b")) == ["a"]


@pytest.mark.parametrize(
    "arguments", [{}, {"x-delayed-type": "foo"}, {"x-delayed-type": "x-delayed-message"}]
)
def test_a_delayed_exchange_without_a_real_inner_type_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(Conflict, match="'x-delayed-type' must be an existing exchange type"):
        make_exchange("x", "x-delayed-message", arguments=arguments)


def test_an_alternate_exchange_is_a_name() -> None:
    assert exchange(alternate_exchange="other").alternate_name == "other"
    assert exchange().alternate_name is None
    with pytest.raises(Conflict, match="'alternate-exchange' for exchange 'x': 5 is of type 'signedint'"):
        exchange(alternate_exchange=5)


def test_every_vhost_starts_with_rabbitmqs_exchanges() -> None:
    found: list[Exchange[Box]] = predeclared_exchanges()

    assert [(x.name, x.kind.value, x.internal) for x in found] == [
        ("", "direct", False),
        ("amq.direct", "direct", False),
        ("amq.fanout", "fanout", False),
        ("amq.topic", "topic", False),
        ("amq.headers", "headers", False),
        ("amq.match", "headers", False),
        ("amq.rabbitmq.trace", "topic", True),
    ]
    assert all(x.durable and not x.auto_delete for x in found)
    assert [x.is_default for x in found] == [True] + [False] * 6


def declared(**changes: object) -> Exchange[Box]:
    said: dict[str, object] = {
        "kind": "direct",
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": {"alternate-exchange": "alt"},
        **changes,
    }
    return make_exchange("name", **said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"kind": "topic"},
            "'type' for exchange 'name' in vhost '/': received 'topic' but current is 'direct'",
        ),
        (
            {"durable": False},
            "'durable' for exchange 'name' in vhost '/': received 'false' but current is 'true'",
        ),
        (
            {"auto_delete": True},
            "'auto_delete' for exchange 'name' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            {"internal": True},
            "'internal' for exchange 'name' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            {"arguments": {}},
            "'alternate-exchange' for exchange 'name' in vhost '/': received none "
            "but current is the value 'alt' of type 'longstr'",
        ),
        (
            {"arguments": {"alternate-exchange": "other"}},
            "'alternate-exchange' for exchange 'name' in vhost '/': received 'other' but current is 'alt'",
        ),
    ],
)
def test_a_redeclaration_that_differs_is_told_in_rabbitmqs_words(
    changes: dict[str, object], text: str
) -> None:
    assert equivalence_error(declared(), declared(**changes), "/") == f"inequivalent arg {text}"


def test_a_redeclaration_that_says_the_same_or_more_notes_is_fine() -> None:
    assert equivalence_error(declared(), declared(), "/") is None
    noted = declared(arguments={"alternate-exchange": "alt", "x-note": 1})
    assert equivalence_error(declared(), noted, "/") is None

import random
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.broker.errors import Conflict
from holtmq.broker.topology.exchanges import Exchange, make_exchange
from holtmq.broker.topology.headers_match import HeadersPattern, equal

Table = dict[str, object]


def matches(arguments: Table, headers: Table) -> bool:
    return HeadersPattern.from_arguments(arguments).matches(headers)


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"x-match": "all", "a": 1, "b": 2}, {"a": 1, "b": 9}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {"a": 9, "b": 2}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"a": 9}, False),
        ({}, {}, True),
        ({"x-match": "all"}, {"a": 1}, True),
        ({"x-match": "any"}, {"a": 1}, False),
    ],
)
def test_all_wants_every_pair_and_any_wants_one(arguments: Table, headers: Table, expected: bool) -> None:
    assert matches(arguments, headers) is expected


@pytest.mark.parametrize(
    ("match", "expected"), [("all", True), ("any", False), ("all-with-x", False), ("any-with-x", False)]
)
def test_keys_with_x_count_only_where_they_are_asked_for(match: str, expected: bool) -> None:
    assert matches({"x-match": match, "x-kind": "new"}, {"x-kind": "old"}) is expected


@pytest.mark.parametrize("match", ["all-with-x", "any-with-x"])
def test_a_key_with_x_can_match(match: str) -> None:
    assert matches({"x-match": match, "x-kind": "new"}, {"x-kind": "new"})


@pytest.mark.parametrize("match", ["all-with-x", "any-with-x"])
def test_x_match_itself_is_never_compared(match: str) -> None:
    assert matches({"x-match": match, "a": 1}, {"a": 1, "x-match": "other"})
    assert not matches({"x-match": "any-with-x", "a": 1}, {"x-match": "any-with-x"})


def test_a_void_binding_value_asks_only_for_presence() -> None:
    assert matches({"a": None}, {"a": "anything"})
    assert matches({"a": None}, {"a": None})
    assert not matches({"a": None}, {"b": 1})


def test_a_void_header_satisfies_no_value() -> None:
    assert not matches({"a": 0}, {"a": None})
    assert not matches({"a": ""}, {"a": None})


@pytest.mark.parametrize("match", ["some", "", 1, None, True])
def test_an_unknown_x_match_is_refused_with_the_right_ones(match: object) -> None:
    with pytest.raises(Conflict, match="expected all, any, all-with-x, or any-with-x"):
        HeadersPattern.from_arguments({"x-match": match})


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (True, True, True),
        ("1", 1, False),
        ("a", b"a", True),
        ([1, True], [1.0, True], True),
        ([1], [True], False),
        ([1], [1, 2], False),
        ({"k": 1}, {"k": True}, False),
        ({"k": [1]}, {"k": [1]}, True),
        ({"k": 1}, {"k": 1, "l": 2}, False),
    ],
)
def test_values_are_equal_by_value_but_a_boolean_is_no_number(
    left: object, right: object, expected: bool
) -> None:
    assert equal(left, right) is expected
    assert equal(right, left) is expected


KEYS = st.sampled_from(["a", "b", "c", "x-d"])
TABLES = st.dictionaries(KEYS, st.sampled_from([1, 2, None, True, "1"]))


@given(TABLES, TABLES, st.sampled_from(["all", "any", "all-with-x", "any-with-x"]))
def test_the_pattern_says_what_the_definition_says(wanted: Table, headers: Table, match: str) -> None:
    counted = {key: value for key, value in wanted.items() if "with-x" in match or not key.startswith("x-")}
    hits = [
        key in headers and (value is None or equal(value, headers[key])) for key, value in counted.items()
    ]

    assert matches({**wanted, "x-match": match}, headers) is (all(hits) if "all" in match else any(hits))


VALUES: list[object] = [1, 1.0, True, "1", b"1", None, 2, Decimal(1), [1], {"a": 1}, "x", "é", "é".encode()]


def test_an_exchange_finds_the_bindings_that_a_comparison_with_all_finds() -> None:
    rng = random.Random(3)
    exchange: Exchange[Named] = make_exchange("h", "headers")
    bound: dict[str, dict[str, object]] = {}

    def table(most: int) -> dict[str, object]:
        return {rng.choice("abc"): rng.choice(VALUES) for _ in range(rng.randint(0, most))}

    for step in range(600):
        name = f"q{rng.randrange(40)}"
        if name in bound:
            assert exchange.unbind(Named(name), "", bound.pop(name))
        else:
            match = rng.choice(["all", "any", "all-with-x", "any-with-x"])
            bound[name] = {"x-match": match, **table(3)}
            exchange.bind(Named(name), "", bound[name])
        headers = table(4)

        found = [where.name for where in exchange.route("", headers)]

        wanted = [
            name
            for name, arguments in bound.items()
            if HeadersPattern.from_arguments(arguments).matches(headers)
        ]
        assert found == wanted, (step, headers)


def test_an_empty_exchange_keeps_no_values() -> None:
    exchange: Exchange[Named] = make_exchange("h", "headers")
    arguments = {"x-match": "any", "a": 1, "b": "x"}
    exchange.bind(Named("q"), "", arguments)

    exchange.unbind(Named("q"), "", arguments)

    assert not exchange._index._by_pair  # type: ignore[attr-defined]
    assert exchange.route("", {"a": 1}) == []


class Named:
    def __init__(self, name: str) -> None:
        self.name = name

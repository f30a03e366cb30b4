from datetime import UTC, datetime
from decimal import Decimal

import pytest

from holtmq.broker.topology.equivalence import (
    argument_difference,
    field_difference,
    same_value,
    shown,
    type_name,
)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (10, 10, True),
        (10, 11, False),
        (1, True, False),
        (1, 1.0, False),
        ("a", "a", True),
        ("a", b"a", True),
        ("1", 1, False),
        (None, None, True),
        (None, 0, False),
    ],
)
def test_values_of_two_types_are_never_the_same(left: object, right: object, same: bool) -> None:
    assert same_value(left, right) is same
    assert same_value(right, left) is same


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (True, "bool", "true"),
        (7, "signedint", "7"),
        (2**31, "long", "2147483648"),
        (-(2**31), "signedint", "-2147483648"),
        (1.5, "double", "1.5"),
        ("t", "longstr", "t"),
        (b"\xff", "binary", "\\xff"),
        (None, "void", "undefined"),
        (Decimal("1.5"), "decimal", "1.5"),
        (datetime(2024, 1, 1, tzinfo=UTC), "timestamp", "2024-01-01 00:00:00+00:00"),
        ({}, "table", "{}"),
        ([], "array", "[]"),
    ],
)
def test_a_value_is_named_by_its_field_type(value: object, name: str, text: str) -> None:
    assert type_name(value) == name
    assert shown(value) == text


def test_the_first_key_that_differs_is_named() -> None:
    found = argument_difference(["a", "b", "c"], "thing", {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 9, "c": 9})

    assert found == "inequivalent arg 'b' for thing: received '2' but current is '9'"


def test_an_argument_on_one_side_only_shows_its_type() -> None:
    assert argument_difference(["a"], "thing", {"a": 1}, {}) == (
        "inequivalent arg 'a' for thing: received the value '1' of type 'signedint' but current is none"
    )
    assert argument_difference(["a"], "thing", {}, {"a": "t"}) == (
        "inequivalent arg 'a' for thing: received none but current is the value 't' of type 'longstr'"
    )


def test_other_keys_and_equal_fields_are_no_difference() -> None:
    assert argument_difference(["a"], "thing", {"z": 1}, {"z": 2}) is None
    assert field_difference("durable", "thing", True, True) is None

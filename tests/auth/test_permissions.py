"""Permissions match as RabbitMQ's do."""

import pytest

from holtmq.auth.permissions import FULL_ACCESS, Access, Action, Permissions, matches
from holtmq.name_patterns import BadPattern


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        (".*", "orders", True),
        (".*", "", True),
        ("", "orders", False),
        ("", "", True),
        ("^$", "orders", False),
        ("order", "my-orders-2", True),
        ("^order", "my-orders", False),
        ("^orders$", "orders", True),
        ("^orders$", "orders2", False),
        ("^(amq\\.default|orders.*)$", "amq.default", True),
        ("^grün", "grün.1", True),
        ("a|b", "xbx", True),
    ],
)
def test_a_pattern_is_searched_in_the_name_and_its_anchors_are_its_own(
    pattern: str, name: str, expected: bool
) -> None:
    assert matches(pattern, name) is expected


def test_each_action_has_a_pattern_of_its_own() -> None:
    access = Access(Permissions(configure="^c", write="^w", read="^r"))

    allowed = {(action, name) for action in Action for name in "cwr" if access.may(action, name)}

    assert allowed == {(Action.CONFIGURE, "c"), (Action.WRITE, "w"), (Action.READ, "r")}


def test_without_permissions_nothing_is_allowed() -> None:
    access = Access(None)

    assert not access.is_granted
    assert not any(access.may(action, "q") for action in Action)


def test_answers_given_before_do_not_outlive_a_change() -> None:
    access = Access(FULL_ACCESS)
    assert access.may(Action.READ, "q")

    access.replace(Permissions("", "", "^other$"))

    assert not access.may(Action.READ, "q")
    assert access.may(Action.READ, "other")


def test_the_memory_of_answers_is_bounded() -> None:
    access = Access(FULL_ACCESS)

    for number in range(10_000):
        assert access.may(Action.WRITE, f"queue-{number}")

    assert len(access._answers[Action.WRITE]) <= 4096


@pytest.mark.parametrize("pattern", ["(", "*", "[a-", "(?P<x", "x" * 5000])
def test_a_bad_pattern_is_refused_with_the_action_and_the_reason(pattern: str) -> None:
    with pytest.raises(BadPattern, match=r"write permission: .*(not a regular expression|longer than)"):
        Permissions(".*", pattern, ".*").check()

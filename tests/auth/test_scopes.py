"""Scopes of OAuth 2 tokens: what they allow, and what they never do."""

import pytest

from holtmq.auth.permissions import Action
from holtmq.auth.scopes import Scopes, read_aliases, read_scopes

PREFIXES = ("rabbitmq.", "holt.")


def scopes(*given: str, **aliases: str) -> Scopes:
    return read_scopes(given, PREFIXES, aliases)


@pytest.mark.parametrize(
    ("scope", "vhost", "action", "name", "allowed"),
    [
        ("rabbitmq.read:*/*", "/", Action.READ, "q", True),
        ("rabbitmq.read:*/*", "/", Action.WRITE, "q", False),
        ("rabbitmq.read:%2F/q", "/", Action.READ, "q", True),
        ("rabbitmq.read:%2F/q", "/", Action.READ, "qq", False),
        ("rabbitmq.read:%2F/q", "other", Action.READ, "q", False),
        ("rabbitmq.configure:prod-*/orders.*", "prod-1", Action.CONFIGURE, "orders.eu", True),
        ("rabbitmq.configure:prod-*/orders.*", "prod-1", Action.CONFIGURE, "my.orders.eu", False),
        ("rabbitmq.write:*/*.log*", "/", Action.WRITE, "app.log.1", True),
        ("rabbitmq.write:*/a.c", "/", Action.WRITE, "abc", False),  # no regular expression
        ("rabbitmq.write:*/(a|b)+$", "/", Action.WRITE, "(a|b)+$", True),
        ("rabbitmq.write:*/a%2Fb", "/", Action.WRITE, "a/b", True),
        ("holt.read:*/q", "/", Action.READ, "q", True),
        ("other.read:*/*", "/", Action.READ, "q", False),
        ("read:*/*", "/", Action.READ, "q", False),
        ("rabbitmq.read:*", "/", Action.READ, "q", False),
        ("rabbitmq.delete:*/*", "/", Action.READ, "q", False),
        ("rabbitmq.read:*/*/*/*", "/", Action.READ, "q", False),
        ("rabbitmq.read:a*a/*", "a", Action.READ, "q", False),  # the ends must not overlap
    ],
)
def test_what_a_scope_allows(scope: str, vhost: str, action: Action, name: str, allowed: bool) -> None:
    assert scopes(scope).access(vhost).may(action, name) is allowed


def test_a_vhost_is_open_if_any_scope_names_it() -> None:
    found = scopes("rabbitmq.read:one/*")

    assert found.access("one").is_granted
    assert not found.access("two").is_granted


def test_several_scopes_add_up_and_an_alias_stands_for_some() -> None:
    found = scopes("developer", "rabbitmq.read:*/c", developer="rabbitmq.read:*/a rabbitmq.tag:monitoring")

    assert [found.access("/").may(Action.READ, name) for name in "abc"] == [True, False, True]
    assert found.tags == ("monitoring",)


def test_a_third_part_names_routing_keys() -> None:
    found = scopes("rabbitmq.write:*/events/orders.*", "rabbitmq.read:*/*")

    assert found.restricts_topics
    assert found.access("/").may(Action.WRITE, "events")
    assert found.may_topic("/", "events", "orders.new", write=True)
    assert not found.may_topic("/", "events", "users.new", write=True)
    assert found.may_topic("/", "events", "users.new", write=False)


def test_no_scopes_are_nothing() -> None:
    assert not scopes()
    assert not scopes("openid", "profile")
    assert not scopes().access("/").is_granted


def test_more_scopes_than_a_pattern_can_hold_never_allow_more() -> None:
    found = scopes(*(f"rabbitmq.read:*/{'x' * 200}{number}" for number in range(100)))

    assert not found.access("/").may(Action.READ, "q")


def test_aliases_have_one_form() -> None:
    assert read_aliases(["a = rabbitmq.read:*/* rabbitmq.tag:x"]) == {"a": "rabbitmq.read:*/* rabbitmq.tag:x"}
    with pytest.raises(ValueError, match="alias=scope"):
        read_aliases(["alone"])

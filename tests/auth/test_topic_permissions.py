"""Topic permissions match as RabbitMQ's do, and never allow what cannot be read."""

import pytest

from holtmq.auth.topic_permissions import TopicPermission, TopicPermissions


def granted(write: str, *, user: str = "me", vhost: str = "/") -> TopicPermissions:
    permissions = TopicPermissions()
    permissions.put(TopicPermission(user, vhost, "topics", write, ".*"))
    return permissions


def may(permissions: TopicPermissions, topic: str, *, user: str = "me", vhost: str = "/") -> bool:
    return permissions.may(user, vhost, "topics", topic, write=True)


def test_an_empty_pattern_allows_no_topic_but_the_empty_one() -> None:
    permissions = granted("")

    assert not may(permissions, "orders.new")
    assert may(permissions, "")
    assert permissions.may("me", "/", "topics", "orders.new", write=False)


def test_a_stored_pattern_that_cannot_be_used_allows_nothing() -> None:
    assert not may(granted("^(?=ok)"), "ok")


@pytest.mark.parametrize("user", ["a b", "a\nb", "grün", "{vhost}", "a.b", "a\0b", "#*+?()[]|^$\\-&~"])
def test_variables_stand_for_the_exact_names(user: str) -> None:
    permissions = granted(r"^{username}\.{vhost}\.", user=user, vhost="/v h.1")

    assert may(permissions, f"{user}./v h.1.x", user=user, vhost="/v h.1")
    assert not may(permissions, f"{user}./v h_1.x", user=user, vhost="/v h.1")
    assert not may(permissions, f"x{user}./v h.1.x", user=user, vhost="/v h.1")

"""What a change of one user costs does not depend on how many others there are."""

import time
from collections.abc import Callable

import pytest

from holtmq.auth.permissions import FULL_ACCESS
from holtmq.auth.topic_permissions import TopicPermission, TopicPermissions
from holtmq.auth.users import Grant, User, UserStore, Vhost
from holtmq.broker.topology.parameters import Parameter, Parameters


def delete_users(count: int) -> Callable[[], object]:
    store = UserStore()
    store.put_vhost(Vhost("/"))
    for number in range(count):
        store.put_user(User(f"user-{number:06}", ""))
        store.set_permissions(Grant(f"user-{number:06}", "/", FULL_ACCESS))

    def delete() -> None:
        for number in range(500):
            assert store.delete_user(f"user-{number:06}")

    return delete


def show_permissions(count: int) -> Callable[[], object]:
    store = UserStore()
    store.put_vhost(Vhost("/"))
    for number in range(count):
        store.put_user(User(f"user-{number:06}", ""))
        store.set_permissions(Grant(f"user-{number:06}", "/", FULL_ACCESS))
    return lambda: [store.grants(user=f"user-{number:06}") for number in range(500)]


def forget_topics(count: int) -> Callable[[], object]:
    permissions = TopicPermissions()
    for number in range(count):
        permissions.put(TopicPermission(f"user-{number:06}", "/", "amq.topic", ".*", ".*"))
    return lambda: [permissions.forget(user=f"user-{number:06}") for number in range(500)]


def list_parameters(count: int) -> Callable[[], object]:
    parameters = Parameters()
    for number in range(count):
        parameters.put(Parameter(f"vhost-{number:06}", "federation-upstream", "one", b"{}"))
    return lambda: [parameters.all(vhost=f"vhost-{number:06}") for number in range(500)]


@pytest.mark.parametrize("prepare", [delete_users, show_permissions, forget_topics, list_parameters])
def test_500_requests_take_as_long_among_very_many(prepare: Callable[[int], Callable[[], object]]) -> None:
    def seconds(count: int) -> float:
        request = prepare(count)
        began = time.process_time()
        request()
        return time.process_time() - began

    few = min(seconds(600) for _ in range(3))

    assert min(seconds(12_000) for _ in range(3)) < 8 * few  # if each looks at all of them: 20 times

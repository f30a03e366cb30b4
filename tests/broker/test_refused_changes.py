"""A change that the journal refuses is not in force: it would be gone after a restart."""

import copy
from collections.abc import Callable

import pytest
from core_support import Bench

from holtmq.auth.permissions import FULL_ACCESS, Permissions
from holtmq.auth.topic_permissions import TopicPermission
from holtmq.auth.users import User
from holtmq.broker.broker import Broker
from holtmq.broker.topology.parameters import Parameter
from holtmq.broker.topology.vhost import VHost
from holtmq.journal import JournalFailed

NOTHING = Permissions("^$", "^$", "^$")
CHANGES: dict[str, Callable[[Broker], object]] = {
    "a new policy": lambda b: b.policy_changes.put("/", "new", ".*", {"max-length": 1}),
    "another policy": lambda b: b.policy_changes.put("/", "old", ".*", {"max-length": 1}),
    "no policy": lambda b: b.policy_changes.delete("/", "old"),
    "an operator policy": lambda b: b.policy_changes.put("/", "new", ".*", {"max-length": 1}, operator=True),
    "a vhost": lambda b: b.put_vhost("new"),
    "a description of a vhost": lambda b: b.put_vhost("/", "another"),
    "an exchange": lambda b: b.exchanges.declare(b.vhost("/"), "new", "topic", durable=True),
    "no exchange": lambda b: b.exchanges.delete(b.vhost("/"), "x"),
    "a binding": lambda b: b.exchanges.bind(b.vhost("/"), "x", "q", "another"),
    "a binding of an exchange": lambda b: b.exchanges.bind(b.vhost("/"), "x", "y", "", to_exchange=True),
    "no binding": lambda b: b.exchanges.unbind(b.vhost("/"), "x", "q", "key"),
    "a new user": lambda b: b.access.put_user(User("eve", "hash")),
    "another password": lambda b: b.access.put_user(User("ann", "another hash")),
    "no user": lambda b: b.access.delete_user("ann"),
    "other permissions": lambda b: b.access.set_permissions("ann", "/", NOTHING),
    "no permissions": lambda b: b.access.clear_permissions("ann", "/"),
    "other topics": lambda b: b.access.put_topic_permission(TopicPermission("ann", "/", "x", "^$", "^$")),
    "no topics": lambda b: b.access.delete_topic_permissions("ann", "/"),
    "settings of a vhost": lambda b: b.access.set_vhost_settings("/", default_queue_type="quorum"),
    "limits of a vhost": lambda b: b.access.set_vhost_limits("/", {"max-queues": 1}),
    "limits of a user": lambda b: b.access.set_user_limits("ann", {"max-channels": 1}),
    "another parameter": lambda b: b.parameter_changes.put(Parameter("/", "shovel", "s", b"2")),
    "no parameter": lambda b: b.parameter_changes.delete("/", "shovel", "s"),
    "another global parameter": lambda b: b.parameter_changes.put_global("g", b"2"),
    "no global parameter": lambda b: b.parameter_changes.delete_global("g"),
}


def state(broker: Broker) -> object:
    changes, vhost = broker.policy_changes, broker.vhost("/")
    return copy.deepcopy(
        [
            sorted(broker.vhosts),
            sorted(vhost.exchanges),
            [
                bindings_to(vhost, name)
                for name in ("q", "y")
                if name in vhost.queues or name in vhost.exchanges
            ],
            [policy.name for policy in changes.operator_policies.in_vhost("/")],
            [(policy.name, dict(policy.values)) for policy in changes.policies.in_vhost("/")],
            broker.users.snapshot(),
            broker.topic_permissions.all(),
            broker.limits.of_vhosts,
            broker.limits.of_users,
            broker.parameters.all(),
            broker.parameters.globals(),
        ]
    )


def bindings_to(vhost: VHost, name: str) -> list[tuple[str, str]]:
    found = vhost.bindings_to(vhost.queues[name] if name in vhost.queues else vhost.exchanges[name])
    return [(binding.source, binding.routing_key) for binding in found]


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_change_that_the_journal_refuses_is_not_in_force(
    bench: Bench, change: Callable[[Broker], object]
) -> None:
    broker = bench.broker
    for name in "xy":
        broker.exchanges.declare(bench.vhost, name, "topic", durable=True)
    bench.declare("q")
    broker.exchanges.bind(bench.vhost, "x", "q", "key")
    broker.policy_changes.put("/", "old", ".*", {"max-length": 5})
    broker.access.put_user(User("ann", "hash"))
    broker.access.set_permissions("ann", "/", FULL_ACCESS)
    broker.access.put_topic_permission(TopicPermission("ann", "/", "x", ".*", ".*"))
    broker.parameter_changes.put(Parameter("/", "shovel", "s", b"1"))
    broker.parameter_changes.put_global("g", b"1")
    before = state(broker)
    bench.journal.fail("the disk is gone")

    with pytest.raises(JournalFailed):
        change(broker)

    assert state(broker) == before


def test_what_is_there_already_can_be_declared_again_when_the_journal_has_failed(bench: Bench) -> None:
    exchanges = bench.broker.exchanges
    exchanges.declare(bench.vhost, "x", "topic", durable=True)
    bench.declare("q")
    exchanges.bind(bench.vhost, "x", "q", "key")
    bench.journal.fail("the disk is gone")

    assert not exchanges.declare(bench.vhost, "x", "topic", durable=True)
    assert not exchanges.bind(bench.vhost, "x", "q", "key")
    assert not exchanges.declare(bench.vhost, "brief", "topic")
    assert not exchanges.bind(bench.vhost, "brief", "q", "key")

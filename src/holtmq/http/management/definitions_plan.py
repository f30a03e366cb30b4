"""Management API: the order in which the parts of definitions are made, each after what it depends on.

Owns: that order. Must not touch: how a part is made and checked, when it is made. The same plan is made on
the rehearsal's broker first, and then on the real one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from holtmq.auth.permissions import Permissions
from holtmq.auth.topic_permissions import TopicPermission
from holtmq.auth.users import User
from holtmq.broker.broker import Broker
from holtmq.http.engine.errors import Refusal
from holtmq.http.management.definitions_document import Definitions
from holtmq.http.management.runtime import POLICIES, set_parameter
from holtmq.http.management.users import set_policy, set_vhost
from holtmq.http.management.wire import (
    BindingIn,
    ExchangeIn,
    PermissionIn,
    QueueIn,
    checked_key,
    checked_name,
    checked_table,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """A document with its passwords hashed."""

    given: Definitions
    users: list[User]

    def __len__(self) -> int:
        """How many rows the document has."""
        given = self.given
        return (
            len(given.vhosts)
            + len(self.users)
            + len(given.permissions)
            + len(given.topic_permissions)
            + len(given.parameters)
            + len(given.global_parameters)
            + len(given.policies)
            + len(given.exchanges)
            + len(given.queues)
            + len(given.bindings)
        )

    def make(self, broker: Broker) -> Iterator[None]:
        """Make everything that the document has, one row per item. Time may pass between two items."""
        yield from self._access(broker)
        for policy in self.given.policies:
            set_policy(broker, policy.vhost, policy.name, policy, operator=False)
            yield
        yield from self._parameters(broker, are_policies=True)
        for exchange in self.given.exchanges:
            _exchange(broker, exchange)
            yield
        for queue in self.given.queues:
            _queue(broker, queue)
            yield
        for binding in self.given.bindings:
            _bind(broker, binding)
            yield
        # After the queues: limits must not refuse them, and a shovel would declare those that it needs.
        yield from self._parameters(broker, are_policies=False)
        for parameter in self.given.global_parameters:
            name = checked_name(parameter.name, "parameter")
            broker.parameter_changes.put_global(name, bytes(parameter.value))
            yield

    def _access(self, broker: Broker) -> Iterator[None]:
        for vhost in self.given.vhosts:
            set_vhost(broker, checked_name(vhost.name, "vhost"), vhost)
            yield
        for given, user in zip(self.given.users, self.users, strict=True):
            broker.access.put_user(user)
            if given.limits or given.name in broker.limits.of_users:
                broker.access.set_user_limits(given.name, given.limits)
            yield
        for grant in self.given.permissions:
            _grant(broker, grant)
            yield
        for topic in self.given.topic_permissions:
            permission = TopicPermission(topic.user, topic.vhost, topic.exchange, topic.write, topic.read)
            broker.access.put_topic_permission(permission)
            yield

    def _parameters(self, broker: Broker, *, are_policies: bool) -> Iterator[None]:
        for parameter in self.given.parameters:
            vhost, component, name = parameter.vhost, parameter.component, parameter.name
            if (component in POLICIES) == are_policies:
                set_parameter(broker, vhost, component, name, parameter.value, imported=True)
                yield


def _grant(broker: Broker, grant: PermissionIn) -> None:
    rights = Permissions(grant.configure, grant.write, grant.read)
    broker.access.set_permissions(grant.user, grant.vhost, rights)


def _exchange(broker: Broker, exchange: ExchangeIn) -> None:
    broker.exchanges.declare(
        broker.vhost(exchange.vhost),
        checked_name(exchange.name, "exchange"),
        exchange.type,
        durable=exchange.durable,
        auto_delete=exchange.auto_delete,
        internal=exchange.internal,
        arguments=checked_table(exchange.arguments, f"arguments of exchange '{exchange.name}'"),
    )


def _queue(broker: Broker, queue: QueueIn) -> None:
    broker.declare_queue(
        broker.vhost(queue.vhost),
        checked_name(queue.name, "queue"),
        durable=queue.durable,
        auto_delete=queue.auto_delete,
        arguments=checked_table(queue.arguments, f"arguments of queue '{queue.name}'"),
        any_name=True,
    )


def _bind(broker: Broker, binding: BindingIn) -> None:
    if binding.destination_type not in ("queue", "exchange"):
        kind = binding.destination_type
        raise Refusal(400, f"a binding's destination_type is queue or exchange, not '{kind}'")
    broker.bind(
        broker.vhost(binding.vhost),
        binding.source,
        binding.destination,
        checked_key(binding.routing_key),
        checked_table(binding.arguments, "arguments of a binding"),
        to_exchange=binding.destination_type == "exchange",
    )

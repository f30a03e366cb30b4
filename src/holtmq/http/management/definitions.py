"""Management API: everything but messages and exclusive queues, as one JSON document, out and in.

Owns: the document. Must not touch: how each part is made; it goes through the same checks as one by one.
An import adds and replaces, and deletes nothing. It stops at the first part that is refused; what came before
stays, so that a corrected document can simply be sent again.
"""

from typing import Final

import msgspec

from holtmq.auth.permissions import Permissions
from holtmq.auth.users import User
from holtmq.broker.broker import Broker
from holtmq.broker.topology.exchanges import Exchange
from holtmq.broker.topology.vhost import QueueBinding, QueueExchange, VHost
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.engine.errors import Refusal
from holtmq.http.management.call import CHANGED, Answer, ManagementCall, Row
from holtmq.http.management.listing import Rows
from holtmq.http.management.topology import listed_queues
from holtmq.http.management.users import permission_row, policy_row, set_policy, user_from, user_row
from holtmq.http.management.wire import (
    BindingIn,
    ExchangeIn,
    PermissionIn,
    PolicyIn,
    QueueIn,
    UserIn,
    VhostIn,
    checked_key,
    checked_name,
    checked_table,
    plain,
)

_OPERATOR_POLICY: Final = "operator_policy"  # RabbitMQ keeps these among its runtime parameters


class ParameterIn(msgspec.Struct, kw_only=True):
    component: str
    name: str
    vhost: str = ""
    value: msgspec.Raw = msgspec.Raw(b"{}")


class DefinitionsIn(msgspec.Struct, kw_only=True):
    vhosts: list[VhostIn] = []
    users: list[UserIn] = []
    permissions: list[PermissionIn] = []
    topic_permissions: list[object] = []
    parameters: list[ParameterIn] = []
    policies: list[PolicyIn] = []
    exchanges: list[ExchangeIn] = []
    queues: list[QueueIn] = []
    bindings: list[BindingIn] = []


async def export(call: ManagementCall) -> object:
    broker = call.broker
    vhosts = [broker.vhosts[name] for name in sorted(broker.vhosts)]
    return {
        **_versions(call),
        "users": [user_row(user) for user in broker.users.users()],
        "vhosts": [{"name": vhost.name} for vhost in vhosts],
        "permissions": [permission_row(grant) for grant in broker.users.grants()],
        "topic_permissions": [],
        "global_parameters": [],
        **_inside(call, vhosts),
    }


async def export_vhost(call: ManagementCall) -> object:
    """What is inside one vhost; it does not say which, so that it can be loaded into another."""
    parts = _inside(call, [call.vhost])
    nowhere = {name: Rows(map(_without_vhost, part.rows)) for name, part in parts.items()}
    return {**_versions(call), **nowhere}


def _without_vhost(row: object) -> object:
    assert isinstance(row, dict)
    return {key: value for key, value in row.items() if key != "vhost"}


def _versions(call: ManagementCall) -> dict[str, object]:
    product = call.context.config.amqp
    return {
        "rabbit_version": product.product_version,
        "rabbitmq_version": product.product_version,
        "product_name": product.product,
        "product_version": product.product_version,
    }


def _inside(call: ManagementCall, vhosts: list[VHost]) -> dict[str, Rows]:
    broker = call.broker
    queues = [queue for vhost in vhosts for queue in listed_queues(vhost) if queue.owner is None]
    exchanges = [
        (vhost, exchange)
        for vhost in vhosts
        for name, exchange in sorted(vhost.exchanges.items())
        if name and not name.startswith("amq.")
    ]
    bindings = [
        (vhost, list(exchange.bindings()))
        for vhost in vhosts
        for _, exchange in sorted(vhost.exchanges.items())
    ]
    return {
        "parameters": Rows([_parameter(row) for row in _policies(broker, vhosts, operator=True)]),
        "policies": Rows(_policies(broker, vhosts, operator=False)),
        "queues": Rows(map(_queue_definition, queues)),
        "exchanges": Rows(_exchange_definition(*one) for one in exchanges),
        "bindings": Rows(
            _binding_definition(vhost, binding)
            for vhost, found in bindings
            for binding in found
            if isinstance(binding.destination, Exchange) or binding.destination.owner is None
        ),
    }


def _queue_definition(queue: WorkQueue) -> dict[str, object]:
    return {
        "name": queue.name,
        "vhost": queue.vhost,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "arguments": plain(dict(queue.arguments)),
    }


def _exchange_definition(vhost: VHost, exchange: QueueExchange) -> dict[str, object]:
    return {
        "name": exchange.name,
        "vhost": vhost.name,
        "type": exchange.kind.value,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": plain(dict(exchange.arguments)),
    }


def _binding_definition(vhost: VHost, binding: QueueBinding) -> dict[str, object]:
    return {
        "source": binding.source,
        "vhost": vhost.name,
        "destination": binding.destination.name,
        "destination_type": "exchange" if binding.to_exchange else "queue",
        "routing_key": binding.routing_key,
        "arguments": plain(dict(binding.arguments)),
    }


def _policies(broker: Broker, vhosts: list[VHost], *, operator: bool) -> list[dict[str, object]]:
    book = broker.operator_policies if operator else broker.policies
    return [policy_row(policy) for vhost in vhosts for policy in book.in_vhost(vhost.name)]


def _parameter(policy: dict[str, object]) -> dict[str, object]:
    value = {key: item for key, item in policy.items() if key not in ("vhost", "name")}
    return {
        "vhost": policy["vhost"],
        "component": _OPERATOR_POLICY,
        "name": policy["name"],
        "value": value,
    }


async def load_vhost(call: ManagementCall) -> Answer:
    given, vhost = call.json(DefinitionsIn), call.vhost.name
    if given.users or given.vhosts or given.permissions:
        raise Refusal(400, "users, vhosts and permissions are not part of one vhost's definitions")
    for parts in (given.parameters, given.policies, given.exchanges, given.queues, given.bindings):
        for part in parts:
            part.vhost = vhost
    return await _load(call, given)


async def load(call: ManagementCall) -> Answer:
    return await _load(call, call.json(DefinitionsIn))


async def _load(call: ManagementCall, given: DefinitionsIn) -> Answer:
    operator_policies = _checked(given)
    users = [await user_from(user.name, user) for user in given.users]
    call.refuse_if_failed()  # again: hashing took its time
    _load_users(call.broker, given, users)
    for policy in given.policies:
        set_policy(call.broker, policy.vhost, policy.name, policy, operator=False)
    for policy in operator_policies:
        set_policy(call.broker, policy.vhost, policy.name, policy, operator=True)
    _load_topology(call.broker, given)
    return CHANGED


def _checked(given: DefinitionsIn) -> list[PolicyIn]:
    """The operator policies; 400 for what this broker does not have and must not forget in silence."""
    if given.topic_permissions:
        raise Refusal(400, "topic_permissions are not supported: take them out, and mind what that opens")
    policies: list[PolicyIn] = []
    for parameter in given.parameters:
        if parameter.component != _OPERATOR_POLICY:
            raise Refusal(
                400, f"parameter '{parameter.name}': component '{parameter.component}' is not supported"
            )
        try:
            policy = msgspec.json.decode(parameter.value, type=PolicyIn, strict=False)
        except msgspec.MsgspecError as error:
            raise Refusal(400, f"operator policy '{parameter.name}': {error}") from None
        policy.name, policy.vhost = parameter.name, parameter.vhost
        policies.append(policy)
    for binding in given.bindings:
        if binding.destination_type not in ("queue", "exchange"):
            raise Refusal(
                400, f"a binding's destination_type is queue or exchange, not '{binding.destination_type}'"
            )
    return policies


def _load_users(broker: Broker, given: DefinitionsIn, users: list[User]) -> None:
    for vhost in given.vhosts:
        broker.put_vhost(checked_name(vhost.name, "vhost"))
    for user in users:
        broker.put_user(user)
    for grant in given.permissions:
        rights = Permissions(grant.configure, grant.write, grant.read)
        broker.set_permissions(grant.user, grant.vhost, rights)


def _load_topology(broker: Broker, given: DefinitionsIn) -> None:
    for exchange in given.exchanges:
        broker.declare_exchange(
            broker.vhost(exchange.vhost),
            checked_name(exchange.name, "exchange"),
            exchange.type,
            durable=exchange.durable,
            auto_delete=exchange.auto_delete,
            internal=exchange.internal,
            arguments=checked_table(exchange.arguments, f"arguments of exchange '{exchange.name}'"),
        )
    for queue in given.queues:
        broker.declare_queue(
            broker.vhost(queue.vhost),
            checked_name(queue.name, "queue"),
            durable=queue.durable,
            auto_delete=queue.auto_delete,
            arguments=checked_table(queue.arguments, f"arguments of queue '{queue.name}'"),
        )
    for binding in given.bindings:
        broker.bind(
            broker.vhost(binding.vhost),
            binding.source,
            binding.destination,
            checked_key(binding.routing_key),
            checked_table(binding.arguments, "arguments of a binding"),
            to_exchange=binding.destination_type == "exchange",
        )


ROWS: Final = (
    Row("GET", "/api/definitions", export),
    Row("POST", "/api/definitions", load),
    Row("GET", "/api/definitions/{vhost}", export_vhost),
    Row("POST", "/api/definitions/{vhost}", load_vhost),
)

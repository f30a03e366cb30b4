"""Management API: everything but messages and exclusive queues, as one JSON document that RabbitMQ can load.

Owns: the export. Must not touch: the import (``definitions_import.py``).
"""

from typing import Final

from holtmq.auth import passwords
from holtmq.auth.users import User
from holtmq.broker.broker import Broker
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.exchanges import Exchange
from holtmq.broker.topology.vhost import QueueBinding, VHost
from holtmq.http.engine.endpoints import Call
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.engine.wire import plain
from holtmq.http.management.bindings import listed_bindings
from holtmq.http.management.conventions import endpoint, missing_is_bad_request
from holtmq.http.management.listing import Rows
from holtmq.http.management.runtime import global_rows, parameter_rows, topic_row
from holtmq.http.management.topology import exchange_definition, listed_exchanges, listed_queues
from holtmq.http.management.users import permission_row, policy_row, user_row, vhost_definition


async def export(call: Call) -> object:
    return {**_versions(call), **await document(call.broker)}


async def document(broker: Broker) -> dict[str, object]:
    """All definitions by part: lists, and ``Rows`` where a part may be long."""
    vhosts = [broker.vhosts[name] for name in sorted(broker.vhosts)]
    return {
        "users": Rows(_user_definition(broker, user) for user in broker.users.users()),
        "vhosts": Rows(map(vhost_definition, broker.users.vhosts())),
        "permissions": Rows(map(permission_row, broker.users.grants())),
        "topic_permissions": Rows(map(topic_row, broker.topic_permissions.all())),
        "global_parameters": global_rows(broker),
        # RabbitMQ ignores this key, and cannot check argon2: these users need a new password there.
        "users_with_argon2_hashes": await _names_with_argon2(broker),
        **await _inside(broker, vhosts),
    }


async def _names_with_argon2(broker: Broker) -> Rows:
    stepwise, names = Stepwise(), list[str]()
    for user in broker.users.users():
        if _has_argon2(user):
            names.append(user.name)
        await stepwise.between()
    return Rows(names)


def _has_argon2(user: User) -> bool:
    return bool(user.password_hash) and passwords.exported_hash(user.password_hash) is None


def _user_definition(broker: Broker, user: User) -> dict[str, object]:
    """RabbitMQ refuses a whole document for one unknown hash, so argon2 hashes have a key of their own."""
    row = user_row(broker, user)
    if not _has_argon2(user):
        return row
    none = {"password_hash": "", "hashing_algorithm": passwords.DEFAULT_IMPORTED}
    return {**row, **none, "argon2_hash": user.password_hash}


async def export_vhost(call: Call) -> object:
    """The contents of one vhost, without its name, so that they can be loaded into another."""
    with missing_is_bad_request():
        vhost = call.vhost
    parts = await _inside(call.broker, [vhost])
    nowhere = {name: Rows(map(_without_vhost, part.rows)) for name, part in parts.items()}
    return {**_versions(call), **nowhere}


def _without_vhost(row: object) -> object:
    assert isinstance(row, dict)
    return {key: value for key, value in row.items() if key != "vhost"}


def _versions(call: Call) -> dict[str, object]:
    product = call.context.config.amqp
    return {
        "rabbit_version": product.product_version,
        "rabbitmq_version": product.product_version,
        "product_name": product.product,
        "product_version": product.product_version,
    }


async def _inside(broker: Broker, vhosts: list[VHost]) -> dict[str, Rows]:
    queues = await listed_queues(*vhosts)
    stepwise = Stepwise()
    exchanges = [(vhost, await listed_exchanges(vhost, stepwise)) for vhost in vhosts]
    bindings = [(vhost, await listed_bindings(vhost, stepwise)) for vhost in vhosts]
    return {
        "parameters": Rows(parameter_rows(broker, [vhost.name for vhost in vhosts])),
        "policies": Rows(
            policy_row(policy) for vhost in vhosts for policy in broker.policies.in_vhost(vhost.name)
        ),
        "queues": Rows(_queue_definition(queue) for queue in queues if queue.owner is None),
        "exchanges": Rows(
            exchange_definition(vhost, exchange)
            for vhost, found in exchanges
            for exchange in found
            if exchange.name and not exchange.name.startswith("amq.")
        ),
        "bindings": Rows(
            _binding_definition(vhost, binding)
            for vhost, found in bindings
            for binding in found
            if isinstance(binding.destination, Exchange) or binding.destination.owner is None
        ),
    }


def _queue_definition(queue: Queue) -> dict[str, object]:
    return {
        "name": queue.name,
        "vhost": queue.vhost,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "arguments": plain(dict(queue.arguments)),
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


ENDPOINTS: Final = (
    endpoint("GET", "/api/definitions", export),
    endpoint("GET", "/api/all-configuration", export),  # its name in older RabbitMQs
    endpoint("GET", "/api/definitions/{vhost}", export_vhost),
)

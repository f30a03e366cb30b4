"""Management API: queues, exchanges and bindings.

Owns: their resources. Must not touch: messages; the rules of declaring, which are the vhost's.
"""

from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

from holtmq.auth.permissions import DEFAULT_EXCHANGE, Action
from holtmq.broker.errors import NotFound
from holtmq.broker.publish.publish_properties import DIRECT_REPLY_TO
from holtmq.broker.topology.vhost import QueueBinding, QueueExchange, VHost
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.management.access import BIND, CONFIGURE_EXCHANGE, CONFIGURE_QUEUE, MANAGE
from holtmq.http.management.call import CHANGED, CREATED, NODE, Answer, ManagementCall, Row
from holtmq.http.management.wire import (
    BindingIn,
    ExchangeIn,
    QueueIn,
    checked_key,
    checked_name,
    checked_table,
    plain,
    properties_key,
)
from holtmq.wire.tables import FieldTable

# -- queues ------------------------------------------------------------------------------------------


def listed_queues(vhost: VHost) -> list[WorkQueue]:
    """The queues of a vhost, without those that direct replies pass through."""
    hidden = DIRECT_REPLY_TO + "."
    return [vhost.queues[name] for name in sorted(vhost.queues) if not name.startswith(hidden)]


def queue_row(call: ManagementCall, queue: WorkQueue) -> dict[str, object]:
    kind = queue.options.queue_type
    policy = call.broker.policies.for_queue(queue.vhost, queue.name, kind)
    operator = call.broker.operator_policies.for_queue(queue.vhost, queue.name, kind)
    effective = {**(policy.definition if policy else {}), **(operator.definition if operator else {})}
    return {
        "name": queue.name,
        "vhost": queue.vhost,
        "node": NODE,
        "type": kind.value,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.owner is not None,
        "arguments": plain(dict(queue.arguments)),
        "policy": policy.name if policy else None,
        "operator_policy": operator.name if operator else None,
        "effective_policy_definition": plain(effective),
        "state": "running",
        "consumers": len(queue.consumers),
        "messages": len(queue) + queue.unacked,
        "messages_ready": len(queue),
        "messages_unacknowledged": queue.unacked,
        "message_bytes_ready": queue.bytes,
    }


def _queue(call: ManagementCall) -> WorkQueue:
    name = call.path["queue"]
    found = call.vhost.queues.get(name)
    if found is None:
        raise NotFound(f"no queue '{name}' in vhost '{call.path['vhost']}'")
    return found


def _vhosts(call: ManagementCall) -> list[VHost]:
    broker = call.broker
    if "vhost" in call.path:
        return [call.vhost]
    return [broker.vhosts[name] for name in sorted(broker.vhosts) if call.sees(name)]


async def list_queues(call: ManagementCall) -> object:
    return [queue_row(call, queue) for vhost in _vhosts(call) for queue in listed_queues(vhost)]


async def show_queue(call: ManagementCall) -> object:
    return queue_row(call, _queue(call))


async def put_queue(call: ManagementCall) -> Answer:
    given, vhost = call.json(QueueIn), call.vhost
    name = checked_name(call.path["queue"], "queue")
    arguments = checked_table(given.arguments, f"arguments of queue '{name}'")
    call.require(Action.CONFIGURE, name)
    dead_letters = arguments.get("x-dead-letter-exchange")
    if isinstance(dead_letters, str):
        call.require(Action.READ, name)
        call.require(Action.WRITE, dead_letters)
    known = name in vhost.queues
    call.broker.declare_queue(
        vhost, name, durable=given.durable, auto_delete=given.auto_delete, arguments=arguments
    )
    return CHANGED if known else CREATED


async def delete_queue(call: ManagementCall) -> Answer:
    queue = _queue(call)
    call.require(Action.CONFIGURE, queue.name)
    call.broker.delete_queue(
        call.vhost,
        queue.name,
        if_unused=call.query.flag("if-unused"),
        if_empty=call.query.flag("if-empty"),
    )
    return CHANGED


# -- exchanges ---------------------------------------------------------------------------------------


def exchange_row(call: ManagementCall, vhost: VHost, exchange: QueueExchange) -> dict[str, object]:
    policy = call.broker.policies.for_exchange(vhost.name, exchange.name)
    return {
        "name": exchange.name,
        "vhost": vhost.name,
        "type": exchange.kind.value,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": plain(dict(exchange.arguments)),
        "policy": policy.name if policy else None,
    }


def exchange_name(given: str) -> str:
    """The default exchange has no name, which no path can say."""
    return "" if given == DEFAULT_EXCHANGE else given


def _exchange(call: ManagementCall) -> QueueExchange:
    return call.vhost.exchange(exchange_name(call.path["exchange"]))


async def list_exchanges(call: ManagementCall) -> object:
    return [
        exchange_row(call, vhost, vhost.exchanges[name])
        for vhost in _vhosts(call)
        for name in sorted(vhost.exchanges)
    ]


async def show_exchange(call: ManagementCall) -> object:
    return exchange_row(call, call.vhost, _exchange(call))


async def put_exchange(call: ManagementCall) -> Answer:
    given, vhost = call.json(ExchangeIn), call.vhost
    name = checked_name(call.path["exchange"], "exchange")
    arguments = checked_table(given.arguments, f"arguments of exchange '{name}'")
    call.require(Action.CONFIGURE, name)
    alternate = arguments.get("alternate-exchange")
    if isinstance(alternate, str):
        call.require(Action.READ, name)
        call.require(Action.WRITE, alternate)
    known = name in vhost.exchanges
    call.broker.declare_exchange(
        vhost,
        exchange_name(name),
        given.type,
        durable=given.durable,
        auto_delete=given.auto_delete,
        internal=given.internal,
        arguments=arguments,
    )
    return CHANGED if known else CREATED


async def delete_exchange(call: ManagementCall) -> Answer:
    exchange = _exchange(call)
    call.require(Action.CONFIGURE, exchange.name)
    call.broker.delete_exchange(call.vhost, exchange.name, call.query.flag("if-unused"))
    return CHANGED


# -- bindings ----------------------------------------------------------------------------------------


def binding_row(
    vhost: str, source: str, destination: str, to_exchange: bool, key: str, arguments: dict[str, object]
) -> dict[str, object]:
    return {
        "source": source,
        "vhost": vhost,
        "destination": destination,
        "destination_type": "exchange" if to_exchange else "queue",
        "routing_key": key,
        "arguments": plain(arguments),
        "properties_key": properties_key(key, arguments),
    }


def _row(vhost: VHost, binding: QueueBinding) -> dict[str, object]:
    to = binding.destination.name
    arguments = dict(binding.arguments)
    return binding_row(vhost.name, binding.source, to, binding.to_exchange, binding.routing_key, arguments)


def _all_bindings(vhost: VHost) -> Iterator[dict[str, object]]:
    for queue in listed_queues(vhost):  # the default exchange leads to every queue by its name
        yield binding_row(vhost.name, "", queue.name, False, queue.name, {})
    for name in sorted(vhost.exchanges):
        for binding in vhost.exchanges[name].bindings():
            yield _row(vhost, binding)


async def list_bindings(call: ManagementCall) -> object:
    return [row for vhost in _vhosts(call) for row in _all_bindings(vhost)]


async def list_queue_bindings(call: ManagementCall) -> object:
    name = _queue(call).name
    return [
        row
        for row in _all_bindings(call.vhost)
        if row["destination"] == name and row["destination_type"] == "queue"
    ]


async def list_from_exchange(call: ManagementCall) -> object:
    name = _exchange(call).name
    return [row for row in _all_bindings(call.vhost) if row["source"] == name]


async def list_to_exchange(call: ManagementCall) -> object:
    name = _exchange(call).name
    return [
        row
        for row in _all_bindings(call.vhost)
        if row["destination"] == name and row["destination_type"] == "exchange"
    ]


def _ends(call: ManagementCall) -> tuple[str, str, bool]:
    """Source, destination and whether that is an exchange; 404 when one is missing."""
    source = _exchange(call).name
    kind, name = call.path["kind"], call.path["destination"]
    if kind not in ("q", "e"):
        raise NotFound(f"a binding leads to q (a queue) or e (an exchange), not to '{kind}'")
    to_exchange = kind == "e"
    known = call.vhost.exchanges if to_exchange else call.vhost.queues
    if name not in known:
        what = "exchange" if to_exchange else "queue"
        raise NotFound(f"no {what} '{name}' in vhost '{call.path['vhost']}'")
    return source, name, to_exchange


def _between(call: ManagementCall) -> list[tuple[dict[str, object], str, FieldTable]]:
    """Rows between two ends, each with its key and arguments as they are kept."""
    source, name, to_exchange = _ends(call)
    if not source:
        return (
            [(binding_row(call.vhost.name, "", name, False, name, {}), name, {})] if not to_exchange else []
        )
    found: list[tuple[dict[str, object], str, FieldTable]] = []
    for binding in call.vhost.exchanges[source].bindings():
        if binding.destination.name == name and binding.to_exchange == to_exchange:
            arguments: FieldTable = dict(binding.arguments)  # type: ignore[arg-type]
            found.append((_row(call.vhost, binding), binding.routing_key, arguments))
    return found


async def list_between(call: ManagementCall) -> object:
    return [row for row, _, _ in _between(call)]


def _one(call: ManagementCall) -> tuple[dict[str, object], str, FieldTable]:
    for found in _between(call):
        if found[0]["properties_key"] == call.path["properties"]:
            return found
    raise NotFound(f"no binding '{call.path['properties']}' between these two")


async def show_binding(call: ManagementCall) -> object:
    return _one(call)[0]


async def post_binding(call: ManagementCall) -> Answer:
    given = call.json(BindingIn)
    source, name, to_exchange = _ends(call)
    key = checked_key(given.routing_key)
    arguments = checked_table(given.arguments, "arguments of the binding")
    call.require(Action.WRITE, name)
    call.require(Action.READ, source)
    call.broker.bind(call.vhost, source, name, key, arguments, to_exchange=to_exchange)
    made = properties_key(key, given.arguments)
    return Answer(201, f"{quote(name, safe='')}/{quote(made, safe='~')}")


async def delete_binding(call: ManagementCall) -> Answer:
    source, name, to_exchange = _ends(call)
    _, key, arguments = _one(call)
    call.require(Action.WRITE, name)
    call.require(Action.READ, source)
    call.broker.unbind(call.vhost, source, name, key, arguments, to_exchange=to_exchange)
    return CHANGED


_QUEUE: Final = "/api/queues/{vhost}/{queue}"
_EXCHANGE: Final = "/api/exchanges/{vhost}/{exchange}"
_BETWEEN: Final = "/api/bindings/{vhost}/e/{exchange}/{kind}/{destination}"
ROWS: Final = (
    Row("GET", "/api/queues", list_queues, MANAGE, paged=True),
    Row("GET", "/api/queues/{vhost}", list_queues, MANAGE, paged=True),
    Row("GET", _QUEUE, show_queue, MANAGE),
    Row("PUT", _QUEUE, put_queue, CONFIGURE_QUEUE),
    Row("DELETE", _QUEUE, delete_queue, CONFIGURE_QUEUE),
    Row("GET", _QUEUE + "/bindings", list_queue_bindings, MANAGE),
    Row("GET", "/api/exchanges", list_exchanges, MANAGE, paged=True),
    Row("GET", "/api/exchanges/{vhost}", list_exchanges, MANAGE, paged=True),
    Row("GET", _EXCHANGE, show_exchange, MANAGE),
    Row("PUT", _EXCHANGE, put_exchange, CONFIGURE_EXCHANGE),
    Row("DELETE", _EXCHANGE, delete_exchange, CONFIGURE_EXCHANGE),
    Row("GET", _EXCHANGE + "/bindings/source", list_from_exchange, MANAGE),
    Row("GET", _EXCHANGE + "/bindings/destination", list_to_exchange, MANAGE),
    Row("GET", "/api/bindings", list_bindings, MANAGE),
    Row("GET", "/api/bindings/{vhost}", list_bindings, MANAGE),
    Row("GET", _BETWEEN, list_between, MANAGE),
    Row("POST", _BETWEEN, post_binding, BIND),
    Row("GET", _BETWEEN + "/{properties}", show_binding, MANAGE),
    Row("DELETE", _BETWEEN + "/{properties}", delete_binding, BIND),
)

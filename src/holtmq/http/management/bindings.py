"""Management API: bindings.

Owns: their resources. Must not touch: the rules of binding (the vhost's).
"""

from itertools import chain
from typing import Final
from urllib.parse import quote

from holtmq.auth.permissions import Action
from holtmq.broker.errors import NotFound
from holtmq.broker.topology.vhost import QueueBinding, VHost
from holtmq.http.engine.endpoints import CHANGED, Call, Reply
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.engine.wire import plain
from holtmq.http.management.access import BIND, MANAGE
from holtmq.http.management.conventions import endpoint
from holtmq.http.management.listing import Rows, collected
from holtmq.http.management.topology import (
    asked_exchange,
    asked_queue,
    asked_vhosts,
    listed_exchanges,
    listed_queues,
)
from holtmq.http.management.wire import BindingIn, checked_key, checked_table, properties_key
from holtmq.wire.tables import FieldTable


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


def _default_row(vhost: VHost, queue: str) -> dict[str, object]:
    """The implicit binding of the default exchange to a queue, by the queue's name."""
    return binding_row(vhost.name, "", queue, False, queue, {})


async def listed_bindings(vhost: VHost, stepwise: Stepwise) -> list[QueueBinding]:
    """The bindings of a vhost by exchange, without those of the default exchange."""
    found: list[QueueBinding] = []
    for exchange in await listed_exchanges(vhost, stepwise):
        found += exchange.bindings()
        await stepwise.between()
    return found


async def list_bindings(call: Call) -> object:
    vhosts = asked_vhosts(call)
    queues = [(vhost, await listed_queues(vhost)) for vhost in vhosts]
    stepwise = Stepwise()
    bindings = [(vhost, await listed_bindings(vhost, stepwise)) for vhost in vhosts]
    return Rows(
        chain(
            (_default_row(vhost, queue.name) for vhost, found in queues for queue in found),
            (_row(vhost, binding) for vhost, found in bindings for binding in found),
        )
    )


async def list_queue_bindings(call: Call) -> object:
    queue, vhost = asked_queue(call), call.vhost
    found = vhost.bindings_to(queue)
    return Rows(chain([_default_row(vhost, queue.name)], (_row(vhost, binding) for binding in found)))


async def list_from_exchange(call: Call) -> object:
    exchange, vhost = asked_exchange(call), call.vhost
    if exchange.is_default:
        queues = await listed_queues(vhost)
        return Rows(_default_row(vhost, queue.name) for queue in queues)
    found = list(exchange.bindings())
    return Rows(_row(vhost, binding) for binding in found)


async def list_to_exchange(call: Call) -> object:
    vhost = call.vhost
    found = vhost.bindings_to(asked_exchange(call))
    return Rows(_row(vhost, binding) for binding in found)


def _ends(call: Call) -> tuple[str, str, bool]:
    """Source, destination, and whether that is an exchange; raises 404 when one is missing."""
    source = asked_exchange(call).name
    kind, name = call.path["kind"], call.path["destination"]
    if kind not in ("q", "e"):
        raise NotFound(f"a binding leads to q (a queue) or e (an exchange), not to '{kind}'")
    to_exchange = kind == "e"
    known = call.vhost.exchanges if to_exchange else call.vhost.queues
    if name not in known:
        what = "exchange" if to_exchange else "queue"
        raise NotFound(f"no {what} '{name}' in vhost '{call.path['vhost']}'")
    return source, name, to_exchange


async def _between(call: Call) -> list[tuple[dict[str, object], str, FieldTable]]:
    """Rows of the bindings between source and destination, each with its stored key and arguments."""
    source, name, to_exchange = _ends(call)
    if not source:
        return (
            [(binding_row(call.vhost.name, "", name, False, name, {}), name, {})] if not to_exchange else []
        )
    vhost = call.vhost
    where = vhost.exchanges[name] if to_exchange else vhost.queues[name]
    bindings = vhost.exchanges[source].bindings_to(where)
    return await collected(
        (_row(vhost, binding), binding.routing_key, dict(binding.arguments))  # type: ignore[arg-type]
        for binding in bindings
    )


async def list_between(call: Call) -> object:
    return Rows([row for row, _, _ in await _between(call)])


async def _one(call: Call) -> tuple[dict[str, object], str, FieldTable]:
    for found in await _between(call):
        if found[0]["properties_key"] == call.path["properties"]:
            return found
    raise NotFound(f"no binding '{call.path['properties']}' between these two")


async def show_binding(call: Call) -> object:
    return (await _one(call))[0]


async def post_binding(call: Call) -> Reply:
    given = call.json(BindingIn)
    source, name, to_exchange = _ends(call)
    key = checked_key(given.routing_key)
    arguments = checked_table(given.arguments, "arguments of the binding")
    call.require_in_vhost(Action.WRITE, name)
    call.require_in_vhost(Action.READ, source)
    call.require_topics(call.vhost, source, (key,), write=False)
    call.broker.bind(call.vhost, source, name, key, arguments, to_exchange=to_exchange)
    made = properties_key(key, arguments)
    return Reply(201, headers={"location": f"{quote(name, safe='')}/{quote(made, safe='~')}"})


async def delete_binding(call: Call) -> Reply:
    source, name, to_exchange = _ends(call)
    _, key, arguments = await _one(call)
    call.require_in_vhost(Action.WRITE, name)
    call.require_in_vhost(Action.READ, source)
    call.require_topics(call.vhost, source, (key,), write=False)
    call.broker.exchanges.unbind(call.vhost, source, name, key, arguments, to_exchange=to_exchange)
    return CHANGED


_QUEUE: Final = "/api/queues/{vhost}/{queue}"
_EXCHANGE: Final = "/api/exchanges/{vhost}/{exchange}"
_BETWEEN: Final = "/api/bindings/{vhost}/e/{exchange}/{kind}/{destination}"
ENDPOINTS: Final = (
    endpoint("GET", _QUEUE + "/bindings", list_queue_bindings, MANAGE),
    endpoint("GET", _EXCHANGE + "/bindings/source", list_from_exchange, MANAGE),
    endpoint("GET", _EXCHANGE + "/bindings/destination", list_to_exchange, MANAGE),
    endpoint("GET", "/api/bindings", list_bindings, MANAGE),
    endpoint("GET", "/api/bindings/{vhost}", list_bindings, MANAGE),
    endpoint("GET", _BETWEEN, list_between, MANAGE),
    endpoint("POST", _BETWEEN, post_binding, BIND),
    endpoint("GET", _BETWEEN + "/{properties}", show_binding, MANAGE),
    endpoint("DELETE", _BETWEEN + "/{properties}", delete_binding, BIND),
)

"""Management API: queues and exchanges.

Owns: their resources. Must not touch: messages, the rules of declaring (the vhost's).
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from holtmq.auth.permissions import DEFAULT_EXCHANGE, Action
from holtmq.broker.errors import NotFound
from holtmq.broker.figures.queue_figures import Totals
from holtmq.broker.figures.rings import Ring
from holtmq.broker.figures.sampling import totals_of
from holtmq.broker.pausing import Pause
from holtmq.broker.publish.publish_properties import DIRECT_REPLY_TO
from holtmq.broker.streams.stream_queue import stored_name
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.queue_arguments import WITHOUT_EFFECT
from holtmq.broker.topology.queue_options import QueueType
from holtmq.broker.topology.vhost import QueueExchange, VHost
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.engine.context import NODE
from holtmq.http.engine.endpoints import CHANGED, CREATED, Call, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise, in_order
from holtmq.http.engine.wire import plain
from holtmq.http.management import message_stats
from holtmq.http.management.access import CONFIGURE_EXCHANGE, CONFIGURE_QUEUE, MANAGE
from holtmq.http.management.client_rows import consumer_row
from holtmq.http.management.conventions import endpoint
from holtmq.http.management.listing import Rows, RowsOf
from holtmq.http.management.queue_figures import use_of
from holtmq.http.management.wire import ExchangeIn, QueueIn, checked_name, checked_table

_HIDDEN: Final = DIRECT_REPLY_TO + "."


def is_hidden(queue: Queue) -> bool:
    """Whether it is an internal queue of direct reply-to."""
    return queue.name.startswith(_HIDDEN)


async def listed_queues(*vhosts: VHost) -> list[Queue]:
    """The queues of vhosts, sorted by name in each, without hidden ones."""
    found: list[Queue] = []
    stepwise = Stepwise()
    for vhost in vhosts:
        await stepwise.between()  # there may be very many with few queues
        async for names in in_order(vhost.queues):
            queues = [vhost.queues.get(name) for name in names if not name.startswith(_HIDDEN)]
            found += [queue for queue in queues if queue is not None]  # None: deleted meanwhile
    return found


async def listed_exchanges(vhost: VHost, stepwise: Stepwise) -> list[QueueExchange]:
    """The exchanges of a vhost, sorted by name."""
    found: list[QueueExchange] = []
    await stepwise.between()
    async for names in in_order(vhost.exchanges):
        exchanges = [vhost.exchanges.get(name) for name in names]
        found += [exchange for exchange in exchanges if exchange is not None]
    return found


async def queue_totals(vhosts: Iterable[VHost]) -> tuple[int, int, int, int]:
    """(queues, ready messages, unacknowledged messages, consumers) of these vhosts together."""
    count = ready = unacked = consumers = 0
    stepwise = Stepwise()
    for vhost in vhosts:
        for queue in list(vhost.queues.values()):
            if not is_hidden(queue):
                count += 1
                ready += len(queue)
                unacked += queue.unacked
                consumers += len(queue.consumers)
            await stepwise.between()
    return count, ready, unacked, consumers


async def _unacked_bytes(call: Call, queues: list[Queue]) -> dict[int, int]:
    """Bytes of the unacknowledged messages, by queue id."""
    stepwise = Stepwise()
    for queue in queues:
        if queue.unacked:
            break
        await stepwise.between()
    else:
        return {}
    found: dict[int, int] = {}
    for lease in (lease for session in list(call.broker.sessions) for lease in session.outstanding()):
        found[lease.queue.id] = found.get(lease.queue.id, 0) + len(lease.message.body)
        await stepwise.between()
    return found


async def _queue_rows(call: Call, queues: list[Queue]) -> RowsOf[Queue]:
    asked = message_stats.wanted(call.query, call.context.clock())
    unacked = await _unacked_bytes(call, queues)

    def row(queue: Queue) -> dict[str, object]:
        held = unacked.get(queue.id, 0)
        return {
            **queue_row(call, queue),
            **message_stats.lengths(queue.figures.depth, queue.figures.unacked, asked),
            "message_bytes": queue.bytes + held,
            "message_bytes_unacknowledged": held,
            "message_stats": _stats(call, queue, asked),
            **use_of(call, queue, held),
        }

    return RowsOf(queues, row)


def _stats(call: Call, queue: Queue, asked: message_stats.Wanted) -> dict[str, object]:
    if isinstance(queue, WorkQueue):
        return message_stats.queue_stats(queue, asked)
    return message_stats.stats(*stream_counts(call, queue), asked)


def stream_counts(call: Call, queue: Queue) -> tuple[Totals, Ring | None]:
    """The totals of a partitioned queue, and its counts over time; None when it was not used yet."""
    name = stored_name(queue.vhost, queue.name)
    counts = call.context.service.counters.queues.get(name)
    totals = totals_of(counts) if counts is not None else Totals(0, 0, 0)
    return totals, call.context.sampler.partitioned.get(name)


def queue_row(call: Call, queue: Queue) -> dict[str, object]:
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
        "arguments_without_effect": sorted(name for name in queue.arguments if name in WITHOUT_EFFECT),
        **_state(queue.paused),
        **({} if kind is QueueType.CLASSIC else {"leader": NODE, "members": [NODE], "online": [NODE]}),
        "consumers": len(queue.consumers),
        "messages": len(queue) + queue.unacked,
        "messages_ready": len(queue),
        "messages_unacknowledged": queue.unacked,
        "message_bytes_ready": queue.bytes,
    }


def _state(pause: Pause | None) -> dict[str, object]:
    if pause is None:
        return {"state": "running"}
    return {"state": "paused", "paused": {"since": pause.since_ms, "by": pause.by, "reason": pause.reason}}


def asked_queue(call: Call) -> Queue:
    name = call.path["queue"]
    found = call.vhost.queues.get(name)
    if found is None:
        raise NotFound(f"no queue '{name}' in vhost '{call.path['vhost']}'")
    return found


def asked_vhosts(call: Call) -> list[VHost]:
    broker = call.broker
    if "vhost" in call.path:
        return [call.vhost]
    return [broker.vhosts[name] for name in sorted(broker.vhosts) if call.identity.sees(name)]


async def list_queues(call: Call) -> object:
    queues = await listed_queues(*asked_vhosts(call))
    if call.query.flag("disable_stats"):
        columns = _BASIC + _TOTALS if call.query.flag("enable_queue_totals") else _BASIC

        def basic(queue: Queue) -> dict[str, object]:
            row = queue_row(call, queue)
            return {name: row[name] for name in columns}

        return RowsOf(queues, basic)
    return await _queue_rows(call, queues)


async def show_queue(call: Call) -> object:
    queue = asked_queue(call)
    rows = await _queue_rows(call, [queue])
    consumers = call.context.clients.consumers_of(queue.vhost, queue.name)
    return {
        **rows.row(queue),
        "consumer_details": Rows(map(consumer_row, consumers)),
        # By exchange and by channel: RabbitMQ counts these with ``rates_mode`` detailed alone.
        "incoming": [],
        "deliveries": [],
    }


async def put_queue(call: Call) -> Reply:
    given, vhost = call.json(QueueIn), call.vhost
    name = checked_name(call.path["queue"], "queue")
    arguments = checked_table(given.arguments, f"arguments of queue '{name}'")
    call.require_in_vhost(Action.CONFIGURE, name)
    dead_letters = arguments.get("x-dead-letter-exchange")
    if isinstance(dead_letters, str):
        call.require_in_vhost(Action.READ, name)
        call.require_in_vhost(Action.WRITE, dead_letters)
    known = name in vhost.queues
    call.broker.declare_queue(
        vhost, name, durable=given.durable, auto_delete=given.auto_delete, arguments=arguments
    )
    return CHANGED if known else CREATED


async def delete_queue(call: Call) -> Reply:
    queue = asked_queue(call)
    call.require_in_vhost(Action.CONFIGURE, queue.name)
    if call.broker.removals.is_long(queue):
        await Stepwise().run(call.broker.removals.cast_out(queue))
    call.broker.delete_queue(
        call.vhost,
        queue.name,
        if_unused=call.query.flag("if-unused"),
        if_empty=call.query.flag("if-empty"),
    )
    return CHANGED


class ActionIn(msgspec.Struct):
    action: str


async def queue_action(call: Call) -> Reply:
    """Actions on RabbitMQ's mirrored queues. There are none here, so an action does nothing."""
    asked_queue(call)
    action = call.json(ActionIn).action
    if action not in _ACTIONS:
        raise Refusal(400, f"unknown action '{action}': there are {', '.join(_ACTIONS)}")
    return CHANGED


def exchange_definition(vhost: VHost, exchange: QueueExchange) -> dict[str, object]:
    return {
        "name": exchange.name,
        "vhost": vhost.name,
        "type": exchange.kind.value,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": plain(dict(exchange.arguments)),
    }


def exchange_row(call: Call, vhost: VHost, exchange: QueueExchange) -> dict[str, object]:
    policy = call.broker.policies.for_exchange(vhost.name, exchange.name)
    published, routed = exchange_rates(exchange, call.context.clock())
    return {
        **exchange_definition(vhost, exchange),
        "policy": policy.name if policy else None,
        "message_stats": {
            "publish_in": exchange.published,
            "publish_in_details": message_stats.rate_only(published),
            "publish_out": exchange.routed,
            "publish_out_details": message_stats.rate_only(routed),
        },
    }


def exchange_rates(exchange: QueueExchange, now: float) -> tuple[float, float]:
    """Messages per second that publishers send to an exchange, and copies of them that enter queues."""
    if exchange.ring is None:
        return 0.0, 0.0
    published, routed = exchange.ring.rates(int(now))
    return round(published, 1), round(routed, 1)


def exchange_name(given: str) -> str:
    """An exchange's name from a path, where ``amq.default`` stands for the default exchange's empty name."""
    return "" if given == DEFAULT_EXCHANGE else given


def asked_exchange(call: Call) -> QueueExchange:
    return call.vhost.exchange(exchange_name(call.path["exchange"]))


async def list_exchanges(call: Call) -> object:
    stepwise = Stepwise()
    found = [(vhost, await listed_exchanges(vhost, stepwise)) for vhost in asked_vhosts(call)]
    return Rows(exchange_row(call, vhost, exchange) for vhost, exchanges in found for exchange in exchanges)


async def show_exchange(call: Call) -> object:
    row = exchange_row(call, call.vhost, asked_exchange(call))
    # By channel and by queue: RabbitMQ counts these with ``rates_mode`` detailed alone.
    return {**row, "incoming": [], "outgoing": []}


async def put_exchange(call: Call) -> Reply:
    given, vhost = call.json(ExchangeIn), call.vhost
    name = checked_name(call.path["exchange"], "exchange")
    arguments = checked_table(given.arguments, f"arguments of exchange '{name}'")
    call.require_in_vhost(Action.CONFIGURE, name)
    alternate = arguments.get("alternate-exchange")
    if isinstance(alternate, str):
        call.require_in_vhost(Action.READ, name)
        call.require_in_vhost(Action.WRITE, alternate)
    known = name in vhost.exchanges
    call.broker.exchanges.declare(
        vhost,
        exchange_name(name),
        given.type,
        durable=given.durable,
        auto_delete=given.auto_delete,
        internal=given.internal,
        arguments=arguments,
    )
    return CHANGED if known else CREATED


async def delete_exchange(call: Call) -> Reply:
    exchange = asked_exchange(call)
    call.require_in_vhost(Action.CONFIGURE, exchange.name)
    call.broker.exchanges.delete(call.vhost, exchange.name, call.query.flag("if-unused"))
    return CHANGED


# What RabbitMQ lists with ``disable_stats=true``, and adds with ``enable_queue_totals=true``.
_BASIC: Final = (
    *("name", "vhost", "node", "type", "durable", "auto_delete", "exclusive", "arguments", "state"),
)
_TOTALS: Final = ("messages", "messages_ready", "messages_unacknowledged")
_ACTIONS: Final = ("sync", "cancel_sync")
_QUEUE: Final = "/api/queues/{vhost}/{queue}"
_EXCHANGE: Final = "/api/exchanges/{vhost}/{exchange}"
ENDPOINTS: Final = (
    endpoint("GET", "/api/queues", list_queues, MANAGE, is_paged=True),
    endpoint("GET", "/api/queues/detailed", list_queues, MANAGE, is_paged=True),
    endpoint("GET", "/api/queues/{vhost}", list_queues, MANAGE, is_paged=True),
    endpoint("GET", _QUEUE, show_queue, MANAGE),
    endpoint("PUT", _QUEUE, put_queue, CONFIGURE_QUEUE),
    endpoint("DELETE", _QUEUE, delete_queue, CONFIGURE_QUEUE),
    endpoint("POST", _QUEUE + "/actions", queue_action),
    endpoint("GET", "/api/exchanges", list_exchanges, MANAGE, is_paged=True),
    endpoint("GET", "/api/exchanges/{vhost}", list_exchanges, MANAGE, is_paged=True),
    endpoint("GET", _EXCHANGE, show_exchange, MANAGE),
    endpoint("PUT", _EXCHANGE, put_exchange, CONFIGURE_EXCHANGE),
    endpoint("DELETE", _EXCHANGE, delete_exchange, CONFIGURE_EXCHANGE),
)

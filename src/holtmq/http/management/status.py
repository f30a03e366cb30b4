"""Management API: the overview, the node, the current user, and connected clients.

Owns: these answers, and fixed answers for what a single node does not have. Must not touch: AMQP.
"""

import os
import resource
from typing import Final

from holtmq import __version__
from holtmq.auth.attempts import Attempts, Protocol
from holtmq.broker.figures.client_counts import CHURN
from holtmq.broker.figures.queue_figures import Totals
from holtmq.broker.topology.exchange_kinds import ExchangeKind
from holtmq.http.engine.clients import ConnectionRow
from holtmq.http.engine.context import NODE
from holtmq.http.engine.endpoints import CHANGED, Call, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.management import message_stats
from holtmq.http.management.access import LOGIN, MONITOR
from holtmq.http.management.client_rows import (
    channel_row,
    channel_rows,
    connection_row,
    connection_rows,
    consumer_row,
    details,
)
from holtmq.http.management.conventions import check_node, endpoint
from holtmq.http.management.listing import Rows, collected
from holtmq.http.management.node_figures import applications, levels, totals, web_contexts
from holtmq.http.management.runtime import cluster_name
from holtmq.http.management.topology import queue_totals
from holtmq.http.operator.system import total_memory

_THREADS_MOST: Final = 4_194_304
_CLOSED: Final = "Closed via management plugin"  # RabbitMQ's text: people grep for it


async def overview(call: Call) -> object:
    broker, config = call.broker, call.context.config
    clients = call.context.clients
    connected, channel_count = clients.counts()
    queue_count, ready, unacked, consumer_count = await queue_totals(list(broker.vhosts.values()))
    sampler = call.context.sampler
    asked = message_stats.wanted(call.query, call.context.clock())
    sums = [work + more for work, more in zip(sampler.work, sampler.streams, strict=True)]
    return {
        "management_version": __version__,
        "product_name": config.amqp.product,
        "product_version": config.amqp.product_version,
        "rabbitmq_version": config.amqp.product_version,
        "erlang_version": "",  # there is no Erlang; clients expect the field
        "erlang_full_version": "",
        "cluster_name": cluster_name(broker),
        "node": NODE,
        "rates_mode": "basic",
        "disable_stats": False,
        "enable_queue_totals": False,
        "statistics_db_event_queue": 0,
        "contexts": web_contexts(call),
        "sample_retention_policies": {"global": [60, 10_800], "basic": [60, 10_800], "detailed": []},
        "exchange_types": _exchange_types(),
        "message_stats": {
            **message_stats.stats(Totals(*sums), sampler.node, asked, broker.counts.kinds(), sampler.kinds),
            **_client_stats(call),
        },
        "queue_totals": {
            "messages": ready + unacked,
            "messages_ready": ready,
            "messages_unacknowledged": unacked,
            **message_stats.lengths(sampler.depth, sampler.held, asked),
        },
        "churn_rates": _churn(call),
        "object_totals": {
            "connections": connected,
            "channels": channel_count,
            "consumers": consumer_count,
            "exchanges": sum(len(vhost.exchanges) for vhost in broker.vhosts.values()),
            "queues": queue_count,
        },
        "listeners": [
            {
                "node": NODE,
                "protocol": listener.protocol,
                "ip_address": listener.host,
                "port": listener.port,
            }
            for listener in call.context.listeners()
        ],
    }


def _client_stats(call: Call) -> dict[str, object]:
    """What publishers were answered, with the rate since the last request."""
    counts = call.broker.counts
    names = ("confirm", "return_unroutable", "drop_unroutable")
    totals = (counts.confirmed, counts.returned, counts.dropped)
    return {**dict(zip(names, totals, strict=True)), **details(call, overview, names, totals)}


def _churn(call: Call) -> dict[str, object]:
    rates = call.context.sampler.churn.rates(int(call.context.clock()))
    row: dict[str, object] = {}
    for name, total, rate in zip(CHURN, call.broker.counts.churn(), rates, strict=True):
        row[name] = total
        row[f"{name}_details"] = message_stats.rate_only(rate)
    return row


async def whoami(call: Call) -> object:
    return {"name": call.identity.name, "tags": list(call.identity.tags)}


async def nodes(call: Call) -> list[dict[str, object]]:
    return [_node(call)]


async def node(call: Call) -> dict[str, object]:
    check_node(call)
    return _node(call)


def _node(call: Call) -> dict[str, object]:
    context = call.context
    alarm, limits, data = context.alarm(), context.config.limits, context.config.data
    return {
        "name": NODE,
        "type": "ram" if data.memory else "disc",
        "running": True,
        "os_pid": str(os.getpid()),
        "processors": os.cpu_count(),
        "rates_mode": "basic",
        "uptime": round((context.clock() - context.started_at) * 1000),
        "exchange_types": _exchange_types(),
        **levels(call),
        **totals(call),
        "fd_total": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "sockets_total": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "proc_total": _THREADS_MOST,
        "run_queue": 0,
        "mem_calculation_strategy": "rss",
        "db_dir": "" if data.memory else str(data.dir),
        "enabled_plugins": [],
        "mem_limit": limits.memory_bytes(total_memory()),
        "mem_alarm": "memory" in alarm,
        "disk_free_limit": limits.disk_free_min_bytes,
        "disk_free_alarm": "disk" in alarm,
        "partitions": [],
        "cluster_links": [],
        "config_files": [],
        "log_files": [],
        "applications": applications(),
        "contexts": web_contexts(call),
        "auth_mechanisms": [
            {"name": name, "description": name, "enabled": True} for name in ("PLAIN", "AMQPLAIN", "EXTERNAL")
        ],
        **_churn(call),
    }


def _exchange_types() -> list[dict[str, object]]:
    return [{"name": kind.value, "description": kind.value, "enabled": True} for kind in ExchangeKind]


async def connections(call: Call) -> Rows:
    return Rows(connection_rows(call, _vhost(call)))


async def connection(call: Call) -> object:
    return connection_row(call, await _asked_connection(call))


async def _asked_connection(call: Call) -> ConnectionRow:
    name = call.path["connection"]
    for row in await collected(call.context.clients.connections()):
        if row.name == name:
            return row
    raise Refusal(404, f"no connection '{name}'")


def _reason(call: Call) -> str:
    return call.request.header(b"x-reason") or _CLOSED


async def close_connection(call: Call) -> Reply:
    name = call.path["connection"]
    if not call.context.clients.close(name, _reason(call)):
        raise Refusal(404, f"no connection '{name}'")
    return CHANGED


async def connections_of_user(call: Call) -> object:
    rows = await _connections_of_user(call)
    return Rows(connection_row(call, row) for row in rows)


async def _connections_of_user(call: Call) -> list[ConnectionRow]:
    rows = await collected(call.context.clients.connections())
    return [row for row in rows if row.user == call.path["user"]]


async def close_connections_of_user(call: Call) -> Reply:
    await Stepwise().run(call.context.clients.close_user(call.path["user"], _reason(call)))
    return CHANGED


async def channels_of_connection(call: Call) -> object:
    name = (await _asked_connection(call)).name
    rows = await collected(call.context.clients.channels())
    mine = [row for row in rows if row.connection_details.name == name]
    return Rows(channel_row(call, row) for row in mine)


async def channel(call: Call) -> object:
    for row in await collected(call.context.clients.channels()):
        if row.name == call.path["channel"]:
            consumers = await collected(call.context.clients.consumers(row.vhost))
            mine = [one for one in consumers if one.channel_details.name == row.name]
            shown = Rows(map(consumer_row, mine))
            # By exchange and by queue: RabbitMQ counts these with ``rates_mode`` detailed alone.
            return {**channel_row(call, row), "consumer_details": shown, "publishes": [], "deliveries": []}
    raise Refusal(404, f"no channel '{call.path['channel']}'")


async def channels(call: Call) -> Rows:
    return Rows(channel_rows(call, _vhost(call)))


async def consumers(call: Call) -> Rows:
    return Rows(map(consumer_row, call.context.clients.consumers(_vhost(call))))


def _vhost(call: Call) -> str | None:
    return call.vhost.name if "vhost" in call.path else None


async def auth_attempts(call: Call) -> object:
    """Logins by protocol."""
    check_node(call)
    attempts = call.context.authenticator.attempts
    return [{"protocol": protocol.value, **_counted(attempts.of(protocol))} for protocol in Protocol]


async def auth_attempts_by_source(call: Call) -> object:
    """Logins by protocol, address and name."""
    check_node(call)
    return [
        {
            "remote_address": source.address,
            "username": source.name,
            "protocol": source.protocol.value,
            **_counted(counted),
        }
        for source, counted in call.context.authenticator.attempts.sources()
    ]


def _counted(attempts: Attempts) -> dict[str, object]:
    return {
        "auth_attempts": attempts.succeeded + attempts.failed,
        "auth_attempts_failed": attempts.failed,
        "auth_attempts_succeeded": attempts.succeeded,
    }


async def reset_auth_attempts(call: Call) -> Reply:
    check_node(call)
    call.context.authenticator.attempts.reset()
    return CHANGED


ENDPOINTS: Final = (
    endpoint("GET", "/api/auth/attempts/{node}", auth_attempts, MONITOR),
    endpoint("DELETE", "/api/auth/attempts/{node}", reset_auth_attempts),
    endpoint("GET", "/api/auth/attempts/{node}/source", auth_attempts_by_source, MONITOR),
    endpoint("DELETE", "/api/auth/attempts/{node}/source", reset_auth_attempts),
    endpoint("GET", "/api/overview", overview, MONITOR),
    endpoint("GET", "/api/whoami", whoami, LOGIN),
    endpoint("GET", "/api/nodes", nodes, MONITOR),
    endpoint("GET", "/api/nodes/{node}", node, MONITOR),
    endpoint("GET", "/api/connections", connections, MONITOR, is_paged=True),
    endpoint("GET", "/api/connections/{connection}", connection, MONITOR),
    endpoint("DELETE", "/api/connections/{connection}", close_connection),
    endpoint("GET", "/api/connections/{connection}/channels", channels_of_connection, MONITOR),
    endpoint("GET", "/api/connections/username/{user}", connections_of_user, MONITOR),
    endpoint("DELETE", "/api/connections/username/{user}", close_connections_of_user),
    endpoint("GET", "/api/channels/{channel}", channel, MONITOR),
    endpoint("GET", "/api/vhosts/{vhost}/connections", connections, MONITOR, is_paged=True),
    endpoint("GET", "/api/channels", channels, MONITOR, is_paged=True),
    endpoint("GET", "/api/vhosts/{vhost}/channels", channels, MONITOR, is_paged=True),
    endpoint("GET", "/api/consumers", consumers, MONITOR),
    endpoint("GET", "/api/consumers/{vhost}", consumers, MONITOR),
)

"""Management API: the overview, the node, the current user, and connected clients.

Owns: these answers, and fixed answers for what a single node does not have. Must not touch: AMQP.
"""

import logging
import os
import resource
from contextlib import suppress
from typing import Final

from holtmq import __version__
from holtmq.broker.topology.exchanges import Kind
from holtmq.http.engine.clients import ConnectionRow
from holtmq.http.engine.errors import Refusal
from holtmq.http.management.access import LOGIN, MONITOR
from holtmq.http.management.call import CHANGED, NODE, Answer, ManagementCall, Row
from holtmq.http.management.listing import Rows, collected
from holtmq.http.management.runtime import cluster_name
from holtmq.http.management.topology import listed_queues, queue_totals
from holtmq.http.operator.system import resident_bytes, total_memory

log = logging.getLogger(__name__)

_FEATURES: Final = (
    ("quorum_queue", "Support queues of type `quorum`"),
    ("stream_queue", "Support queues of type `stream`"),
    ("user_limits", "Configure connection and channel limits for a user"),
    ("virtual_host_metadata", "Virtual host metadata (description, tags, etc)"),
    ("implicit_default_bindings", "Default bindings are implicit, instead of being stored"),
)
_CLOSED: Final = "Closed via management plugin"  # RabbitMQ's text: people grep for it


async def overview(call: ManagementCall) -> object:
    broker, config = call.broker, call.context.config
    clients = call.context.clients
    connected, channel_count = clients.counts()
    queues = [queue for vhost in broker.vhosts.values() for queue in listed_queues(vhost)]
    ready, unacked, consumer_count = await queue_totals(queues)
    return {
        "management_version": __version__,
        "product_name": config.amqp.product,
        "product_version": config.amqp.product_version,
        "rabbitmq_version": config.amqp.product_version,
        "cluster_name": cluster_name(broker),
        "node": NODE,
        "rates_mode": "none",
        "exchange_types": _exchange_types(),
        "message_stats": {},
        "queue_totals": {
            "messages": ready + unacked,
            "messages_ready": ready,
            "messages_unacknowledged": unacked,
        },
        "object_totals": {
            "connections": connected,
            "channels": channel_count,
            "consumers": consumer_count,
            "exchanges": sum(len(vhost.exchanges) for vhost in broker.vhosts.values()),
            "queues": len(queues),
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


async def whoami(call: ManagementCall) -> object:
    return {"name": call.identity.name, "tags": list(call.identity.tags)}


async def nodes(call: ManagementCall) -> list[dict[str, object]]:
    return [_node(call)]


async def node(call: ManagementCall) -> dict[str, object]:
    if call.path["node"] != NODE:
        raise Refusal(404, f"no node '{call.path['node']}'")
    return _node(call)


def _node(call: ManagementCall) -> dict[str, object]:
    context = call.context
    alarm, limits, data = context.alarm(), context.config.limits, context.config.data
    row: dict[str, object] = {
        "name": NODE,
        "type": "ram" if data.memory else "disc",
        "running": True,
        "os_pid": str(os.getpid()),
        "processors": os.cpu_count(),
        "rates_mode": "none",
        "uptime": round((context.clock() - context.started_at) * 1000),
        "exchange_types": _exchange_types(),
        "fd_used": len(os.listdir("/proc/self/fd")),
        "fd_total": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "sockets_used": context.clients.counts()[0],
        "mem_used": resident_bytes(),
        "mem_limit": limits.memory_bytes(total_memory()),
        "mem_alarm": "memory" in alarm,
        "disk_free_limit": limits.disk_free_min_bytes,
        "disk_free_alarm": "disk" in alarm,
        "partitions": [],
    }
    if not data.memory:
        with suppress(OSError):
            disk = os.statvfs(data.dir)
            row["disk_free"] = disk.f_bavail * disk.f_frsize
    return row


def _exchange_types() -> list[dict[str, object]]:
    return [{"name": kind.value, "enabled": True} for kind in Kind]


async def nothing(call: ManagementCall) -> list[object]:
    """An empty list, for RabbitMQ features that this broker does not have."""
    return []


async def connections(call: ManagementCall) -> Rows:
    return Rows(call.context.clients.connections(_vhost(call)))


async def connection(call: ManagementCall) -> ConnectionRow:
    name = call.path["connection"]
    for row in await collected(call.context.clients.connections()):
        if row.name == name:
            return row
    raise Refusal(404, f"no connection '{name}'")


async def close_connection(call: ManagementCall) -> Answer:
    name = call.path["connection"]
    if not call.context.clients.close(name, call.reason or _CLOSED):
        raise Refusal(404, f"no connection '{name}'")
    return CHANGED


async def channels(call: ManagementCall) -> Rows:
    return Rows(call.context.clients.channels(_vhost(call)))


async def consumers(call: ManagementCall) -> Rows:
    return Rows(call.context.clients.consumers(_vhost(call)))


def _vhost(call: ManagementCall) -> str | None:
    return call.vhost.name if "vhost" in call.path else None


async def feature_flags(call: ManagementCall) -> object:
    """RabbitMQ's feature flags, which a cluster enables when all nodes support them: here all are enabled."""
    return [
        {
            "name": name,
            "desc": text,
            "doc_url": "",
            "state": "enabled",
            "stability": "stable",
            "provided_by": "holtmq",
        }
        for name, text in _FEATURES
    ]


async def extensions(call: ManagementCall) -> object:
    """Scripts that plugins add to RabbitMQ's management page: there are none."""
    return []


async def auth(call: ManagementCall) -> object:
    """How RabbitMQ's management page should log in: by name and password."""
    return {"oauth_enabled": False, "enable_uaa": False, "uaa_client_id": "", "uaa_location": ""}


async def rebalance(call: ManagementCall) -> Answer:
    log.info(
        "rebalance asked for: one node has all queues, so none moves", extra={"user": call.identity.name}
    )
    return CHANGED


ROWS: Final = (
    Row("GET", "/api/feature-flags", feature_flags, MONITOR),
    Row("GET", "/api/extensions", extensions, LOGIN),
    Row("GET", "/api/auth", auth, LOGIN),
    Row("POST", "/api/rebalance/queues", rebalance),
    Row("GET", "/api/overview", overview, MONITOR),
    Row("GET", "/api/whoami", whoami, LOGIN),
    Row("GET", "/api/nodes", nodes, MONITOR),
    Row("GET", "/api/nodes/{node}", node, MONITOR),
    Row("GET", "/api/connections", connections, MONITOR, paged=True),
    Row("GET", "/api/connections/{connection}", connection, MONITOR),
    Row("DELETE", "/api/connections/{connection}", close_connection),
    Row("GET", "/api/vhosts/{vhost}/connections", connections, MONITOR, paged=True),
    Row("GET", "/api/channels", channels, MONITOR, paged=True),
    Row("GET", "/api/vhosts/{vhost}/channels", channels, MONITOR, paged=True),
    Row("GET", "/api/consumers", consumers, MONITOR),
    Row("GET", "/api/consumers/{vhost}", consumers, MONITOR),
)

"""Management API: RabbitMQ's routes for which one node, without plugins, has a fixed answer.

Owns: these answers, each with its reason. Must not touch: state.
"""

import logging
from typing import Final

from holtmq.http.engine.endpoints import CHANGED, Call, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.management.access import LOGIN, MONITOR
from holtmq.http.management.conventions import check_node, endpoint

log = logging.getLogger(__name__)

FEATURES: Final = (
    ("quorum_queue", "Support queues of type `quorum`"),
    ("stream_queue", "Support queues of type `stream`"),
    ("user_limits", "Configure connection and channel limits for a user"),
    ("virtual_host_metadata", "Virtual host metadata (description, tags, etc)"),
    ("implicit_default_bindings", "Default bindings are implicit, instead of being stored"),
)


async def nothing(call: Call) -> list[object]:
    """An empty list: federation links, scripts of plugins for the management page, deprecated features,
    sessions of AMQP 1.0."""
    return []


async def feature_flags(call: Call) -> object:
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
        for name, text in FEATURES
    ]


async def enable_feature_flag(call: Call) -> Reply:
    names = [name for name, _ in FEATURES]
    if call.path["name"] not in names:
        raise Refusal(400, f"unknown feature flag '{call.path['name']}': there are {', '.join(names)}")
    return CHANGED  # all are enabled


async def auth(call: Call) -> object:
    """How RabbitMQ's management page should log in: by name and password."""
    return {"oauth_enabled": False, "enable_uaa": False, "uaa_client_id": "", "uaa_location": ""}


async def rebalance(call: Call) -> Reply:
    log.info(
        "rebalance asked for: one node has all queues, so none moves", extra={"user": call.identity.name}
    )
    return CHANGED


async def start_vhost(call: Call) -> Reply:
    """A vhost runs as long as the node does."""
    check_node(call)
    _ = call.vhost  # 404 if it is missing
    return CHANGED


async def version(call: Call) -> object:
    return call.context.config.amqp.product_version


ENDPOINTS: Final = (
    endpoint("GET", "/api/feature-flags", feature_flags, MONITOR),
    endpoint("PUT", "/api/feature-flags/{name}/enable", enable_feature_flag),
    endpoint("GET", "/api/deprecated-features", nothing, MONITOR),
    endpoint("GET", "/api/deprecated-features/used", nothing, MONITOR),
    endpoint("GET", "/api/extensions", nothing, LOGIN),
    endpoint("GET", "/api/federation-links", nothing, MONITOR),
    endpoint("GET", "/api/federation-links/{vhost}", nothing, MONITOR),
    endpoint("GET", "/api/connections/{connection}/sessions", nothing, MONITOR),
    endpoint("GET", "/api/auth", auth, LOGIN),
    endpoint("GET", "/api/version", version, LOGIN),
    endpoint("POST", "/api/rebalance/queues", rebalance),
    endpoint("POST", "/api/vhosts/{vhost}/start/{node}", start_vhost),
)

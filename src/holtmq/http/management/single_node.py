"""Management API: RabbitMQ's routes for which one node, without plugins, has a fixed answer.

Owns: these answers, each with its reason. Must not touch: state.
"""

import logging
from typing import Final

from holtmq.http.engine.errors import Refusal
from holtmq.http.management.access import LOGIN, MONITOR
from holtmq.http.management.call import CHANGED, Answer, ManagementCall, Row

log = logging.getLogger(__name__)

FEATURES: Final = (
    ("quorum_queue", "Support queues of type `quorum`"),
    ("stream_queue", "Support queues of type `stream`"),
    ("user_limits", "Configure connection and channel limits for a user"),
    ("virtual_host_metadata", "Virtual host metadata (description, tags, etc)"),
    ("implicit_default_bindings", "Default bindings are implicit, instead of being stored"),
)


async def nothing(call: ManagementCall) -> list[object]:
    """An empty list: federation links, scripts of plugins for the management page, deprecated features,
    sessions of AMQP 1.0."""
    return []


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
        for name, text in FEATURES
    ]


async def enable_feature_flag(call: ManagementCall) -> Answer:
    names = [name for name, _ in FEATURES]
    if call.path["name"] not in names:
        raise Refusal(400, f"unknown feature flag '{call.path['name']}': there are {', '.join(names)}")
    return CHANGED  # all are enabled


async def auth(call: ManagementCall) -> object:
    """How RabbitMQ's management page should log in: by name and password."""
    return {"oauth_enabled": False, "enable_uaa": False, "uaa_client_id": "", "uaa_location": ""}


async def rebalance(call: ManagementCall) -> Answer:
    log.info(
        "rebalance asked for: one node has all queues, so none moves", extra={"user": call.identity.name}
    )
    return CHANGED


async def start_vhost(call: ManagementCall) -> Answer:
    """A vhost runs as long as the node does."""
    call.check_node()
    _ = call.vhost  # 404 if it is missing
    return CHANGED


async def version(call: ManagementCall) -> object:
    return call.context.config.amqp.product_version


ROWS: Final = (
    Row("GET", "/api/feature-flags", feature_flags, MONITOR),
    Row("PUT", "/api/feature-flags/{name}/enable", enable_feature_flag),
    Row("GET", "/api/deprecated-features", nothing, MONITOR),
    Row("GET", "/api/deprecated-features/used", nothing, MONITOR),
    Row("GET", "/api/extensions", nothing, LOGIN),
    Row("GET", "/api/federation-links", nothing, MONITOR),
    Row("GET", "/api/federation-links/{vhost}", nothing, MONITOR),
    Row("GET", "/api/connections/{connection}/sessions", nothing, MONITOR),
    Row("GET", "/api/auth", auth, LOGIN),
    Row("GET", "/api/version", version, LOGIN),
    Row("POST", "/api/rebalance/queues", rebalance),
    Row("POST", "/api/vhosts/{vhost}/start/{node}", start_vhost),
)

"""Management API: what is stored for another broker and has no meaning here.

Owns: the list and its reasons. Must not touch: what is stored.
"""

from typing import Final

from holtmq.auth.rights import KNOWN_TAGS
from holtmq.broker.broker import Broker
from holtmq.broker.errors import BrokerError
from holtmq.broker.topology.parameters import CLUSTER_NAME, THRESHOLDS, Parameter
from holtmq.broker.topology.shovels import COMPONENT as SHOVEL
from holtmq.broker.topology.shovels import PROGRESS_COMPONENT, parse_shovel
from holtmq.http.engine.endpoints import Call

MIGRATION: Final = "migration"  # what ``holt migrate`` has begun
# Parameters of RabbitMQ's plugins: stored so that an export has them, without effect here.
KEPT: Final = {
    "federation-upstream": "there is no federation here",
    "federation-upstream-set": "there is no federation here",
}


def without_meaning(broker: Broker) -> list[dict[str, object]]:
    """Everything that is stored but has no effect, each with the reason."""
    rows: list[dict[str, object]] = []
    for vhost in sorted(broker.vhosts):
        for book, what in ((broker.policies, "policy"), (broker.operator_policies, "operator policy")):
            rows += [
                {"vhost": vhost, "what": what, "name": policy.name, "key": key, "reason": _key_reason(key)}
                for policy in book.in_vhost(vhost)
                for key in policy.without_meaning
            ]
        rows += [
            {
                "vhost": vhost,
                "what": parameter.component,
                "name": parameter.name,
                "key": None,
                "reason": reason,
            }
            for parameter in broker.parameters.all(vhost=vhost)
            if (reason := _parameter_reason(parameter))
        ]
    rows += [
        {
            "vhost": None,
            "what": "global parameter",
            "name": name,
            "key": None,
            "reason": "no part of this broker reads it",
        }
        for name, _ in broker.parameters.globals()
        if name not in (CLUSTER_NAME, MIGRATION, THRESHOLDS)
    ]
    rows += [
        {
            "vhost": None,
            "what": "user",
            "name": user.name,
            "key": tag,
            "reason": f"no right belongs to this tag; those that have one are {', '.join(KNOWN_TAGS)}",
        }
        for user in broker.users.users()
        for tag in user.tags
        if tag not in KNOWN_TAGS
    ]
    return rows


def _parameter_reason(parameter: Parameter) -> str:
    """Why a parameter has no effect; empty if it has one."""
    if parameter.component == PROGRESS_COMPONENT:
        return ""
    if parameter.component != SHOVEL:
        return KEPT[parameter.component]
    try:
        parse_shovel(parameter.value)
    except BrokerError as error:
        return str(error)
    return ""


def _key_reason(key: str) -> str:
    if key.startswith("ha-") or key == "target-group-size":
        return "one node has no mirrors; a replicated journal protects every queue"
    if key.startswith("federation"):
        return "there is no federation here"
    if key.startswith("max-in-memory"):
        return "every queue keeps a bounded head in memory by itself"
    return "there is no sharding plugin here; partitioned queues take its place"


async def list_without_meaning(call: Call) -> object:
    return without_meaning(call.broker)

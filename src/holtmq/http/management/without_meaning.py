"""Management API: what is stored for another broker and has no meaning here.

Owns: the list and its reasons. Must not touch: what is stored.
"""

from collections.abc import Iterator
from typing import Final

from holtmq.auth.rights import KNOWN_TAGS
from holtmq.broker.broker import Broker
from holtmq.broker.errors import BrokerError
from holtmq.broker.topology.parameters import CLUSTER_NAME, THRESHOLDS, Parameter
from holtmq.broker.topology.shovels import COMPONENT as SHOVEL
from holtmq.broker.topology.shovels import PROGRESS_COMPONENT, parse_shovel
from holtmq.http.engine.endpoints import Call
from holtmq.http.engine.stepwise import Stepwise

MIGRATION: Final = "migration"  # what ``holt migrate`` has begun
# Parameters of RabbitMQ's plugins: stored so that an export has them, without effect here.
KEPT: Final = {
    "federation-upstream": "there is no federation here",
    "federation-upstream-set": "there is no federation here",
}


async def without_meaning(broker: Broker) -> list[dict[str, object]]:
    """Everything that is stored but has no effect, each with the reason."""
    stepwise = Stepwise()
    rows: list[dict[str, object]] = []
    for row in _everything(broker):
        if row is not None:
            rows.append(row)
        await stepwise.between()
    return rows


def _everything(broker: Broker) -> Iterator[dict[str, object] | None]:
    """One item for each thing that is looked at; None: it has an effect."""
    for vhost in sorted(broker.vhosts):
        for book, what in ((broker.policies, "policy"), (broker.operator_policies, "operator policy")):
            for policy in book.in_vhost(vhost):
                yield None
                for key in policy.without_meaning:
                    yield _row(vhost, what, policy.name, key, _key_reason(key))
        for parameter in broker.parameters.all(vhost=vhost):
            reason = _parameter_reason(parameter)
            yield _row(vhost, parameter.component, parameter.name, None, reason) if reason else None
    for name, _ in broker.parameters.globals():
        if name not in (CLUSTER_NAME, MIGRATION, THRESHOLDS):
            yield _row(None, "global parameter", name, None, "no part of this broker reads it")
    reason = f"no right belongs to this tag; those that have one are {', '.join(KNOWN_TAGS)}"
    for user in broker.users.users():
        yield None
        for tag in user.tags:
            if tag not in KNOWN_TAGS:
                yield _row(None, "user", user.name, tag, reason)


def _row(vhost: str | None, what: str, name: str, key: str | None, reason: str) -> dict[str, object]:
    return {"vhost": vhost, "what": what, "name": name, "key": key, "reason": reason}


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
    return await without_meaning(call.broker)

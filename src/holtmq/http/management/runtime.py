"""Management API: topic permissions, limits of vhosts and users, parameters, and which have no effect here.

Owns: their resources. Must not touch: how they are stored and enforced.
"""

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from holtmq.auth.topic_permissions import TopicPermission
from holtmq.auth.users import ADMINISTRATOR
from holtmq.broker.broker import Broker
from holtmq.broker.errors import NotFound
from holtmq.broker.topology.parameters import CLUSTER_NAME, Parameter
from holtmq.broker.topology.policies import Policy
from holtmq.broker.topology.shovels import COMPONENT as SHOVEL
from holtmq.broker.topology.shovels import PROGRESS_COMPONENT, CannotRun, parse_shovel, without_passwords
from holtmq.http.engine.context import NODE
from holtmq.http.engine.endpoints import CHANGED, CREATED, Call, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import in_order
from holtmq.http.management.access import LOGIN, MONITOR
from holtmq.http.management.conventions import endpoint, missing_is_bad_request
from holtmq.http.management.listing import Rows
from holtmq.http.management.users import policy_row, set_policy, user_named
from holtmq.http.management.wire import PolicyIn, checked_name
from holtmq.http.management.without_meaning import (
    KEPT,
    list_without_meaning,
)

T = TypeVar("T")


OPERATOR_POLICY: Final = "operator_policy"  # RabbitMQ keeps these among its runtime parameters
POLICIES: Final = (OPERATOR_POLICY, "policy")  # components whose parameters are policies
VHOST_LIMITS_COMPONENT: Final = "vhost-limits"
LIMITS_NAME: Final = "limits"


class TopicPermissionIn(msgspec.Struct, kw_only=True):
    exchange: str
    write: str
    read: str
    user: str = ""
    vhost: str = ""


class LimitIn(msgspec.Struct):
    value: object


class ParameterIn(msgspec.Struct, kw_only=True):
    value: msgspec.Raw
    component: str = ""
    name: str = ""
    vhost: str = ""


def topic_row(permission: TopicPermission) -> dict[str, object]:
    return {
        "user": permission.user,
        "vhost": permission.vhost,
        "exchange": permission.exchange,
        "write": permission.write,
        "read": permission.read,
    }


async def list_topic_permissions(call: Call) -> object:
    user = user_named(call.broker, call.path["user"]).name if "user" in call.path else None
    vhost = call.vhost.name if "vhost" in call.path else None
    found = call.broker.topic_permissions.all(user=user, vhost=vhost)
    if not found and user is not None and vhost is not None:
        raise NotFound(f"user '{user}' has no topic permissions in vhost '{vhost}'")
    return Rows(map(topic_row, found))


async def put_topic_permission(call: Call) -> Reply:
    given = call.json(TopicPermissionIn)
    with missing_is_bad_request():
        user, vhost = user_named(call.broker, call.path["user"]).name, call.vhost.name
    known = bool(call.broker.topic_permissions.all(user=user, vhost=vhost))
    call.broker.access.put_topic_permission(
        TopicPermission(user, vhost, given.exchange, given.write, given.read)
    )
    return CHANGED if known else CREATED


async def delete_topic_permissions(call: Call) -> Reply:
    user, vhost = call.path["user"], call.vhost.name
    if not call.broker.access.delete_topic_permissions(user, vhost, call.path.get("exchange")):
        raise NotFound(f"user '{user}' has no such topic permissions in vhost '{vhost}'")
    return CHANGED


async def list_vhost_limits(call: Call) -> object:
    only = call.vhost.name if "vhost" in call.path else None
    return await _limits("vhost", call.broker.limits.of_vhosts, only)


async def _limits(of: str, limits: Mapping[str, dict[str, int]], only: str | None) -> Rows:
    """The limits of ``only`` one vhost or user, or of all, by name."""
    names = [name async for part in in_order(limits) for name in part] if only is None else [only]
    return Rows({of: name, "value": dict(limits[name])} for name in names if name in limits)


async def put_vhost_limit(call: Call) -> Reply:
    name, limits = call.vhost.name, call.broker.limits.of_vhosts
    changed = {**limits.get(name, {}), call.path["limit"]: call.json(LimitIn).value}
    call.broker.access.set_vhost_limits(name, changed)
    return CHANGED


async def delete_vhost_limit(call: Call) -> Reply:
    name, limits = call.vhost.name, call.broker.limits.of_vhosts
    left = {key: value for key, value in limits.get(name, {}).items() if key != call.path["limit"]}
    call.broker.access.set_vhost_limits(name, left)
    return CHANGED


async def list_user_limits(call: Call) -> object:
    only = user_named(call.broker, call.path["user"]).name if "user" in call.path else None
    return await _limits("user", call.broker.limits.of_users, only)


async def put_user_limit(call: Call) -> Reply:
    with missing_is_bad_request():
        name, limits = user_named(call.broker, call.path["user"]).name, call.broker.limits.of_users
    changed = {**limits.get(name, {}), call.path["limit"]: call.json(LimitIn).value}
    call.broker.access.set_user_limits(name, changed)
    return CHANGED


async def delete_user_limit(call: Call) -> Reply:
    name, limits = user_named(call.broker, call.path["user"]).name, call.broker.limits.of_users
    left = {key: value for key, value in limits.get(name, {}).items() if key != call.path["limit"]}
    call.broker.access.set_user_limits(name, left)
    return CHANGED


def parameter_rows(
    broker: Broker, vhosts: list[str], component: str | None = None
) -> Iterator[dict[str, object]]:
    """All parameters of these vhosts, or those of one component, with operator policies and limits, which are
    stored elsewhere."""
    for vhost in vhosts:
        if component in (None, OPERATOR_POLICY):
            for policy in broker.operator_policies.in_vhost(vhost):
                yield _policy_parameter(policy)
        if component in (None, VHOST_LIMITS_COMPONENT) and (limits := broker.limits.of_vhosts.get(vhost)):
            yield _row(vhost, VHOST_LIMITS_COMPONENT, LIMITS_NAME, dict(limits))
        for parameter in broker.parameters.all(component=component, vhost=vhost):
            if parameter.component != PROGRESS_COMPONENT:
                yield _row(vhost, parameter.component, parameter.name, msgspec.Raw(parameter.value))


def _policy_parameter(policy: Policy) -> dict[str, object]:
    row = policy_row(policy)
    value = {key: item for key, item in row.items() if key not in ("vhost", "name")}
    return _row(policy.vhost, OPERATOR_POLICY, policy.name, value)


def _row(vhost: str, component: str, name: str, value: object) -> dict[str, object]:
    return {"vhost": vhost, "component": component, "name": name, "value": value}


def set_parameter(
    broker: Broker, vhost: str, component: str, name: str, value: msgspec.Raw, *, imported: bool = False
) -> None:
    """Store a parameter as its component requires; raises 400 for an unknown component.

    ``imported``: also store a shovel that another broker can run and this one cannot.
    """
    match component:
        case "operator_policy" | "policy":
            policy = _decoded(value, PolicyIn, f"{component} '{name}'")
            set_policy(broker, vhost, name, policy, operator=component == OPERATOR_POLICY)
        case "vhost-limits":
            broker.access.set_vhost_limits(
                vhost, _decoded(value, dict[str, object], f"limits of vhost '{vhost}'")
            )
        case "shovel":
            try:
                parse_shovel(bytes(value))
            except CannotRun:
                if not imported:
                    raise
            broker.parameter_changes.put(
                Parameter(vhost, component, checked_name(name, "shovel"), bytes(value))
            )
        case _ if component in KEPT:
            _check_kept(component, name, value)
            broker.parameter_changes.put(
                Parameter(vhost, component, checked_name(name, "parameter"), bytes(value))
            )
        case _:
            raise Refusal(400, f"component {component} not found; there are {', '.join(COMPONENTS)}")


def _check_kept(component: str, name: str, value: msgspec.Raw) -> None:
    """Refuse what RabbitMQ would refuse: an export must load there."""
    if component != "federation-upstream":
        _ = _decoded(value, object, f"{component} '{name}'")
        return
    uri = _decoded(value, dict[str, object], f"{component} '{name}'").get("uri")
    uris = uri if isinstance(uri, list) else [uri]
    if not uris or not all(isinstance(one, str) for one in uris):
        text = f"{component} '{name}': uri is an address or a list of addresses"
        raise Refusal(400, f"Validation failed\n\n{text}")  # RabbitMQ's words: clients look for them


COMPONENTS: Final = (OPERATOR_POLICY, VHOST_LIMITS_COMPONENT, SHOVEL, *KEPT)


def _decoded(value: msgspec.Raw, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(value, type=kind, strict=False)
    except msgspec.MsgspecError as error:
        raise Refusal(400, f"{what}: {error}") from None


def _shown(call: Call, row: dict[str, object]) -> dict[str, object]:
    """The row; the addresses of a shovel contain passwords, which only administrators see."""
    value = row["value"]
    if (
        row["component"] != SHOVEL
        or call.identity.has_tag(ADMINISTRATOR)
        or not isinstance(value, msgspec.Raw)
    ):
        return row
    return {**row, "value": msgspec.Raw(without_passwords(bytes(value)))}


async def list_parameters(call: Call) -> object:
    vhosts = [call.vhost.name] if "vhost" in call.path else sorted(call.broker.vhosts)
    rows = parameter_rows(call.broker, vhosts, call.path.get("component"))
    return Rows(_shown(call, row) for row in rows)


def _known_parameter(call: Call) -> dict[str, object] | None:
    broker, vhost, component, name = call.broker, call.vhost.name, call.path["component"], call.path["name"]
    if component == OPERATOR_POLICY:
        policy = broker.operator_policies.named(vhost, name)
        return None if policy is None else _policy_parameter(policy)
    if component == VHOST_LIMITS_COMPONENT:
        limits = broker.limits.of_vhosts.get(vhost)
        return _row(vhost, component, name, dict(limits)) if limits and name == LIMITS_NAME else None
    found = None if component == PROGRESS_COMPONENT else broker.parameters.get(vhost, component, name)
    return None if found is None else _row(vhost, component, name, msgspec.Raw(found.value))


def _parameter(call: Call) -> dict[str, object]:
    found = _known_parameter(call)
    if found is None:
        path = call.path
        raise NotFound(
            f"no parameter '{path['name']}' of component '{path['component']}' in vhost '{path['vhost']}'"
        )
    return found


async def show_parameter(call: Call) -> object:
    return _shown(call, _parameter(call))


async def put_parameter(call: Call) -> Reply:
    path = call.path
    known = _known_parameter(call) is not None
    set_parameter(call.broker, path["vhost"], path["component"], path["name"], call.json(ParameterIn).value)
    return CHANGED if known else CREATED


async def delete_parameter(call: Call) -> Reply:
    _parameter(call)
    vhost, component, name = call.vhost.name, call.path["component"], call.path["name"]
    if component == OPERATOR_POLICY:
        call.broker.policy_changes.delete(vhost, name, operator=True)
    elif component == VHOST_LIMITS_COMPONENT:
        call.broker.access.set_vhost_limits(vhost, {})
    else:
        call.broker.parameter_changes.delete(vhost, component, name)
    return CHANGED


def global_rows(broker: Broker) -> Rows:
    return Rows({"name": name, "value": msgspec.Raw(value)} for name, value in broker.parameters.globals())


async def list_global_parameters(call: Call) -> object:
    return global_rows(call.broker)


async def show_global_parameter(call: Call) -> object:
    value = call.broker.parameters.global_value(call.path["name"])
    if value is None:
        raise NotFound(f"no global parameter '{call.path['name']}'")
    return {"name": call.path["name"], "value": msgspec.Raw(value)}


async def put_global_parameter(call: Call) -> Reply:
    name = checked_name(call.path["name"], "parameter")
    known = call.broker.parameters.global_value(name) is not None
    call.broker.parameter_changes.put_global(name, bytes(call.json(ParameterIn).value))
    return CHANGED if known else CREATED


async def delete_global_parameter(call: Call) -> Reply:
    call.broker.parameter_changes.delete_global(call.path["name"])
    return CHANGED


def cluster_name(broker: Broker) -> str:
    """The cluster name that an operator has set, or the node's name."""
    value = broker.parameters.global_value(CLUSTER_NAME)
    name = msgspec.json.decode(value) if value is not None else NODE
    return name if isinstance(name, str) else NODE


async def show_cluster_name(call: Call) -> object:
    return {"name": cluster_name(call.broker)}


class ClusterNameIn(msgspec.Struct):
    name: str


async def put_cluster_name(call: Call) -> Reply:
    name = checked_name(call.json(ClusterNameIn).name, "cluster")
    call.broker.parameter_changes.put_global(CLUSTER_NAME, msgspec.json.encode(name))
    return CHANGED


_TOPIC: Final = "/api/topic-permissions"
_PARAMETERS: Final = "/api/parameters"
ENDPOINTS: Final = (
    endpoint("GET", _TOPIC, list_topic_permissions),
    endpoint("GET", _TOPIC + "/{vhost}/{user}", list_topic_permissions),
    endpoint("PUT", _TOPIC + "/{vhost}/{user}", put_topic_permission),
    endpoint("DELETE", _TOPIC + "/{vhost}/{user}", delete_topic_permissions),
    endpoint("DELETE", _TOPIC + "/{vhost}/{user}/{exchange}", delete_topic_permissions),
    endpoint("GET", "/api/users/{user}/topic-permissions", list_topic_permissions),
    endpoint("GET", "/api/vhosts/{vhost}/topic-permissions", list_topic_permissions),
    endpoint("GET", "/api/vhost-limits", list_vhost_limits, MONITOR),
    endpoint("GET", "/api/vhost-limits/{vhost}", list_vhost_limits, MONITOR),
    endpoint("PUT", "/api/vhost-limits/{vhost}/{limit}", put_vhost_limit),
    endpoint("DELETE", "/api/vhost-limits/{vhost}/{limit}", delete_vhost_limit),
    endpoint("GET", "/api/user-limits", list_user_limits, MONITOR),
    endpoint("GET", "/api/user-limits/{user}", list_user_limits, MONITOR),
    endpoint("PUT", "/api/user-limits/{user}/{limit}", put_user_limit),
    endpoint("DELETE", "/api/user-limits/{user}/{limit}", delete_user_limit),
    endpoint("GET", _PARAMETERS, list_parameters, MONITOR),
    endpoint("GET", _PARAMETERS + "/{component}", list_parameters, MONITOR),
    endpoint("GET", _PARAMETERS + "/{component}/{vhost}", list_parameters, MONITOR),
    endpoint("GET", _PARAMETERS + "/{component}/{vhost}/{name}", show_parameter, MONITOR),
    endpoint("PUT", _PARAMETERS + "/{component}/{vhost}/{name}", put_parameter),
    endpoint("DELETE", _PARAMETERS + "/{component}/{vhost}/{name}", delete_parameter),
    endpoint("GET", "/api/global-parameters", list_global_parameters, MONITOR),
    endpoint("GET", "/api/global-parameters/{name}", show_global_parameter, MONITOR),
    endpoint("PUT", "/api/global-parameters/{name}", put_global_parameter),
    endpoint("DELETE", "/api/global-parameters/{name}", delete_global_parameter),
    endpoint("GET", "/api/cluster-name", show_cluster_name, LOGIN),
    endpoint("PUT", "/api/cluster-name", put_cluster_name),
    endpoint("GET", "/api/without-meaning", list_without_meaning, MONITOR),
)

"""Management API: vhosts, users, permissions and policies.

Owns: their resources. Must not touch: how they are stored; ``Broker`` pairs each change with its record.
"""

import asyncio
from functools import partial
from typing import Final

import msgspec

from holtmq.auth import passwords
from holtmq.auth.permissions import FULL_ACCESS, Permissions
from holtmq.auth.users import Grant, User, Vhost
from holtmq.broker.broker import Broker
from holtmq.broker.errors import NotFound
from holtmq.broker.topology.policies import Policy, PolicyBook
from holtmq.broker.topology.vhost import VHost
from holtmq.http.engine.context import NODE
from holtmq.http.engine.endpoints import CHANGED, CREATED, Call, Endpoint, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.engine.wire import plain
from holtmq.http.management.access import ADMINISTER, MAKE_POLICY, MANAGE
from holtmq.http.management.conventions import endpoint, missing_is_bad_request
from holtmq.http.management.listing import Rows
from holtmq.http.management.vhost_figures import vhost_figures
from holtmq.http.management.wire import (
    PermissionIn,
    PolicyIn,
    UserIn,
    VhostIn,
    checked_name,
    checked_table,
    tags_of,
)


class UsersIn(msgspec.Struct):
    users: list[str]


ALGORITHM: Final = "argon2id"
_ARGON2: Final = "$argon2id$"


async def vhost_row(call: Call, vhost: VHost, stepwise: Stepwise) -> dict[str, object]:
    return {
        "default_queue_type": "undefined",  # RabbitMQ's word, unless the vhost has one
        **vhost_definition(call.broker.users.vhost(vhost.name) or Vhost(vhost.name)),
        "tracing": False,
        "cluster_state": {NODE: "running"},
        **await vhost_figures(call, vhost, stepwise),
    }


def vhost_definition(vhost: Vhost) -> dict[str, object]:
    """A vhost as RabbitMQ exports it: up to 3.13 beside the name, since 4.0 under ``metadata``."""
    metadata: dict[str, object] = {"description": vhost.description, "tags": list(vhost.tags)}
    if vhost.default_queue_type:
        metadata["default_queue_type"] = vhost.default_queue_type
    if vhost.protected_from_deletion:
        metadata["protected_from_deletion"] = True
    return {
        "name": vhost.name,
        **metadata,
        "metadata": metadata,
    }


def set_vhost(broker: Broker, name: str, given: VhostIn) -> None:
    """Create a vhost, or change what the document says about it."""
    extra = given.metadata
    description = given.description if given.description is not None else extra.description
    tags = given.tags if given.tags is not None else extra.tags
    broker.put_vhost(name, description or "", tags_of(tags or ()))
    kind = given.default_queue_type or extra.default_queue_type
    protected = given.protected_from_deletion
    broker.access.set_vhost_settings(
        name,
        None if kind in ("", "undefined") else kind,
        extra.protected_from_deletion if protected is None else protected,
    )


async def list_vhosts(call: Call) -> object:
    found = [call.broker.vhosts[name] for name in sorted(call.broker.vhosts) if call.identity.sees(name)]
    rows: list[dict[str, object]] = []
    stepwise = Stepwise()
    for vhost in found:
        if call.broker.vhosts.get(vhost.name) is vhost:  # it may be deleted between two steps
            rows.append(await vhost_row(call, vhost, stepwise))
    return rows


async def show_vhost(call: Call) -> object:
    return await vhost_row(call, call.vhost, Stepwise())


async def put_vhost(call: Call) -> Reply:
    given = call.json(VhostIn)
    name = checked_name(call.path["vhost"], "vhost")
    while call.broker.removals.is_leaving(name):  # to create it would first complete that, at once
        await asyncio.sleep(0)
    known = name in call.broker.vhosts
    set_vhost(call.broker, name, given)
    if known:
        return CHANGED
    # As in RabbitMQ, the creator of a vhost gets full access to it.
    if call.broker.users.user(call.identity.name) is not None:  # a token need not belong to a user
        call.broker.access.set_permissions(call.identity.name, name, FULL_ACCESS)
    return CREATED


async def delete_vhost(call: Call) -> Reply:
    removals, name = call.broker.removals, call.vhost.name
    removals.delete_vhost(name)
    while removals.is_leaving(name):
        await asyncio.sleep(0)
    call.refuse_if_failed()
    return CHANGED


async def protect_vhost(call: Call, protected: bool) -> Reply:
    call.broker.access.set_vhost_settings(call.vhost.name, protected_from_deletion=protected)
    return CHANGED


def user_row(broker: Broker, user: User) -> dict[str, object]:
    algorithm, encoded = passwords.exported_hash(user.password_hash) or (ALGORITHM, user.password_hash)
    return {
        "name": user.name,
        "password_hash": encoded,
        "hashing_algorithm": algorithm if encoded else passwords.DEFAULT_IMPORTED,
        "tags": list(user.tags),
        "limits": dict(broker.limits.of_users.get(user.name, {})),
    }


def user_named(broker: Broker, name: str) -> User:
    found = broker.users.user(name)
    if found is None:
        raise NotFound(f"no user '{name}'")
    return found


async def list_users(call: Call) -> object:
    return Rows(user_row(call.broker, user) for user in call.broker.users.users())


async def list_without_permissions(call: Call) -> object:
    stepwise, found = Stepwise(), list[User]()
    for user in call.broker.users.users():
        if not call.broker.users.grants(user=user.name):
            found.append(user)
        await stepwise.between()
    return Rows(user_row(call.broker, user) for user in found)


async def delete_users(call: Call) -> Reply:
    names = call.json(UsersIn).users
    for name in names:
        user_named(call.broker, name)  # all of them or none
    stepwise = Stepwise()
    for name in dict.fromkeys(names):
        if call.broker.users.user(name) is not None:  # another client may have deleted it between two steps
            call.broker.access.delete_user(name)
        await stepwise.between()
    return CHANGED


async def show_user(call: Call) -> object:
    return user_row(call.broker, user_named(call.broker, call.path["user"]))


async def put_user(call: Call) -> Reply:
    user = await user_from(call.path["user"], call.json(UserIn))
    call.refuse_if_failed()  # check again: hashing takes time
    known = call.broker.users.user(user.name) is not None
    call.broker.access.put_user(user)
    return CHANGED if known else CREATED


async def user_from(name: str, given: UserIn) -> User:
    """The user that a body describes; without a password it can log in by certificate only."""
    checked_name(name, "user")
    password_hash = given.password_hash or given.argon2_hash or ""
    if password_hash and not password_hash.startswith(_ARGON2):
        try:
            algorithm = given.hashing_algorithm or passwords.DEFAULT_IMPORTED
            password_hash = passwords.imported_hash(algorithm, password_hash)
        except ValueError as error:
            raise Refusal(400, f"user '{name}': {error}; or send the password itself") from None
    if given.password:
        password_hash = await asyncio.to_thread(passwords.hash_password, given.password)
    return User(name, password_hash, tags_of(given.tags))


async def delete_user(call: Call) -> Reply:
    call.broker.access.delete_user(call.path["user"])
    return CHANGED


def permission_row(grant: Grant) -> dict[str, object]:
    rights = grant.permissions
    return {
        "user": grant.user,
        "vhost": grant.vhost,
        "configure": rights.configure,
        "write": rights.write,
        "read": rights.read,
    }


async def list_permissions(call: Call) -> object:
    user = user_named(call.broker, call.path["user"]).name if "user" in call.path else None
    vhost = call.vhost.name if "vhost" in call.path else None
    return Rows(map(permission_row, call.broker.users.grants(user=user, vhost=vhost)))


def _grant(call: Call) -> Grant:
    user, vhost = call.path["user"], call.path["vhost"]
    found = call.broker.users.grant(user, vhost)
    if found is None:
        raise NotFound(f"user '{user}' has no permissions in vhost '{vhost}'")
    return found


async def show_permission(call: Call) -> object:
    return permission_row(_grant(call))


async def put_permission(call: Call) -> Reply:
    given = call.json(PermissionIn)
    with missing_is_bad_request():
        user, vhost = user_named(call.broker, call.path["user"]).name, call.vhost.name
    known = call.broker.users.grant(user, vhost) is not None
    call.broker.access.set_permissions(user, vhost, Permissions(given.configure, given.write, given.read))
    return CHANGED if known else CREATED


async def delete_permission(call: Call) -> Reply:
    grant = _grant(call)
    call.broker.access.clear_permissions(grant.user, grant.vhost)
    return CHANGED


def policy_row(policy: Policy) -> dict[str, object]:
    return {
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern.pattern,
        "apply-to": policy.apply_to.value,
        "definition": plain(dict(policy.definition)),
        "priority": policy.priority,
    }


def _book(broker: Broker, operator: bool) -> PolicyBook:
    return broker.operator_policies if operator else broker.policies


async def list_policies(call: Call, operator: bool) -> object:
    vhosts = (
        [call.vhost.name] if "vhost" in call.path else sorted(filter(call.identity.sees, call.broker.vhosts))
    )
    book = _book(call.broker, operator)
    return Rows(policy_row(policy) for vhost in vhosts for policy in book.in_vhost(vhost))


def _policy(call: Call, operator: bool) -> Policy | None:
    return _book(call.broker, operator).named(call.vhost.name, call.path["name"])


async def show_policy(call: Call, operator: bool) -> object:
    found = _policy(call, operator)
    if found is None:
        raise NotFound(f"no policy '{call.path['name']}' in vhost '{call.path['vhost']}'")
    return policy_row(found)


async def put_policy(call: Call, operator: bool) -> Reply:
    known = _policy(call, operator) is not None
    set_policy(call.broker, call.path["vhost"], call.path["name"], call.json(PolicyIn), operator)
    return CHANGED if known else CREATED


def set_policy(broker: Broker, vhost: str, name: str, given: PolicyIn, operator: bool) -> None:
    broker.policy_changes.put(
        vhost,
        checked_name(name, "policy"),
        given.pattern,
        checked_table(given.definition, f"definition of policy '{name}'"),
        given.apply_to,
        given.priority,
        operator,
    )


async def delete_policy(call: Call, operator: bool) -> Reply:
    call.broker.policy_changes.delete(call.vhost.name, call.path["name"], operator)
    return CHANGED


def _policy_rows(path: str, operator: bool) -> tuple[Endpoint, ...]:
    one = path + "/{vhost}/{name}"
    change = ADMINISTER if operator else MAKE_POLICY
    return (
        endpoint("GET", path, partial(list_policies, operator=operator), MANAGE),
        endpoint("GET", path + "/{vhost}", partial(list_policies, operator=operator), MANAGE),
        endpoint("GET", one, partial(show_policy, operator=operator), MANAGE),
        endpoint("PUT", one, partial(put_policy, operator=operator), change),
        endpoint("DELETE", one, partial(delete_policy, operator=operator), change),
    )


ENDPOINTS: Final = (
    endpoint("GET", "/api/vhosts", list_vhosts, MANAGE, is_paged=True),
    endpoint("GET", "/api/vhosts/{vhost}", show_vhost, MANAGE),
    endpoint("PUT", "/api/vhosts/{vhost}", put_vhost),
    endpoint("DELETE", "/api/vhosts/{vhost}", delete_vhost),
    endpoint("POST", "/api/vhosts/{vhost}/deletion/protection", partial(protect_vhost, protected=True)),
    endpoint("DELETE", "/api/vhosts/{vhost}/deletion/protection", partial(protect_vhost, protected=False)),
    endpoint("GET", "/api/vhosts/{vhost}/permissions", list_permissions),
    # Only administrators may see password hashes and permissions.
    endpoint("GET", "/api/users", list_users),
    endpoint("GET", "/api/users/without-permissions", list_without_permissions),
    endpoint("POST", "/api/users/bulk-delete", delete_users),
    endpoint("GET", "/api/users/{user}", show_user),
    endpoint("PUT", "/api/users/{user}", put_user),
    endpoint("DELETE", "/api/users/{user}", delete_user),
    endpoint("GET", "/api/users/{user}/permissions", list_permissions),
    endpoint("GET", "/api/permissions", list_permissions),
    endpoint("GET", "/api/permissions/{vhost}/{user}", show_permission),
    endpoint("PUT", "/api/permissions/{vhost}/{user}", put_permission),
    endpoint("DELETE", "/api/permissions/{vhost}/{user}", delete_permission),
    *_policy_rows("/api/policies", operator=False),
    *_policy_rows("/api/operator-policies", operator=True),
)

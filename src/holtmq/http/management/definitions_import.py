"""Management API: import of definitions from this broker or RabbitMQ, all or nothing.

Owns: reading the document, the order in which its parts are created, the report of what has no meaning here.
Must not touch: how a part is created and checked. An import adds and replaces, it deletes nothing. It first
runs on an in-memory copy of the objects that it names, so that a refusal changes nothing; then on the broker,
as one journal record.
"""

import logging
from asyncio import sleep
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from holtmq.auth.permissions import Permissions
from holtmq.auth.topic_permissions import TopicPermission
from holtmq.auth.users import User
from holtmq.broker.broker import Broker
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.topology.vhost import VHost
from holtmq.http.engine.errors import Refusal
from holtmq.http.management.call import CHANGED, Answer, ManagementCall, Row
from holtmq.http.management.runtime import (
    VHOST_LIMITS_COMPONENT,
    ParameterIn,
    TopicPermissionIn,
    set_parameter,
    without_meaning,
)
from holtmq.http.management.users import set_policy, user_from
from holtmq.http.management.wire import (
    BindingIn,
    ExchangeIn,
    PermissionIn,
    PolicyIn,
    QueueIn,
    UserIn,
    VhostIn,
    checked_key,
    checked_name,
    checked_table,
    tags_of,
)
from holtmq.journal import MemoryJournal

log = logging.getLogger(__name__)

_OTHERS: Final = object()  # the owner of every exclusive queue in a rehearsal
_STEP: Final = 500  # parts of a rehearsal before other work: about 10 ms
_CLASSIC: Final = (None, "", "undefined", "classic")


class DefinitionsIn(msgspec.Struct, kw_only=True):
    vhosts: list[VhostIn] = []
    users: list[UserIn] = []
    permissions: list[PermissionIn] = []
    topic_permissions: list[TopicPermissionIn] = []
    parameters: list[ParameterIn] = []
    global_parameters: list[ParameterIn] = []
    policies: list[PolicyIn] = []
    exchanges: list[ExchangeIn] = []
    queues: list[QueueIn] = []
    bindings: list[BindingIn] = []


async def load_vhost(call: ManagementCall) -> Answer:
    given, vhost = call.json(DefinitionsIn), call.vhost.name
    if given.users or given.vhosts or given.permissions or given.topic_permissions:
        raise Refusal(400, "users, vhosts and permissions are not part of one vhost's definitions")
    for parts in (given.parameters, given.policies, given.exchanges, given.queues, given.bindings):
        for part in parts:
            part.vhost = vhost
    return await _load(call, given)


async def load(call: ManagementCall) -> Answer:
    return await _load(call, call.json(DefinitionsIn))


async def _load(call: ManagementCall, given: DefinitionsIn) -> Answer:
    users = [await user_from(user.name, user) for user in given.users]
    call.refuse_if_failed()  # check again: hashing takes time
    broker = call.broker
    plan = _Plan(given, users)
    before, stage = _stamp(broker), _rehearsal(broker, given)
    for done, _ in enumerate(plan.make(stage), 1):
        if done % _STEP == 0:
            await sleep(0)  # others may work meanwhile
    if call.query.flag("dry_run"):
        return Answer(200, body={"without_meaning": [*without_meaning(stage), *_dropped(given)]})
    call.refuse_if_failed()
    if _stamp(broker) != before:  # they have changed what the rehearsal relied on: once more, in one go
        deque(plan.make(_rehearsal(broker, given)), maxlen=0)
    with broker.one_record():
        deque(plan.make(broker), maxlen=0)
    report = [*without_meaning(broker), *_dropped(given)]
    for row in report:
        log.info("kept without meaning", extra={key: row[key] for key in ("vhost", "what", "key", "reason")})
    return Answer(200, body={"without_meaning": report}) if call.query.flag("report") else CHANGED


def _dropped(given: DefinitionsIn) -> list[dict[str, object]]:
    return [
        {
            "vhost": vhost.name,
            "what": "vhost",
            "name": vhost.name,
            "key": "default_queue_type",
            "reason": f"queues are classic unless they say otherwise, not {vhost.default_queue_type}",
        }
        for vhost in given.vhosts
        if vhost.default_queue_type not in _CLASSIC
    ]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A document with its passwords hashed, to be applied to the broker or to the rehearsal's copy."""

    given: DefinitionsIn
    users: list[User]

    def make(self, broker: Broker) -> Iterator[None]:
        """Create all parts, each after those that it depends on; one of the many is one item."""
        self._users(broker)
        for policy in self.given.policies:
            set_policy(broker, policy.vhost, policy.name, policy, operator=False)
            yield
        limits = [p for p in self.given.parameters if p.component == VHOST_LIMITS_COMPONENT]
        _parameters(broker, [p for p in self.given.parameters if p.component != VHOST_LIMITS_COMPONENT])
        yield from self._topology(broker)
        _parameters(broker, limits)  # after the queues, which limits of the same document must not refuse
        for parameter in self.given.global_parameters:
            name = checked_name(parameter.name, "parameter")
            broker.put_global_parameter(name, bytes(parameter.value))

    def _users(self, broker: Broker) -> None:
        for vhost in self.given.vhosts:
            broker.put_vhost(checked_name(vhost.name, "vhost"), vhost.description, tags_of(vhost.tags))
        for user in self.users:
            broker.put_user(user)
        for given in self.given.users:
            if given.limits or given.name in broker.limits.of_users:
                broker.set_user_limits(given.name, given.limits)
        for grant in self.given.permissions:
            rights = Permissions(grant.configure, grant.write, grant.read)
            broker.set_permissions(grant.user, grant.vhost, rights)
        for topic in self.given.topic_permissions:
            permission = TopicPermission(topic.user, topic.vhost, topic.exchange, topic.write, topic.read)
            broker.put_topic_permission(permission)

    def _topology(self, broker: Broker) -> Iterator[None]:
        for exchange in self.given.exchanges:
            broker.declare_exchange(
                broker.vhost(exchange.vhost),
                checked_name(exchange.name, "exchange"),
                exchange.type,
                durable=exchange.durable,
                auto_delete=exchange.auto_delete,
                internal=exchange.internal,
                arguments=checked_table(exchange.arguments, f"arguments of exchange '{exchange.name}'"),
            )
            yield
        for queue in self.given.queues:
            broker.declare_queue(
                broker.vhost(queue.vhost),
                checked_name(queue.name, "queue"),
                durable=queue.durable,
                auto_delete=queue.auto_delete,
                arguments=checked_table(queue.arguments, f"arguments of queue '{queue.name}'"),
                any_name=True,
            )
            yield
        for binding in self.given.bindings:
            if binding.destination_type not in ("queue", "exchange"):
                kind = binding.destination_type
                raise Refusal(400, f"a binding's destination_type is queue or exchange, not '{kind}'")
            broker.bind(
                broker.vhost(binding.vhost),
                binding.source,
                binding.destination,
                checked_key(binding.routing_key),
                checked_table(binding.arguments, "arguments of a binding"),
                to_exchange=binding.destination_type == "exchange",
            )
            yield


def _parameters(broker: Broker, parameters: Iterable[ParameterIn]) -> None:
    for parameter in parameters:
        name = parameter.name
        set_parameter(broker, parameter.vhost, parameter.component, name, parameter.value, imported=True)


def _stamp(broker: Broker) -> object:
    """Changes with everything that can decide whether a part is refused."""
    vhosts = {vhost.name: (vhost.version, vhost.rules_version) for vhost in broker.vhosts.values()}
    return vhosts, {user.name for user in broker.users.users()}, dict(broker.limits.of_vhosts)


def _rehearsal(broker: Broker, given: DefinitionsIn) -> Broker:
    """An in-memory broker with copies of the objects that the document names."""
    stage = Broker(MemoryJournal(), max_priority=broker.max_priority, dialect=broker.dialect)
    stage.attach(PartitionedService(stage.journal))
    for user in broker.users.users():
        stage.put_user(user)
    exchanges = {(part.vhost, part.name) for part in given.exchanges}
    exchanges |= {(part.vhost, part.source) for part in given.bindings}
    ends = {(part.vhost, part.destination) for part in given.bindings}
    queues = {(part.vhost, part.name) for part in given.queues} | ends
    for vhost in broker.vhosts.values():
        stage.put_vhost(vhost.name)
        _copy_exchanges(stage, vhost, [name for where, name in exchanges | ends if where == vhost.name])
        _copy_queues(stage, vhost, [name for where, name in queues if where == vhost.name])
        limits = broker.limits.of_vhosts.get(vhost.name, {})
        most = limits.get("max-queues", -1)
        if most >= 0:  # the rehearsal has fewer queues: lower the limit by those it lacks
            absent = len(vhost.queues) - len(stage.vhost(vhost.name).queues)
            stage.set_vhost_limits(vhost.name, {"max-queues": max(0, most - absent)})
    return stage


def _copy_exchanges(stage: Broker, vhost: VHost, names: Iterable[str]) -> None:
    for name in names:
        exchange = vhost.exchanges.get(name)
        if exchange is not None and not name.startswith("amq.") and name:
            stage.vhost(vhost.name).declare_exchange(
                name,
                exchange.kind.value,
                exchange.durable,
                exchange.auto_delete,
                exchange.internal,
                exchange.arguments,
            )


def _copy_queues(stage: Broker, vhost: VHost, names: Iterable[str]) -> None:
    for name in names:
        queue = vhost.queues.get(name)
        if queue is not None:
            stage.declare_queue(
                stage.vhost(vhost.name),
                name,
                durable=queue.durable,
                exclusive=queue.owner is not None,
                auto_delete=queue.auto_delete,
                arguments=queue.arguments,
                owner=_OTHERS,
                any_name=True,
            )


ROWS: Final = (
    Row("POST", "/api/definitions", load),
    Row("POST", "/api/all-configuration", load),
    Row("POST", "/api/definitions/{vhost}", load_vhost),
)

"""Management API: import of definitions from this broker or RabbitMQ, all or nothing.

Owns: reading the document, the order in which its parts are created, the report of what has no meaning here.
Must not touch: how a part is created and checked. An import adds and replaces, it deletes nothing. It first
runs on an in-memory copy of the objects that it names, so that a refusal changes nothing. Then one journal
record takes all of it, and the broker gets everything at once except bindings, of which there may be very
many: they are added in steps (``PendingBindings``), before the answer.
"""

import logging
from asyncio import sleep
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import msgspec

from holtmq.auth.permissions import Permissions
from holtmq.auth.topic_permissions import TopicPermission
from holtmq.auth.users import User
from holtmq.broker.broker import Broker
from holtmq.http.engine.endpoints import CHANGED, Call, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.wire import read_json
from holtmq.http.management.conventions import endpoint, missing_is_bad_request
from holtmq.http.management.definitions_rehearsal import Names, binding_ends, rehearsal, stamp
from holtmq.http.management.definitions_upload import uploaded
from holtmq.http.management.runtime import (
    VHOST_LIMITS_COMPONENT,
    ParameterIn,
    TopicPermissionIn,
    set_parameter,
)
from holtmq.http.management.users import set_policy, set_vhost, user_from
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
)
from holtmq.http.management.without_meaning import without_meaning
from holtmq.journal.encoded_batch import EncodedBatch

log = logging.getLogger(__name__)

_STEP: Final = 500  # parts of a rehearsal before other work: about 10 ms
_ATTEMPTS: Final = 5


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
    bindings: list[msgspec.Raw] = []  # decoded in steps


async def load_vhost(call: Call) -> Reply:
    given, vhost = await _given(call), call.vhost.name
    if given.users or given.vhosts or given.permissions or given.topic_permissions:
        raise Refusal(400, "users, vhosts and permissions are not part of one vhost's definitions")
    for parts in (given.parameters, given.policies, given.exchanges, given.queues):
        for part in parts:
            part.vhost = vhost
    with missing_is_bad_request():
        return await _load(call, given, vhost)


async def load(call: Call) -> Reply:
    with missing_is_bad_request():
        return await _load(call, await _given(call))


async def _given(call: Call) -> DefinitionsIn:
    document = await uploaded(call)
    return read_json(document.strip() or b"{}", DefinitionsIn, is_lenient=True)


async def _load(call: Call, given: DefinitionsIn, vhost: str | None = None) -> Reply:
    users = [await user_from(user.name, user) for user in given.users]
    plan = _Plan(given, users, await _bindings(given.bindings, vhost))
    names = await _names(plan)
    broker = call.broker
    for _ in range(_ATTEMPTS):
        call.refuse_if_failed()  # check again: hashing takes time
        before, stage, changes = stamp(broker), *rehearsal(broker, names)
        await _in_steps(plan.parts(stage))
        changes.batch = EncodedBatch()
        await _in_steps(plan.bind(stage))
        if call.query.flag("dry_run"):
            return Reply(200, {"without_meaning": without_meaning(stage)})
        while broker.exchanges.pending_bindings:  # of another import
            await sleep(0)
        call.refuse_if_failed()
        if stamp(broker) == before or _still_fits(broker, plan, names, stage):
            break
    else:
        raise Refusal(409, "exchanges or queues of these definitions are being replaced: try again")
    with broker.change_log.one_record(changes.batch):
        deque(plan.parts(broker), maxlen=0)
    broker.exchanges.pending_bindings.begin(
        plan.bind(broker, in_journal=True), names.ends, broker.long_changes
    )
    while broker.exchanges.pending_bindings:
        await sleep(0)
    report = without_meaning(broker)
    for row in report:
        log.info("kept without meaning", extra={key: row[key] for key in ("vhost", "what", "key", "reason")})
    return Reply(200, {"without_meaning": report}) if call.query.flag("report") else CHANGED


async def _in_steps(items: Iterable[object]) -> None:
    for done, _ in enumerate(items, 1):
        if done % _STEP == 0:
            await sleep(0)  # others may work meanwhile


async def _bindings(given: list[msgspec.Raw], vhost: str | None) -> list[BindingIn]:
    decoded: list[BindingIn] = []

    def decode() -> Iterator[None]:
        for number, raw in enumerate(given):
            try:
                binding = msgspec.json.decode(raw, type=BindingIn, strict=False)
            except msgspec.MsgspecError as error:
                raise Refusal(400, f"bindings[{number}]: {error}") from None
            if vhost is not None:
                binding.vhost = vhost
            decoded.append(binding)
            yield

    await _in_steps(decode())
    return decoded


async def _names(plan: "_Plan") -> Names:
    names = Names(
        {(part.vhost, part.name) for part in plan.given.exchanges},
        {(part.vhost, part.name) for part in plan.given.queues},
    )
    await _in_steps(map(names.add, plan.bindings))
    return names


def _still_fits(broker: Broker, plan: "_Plan", names: Names, rehearsed: Broker) -> bool:
    """Others have changed something during the rehearsal: whether that made no difference to the bindings.

    Raises what the import would, if it is refused now. Takes no time per binding.
    """
    stage, _ = rehearsal(broker, names)
    deque(plan.parts(stage), maxlen=0)
    return binding_ends(stage, names) == binding_ends(rehearsed, names)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A document with its passwords hashed, to be applied to the broker or to the rehearsal's copy."""

    given: DefinitionsIn
    users: list[User]
    bindings: list[BindingIn]

    def parts(self, broker: Broker) -> Iterator[None]:
        """Create everything but bindings, each after what it depends on; one of the many is one item."""
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
            broker.parameter_changes.put_global(name, bytes(parameter.value))

    def _users(self, broker: Broker) -> None:
        for vhost in self.given.vhosts:
            set_vhost(broker, checked_name(vhost.name, "vhost"), vhost)
        for user in self.users:
            broker.access.put_user(user)
        for given in self.given.users:
            if given.limits or given.name in broker.limits.of_users:
                broker.access.set_user_limits(given.name, given.limits)
        for grant in self.given.permissions:
            rights = Permissions(grant.configure, grant.write, grant.read)
            broker.access.set_permissions(grant.user, grant.vhost, rights)
        for topic in self.given.topic_permissions:
            permission = TopicPermission(topic.user, topic.vhost, topic.exchange, topic.write, topic.read)
            broker.access.put_topic_permission(permission)

    def _topology(self, broker: Broker) -> Iterator[None]:
        for exchange in self.given.exchanges:
            broker.exchanges.declare(
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

    def bind(self, broker: Broker, *, in_journal: bool = False) -> Iterator[None]:
        """Create the bindings, one per item, or for several items if it is more work."""
        for binding in self.bindings:
            if binding.destination_type not in ("queue", "exchange"):
                kind = binding.destination_type
                raise Refusal(400, f"a binding's destination_type is queue or exchange, not '{kind}'")
            vhost, key = broker.vhost(binding.vhost), checked_key(binding.routing_key)
            broker.bind(
                vhost,
                binding.source,
                binding.destination,
                key,
                checked_table(binding.arguments, "arguments of a binding"),
                to_exchange=binding.destination_type == "exchange",
                in_journal=in_journal,
            )
            yield from repeat(None, vhost.exchange(binding.source).cost_of_binding(key))


def _parameters(broker: Broker, parameters: Iterable[ParameterIn]) -> None:
    for parameter in parameters:
        name = parameter.name
        set_parameter(broker, parameter.vhost, parameter.component, name, parameter.value, imported=True)


ENDPOINTS: Final = (
    endpoint("POST", "/api/definitions", load),
    endpoint("POST", "/api/all-configuration", load),
    endpoint("POST", "/api/definitions/{vhost}", load_vhost),
)

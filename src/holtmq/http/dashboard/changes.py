"""What a change would do, before it is made: the queues that a policy touches, the diff of definitions.

Owns: the wire form of both. Must not touch: state; the change itself is RabbitMQ's management API.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from holtmq.auth.rights import POLICYMAKER, Right
from holtmq.auth.roles import Role
from holtmq.broker.errors import NotFound
from holtmq.broker.topology.policies import ApplyTo, Policy, make_policy
from holtmq.http.engine.endpoints import ADMINISTER, Call, Endpoint
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.engine.wire import encode
from holtmq.http.management.definitions import document
from holtmq.http.management.definitions_document import ROWS, DocumentIn, rows_of
from holtmq.http.management.listing import Rows
from holtmq.http.management.topology import listed_queues
from holtmq.http.management.wire import PolicyIn, checked_table

_SHOWN_MOST: Final = 200
_DIFFERENCES_MOST: Final = 1_000
MAKE_POLICY: Final = Right(Role.ADMIN, tags=(POLICYMAKER,))
# The fields that name an object, for each part of a definitions document.
_NAMED_BY: Final = {
    "vhosts": ("name",),
    "users": ("name",),
    "permissions": ("vhost", "user"),
    "topic_permissions": ("vhost", "user", "exchange"),
    "global_parameters": ("name",),
    "parameters": ("vhost", "component", "name"),
    "policies": ("vhost", "name"),
    "queues": ("vhost", "name"),
    "exchanges": ("vhost", "name"),
    "bindings": ("vhost", "source", "destination_type", "destination", "routing_key", "arguments"),
}
# What an import fills in when a document does not have it.
_DEFAULTS: Final[dict[str, dict[str, object]]] = {
    "policies": {"priority": 0, "apply-to": "all"},
    "queues": {"durable": False, "auto_delete": False, "arguments": {}},
    "exchanges": {
        "type": "direct",
        "durable": False,
        "auto_delete": False,
        "internal": False,
        "arguments": {},
    },
    "bindings": {"routing_key": "", "arguments": {}, "destination_type": "queue"},
    "users": {"limits": {}},
}
_SECRET: Final = frozenset({"password", "password_hash", "argon2_hash", "hashing_algorithm"})
_NOT_COMPARED: Final = frozenset({"properties_key", "metadata", "description", "default_queue_type"})


class PreviewIn(PolicyIn, kw_only=True):
    """A policy that was not stored yet; ``vhost`` and ``name`` in the body."""

    operator: bool = False


async def preview_policy(call: Call) -> object:
    """The queues and exchanges that a policy matches, and whether it would win there."""
    asked = call.json(PreviewIn)
    where = asked.vhost or "/"
    vhost = call.broker.vhosts.get(where) if call.identity.sees(where) else None
    if vhost is None:
        raise NotFound(f"no vhost '{where}'")
    definition = checked_table(asked.definition, "definition")
    policy = make_policy(
        vhost.name,
        asked.name or "(new)",
        asked.pattern,
        definition,
        asked.apply_to,
        asked.priority,
        operator=asked.operator,
    )
    broker, stepwise = call.broker, Stepwise()
    book = broker.operator_policies if asked.operator else broker.policies
    rivals = [rival for rival in book.in_vhost(vhost.name) if rival.name != asked.name]
    queues: list[dict[str, object]] = []
    exchanges: list[str] = []
    wins = total = 0
    for queue in await listed_queues(vhost):
        kind = queue.options.queue_type
        if policy.apply_to.covers(kind) and policy.pattern.found_in(queue.name):
            total += 1
            rival = next(
                (
                    one
                    for one in rivals
                    if _beats(one, policy) and one.apply_to.covers(kind) and one.pattern.found_in(queue.name)
                ),
                None,
            )
            wins += rival is None
            if len(queues) < _SHOWN_MOST:
                queues.append(
                    {
                        "name": queue.name,
                        "messages": len(queue) + queue.unacked,
                        "before": queue.policy,
                        "stays_with": None if rival is None else rival.name,
                    }
                )
        await stepwise.between()
    if policy.apply_to in (ApplyTo.ALL, ApplyTo.EXCHANGES):
        for name in sorted(vhost.exchanges):
            if policy.pattern.found_in(name):
                exchanges.append(name)
            await stepwise.between()
    return {
        "queues": queues,
        "total": total,
        "takes_effect_on": wins,
        "exchanges": exchanges[:_SHOWN_MOST],
        "without_effect": policy.without_meaning,
    }


def _beats(rival: Policy, policy: Policy) -> bool:
    return (-rival.priority, rival.name) < (-policy.priority, policy.name)


async def diff_definitions(call: Call) -> object:
    """What an import of this document would add and change. An import deletes nothing."""
    try:
        parts = msgspec.json.decode(call.body, type=dict[str, msgspec.Raw])
        given = msgspec.json.decode(call.body, type=DocumentIn)
    except msgspec.MsgspecError as error:
        raise Refusal(400, f"this is not a definitions document: {error}") from None
    stepwise = Stepwise()
    for part, kind in ROWS.items():
        for _ in rows_of(part, getattr(given, part), kind):
            await stepwise.between()
    current = await document(call.broker)
    answer: dict[str, object] = {}
    for part, named_by in _NAMED_BY.items():
        if part not in parts:
            continue
        known: dict[bytes, dict[str, object]] = {}
        for row in _rows(current[part]):
            known[_name(row, named_by)] = row
            await stepwise.between()
        added: list[object] = []
        changed: list[object] = []
        same = 0
        for row in rows_of(part, getattr(given, part), dict[str, object]):
            full = {**_DEFAULTS.get(part, {}), **row}
            before = known.get(_name(full, named_by))
            shown = {field: full.get(field) for field in named_by}
            if before is None:
                added.append(shown)
            else:
                fields = list(_differing(before, full))
                if fields:
                    changed.append({**shown, "fields": fields})
                else:
                    same += 1
            await stepwise.between()
        answer[part] = {
            "added": added[:_DIFFERENCES_MOST],
            "changed": changed[:_DIFFERENCES_MOST],
            "added_count": len(added),
            "changed_count": len(changed),
            "unchanged": same,
        }
    return {"parts": answer, "unknown": sorted(set(parts) - set(_NAMED_BY) - _HEAD)}


_HEAD: Final = frozenset(
    {"rabbit_version", "rabbitmq_version", "product_name", "product_version", "users_with_argon2_hashes"}
    | {"rabbitmq_definition_format", "original_vhost_name", "explanation", "original_cluster_name"}
)


def _rows(part: object) -> Iterator[dict[str, object]]:
    """The rows of a part as they are in a file: an export may hold values that are encoded already."""
    rows = part.rows if isinstance(part, Rows) else part
    assert isinstance(rows, Iterable)
    for row in rows:
        yield msgspec.json.decode(encode(row), type=dict[str, object])


def _name(row: dict[str, object], named_by: tuple[str, ...]) -> bytes:
    return msgspec.json.encode([row.get(field) for field in named_by], order="sorted")


def _differing(before: dict[str, object], after: dict[str, object]) -> Iterator[dict[str, object]]:
    for field, value in after.items():
        if field in _NOT_COMPARED or (field in _SECRET and not value):
            continue
        old = before.get(field)
        if field == "tags":
            old, value = _tags(old), _tags(value)
        if field in _SECRET:
            if value != old:
                yield {"field": field, "before": "(a secret)", "after": "(another)"}
        elif old != value:
            yield {"field": field, "before": old, "after": value}


def _tags(value: object) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return sorted(str(part).strip() for part in parts if str(part).strip())


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/api/v1/dashboard/policy-preview",
        MAKE_POLICY,
        "dashboard",
        "Which queues a policy would touch",
        preview_policy,
        body=PreviewIn,
        statuses=(200, 400, 404),
    ),
    Endpoint(
        "POST",
        "/api/v1/dashboard/definitions-diff",
        ADMINISTER,
        "dashboard",
        "What an import of definitions would change",
        diff_definitions,
        statuses=(200, 400),
    ),
)

"""What a migration does with another broker's definitions, as a plan to read before anything changes.

Owns: what is taken as it is, what is translated, what is left out, and the reasons. Must not touch: either
broker. The new broker adds what has no meaning there, from a rehearsal of the import.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

Object = dict[str, object]
Definitions = dict[str, object]

# Sections of an export that the new broker reads, in the order of the plan.
SECTIONS: Final = (
    "vhosts",
    "users",
    "permissions",
    "topic_permissions",
    "policies",
    "parameters",
    "global_parameters",
    "exchanges",
    "queues",
    "bindings",
)
_IN_VHOSTS: Final = (
    "permissions",
    "topic_permissions",
    "policies",
    "parameters",
    "exchanges",
    "queues",
    "bindings",
)
_STREAM: Final = "stream"
EXCLUSIVE: Final = "exclusive_queues"  # beside the sections of an export


class Note(msgspec.Struct, frozen=True):
    """One line of the plan."""

    vhost: str | None
    what: str
    name: str
    reason: str
    key: str | None = None


class QueueRef(msgspec.Struct, frozen=True, order=True):
    """A queue of the old broker."""

    vhost: str
    name: str


class Plan(msgspec.Struct):
    """The adapted definitions and what is to be said about them."""

    definitions: Definitions
    translated: list[Note] = []
    left_out: list[Note] = []  # the import would refuse them
    no_meaning: list[Note] = []  # from the new broker
    queues: list[QueueRef] = []  # whose messages are moved
    streams: list[QueueRef] = []  # whose messages are copied
    not_moved: list[Note] = []

    def counts(self) -> dict[str, int]:
        """How many objects of each section are taken."""
        return {section: len(rows(self.definitions, section)) for section in SECTIONS}


def rows(definitions: Definitions, section: str) -> list[Object]:
    """The objects of a section; an export may lack it."""
    found = definitions.get(section)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def make_plan(
    definitions: Definitions, login: str, exchange_types: Iterable[str], vhosts: tuple[str, ...]
) -> Plan:
    """Adapt an export of another broker. ``vhosts``: only these, unless it is empty."""
    adapted: Definitions = {section: rows(definitions, section) for section in SECTIONS}
    if vhosts:
        adapted["vhosts"] = [row for row in rows(adapted, "vhosts") if row.get("name") in vhosts]
        for section in _IN_VHOSTS:
            adapted[section] = [row for row in rows(adapted, section) if row.get("vhost") in vhosts]
    plan = Plan(adapted)
    _keep_login(plan, login)
    _drop_exchanges(plan, frozenset(exchange_types))
    _explain_shovels(plan)
    _choose_queues(plan)
    exclusive = [row for row in rows(definitions, EXCLUSIVE) if not vhosts or row.get("vhost") in vhosts]
    reason = "it belongs to a connection of the old broker; its client declares it here when it is switched"
    for row in exclusive:
        plan.not_moved.append(Note(str(row.get("vhost")), "exclusive queue", str(row.get("name")), reason))
    return plan


def _keep_login(plan: Plan, login: str) -> None:
    """The user that runs the migration keeps its password here; else the next request would be refused."""
    users = rows(plan.definitions, "users")
    if any(user.get("name") == login for user in users):
        plan.definitions["users"] = [user for user in users if user.get("name") != login]
        reason = "you are logged in as this user: password and tags stay as they are in the new broker"
        plan.translated.append(Note(None, "user", login, reason))


def _drop_exchanges(plan: Plan, known: frozenset[str]) -> None:
    dropped: set[tuple[object, object]] = set()
    kept: list[Object] = []
    for exchange in rows(plan.definitions, "exchanges"):
        if exchange.get("type") in known:
            kept.append(exchange)
            continue
        dropped.add((exchange.get("vhost"), exchange.get("name")))
        reason = f"there is no exchange type '{exchange.get('type')}' here; its bindings are left out, too"
        plan.left_out.append(Note(str(exchange.get("vhost")), "exchange", str(exchange.get("name")), reason))
    plan.definitions["exchanges"] = kept
    plan.definitions["bindings"] = [
        binding
        for binding in rows(plan.definitions, "bindings")
        if (binding.get("vhost"), binding.get("source")) not in dropped
        and (
            binding.get("destination_type") != "exchange"
            or (binding.get("vhost"), binding.get("destination")) not in dropped
        )
    ]


def _explain_shovels(plan: Plan) -> None:
    for parameter in rows(plan.definitions, "parameters"):
        if parameter.get("component") == "shovel":
            reason = "runs in the new broker at once, beside the old one's: delete it there when all is moved"
            note = Note(str(parameter.get("vhost")), "shovel", str(parameter.get("name")), reason)
            plan.translated.append(note)


def _choose_queues(plan: Plan) -> None:
    for queue in rows(plan.definitions, "queues"):
        vhost, name = str(queue.get("vhost")), str(queue.get("name"))
        arguments = queue.get("arguments")
        if isinstance(arguments, dict) and arguments.get("x-queue-type") == _STREAM:
            plan.streams.append(QueueRef(vhost, name))
        elif queue.get("auto_delete") is True:
            reason = (
                "the queue is declared here; the old broker deletes it with its messages when its last "
                "consumer leaves, and a shovel that moves them would be that consumer"
            )
            plan.not_moved.append(Note(vhost, "messages of auto-delete queue", name, reason))
        else:
            plan.queues.append(QueueRef(vhost, name))

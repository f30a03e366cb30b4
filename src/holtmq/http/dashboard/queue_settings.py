"""The settings of a queue, each with where its value comes from.

Owns: their order and origin. Must not touch: how policies and arguments are merged.
"""

from enum import Enum
from typing import Final

from holtmq.broker.broker import Broker
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.policies import Policy
from holtmq.broker.topology.queue_arguments import REFUSED, RULES
from holtmq.http.engine.wire import plain

# Accepted for RabbitMQ's clients; a single node has no use for them.
_WITHOUT_EFFECT: Final = frozenset(
    {
        "x-queue-type",
        "x-quorum-initial-group-size",
        "x-initial-cluster-size",
        "x-queue-leader-locator",
        "x-queue-master-locator",
        "x-queue-version",
        "x-queue-mode",
        "x-stream-max-segment-size-bytes",
        "x-stream-filter-size-bytes",
        "x-dead-letter-strategy",
    }
)


def settings_of(broker: Broker, queue: Queue) -> list[dict[str, object]]:
    """Rows of name, value and origin: argument, policy, operator policy, default."""
    kind = queue.options.queue_type
    policies = (
        ("policy", broker.policies.for_queue(queue.vhost, queue.name, kind)),
        ("operator policy", broker.operator_policies.for_queue(queue.vhost, queue.name, kind)),
    )
    rows: list[dict[str, object]] = []
    for name, rule in RULES.items():
        if name in REFUSED[kind] or (name in _WITHOUT_EFFECT and name not in queue.arguments):
            continue
        value: object = getattr(queue.options, rule.option)
        rows.append({"name": name, "value": _shown(value), "origin": _origin(queue, name, value, policies)})
    unknown = [name for name in queue.arguments if name not in RULES]
    rows += [
        {"name": name, "value": plain(queue.arguments[name]), "origin": "argument, without effect"}
        for name in sorted(unknown)
    ]
    return rows


def _origin(queue: Queue, name: str, value: object, policies: tuple[tuple[str, Policy | None], ...]) -> str:
    own: object = getattr(queue.declared, RULES[name].option)
    if name in queue.arguments and own == value:
        return "argument"
    key = name.removeprefix("x-")
    for origin, policy in reversed(policies):  # of limits the strictest applies: compare the value too
        if policy is not None and key in policy.values and policy.values[key] == value:
            return f"{origin} {policy.name}"
    return "argument" if name in queue.arguments else "default"


def _shown(value: object) -> object:
    return value.value if isinstance(value, Enum) else plain(value)

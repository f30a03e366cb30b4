"""Policies: options that operators set on queues and exchanges by a pattern of their names.

Owns: which policy applies, which keys it may have, and how it is merged with a queue's own arguments.
Must not touch: the queues and exchanges it applies to; the caller asks again when a policy changes.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import Final

from holtmq.broker.errors import Conflict, NotFound
from holtmq.broker.topology.queue_arguments import (
    REFUSED,
    RULES,
    BadValue,
    check_delayed_retry,
    read_text,
    with_values,
)
from holtmq.broker.topology.queue_options import QueueOptions, QueueType
from holtmq.name_patterns import BadPattern, NamePattern, compile_pattern, compile_stored

ALTERNATE_EXCHANGE: Final = "alternate-exchange"
# A policy can set every queue argument except the type, which cannot change after declaration.
_QUEUE_KEYS: Final = {key.removeprefix("x-"): rule for key, rule in RULES.items() if key != "x-queue-type"}
KEYS: Final = (*_QUEUE_KEYS, ALTERNATE_EXCHANGE)
# Keys of RabbitMQ's mirrored queues, federation and sharding, and of memory limits that no queue here needs.
# They are kept and listed, but have no effect.
WITHOUT_MEANING: Final = frozenset(
    {
        "ha-mode",
        "ha-params",
        "ha-sync-mode",
        "ha-sync-batch-size",
        "ha-promote-on-shutdown",
        "ha-promote-on-failure",
        "federation-upstream",
        "federation-upstream-set",
        "federation-upstream-pattern",
        "max-in-memory-length",
        "max-in-memory-bytes",
        "shards-per-node",
        "routing-key",
        "target-group-size",
    }
)
# The only keys that an operator policy may have.
OPERATOR_KEYS: Final = frozenset(
    {"message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit"}
)
_RETRY_KEYS: Final = ("delayed-retry-type", "delayed-retry-min", "delayed-retry-max", "retry-delay")
# Limits: the strictest of queue, policy and operator policy applies.
_MOST: Final = 1 << 63
_LIMITS: Final = OPERATOR_KEYS | {"max-age"}


class ApplyTo(Enum):
    ALL = "all"
    QUEUES = "queues"
    EXCHANGES = "exchanges"
    CLASSIC_QUEUES = "classic_queues"
    QUORUM_QUEUES = "quorum_queues"
    STREAMS = "streams"

    def covers(self, queue_type: QueueType) -> bool:
        return self in (ApplyTo.ALL, ApplyTo.QUEUES) or self is _OF_TYPE[queue_type]

    @property
    def covers_exchanges(self) -> bool:
        return self in (ApplyTo.ALL, ApplyTo.EXCHANGES)


_OF_TYPE: Final = {
    QueueType.CLASSIC: ApplyTo.CLASSIC_QUEUES,
    QueueType.QUORUM: ApplyTo.QUORUM_QUEUES,
    QueueType.STREAM: ApplyTo.STREAMS,
}


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy. Created by ``make_policy``, which validates the definition."""

    vhost: str
    name: str
    pattern: NamePattern
    apply_to: ApplyTo
    priority: int
    definition: Mapping[str, object] = field(hash=False)  # as given, for listing
    values: Mapping[str, object] = field(hash=False, compare=False)  # parsed, by policy key

    @property
    def without_meaning(self) -> list[str]:
        """Its keys that have no effect."""
        return [key for key in self.definition if key in WITHOUT_MEANING]


def make_policy(
    vhost: str,
    name: str,
    pattern: str,
    definition: Mapping[str, object],
    apply_to: str = "all",
    priority: int = 0,
    *,
    operator: bool = False,
    stored: bool = False,
) -> Policy:
    """Create a policy. Raises Conflict with what is wrong and what would be valid.

    The pattern of a ``stored`` policy was accepted before, perhaps by an older version.
    """
    thing = f"{'operator policy' if operator else 'policy'} '{name}' in vhost '{vhost}'"
    try:
        compiled = compile_stored(pattern) if stored else compile_pattern(pattern)
    except BadPattern as bad:
        raise Conflict(f"invalid pattern '{pattern}' for {thing}: {bad}") from None
    try:
        target = ApplyTo(apply_to)
    except ValueError:
        choices = ", ".join(choice.value for choice in ApplyTo)
        raise Conflict(f"invalid apply-to '{apply_to}' for {thing}: expected {choices}") from None
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise Conflict(f"invalid priority {priority!r} for {thing}: expected an integer")
    if not stored and not -_MOST <= priority < _MOST:  # the journal could not store it
        raise Conflict(f"invalid priority for {thing}: expected an integer of 64 bits at most")
    if not definition:
        raise Conflict(f"invalid definition for {thing}: it is empty, expected at least one key")
    values = {
        key: _read(key, value, thing, operator)
        for key, value in definition.items()
        if key not in WITHOUT_MEANING
    }
    if target is ApplyTo.EXCHANGES and (stray := next((key for key in values if key in _QUEUE_KEYS), None)):
        raise Conflict(f"invalid key '{stray}' for {thing}: it means nothing to exchanges")
    retry = {_QUEUE_KEYS[key].option: value for key, value in values.items() if key in _RETRY_KEYS}
    if retry:
        check_delayed_retry(with_values(QueueOptions(), retry), f"invalid definition for {thing}: ", "")
    return Policy(vhost, name, compiled, target, priority, dict(definition), values)


class PolicyBook:
    """The policies of all vhosts; operator policies are in a second book."""

    def __init__(self) -> None:
        self._by_vhost: dict[str, dict[str, Policy]] = {}
        self._ranked: dict[str, list[Policy]] = {}

    def put(self, policy: Policy) -> Policy | None:
        """Add or replace a policy; return the replaced one, or None."""
        named = self._by_vhost.setdefault(policy.vhost, {})
        replaced = named.get(policy.name)
        if replaced is not None:
            self._unrank(replaced)
        named[policy.name] = policy
        insort(self._ranked.setdefault(policy.vhost, []), policy, key=_rank)
        return replaced

    def remove(self, vhost: str, name: str) -> Policy:
        try:
            removed = self._by_vhost[vhost].pop(name)
        except KeyError:
            raise NotFound(f"no policy '{name}' in vhost '{vhost}'") from None
        self._unrank(removed)
        return removed

    def remove_vhost(self, vhost: str) -> None:
        self._by_vhost.pop(vhost, None)
        self._ranked.pop(vhost, None)

    def named(self, vhost: str, name: str) -> Policy | None:
        """The policy of this name."""
        return self._by_vhost.get(vhost, {}).get(name)

    def in_vhost(self, vhost: str) -> list[Policy]:
        """The policies of a vhost, highest priority first."""
        return list(self._ranked.get(vhost, ()))

    def for_queue(self, vhost: str, name: str, queue_type: QueueType) -> Policy | None:
        """The one policy that applies: policies are not merged, the match with the highest priority wins."""
        for policy in self._ranked.get(vhost, ()):
            if policy.apply_to.covers(queue_type) and policy.pattern.found_in(name):
                return policy
        return None

    def for_exchange(self, vhost: str, name: str) -> Policy | None:
        for policy in self._ranked.get(vhost, ()):
            if policy.apply_to.covers_exchanges and policy.pattern.found_in(name):
                return policy
        return None

    def _unrank(self, policy: Policy) -> None:
        ranked = self._ranked[policy.vhost]
        del ranked[bisect_left(ranked, _rank(policy), key=_rank)]  # names are unique in a vhost


def _rank(policy: Policy) -> tuple[int, str]:
    # RabbitMQ leaves the order of equal priorities open; by name, the same one wins after a restart.
    return -policy.priority, policy.name


def effective(options: QueueOptions, policy: Policy | None, operator: Policy | None = None) -> QueueOptions:
    """A queue's effective options: its own arguments, then the policy's; of limits the strictest applies."""
    values: dict[str, object] = {}
    for source in (policy, operator):
        for key, value in source.values.items() if source else ():
            values[key] = stricter(values[key], value) if key in values and key in _LIMITS else value
    changes: dict[str, object] = {}
    for key, value in values.items():
        rule = _QUEUE_KEYS.get(key)
        if rule is None or f"x-{key}" in REFUSED[options.queue_type]:
            continue
        own: object = getattr(options, rule.option)
        if own is None or (own is False and f"x-{key}" not in options.arguments):
            changes[rule.option] = value
        elif key in _LIMITS:
            changes[rule.option] = stricter(own, value)
    return with_values(options, changes) if changes else options


def alternate_exchange(own: str | None, policy: Policy | None) -> str | None:
    """The name of an exchange's alternate exchange: its own argument first, then the policy's."""
    if own is not None or policy is None:
        return own
    name = policy.values.get(ALTERNATE_EXCHANGE)
    return name if isinstance(name, str) else None


def stricter(left: object, right: object) -> object:
    """The lower limit; a negative one (delivery-limit -1) means no limit, so the other applies."""
    assert isinstance(left, int)
    assert isinstance(right, int)
    return max(left, right) if left < 0 or right < 0 else min(left, right)


def _read(key: str, value: object, thing: str, operator: bool) -> object:
    allowed = tuple(sorted(OPERATOR_KEYS)) if operator else KEYS
    if key not in allowed:
        nearest = get_close_matches(key.removeprefix("x-"), allowed, n=1, cutoff=0)
        raise Conflict(f"unknown key '{key}' for {thing}: the nearest right one is '{nearest[0]}'")
    rule = _QUEUE_KEYS.get(key)
    try:
        return read_text(value) if rule is None else rule.read(value)
    except BadValue as bad:
        raise Conflict(f"invalid value of '{key}' for {thing}: {bad}") from None

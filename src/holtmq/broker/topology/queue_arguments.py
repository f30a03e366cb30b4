"""Queue arguments: parsed once, refused with a reason, compared on redeclaration.

Owns: the list of queue arguments, their values and RabbitMQ's error texts for bad ones.
Must not touch: what a queue does with its options; policies (``policies.py`` reuses the rules by key).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, Protocol

from holtmq.broker.dialect import HOLT, Dialect
from holtmq.broker.errors import Conflict
from holtmq.broker.topology.equivalence import argument_difference, field_difference, shown, type_name
from holtmq.broker.topology.queue_options import (
    DelayedRetry,
    Overflow,
    QueueMode,
    QueueOptions,
    QueueType,
)

# Ten years: a bound that keeps every deadline representable.
MAX_MS: Final = 10 * 365 * 24 * 3600 * 1000
MAX_PRIORITY: Final = 255
MAX_QUORUM_PRIORITY: Final = 31  # as in RabbitMQ 4.3


class BadValue(Exception):
    """Why a value is invalid; the caller adds the argument and the queue."""


class _Read(Protocol):
    def __call__(self, value: object, /) -> object: ...


@dataclass(frozen=True, slots=True)
class ArgumentRule:
    """One argument: the option it sets, and how to parse its value (raises BadValue)."""

    option: str
    read: _Read


def read_integer(at_least: int, at_most: int | None, wanted: str) -> Callable[[object], int]:
    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadValue(f"expected integer, got {_described(value)}; {wanted} is right")
        if value < at_least or (at_most is not None and value > at_most):
            raise BadValue(f"{value} is not {wanted}")
        return value

    return read


def read_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadValue(f"{_described(value)} is not true or false")
    return value


def read_text(value: object) -> str:
    if not isinstance(value, str):
        raise BadValue(f"expected a string, got {_described(value)}")
    return value


def _read_key(value: object) -> str:
    text = read_text(value)
    if len(text.encode()) > 255:
        raise BadValue("a routing key has at most 255 bytes")
    return text


def _read_enum(kind: type[Enum]) -> _Read:
    choices = ", ".join(member.value for member in kind)

    def read(value: object) -> object:
        try:
            return kind(value)
        except ValueError:
            raise BadValue(f"{_described(value)} is none of {choices}") from None

    return read


def _read_choice(*choices: str) -> _Read:
    def read(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise BadValue(f"{_described(value)} is none of {', '.join(choices)}")
        return value

    return read


def _read_multiplier(value: object) -> float:
    # ``not 1 <= value`` also refuses NaN, for which every comparison is false.
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1 <= value <= 1000:
        raise BadValue(f"{_described(value)} is not a number from 1 to 1000")
    return float(value)


_AGE_UNITS: Final = {"Y": 365 * 86400, "M": 30 * 86400, "D": 86400, "h": 3600, "m": 60, "s": 1}


def _read_max_age(value: object) -> int:
    parts = re.fullmatch(r"([0-9]{1,9})([YMDhms])", value) if isinstance(value, str) else None
    if parts is None or int(parts[1]) == 0:
        raise BadValue(
            f"{_described(value)} is not an age: a positive integer and one of Y, M, D, h, m, s (7D)"
        )
    return int(parts[1]) * _AGE_UNITS[parts[2]]


_non_negative = read_integer(0, None, "a non-negative integer")
_positive = read_integer(1, None, "a positive integer")
_duration = read_integer(0, MAX_MS, "a non-negative integer of at most ten years in milliseconds")
_positive_duration = read_integer(1, MAX_MS, "a positive integer of at most ten years in milliseconds")
_locator = _read_choice("client-local", "balanced", "random", "least-leaders")

RULES: Final[Mapping[str, ArgumentRule]] = {
    "x-queue-type": ArgumentRule("queue_type", _read_enum(QueueType)),
    "x-message-ttl": ArgumentRule("message_ttl_ms", _duration),
    "x-expires": ArgumentRule("expires_ms", _positive_duration),
    "x-max-length": ArgumentRule("max_length", _non_negative),
    "x-max-length-bytes": ArgumentRule("max_length_bytes", _non_negative),
    "x-overflow": ArgumentRule("overflow", _read_enum(Overflow)),
    "x-dead-letter-exchange": ArgumentRule("dead_letter_exchange", read_text),
    "x-dead-letter-routing-key": ArgumentRule("dead_letter_routing_key", _read_key),
    "x-dead-letter-strategy": ArgumentRule(
        "dead_letter_strategy", _read_choice("at-most-once", "at-least-once")
    ),
    "x-max-priority": ArgumentRule(
        "max_priority", read_integer(0, MAX_PRIORITY, f"an integer from 1 to {MAX_PRIORITY}")
    ),
    "x-single-active-consumer": ArgumentRule("single_active_consumer", read_bool),
    "x-delivery-limit": ArgumentRule(
        "delivery_limit", read_integer(-1, None, "a non-negative integer, or -1 for no limit")
    ),
    "x-queue-mode": ArgumentRule("queue_mode", _read_enum(QueueMode)),
    "x-retry-delay": ArgumentRule("retry_delay_ms", _duration),
    "x-retry-multiplier": ArgumentRule("retry_multiplier", _read_multiplier),
    "x-delayed-retry-type": ArgumentRule("delayed_retry_type", _read_enum(DelayedRetry)),
    "x-delayed-retry-min": ArgumentRule("delayed_retry_min_ms", _positive_duration),
    "x-delayed-retry-max": ArgumentRule("delayed_retry_max_ms", _positive_duration),
    "x-cancel-requeue": ArgumentRule("cancel_requeue", read_bool),
    "x-consumer-timeout": ArgumentRule("consumer_timeout_ms", _positive_duration),
    "x-consumer-disconnected-timeout": ArgumentRule("consumer_disconnected_timeout_ms", _positive_duration),
    "x-member-placement-tag": ArgumentRule("member_placement_tag", read_text),
    "x-max-age": ArgumentRule("max_age", _read_max_age),
    "x-stream-max-segment-size-bytes": ArgumentRule("stream_max_segment_size_bytes", _positive),
    "x-stream-filter-size-bytes": ArgumentRule("stream_filter_size_bytes", _non_negative),
    "x-initial-cluster-size": ArgumentRule("initial_cluster_size", _positive),
    "x-quorum-initial-group-size": ArgumentRule("initial_cluster_size", _positive),
    "x-queue-leader-locator": ArgumentRule("queue_leader_locator", _locator),
    "x-queue-master-locator": ArgumentRule("queue_master_locator", read_text),
    "x-queue-version": ArgumentRule("queue_version", read_integer(1, 2, "1 or 2")),
    "x-max-in-memory-length": ArgumentRule("max_in_memory_length", _non_negative),
    "x-max-in-memory-bytes": ArgumentRule("max_in_memory_bytes", _non_negative),
}
# Checked and kept, because programs send them; there is nothing here that they could change.
WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "x-queue-mode": "messages beyond the memory limit go to disk in every queue",
    "x-queue-version": "there is one storage format",
    "x-queue-master-locator": "a queue lives on its node",
    "x-queue-leader-locator": "a queue lives on its node",
    "x-initial-cluster-size": "a queue lives on its node",
    "x-quorum-initial-group-size": "a queue lives on its node",
    "x-member-placement-tag": "a queue lives on its node",
    "x-dead-letter-strategy": "a removal and its dead letter are one record: at least once, always",
    "x-consumer-disconnected-timeout": "a lost connection returns its messages at once",
    "x-max-in-memory-length": "limits.queue_memory bounds the memory of all queues together",
    "x-max-in-memory-bytes": "limits.queue_memory bounds the memory of all queues together",
    "x-stream-max-segment-size-bytes": "a stream has no segments of its own",
    "x-stream-filter-size-bytes": "filters are exact, without a Bloom filter",
}

_STREAM_ONLY: Final = frozenset(
    {"x-max-age", "x-stream-max-segment-size-bytes", "x-stream-filter-size-bytes"}
)
# Arguments that a queue type cannot honour are refused, not ignored: the client would rely on them.
REFUSED: Final[Mapping[QueueType, frozenset[str]]] = {
    QueueType.CLASSIC: _STREAM_ONLY,
    QueueType.QUORUM: _STREAM_ONLY,
    QueueType.STREAM: frozenset(
        {
            "x-message-ttl",
            "x-expires",
            "x-max-length",
            "x-overflow",
            "x-dead-letter-exchange",
            "x-dead-letter-routing-key",
            "x-dead-letter-strategy",
            "x-max-priority",
            "x-single-active-consumer",
            "x-delivery-limit",
            "x-retry-delay",
            "x-retry-multiplier",
            "x-delayed-retry-type",
            "x-delayed-retry-min",
            "x-delayed-retry-max",
        }
    ),
}


def parse_queue_arguments(
    name: str,
    vhost: str,
    arguments: Mapping[str, object],
    *,
    durable: bool = True,
    exclusive: bool = False,
    auto_delete: bool = False,
    dialect: Dialect | None = HOLT,
) -> QueueOptions:
    """Parse a queue's options. Raises Conflict with the argument, its value, the queue and the vhost.

    ``dialect`` None: the queue was declared earlier, perhaps under another dialect, and is accepted.
    """
    thing = queue_text(name, vhost)
    options: dict[str, object] = {}
    for key, value in arguments.items():
        rule = RULES.get(key)
        if rule is None:
            continue  # kept, as in RabbitMQ: clients add arguments of their own
        try:
            options[rule.option] = rule.read(value)
        except BadValue as bad:
            raise Conflict(f"invalid arg '{key}' for {thing}: {bad}") from None
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        raise Conflict(
            f"invalid arg 'x-dead-letter-routing-key' for {thing}: routing_key_but_no_dlx_defined, "
            "it needs 'x-dead-letter-exchange' beside it"
        )
    parsed = QueueOptions(arguments=dict(arguments))
    if options:
        parsed = with_values(parsed, options)
    check_delayed_retry(parsed, f"invalid arg 'x-delayed-retry-type' for {thing}: ", "x-")
    _check_type(parsed, thing, durable, exclusive, auto_delete)
    if dialect is not None:
        _check_dialect(parsed, thing, dialect)
    return parsed


def check_delayed_retry(options: QueueOptions, where: str, prefix: str) -> None:
    """Refuse settings of a delayed retry that contradict each other; ``where`` begins the text."""
    least, most = options.delayed_retry_min_ms, options.delayed_retry_max_ms
    kind = options.delayed_retry_type
    if kind is None and (least is not None or most is not None):
        raise Conflict(
            f"{where}{prefix}delayed-retry-min and -max need {prefix}delayed-retry-type beside them"
        )
    if options.counts_failures_only:
        assert kind is not None
        if least is None:
            raise Conflict(f"{where}{prefix}delayed-retry-min is required when it is {kind.value}")
        if options.retry_delay_ms is not None:
            raise Conflict(f"{where}{prefix}delayed-retry-type and {prefix}retry-delay exclude each other")
    if least is not None and most is not None and most < least:
        raise Conflict(
            f"{where}{prefix}delayed-retry-max ({most}) must not be smaller than {prefix}delayed-retry-min "
            f"({least})"
        )


def with_values(options: QueueOptions, values: Mapping[str, object]) -> QueueOptions:
    """A copy with these options set. Each value was parsed by its rule, which mypy cannot check by name."""
    change: Callable[..., QueueOptions] = replace
    return change(options, **values)


def _check_type(options: QueueOptions, thing: str, durable: bool, exclusive: bool, auto_delete: bool) -> None:
    kind = options.queue_type
    for key in options.arguments:
        if key in REFUSED[kind]:
            raise Conflict(f"invalid arg '{key}' for {thing} of queue type {kind.value}")
    if kind is QueueType.CLASSIC:
        return
    if kind is QueueType.QUORUM and (options.max_priority or 0) > MAX_QUORUM_PRIORITY:
        raise Conflict(
            f"invalid arg 'x-max-priority' for {thing}: {options.max_priority} is not an integer from 1 to "
            f"{MAX_QUORUM_PRIORITY}, the highest priority of a quorum queue"
        )
    for broken, property_name, right in (
        (not durable, "non-durable", "durable"),
        (exclusive, "exclusive-owner", "not exclusive"),
        (auto_delete, "auto-delete", "not auto-delete"),
    ):
        if broken:
            raise Conflict(f"invalid property '{property_name}' for {thing}: a {kind.value} queue is {right}")


def _check_dialect(options: QueueOptions, thing: str, dialect: Dialect) -> None:
    """Refuse what only one of HoltMQ and RabbitMQ accepts."""
    if options.max_priority == 0 and not dialect.accept_zero_priority:
        raise Conflict(
            f"invalid arg 'x-max-priority' for {thing}: 0 is not an integer from 1 to {MAX_PRIORITY}"
        )
    kind = options.queue_type
    refused: tuple[str, ...] = ()
    if kind is QueueType.CLASSIC and dialect.refuse_classic_delivery_limit:
        refused = ("x-delivery-limit",)
    elif kind is not QueueType.CLASSIC and dialect.refuse_queue_mode:
        refused = ("x-queue-mode",)
    if kind is QueueType.QUORUM and dialect.refuse_quorum_priorities:
        refused += ("x-max-priority",)
    for key in refused:
        if key in options.arguments:
            raise Conflict(f"invalid arg '{key}' for {thing} of queue type {kind.value}")


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    """The fields of a ``queue.declare`` except the name."""

    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: Mapping[str, object] = field(default_factory=dict, hash=False)


def equivalence_error(
    name: str, vhost: str, current: QueueDeclaration, received: QueueDeclaration
) -> str | None:
    """RabbitMQ's error text for the first difference of a redeclaration, or None."""
    thing = queue_text(name, vhost)
    return (
        field_difference("durable", thing, received.durable, current.durable)
        or field_difference("exclusive", thing, received.exclusive, current.exclusive)
        or field_difference("auto_delete", thing, received.auto_delete, current.auto_delete)
        # Unknown arguments are not compared, as in RabbitMQ: they have no effect.
        or argument_difference(RULES, thing, _comparable(received), _comparable(current))
    )


def _comparable(declaration: QueueDeclaration) -> Mapping[str, object]:
    # "classic" is the default type, so naming it makes no difference.
    if declaration.arguments.get("x-queue-type") != QueueType.CLASSIC.value:
        return declaration.arguments
    return {key: value for key, value in declaration.arguments.items() if key != "x-queue-type"}


def queue_text(name: str, vhost: str) -> str:
    return f"queue '{name}' in vhost '{vhost}'"


def _described(value: object) -> str:
    return f"'{shown(value)}' of type {type_name(value)}"

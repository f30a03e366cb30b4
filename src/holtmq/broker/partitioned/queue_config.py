"""The options of a partitioned queue, their defaults, and how changes merge.

Owns: the meaning of "unset", "zero" and "explicitly false" for every option. Must not touch: the wire's
spelling of option names (an edge translates them) and the queue's contents.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from holtmq.broker.errors import Conflict

US: Final = 1_000_000  # microseconds in a second; every stored time of a partitioned queue is in µs
FALLBACK_LEASE_SECONDS: Final = 60

OptionValue = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Options of one queue. None means "not set".

    Seconds are ``int | float`` so that a whole number is returned, and restored, as it was given.
    """

    lease_seconds: int | float = 300
    retry_limit: int = 3
    delayed_processing: int | float = 0
    window_buffer: int | float = 0
    max_wait_seconds: int | float = 0
    retention_enabled: bool = False
    retention_seconds: int | float = 0
    completed_retention_seconds: int | float = 0
    encryption_enabled: bool = False
    dead_letter_queue: bool | None = None
    dlq_after_max_retries: bool | None = None
    priority: int = 0
    retry_delay_ms: int | None = None
    max_size: int = 0
    ttl_seconds: int | float | None = None
    dedup_window_seconds: int | float = 3600

    @property
    def lease_length(self) -> float:
        return self.lease_seconds or FALLBACK_LEASE_SECONDS

    @property
    def files_dead_letters(self) -> bool:
        """True unless both options are explicitly false: clients that send neither expect the DLQ."""
        return self.dead_letter_queue is not False or self.dlq_after_max_retries is not False

    @property
    def files_evicted(self) -> bool:
        """Evicted messages become dead letters only on request: most callers want them dropped."""
        return self.dead_letter_queue is True

    @property
    def delay_us(self) -> int:
        return int(self.delayed_processing * US)

    @property
    def window_us(self) -> int:
        return int(self.window_buffer * US)

    @property
    def retry_delay_us(self) -> int:
        return (self.retry_delay_ms or 0) * 1000

    @property
    def dedup_window_us(self) -> int:
        return int(self.dedup_window_seconds * US)

    @property
    def priority_order(self) -> int:
        """Sort key for a pop over a namespace or task: higher priority first."""
        return -self.priority


_DEFAULTS: Final = QueueConfig()
_FLAGS: Final = frozenset(
    {"retention_enabled", "encryption_enabled", "dead_letter_queue", "dlq_after_max_retries"}
)
_COUNTS: Final = frozenset({"retry_limit", "retry_delay_ms", "max_size", "priority"})
_MOST_SECONDS: Final = 3_153_600_000  # a hundred years: now plus this, in µs, still fits 64 bits
_MOST_COUNT: Final = 1 << 50
OPTION_NAMES: Final = tuple(field.name for field in fields(QueueConfig))


def merge(current: QueueConfig, changes: Mapping[str, OptionValue]) -> QueueConfig:
    """``current`` with ``changes``; None restores a default, zero is a value, unknown names are ignored.

    To replace instead of merging, pass ``QueueConfig()`` as ``current``.
    """
    accepted: dict[str, OptionValue] = {}
    for name, value in changes.items():
        if name in OPTION_NAMES:
            accepted[name] = getattr(_DEFAULTS, name) if value is None else _checked(name, value)
    return replace(current, **accepted)  # type: ignore[arg-type]  # _checked matched each value to its field


def _checked(name: str, value: OptionValue) -> OptionValue:
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise Conflict(f"option {name} must be true or false, not {value!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Conflict(f"option {name} must be a number, not {value!r}")
    if value != value or value in (float("inf"), float("-inf")):
        raise Conflict(f"option {name} must be a finite number")
    if name in _COUNTS and value != int(value):
        raise Conflict(f"option {name} must be a whole number, not {value!r}")
    if value < 0 and name != "priority":
        raise Conflict(f"option {name} must not be negative: {value}")
    most = _MOST_COUNT if name in _COUNTS else _MOST_SECONDS
    if abs(value) > most:
        raise Conflict(f"option {name} must be at most {most}: {value}")
    return int(value) if name in _COUNTS else value


def names_of(queue: str) -> tuple[str, str]:
    """Namespace and task of a queue created by a push: the first two parts of a dotted name."""
    namespace, dot, rest = queue.partition(".")
    return (namespace, rest.partition(".")[0]) if dot else ("", "")

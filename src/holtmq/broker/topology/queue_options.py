"""The options of a queue, from its arguments and policies.

Owns: their types and defaults. Must not touch: how arguments are read (``queue_arguments.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

LONGEST_WAIT_MS: Final = 24 * 3600 * 1000  # before a retry, however large the multiplier


QUORUM_DELIVERY_LIMIT: Final = 20  # RabbitMQ 4's default for a quorum queue


class QueueType(Enum):
    CLASSIC = "classic"
    QUORUM = "quorum"
    STREAM = "stream"


class Overflow(Enum):
    DROP_HEAD = "drop-head"
    REJECT_PUBLISH = "reject-publish"
    REJECT_PUBLISH_DLX = "reject-publish-dlx"


class DelayedRetry(Enum):
    """Which returned messages wait before they are delivered again, as in RabbitMQ 4.3."""

    DISABLED = "disabled"
    ALL = "all"
    FAILED = "failed"  # their consumer was lost
    RETURNED = "returned"  # a client gave them back


class QueueMode(Enum):
    DEFAULT = "default"
    LAZY = "lazy"


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """A queue's parsed arguments. None means not given: a policy or a default decides."""

    queue_type: QueueType = QueueType.CLASSIC
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: Overflow | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    max_priority: int | None = None
    single_active_consumer: bool = False
    delivery_limit: int | None = None  # as given: -1 means no limit; see deliveries_allowed
    queue_mode: QueueMode | None = None
    retry_delay_ms: int | None = None
    retry_multiplier: float | None = None
    delayed_retry_type: DelayedRetry | None = None
    delayed_retry_min_ms: int | None = None
    delayed_retry_max_ms: int | None = None
    cancel_requeue: bool | None = None
    consumer_timeout_ms: int | None = None
    max_age: int | None = None
    stream_max_segment_size_bytes: int | None = None
    stream_filter_size_bytes: int | None = None
    initial_cluster_size: int | None = None
    queue_leader_locator: str | None = None
    queue_master_locator: str | None = None
    queue_version: int | None = None
    consumer_disconnected_timeout_ms: int | None = None
    member_placement_tag: str | None = None
    max_in_memory_length: int | None = None
    max_in_memory_bytes: int | None = None
    dead_letter_strategy: str | None = None
    # All arguments as declared, also unknown ones: for listing, redeclaration and the journal.
    arguments: Mapping[str, object] = field(default_factory=dict, hash=False)

    @property
    def drops_head(self) -> bool:
        return self.overflow is None or self.overflow is Overflow.DROP_HEAD

    @property
    def counts_failures_only(self) -> bool:
        """Whether only lost consumers count towards the delivery limit, as in RabbitMQ 4.3."""
        return self.delayed_retry_type not in (None, DelayedRetry.DISABLED)

    def retry_wait_ms(self, count: int, failed: bool) -> int:
        """How long a returned message waits; ``count``: how often it was returned, as the limit counts."""
        kind = self.delayed_retry_type
        if kind is not None and kind is not DelayedRetry.DISABLED:
            if kind is (DelayedRetry.RETURNED if failed else DelayedRetry.FAILED):
                return 0
            least = self.delayed_retry_min_ms or 0
            return min(least * max(count, 1), max(self.delayed_retry_max_ms or 0, least))
        if not self.retry_delay_ms:
            return 0
        factor = self.retry_multiplier or 1.0
        return int(min(self.retry_delay_ms * factor ** min(count - 1, 64), LONGEST_WAIT_MS))

    @property
    def deliveries_allowed(self) -> int | None:
        """How often a message may be returned before it is dead-lettered; None: no limit."""
        if self.delivery_limit is None:
            return QUORUM_DELIVERY_LIMIT if self.queue_type is QueueType.QUORUM else None
        return None if self.delivery_limit < 0 else self.delivery_limit

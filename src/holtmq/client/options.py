"""The fluent options: which messages, how many at a time, how long to lease them.

Owns: the options that ``client.queue("orders").group("billing").batch(100)`` collects, for both APIs.
Every method returns a new object, so a partly built one can be shared. Must not touch: calls.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Self, Unpack, cast

from holtmq.client.api import PopQuery, iso
from holtmq.client.records import QueueConfig

_RENEW_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """All options set so far."""

    pop: PopQuery
    each: bool = False
    concurrency: int = 1
    poll_seconds: float = _POLL_SECONDS
    renew_every: float | None = None
    renew_seconds: float | None = None
    limit: int | None = None
    idle_seconds: float | None = None
    config: QueueConfig = field(default_factory=lambda: QueueConfig())


class QueueWords:
    """The option methods. Subclasses add the calls."""

    __slots__ = ("_options",)

    def __init__(self, options: QueueOptions) -> None:
        self._options = options

    def _with(self, options: QueueOptions) -> Self:
        raise NotImplementedError

    def partition(self, name: str) -> Self:
        """Push to this partition and pop only from it. Default: push to ``Default``, pop from any."""
        return self._ask(replace(self._options.pop, partition=name))

    def namespace(self, name: str) -> Self:
        """Without a queue name: all queues of this namespace. With ``create``: put the queue into it."""
        return self._ask(replace(self._options.pop, namespace=name))

    def task(self, name: str) -> Self:
        """Like ``namespace``, for the task."""
        return self._ask(replace(self._options.pop, task=name))

    def group(self, name: str) -> Self:
        """Read as this consumer group. Groups do not take messages from each other."""
        return self._ask(replace(self._options.pop, group=name))

    def subscription_mode(self, mode: str) -> Self:
        """Where a new group starts: ``new`` or ``all``. The group's first pop sets it permanently."""
        return self._ask(replace(self._options.pop, subscription_mode=mode))

    def subscription_from(self, moment: datetime | str) -> Self:
        """Where a new group starts: at this time, or ``now``."""
        return self._ask(replace(self._options.pop, subscription_from=iso(moment)))

    def batch(self, size: int) -> Self:
        """At most this many messages per pop."""
        return self._ask(replace(self._options.pop, batch=_at_least(1, size, "batch")))

    def partitions(self, count: int) -> Self:
        """At most this many partitions per pop."""
        return self._ask(replace(self._options.pop, partitions=_at_least(1, count, "partitions")))

    def auto_ack(self, enabled: bool = True) -> Self:
        """Settle messages on delivery: none is redelivered, even if its handling fails."""
        return self._ask(replace(self._options.pop, auto_ack=enabled))

    def lease(self, seconds: int) -> Self:
        """Lease messages for this long, instead of the queue's lease time."""
        return self._ask(replace(self._options.pop, lease_seconds=_at_least(1, seconds, "lease")))

    def renew_lease(
        self, enabled: bool = True, *, every: float = _RENEW_SECONDS, seconds: float | None = None
    ) -> Self:
        """While a handler runs, renew its lease at this interval, each time for ``seconds``."""
        if every <= 0 or (seconds is not None and seconds <= every):
            raise ValueError("renew_lease needs every > 0, and seconds longer than every")
        every_or_never = every if enabled else None
        return self._with(replace(self._options, renew_every=every_or_never, renew_seconds=seconds))

    def concurrency(self, workers: int) -> Self:
        """Run this many handlers at once, each on its own partition."""
        return self._with(replace(self._options, concurrency=_at_least(1, workers, "concurrency")))

    def poll(self, seconds: float) -> Self:
        """How long one long-polling pop of ``consume`` stays open."""
        if seconds <= 0:
            raise ValueError("poll needs more than 0 seconds")
        return self._with(replace(self._options, poll_seconds=seconds))

    def limit(self, messages: int) -> Self:
        """End ``consume`` after this many messages."""
        return self._with(replace(self._options, limit=_at_least(1, messages, "limit")))

    def idle(self, seconds: float) -> Self:
        """End ``consume`` when no message has arrived for this many seconds."""
        if seconds <= 0:
            raise ValueError("idle needs more than 0 seconds")
        return self._with(replace(self._options, idle_seconds=seconds))

    def config(self, **options: Unpack[QueueConfig]) -> Self:
        """Options for ``create``."""
        merged = cast(QueueConfig, {**self._options.config, **options})
        return self._with(replace(self._options, config=merged))

    def _ask(self, pop: PopQuery) -> Self:
        return self._with(replace(self._options, pop=pop))


def camel(name: str) -> str:
    """Convert to wire names: ``lease_time`` to ``leaseTime``."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _at_least(least: int, value: int, what: str) -> int:
    if value < least:
        raise ValueError(f"{what} must be at least {least}, not {value}")
    return value

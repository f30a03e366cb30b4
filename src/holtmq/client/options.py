"""The fluent words: which messages, how many at a time, held how long.

Owns: what ``client.queue("orders").group("billing").batch(100)`` adds up to, for the async and the sync face
alike. Every word returns a new object, so a half-built one can be shared. Must not touch: calls.
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
    """Everything the words have said."""

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
    """The words. Subclasses add the verbs."""

    __slots__ = ("_options",)

    def __init__(self, options: QueueOptions) -> None:
        self._options = options

    def _with(self, options: QueueOptions) -> Self:
        raise NotImplementedError

    # -- which messages --------------------------------------------------------------------------

    def partition(self, name: str) -> Self:
        """Push to this partition, pop from it alone. Without it: push to ``Default``, pop from any."""
        return self._ask(replace(self._options.pop, partition=name))

    def namespace(self, name: str) -> Self:
        """Without a queue's name: all queues of this namespace. With ``create``: put the queue into it."""
        return self._ask(replace(self._options.pop, namespace=name))

    def task(self, name: str) -> Self:
        """As ``namespace``, for the task."""
        return self._ask(replace(self._options.pop, task=name))

    def group(self, name: str) -> Self:
        """Read as this consumer group. Groups do not take messages from each other."""
        return self._ask(replace(self._options.pop, group=name))

    def subscription_mode(self, mode: str) -> Self:
        """Where a new group starts: ``new`` or ``all``. A group's first pop decides, for good."""
        return self._ask(replace(self._options.pop, subscription_mode=mode))

    def subscription_from(self, moment: datetime | str) -> Self:
        """Where a new group starts: at this time, or ``now``."""
        return self._ask(replace(self._options.pop, subscription_from=iso(moment)))

    # -- how many, held how long -----------------------------------------------------------------

    def batch(self, size: int) -> Self:
        """At most so many messages in one pop."""
        return self._ask(replace(self._options.pop, batch=_at_least(1, size, "batch")))

    def partitions(self, count: int) -> Self:
        """At most so many partitions in one pop."""
        return self._ask(replace(self._options.pop, partitions=_at_least(1, count, "partitions")))

    def auto_ack(self, enabled: bool = True) -> Self:
        """Settled when delivered: nothing comes again, whatever becomes of it."""
        return self._ask(replace(self._options.pop, auto_ack=enabled))

    def lease(self, seconds: int) -> Self:
        """Hold messages so long, instead of the queue's own lease time."""
        return self._ask(replace(self._options.pop, lease_seconds=_at_least(1, seconds, "lease")))

    def renew_lease(
        self, enabled: bool = True, *, every: float = _RENEW_SECONDS, seconds: float | None = None
    ) -> Self:
        """While a handler runs, renew its lease every so many seconds, each time for ``seconds``."""
        if every <= 0 or (seconds is not None and seconds <= every):
            raise ValueError("renew_lease needs every > 0, and seconds longer than every")
        every_or_never = every if enabled else None
        return self._with(replace(self._options, renew_every=every_or_never, renew_seconds=seconds))

    # -- how to consume --------------------------------------------------------------------------

    def concurrency(self, workers: int) -> Self:
        """So many handlers at once, each with a partition of its own."""
        return self._with(replace(self._options, concurrency=_at_least(1, workers, "concurrency")))

    def poll(self, seconds: float) -> Self:
        """How long one waiting pop of ``consume`` stays open."""
        if seconds <= 0:
            raise ValueError("poll needs more than 0 seconds")
        return self._with(replace(self._options, poll_seconds=seconds))

    def limit(self, messages: int) -> Self:
        """Let ``consume`` end after so many messages."""
        return self._with(replace(self._options, limit=_at_least(1, messages, "limit")))

    def idle(self, seconds: float) -> Self:
        """Let ``consume`` end when nothing has come for so many seconds."""
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
    """``lease_time`` as the wire has it: ``leaseTime``."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _at_least(least: int, value: int, what: str) -> int:
    if value < least:
        raise ValueError(f"{what} must be at least {least}, not {value}")
    return value

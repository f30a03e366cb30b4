"""Filters of a query that the broker can apply: offsets, partition, queue, time of creation.

Owns: their meaning as narrower ranges. Must not touch: exactness; Spark applies every filter again, so a
range may be wider than the filter but never narrower.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from holtmq.spark.offsets import Head


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What is left to read; the defaults leave everything."""

    queues: frozenset[str] | None = None
    partition: str = ""
    first: int = 0
    stop: int | None = None
    from_us: int | None = None
    to_us: int | None = None

    def clip(self, head: Head, first: int, stop: int) -> tuple[int, int]:
        """A queue's range within the filters; empty when the queue is not wanted."""
        if self.queues is not None and head.name not in self.queues:
            return first, first
        first = max(first, self.first)
        stop = stop if self.stop is None else min(stop, self.stop)
        return first, max(first, stop)


def narrow(filters: Iterable[Filter]) -> Narrowed:
    """The conjunction of those filters that narrow a range."""
    queues: frozenset[str] | None = None
    partition = ""
    first, stop = 0, 1 << 62
    from_us, to_us = 0, 1 << 62
    for one in filters:
        match one:
            case EqualTo(("queue",), str(name)):
                queues = frozenset((name,)) & (queues if queues is not None else frozenset((name,)))
            case In(("queue",), tuple(names)):
                wanted = frozenset(name for name in names if isinstance(name, str))
                queues = wanted if queues is None else queues & wanted
            case EqualTo(("partition",), str(name)):
                partition = name
            case EqualTo(("offset",), int(at)):
                first, stop = max(first, at), min(stop, at + 1)
            case GreaterThan(("offset",), int(at)):
                first = max(first, at + 1)
            case GreaterThanOrEqual(("offset",), int(at)):
                first = max(first, at)
            case LessThan(("offset",), int(at)):
                stop = min(stop, at)
            case LessThanOrEqual(("offset",), int(at)):
                stop = min(stop, at + 1)
            case GreaterThan(("created_at",), datetime() as at) | GreaterThanOrEqual(
                ("created_at",), datetime() as at
            ):
                from_us = max(from_us, _us(at))
            case LessThan(("created_at",), datetime() as at) | LessThanOrEqual(
                ("created_at",), datetime() as at
            ):
                to_us = min(to_us, _us(at) + 1)
            case _:
                pass
    return Narrowed(
        queues,
        partition,
        max(first, 0),
        stop if stop < 1 << 62 else None,
        from_us or None,
        to_us if to_us < 1 << 62 else None,
    )


def _us(at: datetime) -> int:
    # Without a zone it is the session's, which the worker runs in.
    moment = at.astimezone(UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds

"""Where a query starts and where it ends: offsets, times, earliest or latest.

Owns: the options ``startingOffsets`` and ``endingOffsets`` in all forms. Must not touch: the broker.
"""

from dataclasses import dataclass
from typing import Final

from holtmq.spark.option_values import GivenOptions, parse_timestamp_us

EARLIEST: Final = -2  # as in Kafka's JSON
LATEST: Final = -1


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading starts or ends: one time for all, a time or an offset for each queue, or one word."""

    word: int | None = None  # EARLIEST or LATEST
    offsets: tuple[tuple[str, int], ...] = ()
    timestamp_us: int | None = None
    timestamps_us: tuple[tuple[str, int], ...] = ()


def read_bound(options: GivenOptions, side: str, default: int) -> Bound:
    """As in Kafka's source: one time for all takes precedence over times by queue, and those over offsets."""
    if options.text(f"{side}Timestamp"):
        return Bound(timestamp_us=options.parse(f"{side}Timestamp", parse_timestamp_us))
    name = f"{side}OffsetsByTimestamp"
    if options.text(name):
        example = 'use JSON such as {"orders": "2026-05-01T12:00:00Z", "clicks": 1777636800000}'
        times = options.table(name, example)
        return Bound(timestamps_us=tuple((queue, _time(options, name, at)) for queue, at in times.items()))
    name = f"{side}Offsets"
    text = options.text(name)
    if not text:
        return Bound(word=default)
    word = _word(text)
    if word is not None:
        return Bound(word=word)
    table = options.table(name, 'use earliest, latest, or JSON such as {"orders": 1200, "clicks": -2}')
    return Bound(offsets=tuple((queue, _offset(options, name, queue, at)) for queue, at in table.items()))


def _time(options: GivenOptions, name: str, value: object) -> int:
    try:
        return parse_timestamp_us(str(value))
    except ValueError as error:
        options.refuse(name, f"{value!r}: {error}")


def _offset(options: GivenOptions, name: str, queue: str, value: object) -> int:
    at = _word(value) if isinstance(value, str) else value
    if isinstance(at, bool) or not isinstance(at, int) or at < EARLIEST:
        options.refuse(name, f"{queue} needs an offset, -2 (earliest) or -1 (latest), not {value!r}")
    return at


def _word(text: str) -> int | None:
    return {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())

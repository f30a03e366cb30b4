"""Management API: ``message_stats``, rates and samples in RabbitMQ's form.

Owns: field names, and the parameters ``msg_rates_age`` and ``lengths_age`` with their ``_incr``. Must not
touch: counting; the rings of ``broker/figures`` have the figures.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from holtmq.broker.figures.queue_figures import Kinds, Totals
from holtmq.broker.figures.rings import RATE_SECONDS, LevelRing, Ring
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.wire import Query

_NUMBER: Final = re.compile("[0-9]{1,18}").fullmatch  # Python refuses to convert more than 4,300 digits
_MOST_AGE: Final = 10_800  # three hours: what the rings cover
_SERIES: Final = ("publish", "deliver_get", "ack")  # in the order of ``Totals``
_KINDS: Final = ("deliver_no_ack", "get", "get_no_ack", "redeliver", "get_empty")  # in the order of ``Kinds``
_NO_KINDS: Final = Kinds()
_LENGTHS: Final = ("messages_ready", "messages_unacknowledged")

History = list[tuple[int, tuple[int, ...]]]


class Span(NamedTuple):
    """How far back samples go, and how far apart they are, in seconds; an age of 0: no samples."""

    age: int = 0
    step: int = 0


class Wanted(NamedTuple):
    """The samples that a request asks for."""

    rates: Span
    lengths: Span
    second: int  # now


def wanted(query: Query, now: float) -> Wanted:
    """Read the parameters; raises 400."""
    return Wanted(_span(query, "msg_rates"), _span(query, "lengths"), int(now))


def _span(query: Query, prefix: str) -> Span:
    texts = query.text(f"{prefix}_age"), query.text(f"{prefix}_incr")
    if not any(texts):
        return Span()
    if not all(_NUMBER(text) and 1 <= int(text) <= _MOST_AGE for text in texts):
        names = f"{prefix}_age and {prefix}_incr"
        raise Refusal(400, f"{names} are both needed, in seconds from 1 to {_MOST_AGE}")
    return Span(int(texts[0]), int(texts[1]))


def queue_stats(queue: WorkQueue, asked: Wanted) -> dict[str, object]:
    """``message_stats`` of a work queue: totals since the node's start, rates and samples."""
    figures = queue.figures
    return stats(figures.totals(queue), figures.ring, asked, figures.kind_totals(), figures.kinds)


def stats(
    totals: Totals, ring: Ring | None, asked: Wanted, kinds: Kinds = _NO_KINDS, kinds_ring: Ring | None = None
) -> dict[str, object]:
    """``message_stats`` of these totals."""
    rates = [*_rates(ring, len(_SERIES), asked), *_rates(kinds_ring, len(_KINDS), asked)]
    plain = [_history(ring, asked), _history(kinds_ring, asked)]
    history = [
        (at, (*counts, *(plain[1][place][1] if plain[1] else (0,) * len(_KINDS))))
        for place, (at, counts) in enumerate(plain[0])
    ]
    return _stats_row((*totals, *kinds), rates, history)


def _stats_row(totals: Sequence[int], rates: Sequence[float], history: History) -> dict[str, object]:
    names = (*_SERIES, *_KINDS)
    row: dict[str, object] = {}
    for series, (name, total) in enumerate(zip(names, totals, strict=True)):
        row[name] = total
        row[f"{name}_details"] = _details(rates[series], history, series)
    # To consumers that acknowledge: what is left of all deliveries.
    others = [names.index(name) for name in ("deliver_no_ack", "get", "get_no_ack")]
    everything = names.index("deliver_get")

    def left(values: Sequence[float]) -> float:
        return max(0, values[everything] - sum(values[other] for other in others))

    row["deliver"] = left(totals)
    remaining = [(at, (int(left(values)),)) for at, values in history]
    row["deliver_details"] = _details(left(rates), remaining, 0)
    return row


class Sums:
    """``message_stats`` and lengths of many queues together, without samples. Most queues of a large broker
    were not used in the last seconds: for them only the totals are added."""

    def __init__(self, second: int) -> None:
        self.ready = self.unacked = 0
        self._second = second
        self._totals = [0] * (len(_SERIES) + len(_KINDS))
        self._rates = [0.0] * len(self._totals)
        self._lengths = [0.0, 0.0]  # rates

    def add(self, queue: WorkQueue) -> None:
        """Add a work queue."""
        figures, sums = queue.figures, self._totals
        totals = figures.totals(queue)
        self.ready += len(queue)
        self.unacked += queue.unacked
        sums[0] += totals.published
        sums[1] += totals.delivered
        sums[2] += totals.acked
        if figures.kinds is not None:
            for series, total in enumerate(figures.kind_totals(), len(_SERIES)):
                sums[series] += total
            self._add_rates(figures.kinds, len(_SERIES))
        if figures.ring is not None:
            self._add_rates(figures.ring, 0)
        if figures.depth is not None:
            self._lengths[0] += figures.depth.rate(self._second)
        if figures.unacked is not None:
            self._lengths[1] += figures.unacked.rate(self._second)

    def add_stream(self, queue: Queue, totals: Totals, ring: Ring | None) -> None:
        """Add a partitioned queue."""
        self.ready += len(queue)
        self.unacked += queue.unacked
        for series, total in enumerate(totals):
            self._totals[series] += total
        if ring is not None:
            self._add_rates(ring, 0)

    def _add_rates(self, ring: Ring, first: int) -> None:
        if self._second - ring.counted_at <= RATE_SECONDS:
            for series, rate in enumerate(ring.rates(self._second), first):
                self._rates[series] += rate

    def stats(self) -> dict[str, object]:
        """``message_stats``."""
        return _stats_row(self._totals, self._rates, [])

    def lengths(self) -> dict[str, object]:
        """``messages_details`` and the like."""
        return _lengths_row((self._lengths[0], self._lengths[1]), [])


def _rates(ring: Ring | None, size: int, asked: Wanted) -> list[float]:
    return [0.0] * size if ring is None else ring.rates(asked.second)


def _history(ring: Ring | None, asked: Wanted) -> History:
    return ring.history(asked.second, *asked.rates) if ring is not None and asked.rates.age else []


def lengths(ready: LevelRing | None, unacked: LevelRing | None, asked: Wanted) -> dict[str, object]:
    """``messages_details`` and the like: how fast lengths change."""
    if ready is None or unacked is None:  # the queue was never used
        ready = unacked = LevelRing(0, asked.second)
    rates = ready.rate(asked.second), unacked.rate(asked.second)
    history: History = []
    if asked.lengths.age:
        both = zip(
            ready.history(asked.second, *asked.lengths),
            unacked.history(asked.second, *asked.lengths),
            strict=True,
        )
        history = [(at, (waiting, held, waiting + held)) for (at, waiting), (_, held) in both]
    return _lengths_row(rates, history)


def _lengths_row(rates: tuple[float, float], history: History) -> dict[str, object]:
    row: dict[str, object] = {
        f"{name}_details": _details(rates[series], history, series) for series, name in enumerate(_LENGTHS)
    }
    row["messages_details"] = _details(sum(rates), history, 2)
    return row


def rate_only(rate: float) -> dict[str, object]:
    """Details without samples."""
    return {"rate": round(rate, 1)}


def _details(rate: float, history: Sequence[tuple[int, tuple[int, ...]]], series: int) -> dict[str, object]:
    details = rate_only(rate)
    if not history:
        return details
    samples = [(at, values[series]) for at, values in history]
    newest, oldest = samples[0], samples[-1]
    seconds = newest[0] - oldest[0]
    details["samples"] = [{"sample": value, "timestamp": at * 1000} for at, value in samples]
    details["avg_rate"] = round((newest[1] - oldest[1]) / seconds, 3) if seconds else 0.0
    details["avg"] = round(sum(value for _, value in samples) / len(samples), 3)
    return details

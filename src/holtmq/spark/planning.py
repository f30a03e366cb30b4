"""How much a micro-batch reads, and in which slices. Pure arithmetic over offsets.

Owns: the fair share between queues, the split into Spark partitions. Must not touch: the broker, Spark,
clocks. Cost depends on the number of queues and slices, never on the partitions inside a queue.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Offsets = dict[str, int]  # queue key -> next offset
# (queue key, first, stop, max bytes) -> (stop within the bytes, bytes up to there)
Measure = Callable[[str, int, int, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets ``first`` to ``stop - 1`` of one queue."""

    key: str
    first: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.first


def plan_end(start: Mapping[str, int], heads: Mapping[str, int], max_rows: int | None) -> Offsets:
    """How far this batch reads: never behind ``start``, at most ``max_rows`` offsets over all queues."""
    waiting = _waiting(start, heads)
    left = sum(waiting.values()) if max_rows is None else max_rows
    end = dict(start)
    # Shortest backlog first, each up to an equal share of what is left, so that one busy
    # queue cannot keep the others out of the batch.
    for served, queue in enumerate(sorted(waiting, key=waiting.__getitem__)):
        take = min(waiting[queue], math.ceil(left / (len(waiting) - served)), left)
        end[queue] = start.get(queue, 0) + take
        left -= take
    return end


def plan_end_by_bytes(
    start: Mapping[str, int], heads: Mapping[str, int], max_bytes: int, measure: Measure
) -> Offsets:
    """As ``plan_end``, by size. A message larger than the limit is read alone, or the query would stall."""
    waiting = _waiting(start, heads)
    end = {queue: start.get(queue, 0) for queue in {**start, **heads}}
    left = max_bytes
    for served, queue in enumerate(sorted(waiting, key=waiting.__getitem__)):
        if waiting[queue]:
            share = math.ceil(left / (len(waiting) - served))
            end[queue], size = measure(queue, end[queue], heads[queue], share)
            left = max(0, left - size)
    for queue in sorted(waiting, key=waiting.__getitem__):
        if left <= 0:
            break
        if end[queue] < heads[queue]:  # other queues needed less than their share
            end[queue], size = measure(queue, end[queue], heads[queue], left)
            left -= size
    if all(end[queue] == start.get(queue, 0) for queue in waiting):
        for queue in sorted(waiting, key=waiting.__getitem__):
            if waiting[queue]:
                end[queue] += 1
                break
    return end


def hold_back(
    start: Mapping[str, int], heads: Mapping[str, int], min_rows: int, waited: float, max_delay: float
) -> bool:
    """Whether to wait for more: fewer than ``min_rows`` are waiting, and the last batch is recent."""
    return sum(_waiting(start, heads).values()) < min_rows and waited < max_delay


def plan_slices(spans: Sequence[Span], min_partitions: int, max_records: int) -> list[Span]:
    """Spans split so that no slice exceeds ``max_records`` and there are about ``min_partitions`` or more.

    Extra slices go to queues by size. A slice has at least one offset, so small batches get fewer.
    """
    spans = [span for span in spans if span.size > 0]
    total = sum(span.size for span in spans)
    slices: list[Span] = []
    for span in spans:
        share = math.ceil(min_partitions * span.size / total)
        pieces = min(span.size, max(share, math.ceil(span.size / max_records)))
        bounds = [span.first + span.size * piece // pieces for piece in range(pieces + 1)]
        slices += [Span(span.key, bounds[i], bounds[i + 1]) for i in range(pieces)]
    return slices


def _waiting(start: Mapping[str, int], heads: Mapping[str, int]) -> dict[str, int]:
    return {queue: max(head - start.get(queue, 0), 0) for queue, head in heads.items()}

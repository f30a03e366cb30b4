"""The measurements of a round: counts and CPU times at two moments, and their difference.

Owns: the figures of one round. Must not touch: when it begins and ends, what is counted, the printing.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter, process_time

from holtmq.load.errors import LoadError
from holtmq.load.processes import Usage, usage


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of one round's sampled times, in microseconds."""

    p50: float
    p99: float
    p999: float
    samples: int


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one round. Rates are messages a second."""

    workload: str
    seconds: float
    messages: int
    rate: float
    load_cpu_share: float  # share of one core used by the generator itself
    cpu_us_per_message: float | None = None
    broker_cpu_share: float | None = None
    resident_mb: float | None = None
    latency_us: Percentiles | None = None
    confirm_us: Percentiles | None = None
    publish_rate: float | None = None  # where it differs from `rate`
    deliveries: int = 0
    slow_reads: int = 0  # reads that the generator had to parse frame by frame
    request_rate: float | None = None  # where several messages share a request


class Meter:
    """Times at one moment, to be subtracted from later ones; subclasses add their counts."""

    def __init__(self, pid: int | None) -> None:
        self.at = perf_counter()
        self.own_cpu = process_time()
        self.broker: Usage | None = usage(pid) if pid is not None else None

    def round_since(self, before: Meter, workload: str, messages: int) -> Round:
        """Rate and cost of the messages in between."""
        seconds = self.at - before.at
        if messages <= 0:
            raise LoadError(f"{workload}: not one message in {seconds:.1f} s")
        cpu = share = resident = None
        if before.broker is not None and self.broker is not None:
            spent = self.broker.cpu_seconds - before.broker.cpu_seconds
            cpu, share = spent / messages * 1e6, spent / seconds
            resident = self.broker.resident_bytes / 1e6
        own_share = (self.own_cpu - before.own_cpu) / seconds
        return Round(workload, seconds, messages, messages / seconds, own_share, cpu, share, resident)


def percentiles(times_ns: list[int]) -> Percentiles | None:
    """Nearest-rank percentiles; None for an empty list."""
    if not times_ns:
        return None
    ranked = sorted(times_ns)

    def rank(share: float) -> float:
        return ranked[min(int(len(ranked) * share), len(ranked) - 1)] / 1000

    return Percentiles(rank(0.50), rank(0.99), rank(0.999), len(ranked))

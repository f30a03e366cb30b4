"""Very many partitions: what a million retained messages in 100,000 of them cost, and what a pop costs there.

Owns: filling queues with 10, 10,000 and 100,000 partitions and timing pops from any of them.
Must not touch: the broker's insides. Usage: python -m bench.http_scale [--quick]
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter

import click
import msgspec
from bench.http import http_target
from rich.console import Console

from holtmq.load.errors import LoadError
from holtmq.load.http_connections import LoadConnection, LoadEngine
from holtmq.load.http_stage import HttpTarget
from holtmq.load.http_wire import HttpAnswer, HttpWire
from holtmq.load.http_workloads import PAYLOAD
from holtmq.load.measuring import Percentiles, percentiles
from holtmq.load.processes import usage

_CONNECTIONS = 4
_BATCH = 500
_POPS = 4_000


@dataclass(frozen=True, slots=True)
class PopFigures:
    """Pops of one message from any partition, one after the other. Times in µs."""

    partitions: int
    messages: int
    filled_mb: float
    pop_us: Percentiles
    cpu_us: float  # of the broker, for a pop and the ack of it


@dataclass(frozen=True, slots=True)
class ScaleFigures:
    """RSS of the broker with everything in place, and the pops by number of partitions."""

    idle_mb: float
    messages: int
    partitions: int
    fill_rate: float
    resident_mb: float
    pops: list[PopFigures]


class _Filler:
    """Pushes over all partitions in turn, so that neighbours in a request are in different ones."""

    def __init__(self, target: HttpTarget, queue: str, numbers: range, partitions: int) -> None:
        self._target = target
        self._queue = queue
        self._numbers = numbers
        self._partitions = partitions
        self._at = 0
        self.left = len(numbers)

    def next(self) -> bytes | None:
        chosen = self._numbers[self._at : self._at + _BATCH]
        if not chosen:
            return None
        self._at += _BATCH
        items = b",".join(
            b'{"queue":"%s","partition":"p%d","payload":%s,"transactionId":"t-%d"}'
            % (self._queue.encode(), number % self._partitions, PAYLOAD, number)
            for number in chosen
        )
        return self._target.address.post("/api/v1/push", b'{"items":[%s]}' % items)

    def take(self, answer: HttpAnswer, took_ns: int) -> bytes | None:
        stored = answer.body.count(b'"queued"')
        if answer.status != 201 or not stored:
            raise LoadError(f"a push gave {answer.status} {answer.body[:200]!r}")
        self.left -= stored
        return self.next()


def fill(target: HttpTarget, queue: str, partitions: int, messages: int) -> float:
    """Messages a second."""
    parts = [range(number, messages, _CONNECTIONS) for number in range(_CONNECTIONS)]
    fillers = [_Filler(target, queue, part, partitions) for part in parts]
    engine = LoadEngine([LoadConnection(HttpWire(target.address), filler) for filler in fillers])
    began = perf_counter()
    try:
        engine.run(lambda: not any(filler.left for filler in fillers))
    finally:
        engine.close()
    return messages / (perf_counter() - began)


class _Popped(msgspec.Struct):
    messages: list[dict[str, object]]


def time_pops(target: HttpTarget, queue: str, partitions: int, messages: int, pops: int) -> PopFigures:
    """Pop one, ack it, and so on; only the pops are timed."""
    address, wire = target.address, HttpWire(target.address)
    ask = address.get(f"/api/v1/pop/queue/{queue}?batch=1")
    times: list[int] = []
    assert target.pid is not None
    filled = usage(target.pid).resident_bytes / 1e6
    try:
        before = usage(target.pid).cpu_seconds
        for number in range(pops):
            began = perf_counter()
            answer = wire.call(ask)
            took = perf_counter() - began
            if number:  # the first one lines all partitions up, once
                times.append(int(took * 1e9))
            message = msgspec.json.decode(answer.body, type=_Popped).messages[0]
            ack = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
            wire.call(address.post("/api/v1/ack", msgspec.json.encode(ack)))
        spent = usage(target.pid).cpu_seconds - before
    finally:
        wire.close()
    found = percentiles(times)
    assert found is not None
    return PopFigures(partitions, messages, filled, found, spent / pops * 1e6)


def run(*, quick: bool, console: Console) -> ScaleFigures:
    """Fill the largest queue first, so that its memory is what is read."""
    most, messages, pops = (10_000, 50_000, 300) if quick else (100_000, 1_000_000, _POPS)
    with http_target() as target:
        assert target.pid is not None
        idle = usage(target.pid).resident_bytes / 1e6
        rate = fill(target, "scale-most", most, messages)
        resident = usage(target.pid).resident_bytes / 1e6
        console.print(
            f"{messages:,} messages in {most:,} partitions: {resident:.0f} MB (idle {idle:.0f}), "
            f"goal 500: {'reached' if resident < 500 else 'missed'}; filled at {rate:,.0f} msg/s"
        )
        fill(target, "scale-some", most // 10, messages // 10)
        fill(target, "scale-few", 10, messages // 10)
        sizes = (("scale-few", 10), ("scale-some", most // 10), ("scale-most", most))
        seen: dict[int, list[PopFigures]] = {partitions: [] for _, partitions in sizes}
        for _ in range(4):  # in turn: the machine's speed drifts
            for queue, partitions in sizes:
                count = messages if partitions == most else messages // 10
                seen[partitions].append(time_pops(target, queue, partitions, count, pops // 4))
        found = [_middle(figures) for figures in seen.values()]
        for one in found:
            console.print(
                f"pop from any of {one.partitions:,} partitions: p50 {one.pop_us.p50:.0f} µs, "
                f"p99 {one.pop_us.p99:.0f} µs; {one.cpu_us:.0f} µs broker CPU for pop and ack"
            )
        return ScaleFigures(idle, messages, most, rate, resident, found)


def _middle(of: list[PopFigures]) -> PopFigures:
    first = of[0]
    times = Percentiles(
        median(one.pop_us.p50 for one in of),
        median(one.pop_us.p99 for one in of),
        median(one.pop_us.p999 for one in of),
        sum(one.pop_us.samples for one in of),
    )
    cpu = median(one.cpu_us for one in of)
    return PopFigures(first.partitions, first.messages, first.filled_mb, times, cpu)


@click.command()
@click.option("--quick", is_flag=True, help="A tenth of it: shows that it runs.")
def main(quick: bool) -> None:
    """A million messages in 100,000 partitions: memory, and pops in constant time."""
    run(quick=quick, console=Console(width=150))


if __name__ == "__main__":
    main()

"""One round: set up a workload, warm up, measure, drain, check, clean up.

Owns: what is measured and when. Must not touch: the broker's protocol; its stage has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Final, Protocol

from holtmq.load.errors import LoadError
from holtmq.load.http_connections import AnyLoadConnection, LoadEngine
from holtmq.load.http_workers import Flow, Pace
from holtmq.load.http_workloads import HttpMode, HttpWorkload
from holtmq.load.measuring import Meter, Round, percentiles

_WAKES: Final = 200.0  # per second: the next pop is waiting well before the next push


class Stage(Protocol):
    """A workload's queue on one broker, newly created."""

    flow: Flow

    def fill(self, messages: int) -> None:
        """Push a backlog, spread over the partitions, without measuring it."""

    def pushers(self) -> Sequence[AnyLoadConnection]: ...

    def poppers(self) -> Sequence[AnyLoadConnection]: ...

    def close(self) -> None:
        """Close every connection and delete the queue."""


class Contender(Protocol):
    """A broker under load. ``pid`` is its process, when it runs on this machine."""

    @property
    def label(self) -> str: ...

    @property
    def pid(self) -> int | None: ...

    def runs(self, workload: HttpWorkload) -> bool:
        """Whether the broker has an equivalent of the workload."""

    def stage(self, workload: HttpWorkload) -> Stage: ...


class _Meter(Meter):
    def __init__(self, flow: Flow, engine: LoadEngine, pid: int | None) -> None:
        super().__init__(pid)
        self.pushed = flow.pushed
        self.settled = flow.deliveries
        self.answers = engine.answers


def run_http_round(contender: Contender, workload: HttpWorkload, seconds: float, warm_up: float) -> Round:
    """Run the workload once."""
    stage = contender.stage(workload)
    connections: list[AnyLoadConnection] = []
    try:
        if workload.messages:
            stage.fill(workload.messages)
        if workload.mode is not HttpMode.PUSH:
            connections += stage.poppers()
        if workload.mode in (HttpMode.PUSH, HttpMode.FLOW, HttpMode.WAKE):
            connections += stage.pushers()
        engine = LoadEngine(connections)
        try:
            return _measure(stage.flow, engine, seconds, warm_up, contender.pid)
        finally:
            engine.close()
    finally:
        stage.close()


def _measure(flow: Flow, engine: LoadEngine, seconds: float, warm_up: float, pid: int | None) -> Round:
    match flow.workload.mode:
        case HttpMode.PUSH:
            _run(engine, warm_up)
        case HttpMode.FLOW:
            flow.bounded = True
            _run(engine, warm_up)
        case HttpMode.ACK:
            _find_half_load(flow, engine, max(warm_up, 0.2))
        case HttpMode.WAKE:
            flow.bounded = True
            flow.push_pace = Pace(_WAKES)
            engine.run(_never, perf_counter() + warm_up, paced=True)
        case HttpMode.DRAIN:
            pass  # measured from the first message to the last: a warm-up would consume part of the backlog
    flow.forget_times()
    before = _Meter(flow, engine, pid)
    paced = flow.ack_pace is not None or flow.push_pace is not None
    until = None if flow.workload.mode is HttpMode.DRAIN else perf_counter() + seconds
    engine.run((lambda: flow.drained) if flow.workload.messages else _never, until, paced=paced)
    after = _Meter(flow, engine, pid)
    times = {HttpMode.PUSH: flow.push_ns, HttpMode.WAKE: flow.wake_ns}.get(flow.workload.mode, flow.ack_ns)
    seen = _round(flow, before, after, times)
    if flow.workload.mode is HttpMode.PUSH:
        # A push that the broker reads after the queue was deleted would create it again.
        flow.closed = True
        engine.run(lambda: flow.pushed == flow.offered)
    if flow.workload.mode is HttpMode.FLOW:
        flow.closed = True
        engine.run(lambda: flow.drained)
    if flow.workload.mode in (HttpMode.FLOW, HttpMode.DRAIN):
        flow.check()
    return seen


def _never() -> bool:
    return False


def _run(engine: LoadEngine, seconds: float) -> None:
    engine.run(_never, perf_counter() + seconds)


def _find_half_load(flow: Flow, engine: LoadEngine, seconds: float) -> None:
    """Measure the maximum ack rate with up to half of the backlog, then allow half of it."""
    began, before = perf_counter(), len(flow.ack_ns)
    engine.run(lambda: 2 * min(flow.settled) >= flow.pushed, began + seconds)
    acks = len(flow.ack_ns) - before
    if not acks:
        raise LoadError(f"{flow.workload.name}: not one message was acknowledged in {seconds:.1f} s")
    if flow.drained:
        raise LoadError(f"{flow.workload.name}: the backlog does not last for the measurement")
    flow.ack_pace = Pace(acks / (perf_counter() - began) / 2)


def _round(flow: Flow, before: _Meter, after: _Meter, times_ns: list[int]) -> Round:
    settled = after.settled - before.settled
    messages = after.pushed - before.pushed if flow.workload.mode is HttpMode.PUSH else settled
    seen = after.round_since(before, flow.workload.name, messages)
    return replace(
        seen,
        confirm_us=percentiles(times_ns),
        deliveries=settled,
        request_rate=(after.answers - before.answers) / seen.seconds,
    )

"""One round: set up a workload on a broker, warm up, measure, drain, check, clean up.

Owns: what is measured and when. Must not touch: which broker, how often, and the printing.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from holtmq.load.churn import churning
from holtmq.load.engine import Engine
from holtmq.load.errors import LoadError
from holtmq.load.link import Address
from holtmq.load.measuring import Meter, Percentiles, Round, percentiles
from holtmq.load.processes import listener_pid
from holtmq.load.stage import Stage
from holtmq.load.workloads import Mode, Workload


class _Meter(Meter):
    def __init__(self, engine: Engine, pid: int | None) -> None:
        super().__init__(pid)
        self.sent = engine.sent
        self.confirmed = engine.confirmed
        self.consumed = engine.consumed
        self.delivered = engine.delivered


def run_round(
    address: Address, workload: Workload, seconds: float, warm_up: float, pid: int | None = None
) -> Round:
    """Run the workload once. ``pid`` is the broker's; by default it is looked up if the broker is local."""
    pid = pid if pid is not None else listener_pid(address)
    stage = Stage.build(address, workload)
    try:
        if workload.mode is Mode.DEEP:
            return _deep_round(stage, pid)
        queues = [] if workload.mode is Mode.PUBLISH else stage.consumers()
        engine = Engine(stage.publishers(), queues, workload.backlog, shared_out=workload.distinct > 0)
        try:
            if workload.mode is Mode.OPEN:
                with churning(address, workload, stage.exchange):
                    return _open_round(engine, workload, seconds, warm_up, pid)
            return _steady_round(engine, workload, seconds, warm_up, pid)
        finally:
            engine.close()
    finally:
        stage.close()


def _steady_round(
    engine: Engine, workload: Workload, seconds: float, warm_up: float, pid: int | None
) -> Round:
    _work(engine, workload, warm_up)
    for consumer in engine.consumers:
        consumer.latencies_ns.clear()
    for publisher in engine.publishers:
        publisher.waits_ns.clear()
    before = _Meter(engine, pid)
    _work(engine, workload, seconds)
    after = _Meter(engine, pid)
    latency = percentiles([ns for consumer in engine.consumers for ns in consumer.latencies_ns])
    confirm = percentiles([ns for publisher in engine.publishers for ns in publisher.waits_ns])
    engine.drain()
    _check(engine, workload)
    messages = (
        after.confirmed - before.confirmed
        if workload.mode is Mode.PUBLISH
        else after.consumed - before.consumed
    )
    return _round(
        workload, before, after, messages, latency=latency, confirm=confirm, slow_reads=_slow_reads(engine)
    )


def _open_round(engine: Engine, workload: Workload, seconds: float, warm_up: float, pid: int | None) -> Round:
    """Publish for a while, then wait for the consumers: rate and CPU time cover both."""
    _work(engine, workload, warm_up)
    engine.drain()
    engine.resume()
    before = _Meter(engine, pid)
    _work(engine, workload, seconds)
    engine.drain()
    after = _Meter(engine, pid)
    if engine.consumed != engine.sent:
        raise LoadError(f"{workload.name}: {engine.sent} published, {engine.consumed} delivered")
    return _round(workload, before, after, after.consumed - before.consumed, slow_reads=_slow_reads(engine))


def _work(engine: Engine, workload: Workload, seconds: float) -> None:
    until = perf_counter() + seconds
    if workload.mode is Mode.PACED:
        engine.run_paced(workload.rate, until)
    else:
        engine.run(lambda: False, until)


def _deep_round(stage: Stage, pid: int | None) -> Round:
    workload = stage.workload
    filling = Engine(stage.publishers(), [], 0)
    try:
        filling.limit = workload.messages
        start = _Meter(filling, pid)
        filling.run(lambda: filling.confirmed >= workload.messages)
        filled = _Meter(filling, pid)
    finally:
        filling.close()
    draining = Engine([], stage.consumers(), 0)
    try:
        before = _Meter(draining, pid)
        draining.run(lambda: draining.consumed >= workload.messages)
        after = _Meter(draining, pid)
    finally:
        draining.close()
    seen = _round(workload, before, after, workload.messages, slow_reads=_slow_reads(draining))
    seen = replace(seen, publish_rate=workload.messages / (filled.at - start.at))
    if start.broker is None or filled.broker is None or seen.cpu_us_per_message is None:
        return seen
    spent_us = (filled.broker.cpu_seconds - start.broker.cpu_seconds) * 1e6
    return replace(
        seen,
        cpu_us_per_message=seen.cpu_us_per_message + spent_us / workload.messages,
        resident_mb=filled.broker.resident_bytes / 1e6,
    )


def _round(
    workload: Workload,
    before: _Meter,
    after: _Meter,
    messages: int,
    *,
    latency: Percentiles | None = None,
    confirm: Percentiles | None = None,
    slow_reads: int = 0,
) -> Round:
    return replace(
        after.round_since(before, workload.name, messages),
        latency_us=latency,
        confirm_us=confirm,
        deliveries=after.delivered - before.delivered,
        slow_reads=slow_reads,
    )


def _check(engine: Engine, workload: Workload) -> None:
    for queue in engine.queues:
        got = sum(consumer.received for consumer in queue)
        if got != engine.sent:
            raise LoadError(f"{workload.name}: {engine.sent} published, {got} delivered")


def _slow_reads(engine: Engine) -> int:
    return sum(consumer.stream.slow_reads for consumer in engine.consumers)

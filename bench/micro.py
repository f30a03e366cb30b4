"""Figures of single operations: cancel, what confirms and priorities cost, memory at rest.

Owns: their measuring. The cancel runs inside this process, on the sans-IO connection, so that no socket
blurs it; the rest runs against ``holt serve``.
Run: python -m bench.micro [--quick]
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles
from time import perf_counter

import msgspec
from bench.amqp import Served, holt
from rich.console import Console
from rich.table import Table

from holtmq.amqp.connection import Connection
from holtmq.amqp.errors import AmqpError
from holtmq.amqp.handshake import Settings
from holtmq.amqp.methods import BasicCancel, BasicConsume, ChannelOpen, QueueDeclare
from holtmq.auth.permissions import FULL_ACCESS, Access
from holtmq.auth.users import ADMINISTRATOR, User
from holtmq.broker.broker import Broker
from holtmq.journal import MemoryJournal
from holtmq.load import frames
from holtmq.load.actors import Publisher
from holtmq.load.blobs import Blob
from holtmq.load.engine import Engine
from holtmq.load.link import CHANNEL, Address, Link
from holtmq.load.processes import usage
from holtmq.load.rounds import run_round
from holtmq.load.workloads import WORKLOADS, Workload

_BASE = WORKLOADS["manual-ack"]
_CONFIRMS = replace(_BASE, name="confirms", window=5000)
_PRIORITIES = WORKLOADS["priority-10"]
_ONE_PRIORITY = replace(_PRIORITIES, name="one-priority", priorities=1)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, its unit, and what it should stay below."""

    what: str
    value: float
    unit: str
    goal: float | None = None
    low: float | None = None  # the quartiles of the rounds: a goal between them is neither met nor missed
    high: float | None = None


class _NoSocket:
    """Stands where a socket's owner stands, and wants nothing."""

    def has_output(self) -> None: ...
    def check_secret(self, secret: str) -> None:
        """No client here has a token."""
        raise AssertionError("no client here has a token")

    def check_password(self, name: str, password: str) -> None: ...
    def certified_name(self) -> str | None: ...
    def certified_user(self) -> str | None: ...
    def opened(self) -> None: ...
    def channel_failed(self, number: int, error: AmqpError) -> None:
        raise error

    def failed(self, error: AmqpError) -> None:
        raise error

    def ended(self) -> None: ...

    def is_time_up(self) -> bool:
        return False

    def unstall_soon(self) -> None: ...


def run(*, quick: bool, console: Console) -> list[Figure]:
    """All of them, printed as a table."""
    figures = [
        Figure(f"cancel of 500 unacked, {others:,} others on the channel", cancel_ms(500, others), "ms", 1.0)
        for others in (0, 10_000, 100_000)
    ]
    with holt() as served:
        figures += _idle_memory(served, 100 if quick else 1000)
    with holt() as served:
        figures += _costs(served, rounds=2 if quick else 15, seconds=0.5 if quick else 1.0)
    for durable in (False, True):
        with holt() as served:
            figures.append(_stalled_consumer(served, 100_000 if quick else 1_000_000, durable=durable))
    table = Table("figure", "value", "quartiles", "unit", "goal")
    for figure in figures:
        goal = "" if figure.goal is None else f"<= {figure.goal:g}"
        spread = "" if figure.low is None else f"{figure.low:,.1f} to {figure.high:,.1f}"
        table.add_row(figure.what, f"{figure.value:,.3f}", spread, figure.unit, goal)
    console.print(table)
    return figures


def as_json(figures: Sequence[Figure]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(list(figures)), indent=2)


def cancel_ms(unacked: int, others: int, repeats: int = 15) -> float:
    """Median time in the broker to cancel a consumer and requeue what it held."""
    times = []
    for _ in range(repeats):
        broker = Broker(MemoryJournal())
        broker.put_vhost("/")
        broker.access.put_user(User("guest", "", (ADMINISTRATOR,)))
        broker.access.set_permissions("guest", "/", FULL_ACCESS)
        connection = Connection(broker, Settings("bench", "0"), _NoSocket(), from_loopback=True)
        connection.opened(broker.vhost("/"), "guest", Access(FULL_ACCESS))
        connection.receive(frames.method(CHANNEL, ChannelOpen()))
        for queue, count in (("others", others), ("cancelled", unacked)):
            _hold(connection, queue, count)
        connection.outbox.take()
        cancel = frames.method(CHANNEL, BasicCancel("cancelled"))

        start = perf_counter()
        connection.receive(cancel)
        broker.flow.turn()
        times.append((perf_counter() - start) * 1000)

        ready = len(broker.vhost("/").queues["cancelled"])
        assert ready == unacked, f"{ready} of {unacked} came back"
    return median(times)


def _hold(connection: Connection, queue: str, count: int) -> None:
    """Declare a queue, fill it, and let a consumer take all of it without an ack."""
    connection.receive(frames.method(CHANNEL, QueueDeclare(queue)))
    connection.receive(frames.method(CHANNEL, BasicConsume(queue, queue)))
    message = frames.publish(CHANNEL, "", queue, b"\0\0", bytes(16), 131_072)
    for at in range(0, count, 1000):
        connection.receive(message * min(1000, count - at))
        connection.flow.turn()
        connection.outbox.take()
        connection.wake_consumers()
        connection.flow.turn()


def _idle_memory(served: Served, connections: int) -> list[Figure]:
    idle = usage(served.pid).resident_bytes / 1e6
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    address = Address.parse(served.url)
    links = [Link(address) for _ in range(connections)]
    more = usage(served.pid).resident_bytes / 1e6 - idle
    for link in links:
        link.close()
    return [
        Figure("idle broker", idle, "MB RSS", 60),
        Figure(f"{connections:,} idle connections with a channel each", more, "MB RSS more", 150),
    ]


def _costs(served: Served, rounds: int, seconds: float) -> list[Figure]:
    """CPU time for a message with a feature over without it.

    Each round is compared with the plain round beside it: the machine drifts by more than the few percent
    looked for, and a median of each kind on its own gave -3 to +17 % for the same code.
    """
    address = Address.parse(served.url)
    workloads = (_BASE, _CONFIRMS, _PRIORITIES, _ONE_PRIORITY)
    spent: dict[str, list[float]] = {workload.name: [] for workload in workloads}
    for _ in range(rounds):
        for workload in workloads:
            cpu = run_round(address, workload, seconds, 0.5, served.pid).cpu_us_per_message
            assert cpu is not None
            spent[workload.name].append(cpu)
    plain = spent[_BASE.name]

    def more(what: str, workload: Workload) -> Figure:
        pairs = zip(spent[workload.name], plain, strict=True)
        percent = [(cpu / beside - 1) * 100 for cpu, beside in pairs]
        low, middle, high = quantiles(percent, n=4)
        return Figure(what, middle, "% more CPU", 5, low, high)

    return [
        Figure("a transient message with an ack", median(plain), "µs CPU"),
        more("confirms on transient messages", _CONFIRMS),
        more("ten priorities against FIFO", _PRIORITIES),
        more("a priority queue with one priority in use", _ONE_PRIORITY),
    ]


def _stalled_consumer(served: Served, messages: int, *, durable: bool) -> Figure:
    """Memory with a consumer that never reads and everything waiting behind it."""
    address = Address.parse(served.url)
    before = usage(served.pid).resident_bytes / 1e6
    control, stalled = Link(address), Link(address)
    control.declare_queue("stalled", durable=durable, arguments={})
    stalled.consume("stalled", "never-reads", no_ack=True)
    publishing = Link(address)
    publishing.confirm()
    workload = replace(_BASE, window=5000, durable=durable)
    publisher = Publisher(publishing, Blob(workload, "", "stalled", publishing.frame_max), workload.window)
    engine = Engine([publisher], [], 0)
    engine.limit = messages
    engine.run(lambda: engine.confirmed >= messages)
    more = usage(served.pid).resident_bytes / 1e6 - before
    engine.close()
    publishing.close()
    stalled.close()
    control.delete_queue("stalled")
    control.close()
    kind = "persistent" if durable else "transient"
    return Figure(f"a stalled consumer with {messages:,} {kind} messages waiting", more, "MB RSS more")


if __name__ == "__main__":
    run(quick="--quick" in sys.argv, console=Console())

"""What a change costs: broker CPU time a message, with two versions of the source, in turn on one machine.

Owns: the two brokers, the rounds, and two workloads that ``holt bench`` lacks: ``basic-get`` (a get and an
ack of one message, 100 in flight) and ``http-work`` (a pop and an ack of one message of a work queue over
HTTP). Must not touch: the brokers' insides. CPU time and rounds in turn, because other work on the machine
must not decide.

    python -m bench.two_sources SRC_A SRC_B [--workload http-work] [--rounds 9]
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

import click
from bench.amqp import Served, holt
from bench.rabbitmq import free_port

from holtmq.amqp.methods import BasicGet
from holtmq.load import frames
from holtmq.load.http_wire import HttpAddress, HttpWire
from holtmq.load.link import CHANNEL, Address, Link
from holtmq.load.rounds import run_round
from holtmq.load.workloads import WORKLOADS

_QUEUE: Final = "holt-load-0"
_IN_FLIGHT: Final = 100
_BODY: Final = b'{"n": 1, "customer": "acme"}'
_DEFAULT: Final = ("mixed-keys", "mixed-keys-durable", "basic-get", "http-work")

Round = Callable[[Served, str, float], float]  # broker, its HTTP address, seconds -> µs a message


def _spent_us(pid: int) -> float:
    """CPU time of the process's main thread, where its event loop runs."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1000


def _fill(broker: Served, messages: int) -> Link:
    link = Link(Address.parse(broker.url))
    link.delete_queue(_QUEUE)
    link.declare_queue(_QUEUE, durable=True, arguments={})
    one = frames.publish(
        CHANNEL, "", _QUEUE, frames.properties(persistent=True, priority=None), _BODY, 131072
    )
    for _ in range(messages // 100):
        link.sock.sendall(one * 100)
    link.confirm()
    return link


def basic_get(broker: Served, _: str, seconds: float) -> float:
    """Gets and acks of single messages, ``_IN_FLIGHT`` at a time."""
    messages = int(seconds * 100) * 100
    link = _fill(broker, messages)
    get = frames.method(CHANNEL, BasicGet(_QUEUE))
    ends = b"\xce"
    before = _spent_us(broker.pid)
    for start in range(0, messages, _IN_FLIGHT):
        link.sock.sendall(get * _IN_FLIGHT)
        seen = b""
        while seen.count(_BODY + ends) < _IN_FLIGHT:
            piece = link.sock.recv(1 << 18)
            if not piece:
                raise SystemExit("the broker closed the connection")
            seen += piece
        tags = range(start + 1, start + _IN_FLIGHT + 1)
        link.sock.sendall(b"".join(frames.ack(CHANNEL, tag, multiple=False) for tag in tags))
    spent = _spent_us(broker.pid) - before
    link.close()
    return spent / messages


def http_work(broker: Served, url: str, seconds: float) -> float:
    """A pop and an ack of one message, one connection."""
    messages = int(seconds * 15) * 100
    _fill(broker, messages).close()
    address = HttpAddress.parse(url)
    wire = HttpWire(address)
    pop = address.get(f"/api/v1/pop/queue/{_QUEUE}?batch=1")
    before = _spent_us(broker.pid)
    for _ in range(messages):
        (message,) = json.loads(wire.call(pop).body)["messages"]
        ack = {
            "transactionId": message["transactionId"],
            "status": "completed",
            "leaseId": message["leaseId"],
        }
        ack["partitionId"] = message["partitionId"]
        answer = wire.call(address.post("/api/v1/ack", json.dumps(ack).encode()))
        if answer.status >= 300:
            raise SystemExit(f"an ack was refused: {answer.status} {answer.body[:200]!r}")
    spent = _spent_us(broker.pid) - before
    wire.close()
    return spent / messages


def _amqp(name: str) -> Round:
    def run(broker: Served, _: str, seconds: float) -> float:
        cpu = run_round(
            Address.parse(broker.url), WORKLOADS[name], seconds, 0.5, broker.pid
        ).cpu_us_per_message
        assert cpu is not None
        return cpu

    return run


@click.command()
@click.argument("sources", nargs=2, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--workload", "names", multiple=True, metavar="NAME", help=f"[default: {', '.join(_DEFAULT)}]")
@click.option("--rounds", default=7, show_default=True)
@click.option("--seconds", default=2.0, show_default=True, help="About the length of a round.")
def main(sources: tuple[Path, Path], names: tuple[str, ...], rounds: int, seconds: float) -> None:
    """Print µs of broker CPU a message with both sources, and the ratio."""
    with ExitStack() as stack:
        brokers = []
        for source in sources:
            os.environ["PYTHONPATH"] = str(source.resolve())
            port = free_port()
            brokers.append((stack.enter_context(holt("--http-port", str(port))), f"http://127.0.0.1:{port}"))
        for name in names or _DEFAULT:
            run = {"basic-get": basic_get, "http-work": http_work}.get(name) or _amqp(name)
            seen: tuple[list[float], list[float]] = [], []
            for number in range(rounds + 1):
                order = (0, 1) if number % 2 else (1, 0)  # neither is always the first
                for which in order:
                    cpu = run(*brokers[which], seconds)
                    if number:  # the first round warms up
                        seen[which].append(cpu)
            first, second = map(median, seen)
            pairs = [a / b for a, b in zip(*seen, strict=True)]
            click.echo(
                f"{name:20} A {first:8.2f} µs  B {second:8.2f} µs  A/B {first / second:.3f}  "
                f"(of the pairs: {min(pairs):.3f} to {max(pairs):.3f}, median {median(pairs):.3f})"
            )


if __name__ == "__main__":
    main()

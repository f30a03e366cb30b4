"""What the dashboard costs a large broker: CPU time of each page and of a scrape, and the longest stall.

Owns: the stage (queues, connections, groups, traffic) and the list of requests. Must not touch: the broker's
insides beyond its loop. CPU time of the broker's thread, because a busy machine must not look like a slow
broker. Tables that all pages share are kept for ten times as long as building them takes; with ``--pause 11``
each page builds its own.

    python -m bench.dashboard [--queues 20000] [--connections 5000] [--messages 100000]
"""

from __future__ import annotations

import gc
import resource
import threading
import time
from collections.abc import Callable
from typing import Final

import click
import httpx
import msgspec
from bench.stalls.site import Meter
from rich.console import Console
from rich.table import Table

from holtmq.config import Config, Limits
from holtmq.http.dashboard.attention import Thresholds
from holtmq.load import frames
from holtmq.load.link import CHANNEL, Address, Link
from holtmq.node import Node
from holtmq.testing import TestBroker
from holtmq.wire.properties import Properties, encode_properties

PAGE_GOAL_MS: Final = 100.0
STALL_GOAL_MS: Final = 10.0
_BASE: Final = "/api/v1/dashboard"
_TEXT: Final = {"accept": "text/plain"}


def stage(broker: TestBroker, queues: int, connections: int, messages: int) -> list[Link]:
    """Queues with messages, exchanges, and connections with a consumer each that holds what it gets."""

    def make(node: Node) -> None:
        vhost = node.broker.vhost("/")
        for number in range(queues // 10):
            node.broker.exchanges.declare(vhost, f"exchange-{number}", "topic")
        for number in range(queues):
            node.broker.declare_queue(vhost, f"queue-{number}", durable=True)
            node.broker.bind(vhost, f"exchange-{number % (queues // 10)}", f"queue-{number}", "key.*")

    broker.call(make)
    address = Address.parse(broker.amqp_url)
    control = Link(address)
    properties = encode_properties(Properties(message_id="m", headers={"tenant": "acme"}))
    for number in range(messages):
        queue = f"queue-{number % queues if number % 4 else 0}"  # a quarter of all in one queue
        control.sock.sendall(frames.publish(CHANNEL, "", queue, properties, b'{"n": %d}' % number, 131072))
    control.confirm()
    links = [control]
    for number in range(connections):
        link = Link(address)
        link.qos(1)
        link.consume(f"queue-{1 + number % (queues - 1)}", "worker", no_ack=False)
        links.append(link)
    return links


def groups(http: httpx.Client, streams: int, partitions: int) -> None:
    for number in range(streams):
        items = [
            {"queue": f"stream-{number}", "partition": f"p{part}", "payload": {"n": part}}
            for part in range(partitions if number == 0 else 3)
        ]
        for start in range(0, len(items), 5_000):
            http.post("/api/v1/push", json={"items": items[start : start + 5_000]}).raise_for_status()
        http.get(f"/api/v1/pop/queue/stream-{number}", params={"consumerGroup": "g"}).raise_for_status()


def requests(http: httpx.Client) -> dict[str, Callable[[], object]]:
    """Each page by what its browser asks for."""

    def ask(*paths: str, headers: dict[str, str] | None = None) -> Callable[[], object]:
        def run() -> None:
            for path in paths:
                http.get(path, headers=headers).raise_for_status()

        return run

    def all_is_stuck() -> None:
        """A finding about every queue and every consumer that holds a message."""
        usual = msgspec.to_builtins(Thresholds())
        none = {name: 0 for name in usual if name.endswith("_seconds")}
        http.put(f"{_BASE}/thresholds", json={**usual, **none}).raise_for_status()
        ask(f"{_BASE}/overview")()
        http.put(f"{_BASE}/thresholds", json=usual).raise_for_status()

    queue, stream = f"{_BASE}/queues/%2F/queue-0", f"{_BASE}/queues/%2F/stream-0"
    search = {"states": ["ready"], "filter": ["json.n=-1"]}
    return {
        "(no request for 1.5 s)": lambda: time.sleep(1.5),
        "overview, the first since the start": ask(f"{_BASE}/overview", f"{_BASE}/series"),
        "overview": ask(f"{_BASE}/overview", f"{_BASE}/series"),
        "overview, everything stuck": all_is_stuck,
        "queues, by name": ask(f"{_BASE}/queues?limit=50"),
        "queues, by depth, last page": ask(f"{_BASE}/queues?limit=50&sort=ready&offset=19950"),
        "queues, by age, page in the middle": ask(f"{_BASE}/queues?limit=50&sort=oldest&offset=10000"),
        "work queue": ask(queue, f"{queue}/histograms", "/api/queues/%2F/queue-0/bindings"),
        "partitioned queue": ask(stream, f"{stream}/partitions?group=g"),
        "groups": ask(f"{_BASE}/groups"),
        "one group": ask(f"{_BASE}/groups/stream-0/g"),
        "search, one step": lambda: http.post(f"{_BASE}/messages", json=search).raise_for_status(),
        "dead letters": ask("/api/v1/operator/dead-letters"),
        "exchanges": ask(f"{_BASE}/exchanges"),
        "one exchange": ask(f"{_BASE}/exchanges/%2F/exchange-0"),
        "connections": ask(f"{_BASE}/connections"),
        "policies": ask("/api/policies", "/api/operator-policies"),
        "journal": ask(f"{_BASE}/journal"),
        "scrape": ask("/metrics", headers=_TEXT),
        "scrape, per object": ask("/metrics/per-object", headers=_TEXT),
    }


class Traffic:
    """Publishes to one queue that a consumer empties, until stopped."""

    def __init__(self, url: str) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(Address.parse(url),), daemon=True)
        self._thread.start()

    def _run(self, address: Address) -> None:
        link = Link(address)
        link.declare_queue("traffic", durable=False, arguments={"x-max-length": 1000})
        data = b"".join(
            frames.publish(CHANNEL, "", "traffic", b"\x00\x00", b"x" * 64, 131072) for _ in range(200)
        )
        while not self._stopping.is_set():
            link.sock.sendall(data)
            time.sleep(0.005)
        link.close()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


@click.command()
@click.option("--queues", default=20_000, show_default=True)
@click.option("--connections", default=5_000, show_default=True)
@click.option("--messages", default=100_000, show_default=True)
@click.option("--partitions", default=20_000, show_default=True, help="Of the largest partitioned queue.")
@click.option("--only", default="", help="Requests whose name contains this.")
@click.option("--pause", default=3.0, show_default=True, help="Seconds before each request.")
@click.option(
    "--traffic/--no-traffic", default=False, help="Publish all the while; its CPU is in the figures."
)
def main(
    queues: int, connections: int, messages: int, partitions: int, only: str, pause: float, traffic: bool
) -> None:
    """Print the CPU time of each page and the longest stall of the loop."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    config = Config(limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0))
    console = Console(width=120)
    table = Table(
        "page", "broker CPU, ms", "longest stall, ms", title=f"{queues:,} queues, {connections:,} connections"
    )
    with TestBroker(config=config, clock="real") as broker:
        http = httpx.Client(base_url=broker.http_url, timeout=600)
        console.print("setting the stage …")
        links = stage(broker, queues, connections, messages)
        groups(http, 50, partitions)
        gc.collect()
        gc.freeze()
        load = Traffic(broker.amqp_url) if traffic else None
        meter = Meter(broker)
        failed = False
        for name, run in requests(http).items():
            if only in name:
                time.sleep(pause)
                with meter.running():
                    run()
                spent, worst = meter.total * 1000, meter.worst * 1000
                missed = spent > PAGE_GOAL_MS or worst > STALL_GOAL_MS
                failed = failed or missed
                table.add_row(name, f"{spent:.0f}", f"{worst:.1f}" + (" !" if missed else ""))
        if load is not None:
            load.stop()
        console.print(table)
        console.print(f"goals: {PAGE_GOAL_MS:.0f} ms of broker CPU a page, {STALL_GOAL_MS:.0f} ms a stall")
        http.close()
        for link in links:
            link.sock.close()
    raise SystemExit(int(failed))


if __name__ == "__main__":
    main()

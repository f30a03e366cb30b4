"""What stands on the measured broker, and what its browsers and scrapers ask for.

Owns: connections, messages, groups, traffic, the list of requests. Must not touch: measuring.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import httpx
import msgspec

from holtmq.http.dashboard.attention import Thresholds
from holtmq.load import frames
from holtmq.load.link import CHANNEL, Address, Link
from holtmq.load.rounds import run_round
from holtmq.load.workloads import WORKLOADS
from holtmq.wire.properties import Properties, encode_properties

_BASE: Final = "/api/v1/dashboard"
IDLE: Final = "(no request for 1.5 s)"
_TEXT: Final = {"accept": "text/plain"}


def connect(url: str, queues: int, connections: int, messages: int) -> list[Link]:
    """Messages in the queues, and connections with a consumer each that holds what it gets."""
    address = Address.parse(url)
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
    """Partitioned queues with a group each; the first one has many partitions."""
    for number in range(streams):
        items = [
            {"queue": f"stream-{number}", "partition": f"p{part}", "payload": {"n": part}}
            for part in range(partitions if number == 0 else 3)
        ]
        for start in range(0, len(items), 5_000):
            http.post("/api/v1/push", json={"items": items[start : start + 5_000]}).raise_for_status()
        http.get(f"/api/v1/pop/queue/stream-{number}", params={"consumerGroup": "g"}).raise_for_status()


@contextmanager
def traffic(url: str, workload: str) -> Iterator[None]:
    """As many messages as the broker takes, in and out, from another process, until the block ends."""
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=_load, args=(url, workload), name="traffic", daemon=True)
    process.start()
    try:
        yield
        if not process.is_alive():
            raise SystemExit(f"the traffic ended by itself with status {process.exitcode}: no figure counts")
    finally:
        process.kill()
        process.join()


def _load(url: str, workload: str) -> None:
    run_round(Address.parse(url), WORKLOADS[workload], seconds=86400, warm_up=0)


def requests(http: httpx.Client, queues: int) -> dict[str, Callable[[], object]]:
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
        IDLE: lambda: time.sleep(1.5),
        "overview, the first since the start": ask(f"{_BASE}/overview", f"{_BASE}/series"),
        "overview": ask(f"{_BASE}/overview", f"{_BASE}/series"),
        "overview, everything stuck": all_is_stuck,
        "queues, by name": ask(f"{_BASE}/queues?limit=50"),
        "queues, by depth, last page": ask(f"{_BASE}/queues?limit=50&sort=ready&offset={queues - 50}"),
        "queues, by age, page in the middle": ask(
            f"{_BASE}/queues?limit=50&sort=oldest&offset={queues // 2}"
        ),
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

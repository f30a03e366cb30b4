"""What stands on the measured broker, and what its browsers and scrapers ask for.

Owns: connections, messages, groups, traffic, the list of requests. Must not touch: measuring.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import httpx
import msgspec

from holtmq.http.dashboard.queue_columns import COLUMNS
from holtmq.http.dashboard.thresholds import Thresholds
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


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Page:
    """What is asked for, and what is done before and after it without being measured."""

    ask: Callable[[], object]
    before: Callable[[], object] = _nothing
    after: Callable[[], object] = _nothing


def requests(http: httpx.Client, queues: int) -> dict[str, Page]:
    """Each page by what its browser asks for."""

    def ask(*paths: str, headers: dict[str, str] | None = None) -> Page:
        def run() -> None:
            for path in paths:
                http.get(path, headers=headers).raise_for_status()

        return Page(run)

    def search(**wanted: object) -> Page:
        return Page(lambda: http.post(f"{_BASE}/messages", json=wanted).raise_for_status())

    def set_thresholds(**changed: float) -> None:
        wanted = {**msgspec.to_builtins(Thresholds()), **changed}
        http.put(f"{_BASE}/thresholds", json=wanted).raise_for_status()

    # A finding about every queue and every consumer that holds a message.
    at_once = {name: 0.0 for name in Thresholds.__struct_fields__ if name.endswith("_seconds")}
    overview = ask(f"{_BASE}/overview", f"{_BASE}/series")
    queue, stream = f"{_BASE}/queues/%2F/queue-0", f"{_BASE}/queues/%2F/stream-0"
    middle = f"{_BASE}/queues?limit=50&offset={queues // 2}"
    return {
        IDLE: Page(lambda: time.sleep(1.5)),
        "overview, the first since the start": overview,
        "overview": overview,
        "overview, everything stuck": Page(overview.ask, lambda: set_thresholds(**at_once), set_thresholds),
        "queues, by name": ask(f"{_BASE}/queues?limit=50"),
        "queues, by depth, last page": ask(f"{_BASE}/queues?limit=50&sort=ready&offset={queues - 50}"),
        **{
            f"queues, by {column}, in the middle": ask(f"{middle}&sort={column}")
            for column in sorted(COLUMNS)
        },
        "queues, with a text": ask(f"{_BASE}/queues?limit=50&text=queue-1&hideEmpty=true"),
        "work queue": ask(queue, f"{queue}/histograms", "/api/queues/%2F/queue-0/bindings"),
        "partitioned queue": ask(stream, f"{stream}/partitions?group=g"),
        "groups": ask(f"{_BASE}/groups"),
        "one group": ask(f"{_BASE}/groups/stream-0/g"),
        "one group, by age, in the middle": ask(f"{_BASE}/groups/stream-0/g?sort=seconds&offset=10000"),
        "search, one step": search(states=["ready"], filter=["json.n=-1"]),
        "search, one step in all states": search(id="none"),
        "search for a header": search(filter=["header.tenant=other"]),
        "dead letters": ask("/api/v1/operator/dead-letters"),
        "exchanges": ask(f"{_BASE}/exchanges"),
        "exchanges, by rate, in the middle": ask(f"{_BASE}/exchanges?sort=publishing&offset={queues // 20}"),
        "one exchange": ask(f"{_BASE}/exchanges/%2F/exchange-0"),
        "connections": ask(f"{_BASE}/connections"),
        "connections, by user, in the middle": ask(f"{_BASE}/connections?sort=user&offset=2500"),
        "policies": ask("/api/policies", "/api/operator-policies"),
        "users": ask("/api/users", "/api/permissions", "/api/topic-permissions"),
        "vhosts": ask("/api/vhosts"),
        "pipeline": ask("/api/v1/pipelines", f"{_BASE}/groups?text=archive&limit=100"),
        "shovels": ask("/api/shovels"),
        "journal": ask(f"{_BASE}/journal"),
        "scrape": ask("/metrics", headers=_TEXT),
        "scrape, per object": ask("/metrics/per-object", headers=_TEXT),
    }

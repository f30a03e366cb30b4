"""Clients that know two nodes, as docs/failover.md tells them to: kill -9 of the owner, once for all of them.

Each publishes numbered messages and goes on after the kill; everything confirmed is at the new owner.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pika
import pytest

from holtmq.verify.replica.nodes import NodeProcess
from ports import free_port
from postgres import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("failover")]

PATIENCE: Final = 180.0
ENOUGH: Final = 5  # confirmed before, and again after the kill
HERE: Final = Path(__file__).parent
NODE_FOLDER: Final = HERE.parent / "e2e" / "node"
PAGE: Final = HERE.parents[1] / "docs" / "failover.md"
OVER_AMQP: Final = ("pika", "haproxy", "aio-pika", "kombu", "amqplib")
OVER_HTTP: Final = ("ours", "queen")
CLIENTS: Final = (*OVER_AMQP, *OVER_HTTP, "celery")


@contextmanager
def printing(command: Sequence[str], line_to: Callable[[str], None]) -> Iterator[None]:
    """Run a process and pass on each line it prints."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE) as process:
        assert process.stdout is not None
        lines = process.stdout

        def read() -> None:
            for line in lines:
                line_to(line)

        reader = threading.Thread(target=read, name=command[1])
        reader.start()
        try:
            yield
        finally:
            process.kill()
            reader.join(PATIENCE)


@contextmanager
def celery_worker(log: Path, ports: Sequence[int]) -> Iterator[None]:
    urls = ";".join(f"amqp://guest:guest@127.0.0.1:{port}//" for port in ports)
    options = "-A failover_celery worker --pool=solo --without-mingle --without-gossip --without-heartbeat"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", *options.split()],
            cwd=HERE,
            env={**os.environ, "FAILOVER_BROKER": urls, "PYTHONWARNINGS": "ignore"},
            stdout=out,
            stderr=out,
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def haproxy(folder: Path, port: int, *nodes: tuple[int, int]) -> Iterator[None]:
    """The example of docs/failover.md, with these ports."""
    page = PAGE.read_text(encoding="utf-8")
    example = page.partition("listen amqp\n")[2].partition("```")[0]
    lines = [line for line in example.splitlines() if " server node-" not in line]
    text = "listen amqp\n" + "\n".join(lines).replace(":5672", f"127.0.0.1:{port}")
    text = text.replace(" port 6632", "")
    servers = [
        f"    server node-{number} 127.0.0.1:{amqp} port {http}"
        for number, (amqp, http) in enumerate(nodes, 1)
    ]
    times = "defaults\n    timeout connect 2s\n    timeout client 1h\n    timeout server 1h\n"
    config = folder / "haproxy.cfg"
    config.write_text("\n".join([times, text, *servers, ""]))
    process = subprocess.Popen(["haproxy", "-db", "-f", str(config)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def until_none(names: Callable[[], list[str]], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while found := names():
        assert time.monotonic() < deadline, f"{', '.join(found)} {what}"
        time.sleep(0.05)


def found_in(queue: str, port: int) -> set[int]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    found: set[int] = set()
    while (body := channel.basic_get(queue, auto_ack=True)[2]) is not None:
        found.add(int(json.loads(body)))
    connection.close()
    return found


def found_over_http(queue: str, port: int) -> set[int]:
    url = f"http://127.0.0.1:{port}/api/v1/pop/queue/{queue}?consumerGroup=check&batch=10000&autoAck=true"
    found: set[int] = set()
    while True:
        with urllib.request.urlopen(url) as answer:
            messages: list[dict[str, Any]] = json.loads(answer.read() or b"{}").get("messages", [])
        if not messages:
            return found
        found |= {message["data"]["number"] for message in messages}


def test_the_page_shows_the_code_that_amqplib_runs() -> None:
    (shown,) = re.findall(r"```js\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)

    assert shown in (NODE_FOLDER / "failover.js").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="scripts/setup-system.sh installs haproxy")
@pytest.mark.skipif(
    not (NODE_FOLDER / "node_modules" / "amqplib").is_dir(), reason="scripts/setup-system.sh installs amqplib"
)
async def test_every_client_goes_on_at_the_new_owner(postgres: Cluster, tmp_path: Path) -> None:
    settings = {
        "HOLT_JOURNAL_REPLICA": postgres.url,
        "HOLT_JOURNAL_REPLICA_NAME": uuid4().hex,
        "HOLT_JOURNAL_TAKEOVER_AFTER": "60",  # only the kill ends the owner, no matter how slow it is
    }
    command = (sys.executable, "-m", "holtmq", "serve")
    nodes = [NodeProcess(name, tmp_path / name, command, settings) for name in ("one", "two")]
    try:
        for node in nodes:
            await node.start()
            if node is nodes[0]:
                async with asyncio.timeout(PATIENCE):
                    while not await node.is_ready():
                        await asyncio.sleep(0.05)
        await asyncio.to_thread(kill_and_compare, nodes, tmp_path)
    finally:
        for node in nodes:
            await node.kill()


def kill_and_compare(nodes: list[NodeProcess], folder: Path) -> None:
    first, second = nodes
    # The standby is first in every list: a client must not stop at its refusal.
    amqp, http = (second.ports.amqp, first.ports.amqp), (second.ports.http, first.ports.http)
    balanced, ran = free_port(), folder / "ran"
    ran.touch()
    confirmed: defaultdict[str, set[int]] = defaultdict(set)

    def note(line: str) -> None:
        if line.startswith("confirmed "):  # queen-mq prints, too
            _, name, number = line.split()
            confirmed[name].add(int(number))

    def behind(counts: dict[str, int]) -> list[str]:
        return [name for name in CLIENTS if len(confirmed[name]) < counts.get(name, 0) + ENOUGH]

    python = [
        sys.executable,
        "failover_publishers.py",
        *(",".join(map(str, ports)) for ports in (amqp, http)),
    ]
    node = ["node", str(NODE_FOLDER / "failover.js"), *(f"amqp://127.0.0.1:{port}" for port in amqp)]
    with ExitStack() as running:
        running.enter_context(haproxy(folder, balanced, *[(n.ports.amqp, n.ports.http) for n in nodes]))
        running.enter_context(celery_worker(folder / "worker.log", amqp))
        with printing([*python, str(balanced), str(ran)], note), printing(node, note):
            until_none(lambda: behind({}), "do not publish")
            until(lambda: len(ran.read_text().split()) >= ENOUGH, "the worker works")
            first.send(signal.SIGKILL)
            counts = {name: len(confirmed[name]) for name in CLIENTS}
            until_none(lambda: behind(counts), "do not go on")
        until(lambda: confirmed["celery"] <= set(map(int, ran.read_text().split())), "every task ran")
    for name in OVER_AMQP:
        assert confirmed[name] <= found_in(name, second.ports.amqp), name
    for name in OVER_HTTP:
        assert confirmed[name] <= found_over_http(name, second.ports.http), name

"""SIGKILL under HTTP load: whatever was answered is there afterwards, and nothing is there twice."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.crash]


class Process:
    """``holt serve`` to be killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = 0

    def start(self) -> None:
        log = self._folder / "log"
        settings = {
            "HOLT_DATA_DIR": str(self._folder / "data"),
            "HOLT_AMQP_PORT": "0",
            "HOLT_HTTP_PORT": str(self.port),
            "HOLT_AMQP_HOST": "127.0.0.1",
            "HOLT_HTTP_HOST": "127.0.0.1",
        }
        with log.open("w") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holtmq", "serve"],
                env={**os.environ, **settings},
                stdout=out,
                stderr=out,
            )
        deadline = time.monotonic() + 30
        while not (found := re.search(r"http_port=(\d+)", log.read_text())):
            assert self._process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        self.port = int(found[1])

    def end(self, number: int) -> None:
        self._process.send_signal(number)
        self._process.wait(20)


class Load:
    """Pushers and a worker that moves messages on in transactions, until the broker is gone."""

    def __init__(self, url: str, round_: int) -> None:
        self._url = url
        self._round = round_
        self.pushed: list[str] = []  # answered 201
        self.moved: list[str] = []  # acked and pushed on in one answered transaction
        self._threads = [threading.Thread(target=self._push, args=(n,)) for n in range(3)]
        self._threads.append(threading.Thread(target=self._move))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(20)

    def _push(self, pusher: int) -> None:
        with httpx.Client(base_url=self._url, timeout=10) as http:
            for n in range(100_000):
                names = [f"{self._round}-{pusher}-{n}-{i}" for i in range(3)]
                items = [
                    {"queue": "in", "partition": f"p{pusher}", "payload": name, "transactionId": name}
                    for name in names
                ]
                try:
                    if http.post("/api/v1/push", json={"items": items}).status_code != 201:
                        return
                except httpx.TransportError:
                    return
                self.pushed += names

    def _move(self) -> None:
        with httpx.Client(base_url=self._url, timeout=10) as http:
            while True:
                try:
                    answer = http.get(
                        "/api/v1/pop/queue/in", params={"batch": 2, "wait": "true", "timeout": 500}
                    )
                    if answer.status_code != 200:
                        continue
                    messages = answer.json()["messages"]
                    operations = []
                    for m in messages:
                        ack = {name: m[name] for name in ("transactionId", "partitionId", "leaseId")}
                        push = {"queue": "out", "payload": m["data"], "transactionId": m["transactionId"]}
                        operations += [{"type": "ack", **ack}, {"type": "push", "items": [push]}]
                    done = http.post("/api/v1/transaction", json={"operations": operations})
                except httpx.TransportError:
                    return
                assert done.json()["success"] is True, done.text
                self.moved += [m["transactionId"] for m in messages]


def drain(http: httpx.Client, queue: str) -> list[str]:
    found: list[str] = []
    while True:
        params = {"batch": 500, "partitions": 8, "autoAck": "true"}
        answer = http.get(f"/api/v1/pop/queue/{queue}", params=params)
        if answer.status_code == 204:
            return found
        found += [message["transactionId"] for message in answer.json()["messages"]]


def test_whatever_was_answered_survives_and_comes_once(tmp_path: Path) -> None:
    broker = Process(tmp_path)
    pushed: list[str] = []
    moved: list[str] = []
    for round_ in range(3):
        broker.start()
        load = Load(f"http://127.0.0.1:{broker.port}", round_)
        load.start()
        time.sleep(0.6)
        broker.end(signal.SIGKILL)
        load.join()
        pushed += load.pushed
        moved += load.moved
    broker.start()

    with httpx.Client(base_url=f"http://127.0.0.1:{broker.port}", timeout=30) as http:
        left, out = drain(http, "in"), drain(http, "out")
    broker.end(signal.SIGTERM)

    assert len(pushed) > 30
    assert moved
    assert len(out) == len(set(out)), "moved on twice"
    assert len(left) == len(set(left))
    assert not set(left) & set(out), "both acked and still there"
    assert set(pushed) <= set(left) | set(out), "an answered push is gone"
    assert set(moved) <= set(out), "an answered transaction is undone"

"""A broker's data folder with a bit of everything in it, and what its clients were promised.

Owns: the process of a broker, the filling of a folder, and reading everything back through real clients.
Must not touch: the damage, and what is concluded from it.
"""

from __future__ import annotations

import io
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pika
import pyarrow as pa

from holtmq.broker.partitioned.store import UNREADABLE
from holtmq.config import Config, Journal, Limits
from holtmq.journal import JournalError
from holtmq.testing import TestBroker
from holtmq.testing.broker import BrokerDidNotStart

READY_SECONDS: Final = 240.0  # a busy machine is no fault
ANSWER_SECONDS: Final = 120.0
_WORK: Final = ("plain", "levels", "solid")
FANNED: Final = ("left", "right")  # each message is in both, and once in the journal
ROUNDS: Final = 5
_EACH: Final = 90
_SETTINGS: Final = {
    "HOLT_AMQP_PORT": "0",
    "HOLT_HTTP_PORT": "0",
    "HOLT_LOG_FORMAT": "json",
    "HOLT_JOURNAL_SEGMENT_BYTES": "65536",
    "HOLT_JOURNAL_CHECKPOINT_BYTES": "65536",
    "HOLT_LIMITS_DISK_FREE_MIN_BYTES": "0",
}


def letter_at(place: int) -> str:
    """The name of the message at this place of partition p0, from which dead letters come."""
    turn, index = divmod(place, _EACH // 3)
    return f"{turn}-{3 * index}"


Promise = dict[str, dict[str, str]]  # place -> message id -> body


class DidNotStart(Exception):
    """The process ended before it was ready; the text is its log."""


class BrokerProcess:
    """``holt serve`` on one folder, as a user runs it."""

    def __init__(self, folder: Path) -> None:
        self.log: list[str] = []
        keep = {name: value for name, value in os.environ.items() if not name.startswith("HOLT_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holtmq", "serve", "--data-dir", str(folder)],
            env=keep | _SETTINGS,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        ports: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read_log, args=(ports,), daemon=True)
        self._reader.start()
        try:
            found = ports.get(timeout=READY_SECONDS)
        except queue.Empty:
            self.kill()
            raise TimeoutError("the broker neither started nor ended") from None
        if found is None:
            self._close()
            raise DidNotStart("\n".join(self.log))
        self.amqp_port, self.http_port = found

    def _read_log(self, ports: queue.SimpleQueue[tuple[int, int] | None]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.log.append(line.rstrip())
            if line.startswith("{"):
                entry = json.loads(line)
                if "amqp_port" in entry:
                    ports.put((int(entry["amqp_port"]), int(entry["http_port"])))
        ports.put(None)

    def kill(self) -> None:
        """SIGKILL, without a word of warning."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self._close()

    def _close(self) -> None:
        self._process.wait(READY_SECONDS)
        self._reader.join(READY_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


class BrokerHere:
    """The same in this process, with a real disk and real sockets: it starts in milliseconds."""

    def __init__(self, folder: Path) -> None:
        self.log: list[str] = []
        self._handler = _Lines(self.log)
        logging.getLogger("holtmq").addHandler(self._handler)
        config = Config(
            limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
            journal=Journal(segment_bytes=65_536, checkpoint_bytes=65_536),
        )
        try:
            self._broker = TestBroker(folder, clock="real", config=config).start()
        except (BrokerDidNotStart, JournalError, OSError) as error:
            self._forget()
            raise DidNotStart(f"cannot start: {error}") from error
        self.amqp_port, self.http_port = self._broker.amqp_port, self._broker.http_port

    def kill(self) -> None:
        """Stop; the folder is thrown away."""
        self._broker.stop()
        self._forget()

    def _forget(self) -> None:
        logging.getLogger("holtmq").removeHandler(self._handler)


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.INFO)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))


class Clients:
    """Both doors of a running broker."""

    def __init__(self, broker: BrokerProcess | BrokerHere) -> None:
        url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/%2F?blocked_connection_timeout=120"
        self._amqp = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self._amqp.channel()
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{broker.http_port}", timeout=ANSWER_SECONDS, auth=("guest", "guest")
        )

    def close(self) -> None:
        self.http.close()
        if self._amqp.is_open:
            self._amqp.close()

    def call(self, method: str, path: str, body: object = None, **options: Any) -> Any:
        answer = self.http.request(method, path, json=body, **options)
        answer.raise_for_status()
        return answer.json() if answer.content else None


@dataclass(slots=True)
class Found:
    """What clients got back."""

    messages: Promise = field(default_factory=dict)
    health: dict[str, Any] = field(default_factory=dict)
    damaged: list[dict[str, Any]] = field(default_factory=list)
    gone: int = 0  # rows of a range that it said are gone


def fill(folder: Path, *, kill: bool, rounds: int = ROUNDS) -> Promise:
    """Write a folder through a broker, over several checkpoints; what was confirmed and not settled."""
    broker = BrokerProcess(folder)
    clients = Clients(broker)
    try:
        promise = _fill(clients, folder, rounds)
    finally:
        clients.close()
        if kill:
            broker.kill()
        else:
            broker.stop()
    return promise


def _fill(clients: Clients, folder: Path, rounds: int) -> Promise:
    channel = clients.channel
    channel.queue_declare("plain", durable=True)
    channel.queue_declare("levels", durable=True, arguments={"x-max-priority": 3})
    channel.queue_declare("solid", durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
    for place in FANNED:
        channel.queue_declare(place, durable=True)
        channel.queue_bind(place, "amq.fanout")
    promise: Promise = {name: {} for name in (*_WORK, *FANNED, "events", "log", "staged", "letters")}
    for turn in range(rounds):
        before = _newest_checkpoint(folder)
        for number in range(_EACH):
            name = f"{turn}-{number}"
            for place in (*_WORK, "events"):
                body = f"{place} {name} " + "x" * (number * 7 % 300)
                channel.basic_publish(
                    "",
                    place,
                    body.encode(),
                    pika.BasicProperties(delivery_mode=2, message_id=name, priority=number % 4),
                )
                promise[place][name] = body
            if number % 3 == 0:
                body = f"fanned {name}"
                properties = pika.BasicProperties(delivery_mode=2, message_id=name)
                channel.basic_publish("amq.fanout", "", body.encode(), properties)
                for place in FANNED:
                    promise[place][name] = body
            if number % 10 == 9:  # the answer comes when everything before it is durable
                channel.queue_declare(f"done-{name}", durable=True)
        for place in _WORK:  # every third one leaves
            for _ in range(_EACH // 3):
                method, properties, _ = channel.basic_get(place)
                channel.basic_ack(method.delivery_tag)
                del promise[place][properties.message_id]
        _push(clients, promise, turn)
        _stage(clients, promise, turn)
        if turn < rounds - 1:
            _wait_for_checkpoint(folder, before)
    channel.queue_declare("done", durable=True)  # answers after the acks before it
    return promise


def _push(clients: Clients, promise: Promise, turn: int) -> None:
    items = []
    for number in range(_EACH):
        name = f"{turn}-{number}"
        body = f"log {name} " + "y" * (number * 11 % 300)
        items.append({"queue": "log", "partition": f"p{number % 3}", "payload": body, "transactionId": name})
        promise["log"][name] = body
    clients.call("POST", "/api/v1/push", {"items": items})
    options = {"consumerGroup": "first", "batch": 3, "subscriptionMode": "all"}
    answer = clients.call("GET", "/api/v1/pop/queue/log/partition/p0", params=options)
    acks = [
        {
            **{key: row[key] for key in ("transactionId", "partitionId", "leaseId")},
            "status": "dlq",
            "error": "no",
        }
        for row in answer["messages"]
    ]
    clients.call("POST", "/api/v1/ack/batch", {"acknowledgments": acks, "consumerGroup": "first"})
    for row in answer["messages"]:
        promise["letters"][row["transactionId"]] = row["data"]


def _stage(clients: Clients, promise: Promise, turn: int) -> None:
    for task in (1, 0):
        names = [f"{turn}-{task}-{number}" for number in range(5)]
        sink = io.BytesIO()
        table = pa.table({"payload": [json.dumps(f"staged {name}") for name in names]})
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        where = f"/api/v1/staging/job/{turn}/{task}/0"
        clients.http.put(
            where, content=sink.getvalue(), params={"part": 0, "queue": "staged"}
        ).raise_for_status()
        promise["staged"].update((f"staged {name}", f"staged {name}") for name in names)
    tasks = [{"task": task, "attempt": 0, "rows": 5} for task in (0, 1)]
    clients.call("POST", f"/api/v1/staging/job/{turn}/commit", {"tasks": tasks})


def _newest_checkpoint(folder: Path) -> str:
    return max((path.name for path in folder.glob("*.ckpt")), default="")


def _wait_for_checkpoint(folder: Path, before: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while _newest_checkpoint(folder) <= before:
        if time.monotonic() > deadline:
            raise TimeoutError("no checkpoint was made")
        time.sleep(0.02)


def read_back(broker: BrokerProcess | BrokerHere) -> Found:
    """Everything that clients can get. Raises when a client gets an error, or waits in vain."""
    clients = Clients(broker)
    found = Found()
    try:
        names = {row["name"] for row in clients.call("GET", "/api/queues/%2F")}
        for place in (*_WORK, *FANNED):
            found.messages[place] = _get_all(clients, place) if place in names else {}
        for place in ("events", "staged"):
            found.messages[place] = _range(clients, place, found)
        found.messages["log"] = _pop_all(clients, "log")
        found.messages["letters"] = {
            row["transactionId"]: row["data"]
            for row in clients.call("GET", "/api/v1/dlq", params={"limit": 1000})["messages"]
            if row["transactionId"] != UNREADABLE  # a placeholder
        }
        found.health = clients.http.get("/health").json()
        found.damaged = clients.call("GET", "/api/v1/system/damaged")["messages"]
    finally:
        clients.close()
    return found


def _get_all(clients: Clients, place: str) -> dict[str, str]:
    messages: dict[str, str] = {}
    while True:
        method, properties, body = clients.channel.basic_get(place, auto_ack=True)
        if method is None:
            return messages
        messages[properties.message_id] = body.decode()


def _range(clients: Clients, place: str, found: Found) -> dict[str, str]:
    answer = clients.http.get(f"/api/v1/ranges/{place}/rows", params={"columns": "payload"})
    if answer.status_code == 404:
        return {}
    answer.raise_for_status()
    messages: dict[str, str] = {}
    with pa.ipc.open_stream(answer.content) as stream:
        gone = 0
        while True:
            try:
                batch, metadata = stream.read_next_batch_with_custom_metadata()
            except StopIteration:
                break
            gone = int(metadata["gone"]) if metadata else gone
            for row in batch["payload"].to_pylist():
                text = row.decode()
                body = json.loads(text) if text.startswith('"') else text
                messages[body.split(" ")[1] if place == "events" else body] = body
        found.gone += gone
    return messages


def _pop_all(clients: Clients, place: str) -> dict[str, str]:
    options = {
        "consumerGroup": "audit",
        "batch": 1000,
        "partitions": 10,
        "subscriptionMode": "all",
        "autoAck": "true",
    }
    messages: dict[str, str] = {}
    while True:
        answer = clients.http.get(f"/api/v1/pop/queue/{place}", params=options)  # type: ignore[arg-type]
        answer.raise_for_status()
        rows = answer.json()["messages"] if answer.status_code == 200 else []
        if not rows:
            return messages
        messages.update((row["transactionId"], row["data"]) for row in rows)

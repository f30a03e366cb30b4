"""A broker's data folder with a bit of everything in it, and what its clients were promised.

Owns: filling a folder, and reading everything back through real clients. Must not touch: the damage, and what
is concluded from it.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pika
import pyarrow as pa

from holtmq.broker.partitioned.store import UNREADABLE
from holtmq.journal.disk import OsDisk
from holtmq.journal.inspection import check
from holtmq.journal.records import SYNC_SIZE

from .brokers import READY_SECONDS, BrokerHere, BrokerProcess, Clients

_WORK: Final = ("plain", "levels", "solid")
FANNED: Final = ("left", "right")  # each message is in both, and once in the journal
LETTERS: Final = {"letters": "log", "dead": "doomed"}  # dead letters, and where the messages come from
STATE: Final = ("rows", "timers")  # whole in each checkpoint, not only referred to
PLACES: Final = (*_WORK, *FANNED, "events", "log", "staged", *LETTERS, "late", *STATE)
ROUNDS: Final = 5
_EACH: Final = 90
_SOME: Final = 10
_HOUR_MS: Final = 3_600_000

Promise = dict[str, dict[str, str]]  # place -> message id -> body


def letter_at(place: int) -> str:
    """The name of the message at this place of partition p0, from which dead letters come."""
    turn, index = divmod(place, _EACH // 3)
    return f"{turn}-{3 * index}"


@dataclass(slots=True)
class Found:
    """What clients got back."""

    messages: Promise = field(default_factory=dict)
    health: dict[str, Any] = field(default_factory=dict)
    damaged: list[dict[str, Any]] = field(default_factory=list)
    gone: int = 0  # rows of a range that it said are gone


def fill(
    folder: Path, *, kill: bool, rounds: int = ROUNDS, older: Path | None = None, letter: str = "x"
) -> Promise:
    """Write a folder through a broker, over several checkpoints; what was confirmed and not settled.

    ``older`` gets a copy made in between. Another ``letter`` makes other messages of the same sizes.
    """
    broker = BrokerProcess(folder)
    clients = Clients(broker)
    promise: Promise = {name: {} for name in PLACES}
    try:
        _declare(clients)
        for turn in range(rounds):
            before = _newest_checkpoint(folder)
            _Round(clients, promise, turn, letter).run()
            if turn < rounds - 1:
                _wait_for_checkpoint(folder, before)
            if turn == rounds // 2 and older is not None:
                shutil.copytree(folder, older)
        clients.channel.queue_declare("done", durable=True)  # answers after the acks before it
        _wait_until_sealed(folder)
    finally:
        clients.close()
        if kill:
            broker.kill()
        else:
            broker.stop()
    return promise


def _declare(clients: Clients) -> None:
    channel = clients.channel
    channel.queue_declare("plain", durable=True)
    channel.queue_declare("levels", durable=True, arguments={"x-max-priority": 3})
    channel.queue_declare("solid", durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_declare("dead", durable=True)
    buried: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("doomed", durable=True, arguments=buried)
    channel.queue_declare("late", durable=True)
    channel.exchange_declare(
        "waiting", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
    )
    channel.queue_bind("late", "waiting", "late")
    for place in FANNED:
        channel.queue_declare(place, durable=True)
        channel.queue_bind(place, "amq.fanout")


class _Round:
    """Messages of every kind, some of which leave again."""

    def __init__(self, clients: Clients, promise: Promise, turn: int, letter: str) -> None:
        self._clients = clients
        self._promise = promise
        self._turn = turn
        self._letter = letter

    def run(self) -> None:
        self._publish()
        self._settle()
        self._delay_and_bury()
        self._push()
        self._stage()
        self._keep_state()

    def _body(self, place: str, name: str, padding: int) -> str:
        return f"{place} {name} {self._letter}" + self._letter * padding

    def _names(self, count: int) -> Iterator[tuple[int, str]]:
        return ((number, f"{self._turn}-{number}") for number in range(count))

    def _publish(self) -> None:
        channel = self._clients.channel
        for number, name in self._names(_EACH):
            for place in (*_WORK, "events"):
                body = self._body(place, name, number * 7 % 300)
                channel.basic_publish(
                    "",
                    place,
                    body.encode(),
                    pika.BasicProperties(delivery_mode=2, message_id=name, priority=number % 4),
                )
                self._promise[place][name] = body
            if number % 3 == 0:
                body = self._body("fanned", name, 0)
                properties = pika.BasicProperties(delivery_mode=2, message_id=name)
                channel.basic_publish("amq.fanout", "", body.encode(), properties)
                for place in FANNED:
                    self._promise[place][name] = body
            if number % 10 == 9:  # the answer comes when everything before it is durable
                channel.queue_declare(f"done-{name}", durable=True)

    def _settle(self) -> None:
        """Every third one leaves."""
        channel = self._clients.channel
        for place in _WORK:
            for _ in range(_EACH // 3):
                method, properties, _ = channel.basic_get(place)
                channel.basic_ack(method.delivery_tag)
                del self._promise[place][properties.message_id]

    def _delay_and_bury(self) -> None:
        channel = self._clients.channel
        for number, name in self._names(_SOME):
            late = pika.BasicProperties(delivery_mode=2, message_id=name, headers={"x-delay": _HOUR_MS})
            body = self._promise["late"][name] = self._body("late", name, number)
            channel.basic_publish("waiting", "late", body.encode(), late)
            body = self._promise["dead"][name] = self._body("doomed", name, number)
            once = pika.BasicProperties(delivery_mode=2, message_id=name)
            channel.basic_publish("", "doomed", body.encode(), once)
        for _ in range(_SOME):
            method, _, _ = channel.basic_get("doomed")
            channel.basic_reject(method.delivery_tag, requeue=False)

    def _push(self) -> None:
        clients, promise = self._clients, self._promise
        items = []
        for number, name in self._names(_EACH):
            body = promise["log"][name] = self._body("log", name, number * 11 % 300)
            items.append(
                {"queue": "log", "partition": f"p{number % 3}", "payload": body, "transactionId": name}
            )
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

    def _stage(self) -> None:
        turn = self._turn
        for task in (1, 0):
            bodies = [self._body("staged", f"{turn}-{task}-{number}", 0) for number in range(5)]
            sink = io.BytesIO()
            table = pa.table({"payload": [json.dumps(body) for body in bodies]})
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            where = f"/api/v1/staging/job/{turn}/{task}/0"
            self._clients.http.put(
                where, content=sink.getvalue(), params={"part": 0, "queue": "staged"}
            ).raise_for_status()
            self._promise["staged"].update((body.split(" ")[1], body) for body in bodies)
        tasks = [{"task": task, "attempt": 0, "rows": 5} for task in (0, 1)]
        self._clients.call("POST", f"/api/v1/staging/job/{turn}/commit", {"tasks": tasks})

    def _keep_state(self) -> None:
        """Rows and timers, which are state and no messages."""
        rows, timers = [], []
        for number, name in self._names(_SOME):
            value = self._promise["rows"][name] = self._body("rows", name, number)
            rows.append({"op": "put", "ns": "damage", "key": f"k/{name}", "value": value, "forever": True})
            text = self._promise["timers"][name] = self._body("timers", name, number)
            payload = base64.b64encode(json.dumps(text).encode()).decode()
            timer = {"op": "schedule", "queue": "timed", "timerKey": name, "delayMs": _HOUR_MS}
            timers.append({**timer, "payload": payload})
        self._clients.call("POST", "/api/v1/kv", {"operations": rows})
        self._clients.call("POST", "/api/v1/timers", {"operations": timers})


def _newest_checkpoint(folder: Path) -> str:
    return max((path.name for path in folder.glob("*.ckpt")), default="")


def _wait_for_checkpoint(folder: Path, before: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while _newest_checkpoint(folder) <= before:
        if time.monotonic() > deadline:
            raise TimeoutError("no checkpoint was made")
        time.sleep(0.02)


def _wait_until_sealed(folder: Path) -> None:
    """Until two files say how far the log was durable: if a broker is killed before, one of them may not."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        with suppress(FileNotFoundError):  # a checkpoint deletes segments
            report = check(OsDisk(folder))
            end = max(segment.end for segment in report.segments)
            if not report.refusal and report.known_end + SYNC_SIZE >= end:
                return
        if time.monotonic() > deadline:
            raise TimeoutError("the log was not sealed")
        time.sleep(0.02)


def read_back(broker: BrokerProcess | BrokerHere) -> Found:
    """Everything that clients can get. Raises when a client gets an error, or waits in vain."""
    clients = Clients(broker)
    found = Found()
    try:
        names = {row["name"] for row in clients.call("GET", "/api/queues/%2F")}
        _end_delays(clients)
        for place in (*_WORK, *FANNED, "dead", "doomed", "late", AFTERWARDS):
            found.messages[place] = _get_all(clients, place) if place in names else {}
        for place in ("events", "staged"):
            found.messages[place] = _range(clients, place, found)
        found.messages["log"] = _pop_all(clients, "log")
        found.messages["letters"] = {
            row["transactionId"]: row["data"]
            for row in clients.call("GET", "/api/v1/dlq", params={"limit": 1000})["messages"]
            if row["transactionId"] != UNREADABLE  # a placeholder
        }
        found.messages["rows"] = _rows(clients)
        found.messages["timers"] = _timers(clients)
        found.health = clients.http.get("/health").json()
        found.damaged = clients.call("GET", "/api/v1/system/damaged")["messages"]
    finally:
        clients.close()
    return found


AFTERWARDS: Final = "afterwards"
_MORE: Final = 150


def go_on(broker: BrokerProcess | BrokerHere) -> dict[str, str]:
    """Publish enough for another checkpoint; return what was confirmed."""
    clients = Clients(broker)
    try:
        channel = clients.channel
        channel.queue_declare(AFTERWARDS, durable=True)
        channel.confirm_delivery()
        sent: dict[str, str] = {}
        for number in range(_MORE):
            body = sent[str(number)] = f"{AFTERWARDS} {number} " + "z" * 600
            properties = pika.BasicProperties(delivery_mode=2, message_id=str(number))
            channel.basic_publish("", AFTERWARDS, body.encode(), properties)
        return sent
    finally:
        clients.close()


def _end_delays(clients: Clients) -> None:
    """Deliver what is delayed, as far as it can be read."""
    for row in clients.call("GET", "/api/v1/delayed", params={"limit": 500})["messages"]:
        answer = clients.http.post(f"/api/v1/delayed/{row['id']}/deliver")
        if answer.is_error and "unreadable" not in row:
            answer.raise_for_status()


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
                messages[body.split(" ")[1]] = body
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


def _rows(clients: Clients) -> dict[str, str]:
    look = {"op": "getPrefix", "ns": "damage", "prefix": "k/", "limit": 1000}
    (answer,) = clients.call("POST", "/api/v1/kv", {"operations": [look]})["results"]
    return {row["key"].removeprefix("k/"): row["value"] for row in answer["rows"]}


def _timers(clients: Clients) -> dict[str, str]:
    found: dict[str, str] = {}
    for row in clients.call("GET", "/api/v1/timers/timed", params={"limit": 1000})["rows"]:
        key = row["timerKey"]
        payload = clients.call("GET", f"/api/v1/timers/timed/{key}")["payload"]
        found[key] = json.loads(base64.b64decode(payload))
    return found

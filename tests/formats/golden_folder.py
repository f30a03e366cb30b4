"""A small broker's life that leaves a record of every kind, and what must be found of it afterwards.

Owns: the folders under ``golden/``: ``python tests/formats/golden_folder.py NAME`` writes one with the
program as it is. A folder is never written again: it stands for the users who have such data.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pyarrow as pa

from holtmq.broker.partitioned.commands.staging_records import Winner
from holtmq.broker.records.checkpoint import snapshot
from holtmq.testing import TestBroker, VirtualClock
from holtmq.testing.faulty_node import FaultyNode

GOLDEN = Path(__file__).parent / "golden"
_DELAY_MS = 40 * 24 * 3600 * 1000
_WRITTEN_AT = 1_800_000_000.0
_SECRET = "a secret"

Contents = dict[str, Any]


class Golden:
    """Both doors of one broker."""

    def __init__(self, broker: TestBroker) -> None:
        self.broker = broker
        self.http = httpx.Client(base_url=broker.http_url, timeout=60, auth=("guest", "guest"))
        self.amqp = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        self.channel = self.amqp.channel()
        self.channel.confirm_delivery()
        self._pieces: Iterator[None] | None = None  # a commit that is not complete when the broker stops

    def close(self) -> None:
        self.amqp.close()
        self.http.close()

    def fill(self) -> None:
        """Before a checkpoint, and behind it."""
        self._topology()
        self._work("first")
        self._partitioned("first")
        self._checkpoint()
        self._work("second")
        self._partitioned("second")
        for _ in range(2):  # compaction waits until two checkpoints agree
            self._checkpoint()
        self._lease()
        self._stage_in_pieces()
        self._checkpoint()
        self._lease()
        self._publish_a_piece()
        self._stage()
        self._spool()

    def _checkpoint(self) -> None:
        done = self.broker.call(lambda node: node.journal.stats().checkpoints)
        self.broker.call(lambda node: node.journal.checkpoint(*snapshot(node.broker, node.partitioned.store)))
        while self.broker.call(lambda node: node.journal.stats().checkpoints) == done:
            pass

    def _topology(self) -> None:
        channel = self.channel
        self._call("PUT", "/api/vhosts/other")
        self._call("PUT", "/api/vhosts/gone")
        self._call("DELETE", "/api/vhosts/gone")
        self._call("PUT", "/api/users/anna", {"password": _SECRET, "tags": "monitoring"})
        self._call("PUT", "/api/users/gone", {"password": _SECRET, "tags": ""})
        grant = {"configure": "^a", "write": "^b", "read": ".*"}
        self._call("PUT", "/api/permissions/other/anna", grant)
        self._call("PUT", "/api/permissions/other/gone", grant)
        self._call("DELETE", "/api/permissions/other/gone")
        self._call("DELETE", "/api/users/gone")
        policy = {"pattern": "^work", "definition": {"max-length": 1000}, "apply-to": "queues"}
        self._call("PUT", "/api/policies/%2F/bounded", policy)
        self._call("PUT", "/api/policies/%2F/gone", policy)
        self._call("DELETE", "/api/policies/%2F/gone")
        channel.exchange_declare("orders", "topic", durable=True)
        channel.exchange_declare("gone", "fanout", durable=True)
        channel.exchange_delete("gone")
        channel.exchange_declare(
            "later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "topic"}
        )
        channel.queue_declare("work", durable=True)
        channel.queue_declare("levels", durable=True, arguments={"x-max-priority": 5})
        channel.queue_declare("solid", durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_declare("emptied", durable=True)
        channel.queue_declare("passing", durable=True)
        channel.queue_declare("gone", durable=True)
        channel.queue_delete("gone")
        channel.queue_bind("work", "orders", "order.#")
        channel.queue_bind("work", "orders", "gone")
        channel.queue_unbind("work", "orders", "gone")
        channel.queue_bind("work", "later", "order.#")

    def _work(self, when: str) -> None:
        for number in range(4):
            self._publish("orders", "order.new", f"{when}-{number}")
            self._publish("", "levels", f"{when}-{number}", priority=number)
            self._publish("", "solid", f"{when}-{number}")
            self._publish("", "events", f"{when}-{number}")
            self._publish("", "emptied", f"{when}-{number}")
        # The first of each is settled; of "solid" it comes back once more.
        self._settle("work")
        self._settle("solid")
        method, _, _ = self.channel.basic_get("solid")
        self.channel.basic_nack(method.delivery_tag, requeue=True)
        self.channel.queue_purge("emptied")
        self._publish("", "emptied", f"{when}-kept")
        delayed = pika.BasicProperties(delivery_mode=2, headers={"x-delay": _DELAY_MS})
        self.channel.basic_publish("later", "order.late", f"{when}-late".encode(), delayed)
        soon = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 10})
        self.channel.basic_publish("later", "order.soon", f"{when}-soon".encode(), soon)
        self.broker.clock.advance(seconds=1)
        lost = pika.BasicProperties(delivery_mode=1, headers={"x-delay": _DELAY_MS})
        self.channel.basic_publish("later", "order.late", f"{when}-lost".encode(), lost)
        transient = pika.BasicProperties(delivery_mode=1)
        for number in range(40):  # enough to leave memory, see ``write``
            self.channel.basic_publish("", "passing", f"{when}-{number}".encode(), transient)

    def _partitioned(self, when: str) -> None:
        self._call("POST", "/api/v1/configure", {"queue": "log", "options": {"retryLimit": 0}})
        items = [
            {
                "queue": "log",
                "partition": "north" if number % 2 else "south",
                "payload": {"when": when, "number": number},
                "transactionId": f"{when}-{number}",
            }
            for number in range(6)
        ]
        self._call("POST", "/api/v1/push", {"items": items})
        options: dict[str, str | int] = {"consumerGroup": "readers", "batch": 1, "subscriptionMode": "all"}
        (message,) = self._call("GET", "/api/v1/pop/queue/log/partition/north", params=options)["messages"]
        ack = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
        ack["consumerGroup"] = "readers"
        self._call("POST", "/api/v1/ack", {**ack, "status": "completed"})
        (message,) = self._call("GET", "/api/v1/pop/queue/log/partition/south", params=options)["messages"]
        ack |= {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
        self._call("POST", "/api/v1/ack", {**ack, "status": "failed", "error": "burnt"})
        trace = {
            "transactionId": ack["transactionId"],
            "partitionId": ack["partitionId"],
            "data": {"at": when},
        }
        self._call("POST", "/api/v1/traces", trace)
        where = f"/api/v1/messages/{message['partitionId']}/{when}-4"
        self._call("DELETE", where)
        self._call("PUT", f"/api/v1/kv/things/{when}", {"value": {"when": when}, "forever": True})
        timer = {"op": "schedule", "queue": "log", "timerKey": when, "delayMs": _DELAY_MS, "txn": f"t-{when}"}
        timer["payload"] = base64.b64encode(json.dumps({"timer": when}).encode()).decode()
        self._call("POST", "/api/v1/timers", {"operations": [timer]})
        query = {"name": "totals", "source_queue": "log", "config_hash": "h"}
        found = self._call("POST", "/streams/v1/queries", query)
        cycle = {"query_id": found["query_id"], "partition_id": message["partitionId"]}
        cycle["state_ops"] = [{"type": "upsert", "key": when, "value": 5}]
        self._call("POST", "/streams/v1/cycle", cycle)

    def _lease(self) -> None:
        """A worker that still has its messages when the broker stops."""
        options: dict[str, str | int] = {"consumerGroup": "holders", "batch": 2, "subscriptionMode": "all"}
        assert self._call("GET", "/api/v1/pop/queue/log", params=options)["messages"]
        self.broker.clock.advance(seconds=1)

    def _stage(self) -> None:
        for batch in range(2):
            for task in (1, 0):  # committed in another order than they were staged in
                self._stage_row("job", batch, task, "out")
        tasks = [{"task": task, "attempt": 0, "rows": 1} for task in (0, 1)]
        self._call("POST", "/api/v1/staging/job/0/commit", {"tasks": tasks})

    def _stage_in_pieces(self) -> None:
        """Two batches that several records publish: a whole one, and the first piece of another."""
        for batch in range(2):
            for task in range(3):
                self._stage_row("pieces", batch, task, "pieces")
        tasks = [{"task": task, "attempt": 0, "rows": 1} for task in range(3)]
        self._call("POST", "/api/v1/staging/pieces/0/commit", {"tasks": tasks})
        self._publish_a_piece()

    def _publish_a_piece(self) -> None:
        def publish(node: FaultyNode) -> None:
            staging, clock = node.partitioned.staging, node.clock
            if self._pieces is None:
                self._pieces = staging.commit("pieces", 1, [Winner(task, 0, 1) for task in range(3)], clock())
            before = node.journal.end
            while node.journal.end == before:
                next(self._pieces)

        self.broker.call(publish)

    def _stage_row(self, writer: str, batch: int, task: int, queue: str) -> None:
        sink = io.BytesIO()
        table = pa.table({"payload": [json.dumps({"batch": batch, "task": task})]})
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        where = f"/api/v1/staging/{writer}/{batch}/{task}/0"
        answer = self.http.put(where, content=sink.getvalue(), params={"part": 0, "queue": queue})
        assert answer.status_code == 200, answer.text

    def _spool(self) -> None:
        self._call("POST", "/api/v1/system/maintenance", {"enabled": True})
        self._call("POST", "/api/v1/push", {"items": [{"queue": "log", "payload": 1, "transactionId": "s1"}]})
        self._call("POST", "/api/v1/system/maintenance", {"enabled": False})
        self._call("POST", "/api/v1/system/maintenance", {"enabled": True})
        self._call("POST", "/api/v1/push", {"items": [{"queue": "log", "payload": 2, "transactionId": "s2"}]})

    def _publish(self, exchange: str, key: str, body: str, priority: int = 3) -> None:
        properties = pika.BasicProperties(
            delivery_mode=2, headers={"colour": "green"}, priority=priority, message_id=body
        )
        self.channel.basic_publish(exchange, key, body.encode(), properties)

    def _settle(self, queue: str) -> None:
        method, _, _ = self.channel.basic_get(queue)
        self.channel.basic_ack(method.delivery_tag)

    def _call(self, method: str, path: str, body: object = None, **options: Any) -> Any:
        answer = self.http.request(method, path, json=body, **options)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def contents(self) -> Contents:
        """Everything that was kept, as its readers see it. Reading takes the messages out."""
        work = {name: self._drain(name) for name in ("work", "levels", "solid", "emptied", "passing")}
        spooled = self._call("GET", "/api/v1/system/maintenance")["bufferedMessages"]
        self._call("POST", "/api/v1/system/maintenance", {"enabled": False})
        rows = pa.ipc.open_stream(self.http.get("/api/v1/ranges/events/rows").content).read_all()
        vhosts = sorted(row["name"] for row in self._call("GET", "/api/vhosts"))
        grants = self._call("GET", "/api/permissions/other/anna")
        (policy,) = self._call("GET", "/api/policies")
        self.broker.call(lambda node: deque(node.partitioned.staging.finish(node.clock()), maxlen=0))
        pieces = self._popped("pieces", "audit")  # from the third format on
        leases = self._leases()  # from the fourth on
        return {
            **({"pieces": pieces} if pieces else {}),
            **({"leases": leases} if leases else {}),
            "work": work,
            "stream": [payload.decode() for payload in rows["payload"].to_pylist()],
            "log": self._popped("log", "audit"),
            "readers": self._popped("log", "readers"),
            "out": self._popped("out", "audit"),
            "spooled": spooled,
            "letters": sorted(
                (letter["transactionId"], letter["errorMessage"])
                for letter in self._call("GET", "/api/v1/dlq")["messages"]
            ),
            "timers": [
                (row["timerKey"], row["txn"]) for row in self._call("GET", "/api/v1/timers/log")["rows"]
            ],
            "rows": [self._call("GET", f"/api/v1/kv/things/{key}")["value"] for key in ("first", "second")],
            "vhosts": vhosts,
            "grant": [grants[name] for name in ("configure", "write", "read")],
            "policy": [policy[name] for name in ("name", "pattern", "definition", "apply-to")],
            "bindings": sorted(
                (row["source"], row["destination"], row["routing_key"])
                for row in self._call("GET", "/api/bindings/%2F")
                if row["source"]
            ),
            "users": sorted((row["name"], str(row["tags"])) for row in self._call("GET", "/api/users")),
            "committed": self._call(
                "POST", "/api/v1/staging/job/0/commit", {"tasks": [{"task": 0, "attempt": 0, "rows": 1}]}
            )["repeated"],
            "delayed": self._delayed(),  # last: it moves the clock on
        }

    def _leases(self) -> list[list[object]]:
        def find(node: FaultyNode) -> list[list[object]]:
            group = node.partitioned.store.queues["log"].groups.get("holders")
            held = [] if group is None else group.leases.live(node.clock())
            return sorted([lease.id, lease.partition, lease.first, lease.end] for lease in held)

        return self.broker.call(find)

    def _drain(self, queue: str) -> list[list[object]]:
        found: list[list[object]] = []
        while True:
            method, properties, body = self.channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            assert properties is not None
            headers = {
                key: value for key, value in (properties.headers or {}).items() if key != "x-delivery-count"
            }
            found.append([body.decode(), properties.message_id, properties.priority, headers])

    def _delayed(self) -> list[str]:
        self.broker.clock.advance(seconds=_DELAY_MS / 1000 + 10)
        return sorted(str(row[0]) for row in self._drain("work"))

    def _popped(self, queue: str, group: str) -> list[list[object]]:
        options: dict[str, str | int] = {
            "consumerGroup": group,
            "batch": 100,
            "subscriptionMode": "all",
            "autoAck": "true",
        }
        found: list[list[object]] = []
        while True:
            answer = self.http.get(f"/api/v1/pop/queue/{queue}", params=options)
            assert answer.status_code in (200, 204), answer.text
            messages = answer.json()["messages"] if answer.status_code == 200 else []
            if not messages:
                return sorted(found, key=str)
            found += [[row["partition"], row["transactionId"], row["data"]] for row in messages]


def start(folder: Path) -> TestBroker:
    """A broker on a folder, at the time at which all of them were written."""
    return TestBroker(folder, clock=VirtualClock(_WRITTEN_AT))


def write(folder: Path) -> None:
    """Fill a new folder. Segments and what stays in memory are small, so that few messages are enough."""
    from holtmq.broker.partitioned.commands import staging
    from holtmq.broker.partitioned.log import snapshot as queue_records
    from holtmq.broker.work import spilling_fifo
    from holtmq.testing import broker as testing

    spilling_fifo.HEAD_MAX, spilling_fifo.HEAD_KEEP, spilling_fifo.TAIL_MAX = 16, 8, 4  # type: ignore[misc]
    staging.ATOMIC_ROWS, staging.PIECE_ROWS = 2, 1  # type: ignore[misc]
    queue_records.ALONE = 5  # type: ignore[misc]
    testing._SEGMENT_BYTES = 6 << 10  # type: ignore[misc]
    with start(folder) as broker:
        golden = Golden(broker)
        golden.fill()
        golden.close()
    (folder / "lock").unlink()


def read(folder: Path) -> Contents:
    """What a broker finds in a folder, which is used up by it."""
    with start(folder) as broker:
        golden = Golden(broker)
        try:
            found: Contents = json.loads(json.dumps(golden.contents()))
            return found
        finally:
            golden.close()


if __name__ == "__main__":
    kept = GOLDEN / sys.argv[1]
    write(kept)
    with tempfile.TemporaryDirectory() as scratch:
        found = read(Path(shutil.copytree(kept, Path(scratch) / "data")))
    (GOLDEN / f"{sys.argv[1]}.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")

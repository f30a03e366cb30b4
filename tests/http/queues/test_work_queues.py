"""HTTP pushes to and pops from work queues: one queue, both front doors."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pika
import pyarrow as pa
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.journal import FileJournal
from holtmq.journal.interface import DurableCallback
from holtmq.testing import TestBroker
from holtmq.testing.views import work_queue


@pytest.fixture
def both_doors() -> Iterator[tuple[TestBroker, httpx.Client, BlockingChannel]]:
    with TestBroker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        channel.queue_declare("jobs", durable=True)
        channel.confirm_delivery()
        with httpx.Client(base_url=broker.http_url, timeout=60) as client:
            yield broker, client, channel
        connection.close()


def push(client: httpx.Client, *payloads: Any) -> list[dict[str, Any]]:
    items = [{"queue": "jobs", "payload": p, "transactionId": f"t{n}"} for n, p in enumerate(payloads)]
    answer = client.post("/api/v1/push", json={"items": items})
    assert answer.status_code == 201
    found: list[dict[str, Any]] = answer.json()
    return found


def pop(client: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    answer = client.get("/api/v1/pop/queue/jobs", params={"batch": 10, **query})
    if answer.status_code == 204:
        return []
    assert answer.status_code == 200
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


def ack(client: httpx.Client, message: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    fields = {key: message[key] for key in ("transactionId", "partitionId", "leaseId")}
    answer = client.post("/api/v1/ack", json={**fields, "status": status})
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()[0]
    return found


def consumers(channel: BlockingChannel) -> int:
    count: int = channel.queue_declare("jobs", passive=True).method.consumer_count
    return count


def unacked(broker: TestBroker) -> int:
    # Not ``call``, which waits for the disk.
    return broker._run(lambda node: work_queue(node.broker, "jobs").unacked)


def test_what_http_pushes_an_amqp_consumer_gets(both_doors: Any) -> None:
    _, client, channel = both_doors

    results = push(client, {"n": 1}, [2])
    first, second = (channel.basic_get("jobs", auto_ack=True) for _ in range(2))

    assert [result["status"] for result in results] == ["queued", "queued"]
    assert (first[2], second[2]) == (b'{"n":1}', b"[2]")
    assert first[1].message_id == "t0"
    assert first[1].content_type == "application/json"


def test_what_amqp_publishes_an_http_worker_leases_and_settles(both_doors: Any) -> None:
    broker, client, channel = both_doors
    for body in (b'{"n":1}', b"plain"):
        channel.basic_publish("", "jobs", body, pika.BasicProperties(delivery_mode=2))

    messages = pop(client)
    meanwhile = pop(client)
    answers = [ack(client, message) for message in messages]

    assert [message["data"] for message in messages] == [{"n": 1}, "plain"]
    assert meanwhile == []
    assert all(answer["success"] for answer in answers)
    assert broker.queue_depth("jobs") == 0
    assert broker.unacked("jobs") == []


def test_a_lease_that_runs_out_gives_the_message_to_the_next(both_doors: Any) -> None:
    broker, client, _ = both_doors
    push(client, "a")

    held = pop(client, leaseSeconds=5)
    broker.clock.advance(seconds=6)
    again = pop(client)
    late = ack(client, held[0])

    assert [message["deliveryAttempt"] for message in again] == [2]
    assert not late["success"]
    assert late["error"] == "Invalid or expired lease"


def test_messages_of_one_id_in_one_lease_are_settled_one_by_one(both_doors: Any) -> None:
    broker, client, channel = both_doors
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", "jobs", body, pika.BasicProperties(message_id="same"))
    held = pop(client, leaseSeconds=30)
    assert [message["data"] for message in held] == [1, 2, 3]

    assert ack(client, held[0])["success"]
    assert ack(client, held[1])["success"]
    broker.clock.advance(seconds=31)

    assert not ack(client, held[2])["success"]
    assert [message["data"] for message in pop(client)] == [3]


def test_an_id_that_is_no_text_is_spelled_out(both_doors: Any) -> None:
    _, client, channel = both_doors
    for body, id_ in ((b"1", b"a\xff"), (b"2", b"b")):
        channel.basic_publish("", "jobs", body, pika.BasicProperties(message_id=id_))

    held = pop(client)

    assert [(message["transactionId"], message["data"]) for message in held] == [("a\\xff", 1), ("b", 2)]
    assert ack(client, held[0])["success"]


def test_a_transaction_settles_as_many_messages_of_one_id_as_it_holds(both_doors: Any) -> None:
    broker, client, channel = both_doors
    for body in (b"1", b"2"):
        channel.basic_publish("", "jobs", body, pika.BasicProperties(message_id="same"))
    held = pop(client, leaseSeconds=30)
    acks = [
        {"type": "ack", **{key: message[key] for key in ("transactionId", "partitionId", "leaseId")}}
        for message in held
    ]

    refused = client.post("/api/v1/transaction", json={"operations": [*acks, acks[0]]}).json()
    done = client.post("/api/v1/transaction", json={"operations": acks}).json()
    broker.clock.advance(seconds=31)

    assert (refused["success"], refused["error"]) == (
        False,
        "ACK operation failed: The message is already settled",
    )
    assert done["success"]
    assert pop(client) == []


def test_what_a_worker_has_held_is_known_to_be_delivered_after_a_crash() -> None:
    with TestBroker() as broker, httpx.Client(base_url=broker.http_url, timeout=60) as client:
        with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
            connection.channel().queue_declare("jobs", durable=True)
        push(client, 1, 2, 3)
        pop(client, batch=2)
        broker.clock.advance(milliseconds=100)
        broker.call(lambda node: node.journal.flush())

        broker.crash_and_restart()

        (again,) = pop(client, batch=1)
        with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
            channel = connection.channel()
            held, new = (channel.basic_get("jobs", auto_ack=True)[0].redelivered for _ in range(2))
    assert again["deliveryAttempt"] == 2
    assert (held, new) == (True, False)


def test_a_renewed_lease_lasts(both_doors: Any) -> None:
    broker, client, _ = both_doors
    push(client, "a")
    held = pop(client, leaseSeconds=5)

    renewed = client.post(f"/api/v1/lease/{held[0]['leaseId']}/extend", json={"seconds": 60}).json()
    broker.clock.advance(seconds=6)

    assert renewed["success"]
    assert pop(client) == []
    assert ack(client, held[0])["success"]


def test_a_nack_puts_the_message_back_and_dlq_sends_it_to_the_dead_letter_exchange(both_doors: Any) -> None:
    _, client, channel = both_doors
    channel.queue_delete("jobs")
    channel.queue_declare("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("jobs", durable=True, arguments=arguments)
    push(client, "a")

    ack(client, pop(client)[0], "failed")
    again = pop(client)
    verdict = ack(client, again[0], "dlq")

    assert again[0]["deliveryAttempt"] == 2
    assert verdict["dlq"]
    assert channel.basic_get("dead", auto_ack=True)[2] == b'"a"'


def test_a_waiting_pop_is_woken_by_an_amqp_publish(both_doors: Any) -> None:
    _, client, channel = both_doors
    got: list[dict[str, Any]] = []
    worker = threading.Thread(target=lambda: got.extend(pop(client, wait="true", timeout=60_000)))
    worker.start()
    while not consumers(channel):
        pass

    channel.basic_publish("", "jobs", b"1", pika.BasicProperties(delivery_mode=2))
    worker.join(60)

    assert [message["data"] for message in got] == [1]
    assert consumers(channel) == 0


def test_what_a_worker_did_not_get_because_it_had_left_goes_to_the_next(both_doors: Any) -> None:
    broker, client, channel = both_doors
    with socket.create_connection(("127.0.0.1", broker.http_port)) as worker:
        worker.sendall(b"GET /api/v1/pop/queue/jobs?wait=true HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        _until(lambda: consumers(channel) == 1)
        broker.disk.stall()  # the answer waits for the record of the delivery
        publisher = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        publisher.channel().basic_publish("", "jobs", b"1", pika.BasicProperties(delivery_mode=2))
        _until(lambda: unacked(broker) == 1)
    _until(lambda: broker._run(lambda node: len(node.http.engine.connections)) == 0)

    broker.disk.resume()
    publisher.close()

    _until(lambda: unacked(broker) == 0)
    (message,) = pop(client)
    assert (message["data"], message["deliveryAttempt"]) == (1, 2)


def test_a_pop_is_no_consumer_of_an_auto_delete_queue(both_doors: Any) -> None:
    broker, client, channel = both_doors
    channel.queue_declare("passing", durable=True, auto_delete=True)
    path, wait = "/api/v1/pop/queue/passing", {"wait": "true", "timeout": "60000"}
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(client.get, path, params=wait)
        _until(lambda: broker.call(lambda node: len(work_queue(node.broker, "passing").consumers)) == 1)
        for body in (b"1", b"2"):
            channel.basic_publish("", "passing", body)
        first = served.result(60).json()["messages"]
        (second,) = client.get(path).json()["messages"]

        in_vain = pool.submit(client.get, path, params=wait)
        _until(lambda: broker.call(lambda node: len(work_queue(node.broker, "passing").consumers)) == 1)
        channel.basic_cancel(channel.basic_consume("passing", lambda *_: None))
        empty = in_vain.result(60)

    assert [message["data"] for message in (*first, second)] == [1, 2]
    assert empty.status_code == 204
    assert broker.queues() == ["jobs"]


def test_a_pop_that_may_not_wait_leaves_nothing_behind(
    both_doors: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker, _, channel = both_doors
    channel.basic_consume("jobs", lambda *_: None, exclusive=True)

    with httpx.Client(base_url=broker.http_url, timeout=60) as client:
        path, wait = "/api/v1/pop/queue/jobs", {"wait": "true", "timeout": "60"}
        answer = client.get(path, params=wait)
        time.sleep(0.1)  # as long as it would have waited

    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_string_comes_back_as_the_string_that_was_pushed(both_doors: Any) -> None:
    _, client, channel = both_doors
    push(client, "tea", "")
    channel.basic_publish("", "jobs", b'"cake"', pika.BasicProperties(content_type="application/json"))
    channel.basic_publish("", "jobs", b"{broken", pika.BasicProperties(content_type="application/json"))
    channel.basic_publish("", "jobs", b'"quoted"')

    assert [message["data"] for message in pop(client)] == ["tea", "", "cake", "{broken", '"quoted"']


def test_an_answer_waits_for_a_journal_that_has_what_was_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_for: list[int] = []
    on_durable = FileJournal.on_durable

    def watched(journal: FileJournal, callback: DurableCallback) -> None:
        waited_for.append(journal.end)
        on_durable(journal, callback)

    with TestBroker(durable=True) as broker, httpx.Client(base_url=broker.http_url, timeout=120) as client:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        connection.channel().queue_declare("jobs", durable=True)
        connection.close()
        push(client, 1, 2, 3)
        (first,) = pop(client, batch=1)
        monkeypatch.setattr(FileJournal, "on_durable", watched)

        for settles in (lambda: ack(client, first), lambda: pop(client, batch=1, autoAck="true")):
            before = broker.call(lambda node: node.journal.end)
            settles()
            assert waited_for[-1] > before, "the answer waited for a journal without it"


def transact(client: httpx.Client, *operations: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = client.post("/api/v1/transaction", json={"operations": operations, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def pushed(queue: str, name: str) -> dict[str, Any]:
    return {"type": "push", "items": [{"queue": queue, "payload": name, "transactionId": name}]}


def acked(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    fields = {key: message[key] for key in ("transactionId", "partitionId", "leaseId")}
    return {"type": "ack", **fields, **more}


def pop_from(client: httpx.Client, queue: str) -> list[dict[str, Any]]:
    answer = client.get(f"/api/v1/pop/queue/{queue}", params={"batch": 10})
    found: list[dict[str, Any]] = answer.json()["messages"] if answer.status_code == 200 else []
    return found


def test_a_transaction_takes_from_a_work_queue_and_gives_to_a_partitioned_one(both_doors: Any) -> None:
    broker, client, _ = both_doors
    push(client, "a")
    (message,) = pop(client)

    answer = transact(client, acked(message), pushed("log", "b"))

    assert (answer["success"], [result["index"] for result in answer["results"]]) == (True, [0, 1])
    ack_result, push_result = answer["results"]
    assert (ack_result["type"], ack_result["transactionId"], ack_result["success"]) == ("ack", "t0", True)
    assert (ack_result["error"], ack_result["dlq"], ack_result["leaseReleased"]) == (None, False, True)
    assert (push_result["type"], push_result["duplicate"], push_result["queueName"]) == ("push", False, "log")
    assert (broker.messages("jobs"), ack(client, message)["success"]) == ([], False)
    assert [m["data"] for m in pop_from(client, "log")] == ["b"]


def test_a_transaction_takes_from_a_partitioned_queue_and_gives_to_a_work_queue(both_doors: Any) -> None:
    _, client, channel = both_doors
    client.post("/api/v1/push", json={"items": [{"queue": "log", "payload": 1, "transactionId": "a"}]})
    (message,) = pop_from(client, "log")

    answer = transact(client, pushed("jobs", "b"), acked(message))

    push_result, ack_result = answer["results"]
    assert answer["success"] is True
    assert (push_result["index"], push_result["type"], push_result["success"]) == (0, "push", True)
    assert (push_result["transactionId"], push_result["queueName"]) == ("b", "jobs")
    assert push_result["partitionId"].startswith("w")
    assert (ack_result["index"], ack_result["type"], ack_result["success"]) == (1, "ack", True)
    _, properties, body = channel.basic_get("jobs", auto_ack=True)
    assert (properties.message_id, body) == ("b", b'"b"')
    assert pop_from(client, "log") == []


def test_a_refused_part_of_either_kind_refuses_the_transaction(both_doors: Any) -> None:
    broker, client, channel = both_doors
    channel.queue_declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    push(client, "a")
    (message,) = pop(client)

    lost = transact(client, pushed("log", "b"), acked(message, leaseId="another"))
    unknown = transact(client, pushed("log", "b"), acked(message, partitionId="w999", leaseId=None))
    required = transact(
        client, pushed("log", "b"), acked(message, leaseId=None), requiredLeases=["another one"]
    )
    other_kind = transact(
        client, acked(message), pushed("jobs", "b"), acked(message, partitionId="77", leaseId=None)
    )
    full = transact(client, pushed("full", "b"), acked(message), pushed("log", "b"))

    assert lost["error"] == "ACK operation failed: Invalid or expired lease; transaction rolled back"
    assert unknown["error"] == "ACK operation failed: Message not found"
    assert required["error"] == "ACK operation failed: Invalid or expired lease"
    assert other_kind["error"] == "ACK operation failed: Message not found"
    assert full["error"] == "queue full is full and refuses publishers"
    assert not any(answer["success"] or answer["results"] for answer in (lost, unknown, other_kind, full))
    assert broker.messages("jobs") == []
    assert pop_from(client, "log") == []
    assert transact(client, acked(message), pushed("log", "b"))["success"] is True


def test_a_transaction_s_answer_waits_until_both_kinds_are_durable() -> None:
    with TestBroker(durable=True) as broker, httpx.Client(base_url=broker.http_url, timeout=120) as client:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        connection.channel().queue_declare("jobs", durable=True)
        connection.close()
        push(client, "a", "b")
        first, _ = pop(client)

        assert transact(client, acked(first), pushed("log", "c"), pushed("jobs", "d"))["success"] is True
        broker.crash_and_restart()

        with httpx.Client(base_url=broker.http_url, timeout=120) as again:
            assert [m["data"] for m in pop(again)] == ["b", "d"]
            assert [m["data"] for m in pop_from(again, "log")] == ["c"]


def test_nothing_hides_a_work_queue_behind_a_partitioned_one_of_its_name(both_doors: Any) -> None:
    broker, client, _ = both_doors
    client.post("/api/v1/push", json={"items": [{"queue": "log", "payload": 1, "transactionId": "a"}]})
    (message,) = pop_from(client, "log")
    query = {"name": "q", "source_queue": "log", "sink_queue": "jobs", "config_hash": "h"}
    query_id = client.post("/streams/v1/queries", json=query).json()["query_id"]
    cycle = {
        "query_id": query_id,
        "partition_id": message["partitionId"],
        "push_items": [{"queue": "jobs", "payload": 1}],
        "ack": {"transactionId": "a", "leaseId": message["leaseId"]},
    }

    answers = [
        client.post("/api/v1/configure", json={"queue": "jobs", "options": {}}),
        client.post("/streams/v1/cycle", json=cycle),
    ]

    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(409, "work_queue")] * 2
    push(client, 1)
    assert [stored.body for stored in broker.messages("jobs")] == [b"1"]
    assert transact(client, acked(message))["success"] is True


def test_timers_letters_and_staged_rows_do_not_hide_one_either(both_doors: Any) -> None:
    _, client, _ = both_doors
    client.post("/api/v1/push", json={"items": [{"queue": "log", "payload": 1, "transactionId": "a"}]})
    (message,) = pop_from(client, "log")
    ack = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
    client.post("/api/v1/ack", json={**ack, "status": "dlq"})
    (letter,) = client.get("/api/v1/dlq").json()["messages"]
    timer = {"op": "schedule", "queue": "jobs", "timerKey": "t", "payload": "MQ==", "delayMs": 1}
    rows = pa.table({"payload": [b"1"]})
    body = pa.BufferOutputStream()
    with pa.ipc.new_stream(body, rows.schema) as stream:
        stream.write_table(rows)

    answers = [
        client.post("/api/v1/timers", json={"operations": [timer]}),
        client.post("/api/v1/transaction", json={"operations": [], "timers": [timer]}),
        client.post(f"/api/v1/dlq/{letter['id']}/replay", json={"queue": "jobs"}),
        client.put("/api/v1/staging/w/0/0/0?queue=jobs", content=body.getvalue().to_pybytes()),
    ]

    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(409, "work_queue")] * 4

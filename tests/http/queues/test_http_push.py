"""Pushing over HTTP: results, duplicates, refusals."""

import json
from typing import Any

import pytest
from http_support import Api, address, ids

from holtmq.node import Node
from holtmq.testing import TestBroker


def test_a_push_answers_one_result_per_item_in_order(api: Api) -> None:
    answer = api.post(
        "/api/v1/push",
        {"items": [{"queue": "a", "payload": 1, "transactionId": "x"}, {"queue": "b", "payload": 2}]},
    )

    assert answer.status_code == 201
    first, second = answer.json()
    assert (first["index"], first["status"], first["transaction_id"]) == (0, "queued", "x")
    assert (first["queueName"], second["queueName"]) == ("a", "b")
    assert first["trace_id"] is None
    assert first["partition_id"] != second["partition_id"]
    assert len(second["transaction_id"]) == 36


def test_an_empty_push_is_answered_with_an_empty_array(api: Api) -> None:
    answer = api.post("/api/v1/push", {"items": []})

    assert (answer.status_code, answer.json()) == (201, [])


def test_a_duplicate_names_the_original_and_changes_nothing(api: Api) -> None:
    (first,) = api.push("q", "same")

    again = api.post(
        "/api/v1/push",
        {"items": [{"queue": "q", "payload": "other", "transactionId": "same"} for _ in range(2)]},
    )

    assert again.status_code == 201
    assert [row["status"] for row in again.json()] == ["duplicate", "duplicate"]
    assert {row["message_id"] for row in again.json()} == {first["message_id"]}
    assert [message["data"] for message in api.pop("q")] == [{"id": "same"}]


def test_within_one_call_the_first_is_queued_and_the_others_are_its_duplicates(api: Api) -> None:
    rows = api.push("q", "same", "same", "new")

    assert [row["status"] for row in rows] == ["queued", "duplicate", "queued"]
    assert rows[0]["message_id"] == rows[1]["message_id"]


def test_the_same_id_in_another_partition_is_another_message(api: Api) -> None:
    api.push("q", "same", partition="one")

    (row,) = api.push("q", "same", partition="two")

    assert row["status"] == "queued"


@pytest.mark.parametrize("payload", [None, {}, [], "", 0, False, {"a": None}, "é☃𝄞", 1e300, "x" * 2_500_000])
def test_a_payload_comes_back_as_it_went(api: Api, payload: Any) -> None:
    api.post("/api/v1/push", {"items": [{"queue": "q", "payload": payload}]})

    (message,) = api.pop("q")

    assert message["data"] == payload


def test_payload_bytes_are_not_rewritten(api: Api) -> None:
    text = b'{ "big": 12345678901234567890123, "same": 1, "same": 2 }'
    api.http.post("/api/v1/push", content=b'{"items":[{"queue":"q","payload":' + text + b"}]}")

    assert text in api.get("/api/v1/pop/queue/q").content


def test_a_missing_payload_is_null(api: Api) -> None:
    api.post("/api/v1/push", {"items": [{"queue": "q"}]})

    assert api.pop("q")[0]["data"] is None


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Empty request body"),
        (b"   ", "Empty request body"),
        (b"{}", "items array is required"),
        (b"[]", "items array is required"),
        (b'{"items":{}}', "items array is required"),
        (b'{"items":null}', "items array is required"),
        (b'{"items":[{"payload":1}]}', "queue is required"),
        (b'{"items":[{"queue":""}]}', "queue is required"),
        (b'{"items":[{"queue":7}]}', "Queue must be a string"),
        (b'{"items":[{"queue":"q","partition":7}]}', "Partition must be a string"),
        (b'{"items":[{"queue":"q","transactionId":7}]}', "TransactionId must be a string"),
        (b'{"items":[{"queue":"q","traceId":7}]}', "TraceId must be a string"),
    ],
)
def test_a_push_of_the_wrong_shape_is_refused_by_name(api: Api, body: bytes, text: str) -> None:
    answer = api.http.post("/api/v1/push", content=body)

    assert (answer.status_code, answer.json()["error"]) == (400, text)
    assert api.get("/api/v1/resources/queues").json() == {"queues": []}


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"items":[{"queue":"q","payload":"\xff"}]}',
        b'{"items":[{"queue":"q","payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
        b'{"items":[{"queue":"q","payload":NaN}]}',
    ],
    ids=["cut", "not text", "deep", "not JSON"],
)
def test_what_is_not_json_is_refused_and_not_stored(api: Api, body: bytes) -> None:
    answer = api.http.post("/api/v1/push", content=body)

    assert answer.status_code == 400
    assert answer.json()["error"].startswith("Invalid JSON")
    assert api.pop("q") == []


def test_a_trace_id_is_kept_when_it_is_one_and_dropped_when_not(api: Api) -> None:
    trace = "0123abcd-0123-4567-89ab-0123456789ab"
    api.push("q", "a", traceId=trace)
    api.push("q", "b", traceId="not a uuid")

    assert [message["traceId"] for message in api.pop("q")] == [trace, None]


def test_a_producer_cannot_name_itself(api: Api) -> None:
    api.push("q", "a", producerSub="admin")

    assert api.pop("q")[0]["producerSub"] is None


def test_a_full_queue_refuses_with_429_and_stores_nothing(api: Api) -> None:
    api.configure("q", maxSize=2)
    api.push("q", "a", "b")

    answer = api.post("/api/v1/push", {"items": [{"queue": "q", "payload": 1}, {"queue": "other"}]})

    assert (answer.status_code, answer.json()["code"]) == (429, "queue_full")
    assert answer.headers["retry-after"] == "1"
    assert ids(api.pop("q")) == ["a", "b"]
    assert api.pop("other") == []


def test_a_dotted_queue_is_filed_under_namespace_and_task(api: Api) -> None:
    api.push("shop.orders.eu", "a")

    queue = api.get("/api/v1/resources/queues/shop.orders.eu").json()

    assert (queue["namespace"], queue["task"]) == ("shop", "orders")


def test_message_ids_sort_in_partition_order(api: Api) -> None:
    rows = [row for n in range(20) for row in api.push("q", f"{n}a", f"{n}b")]

    found = [row["message_id"] for row in rows]

    assert found == sorted(found)


def test_odd_names_survive_the_way_there_and_back(api: Api) -> None:
    name, partition, id_ = 'q"\\ é', "p/1 %", 't\n"☃'
    body = {"items": [{"queue": name, "partition": partition, "payload": 1, "transactionId": id_}]}
    api.post("/api/v1/push", body)

    answer = api.http.get(f"/api/v1/pop/queue/{_quoted(name)}/partition/{_quoted(partition)}")

    (message,) = answer.json()["messages"]
    assert (message["queue"], message["partition"], message["transactionId"]) == (name, partition, id_)
    assert api.ack(message)["success"]


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def test_more_than_the_most_items_are_refused(api: Api) -> None:
    items = [{"queue": "q"}] * 10_001

    assert api.http.post("/api/v1/push", content=json.dumps({"items": items})).status_code == 413


def test_a_broker_short_of_room_takes_no_messages_and_still_hands_them_out(
    broker: TestBroker, api: Api
) -> None:
    api.push("q", "dead")
    api.ack(api.pop("q")[0], status="dlq")
    api.push("q", "a", "b")
    api.post(
        "/api/v1/timers",
        {"operations": [{"op": "schedule", "queue": "q", "timerKey": "early", "delayMs": 1e6}]},
    )
    api.http.put("/api/v1/kv/ns/early", json={"value": 1, "forever": True})

    def change(node: Node, reason: str) -> None:
        node.alarms.reason = lambda: reason  # type: ignore[method-assign]
        node.alarms.check()

    items = [{"queue": "q", "payload": 1}]
    push = {"type": "push", "items": items}
    cycle = {"query_id": "x", "partition_id": "y", "push_items": items}
    ephemeral = {"queue": "e", "messages": [{"payload": 1}]}
    timer = {"op": "schedule", "queue": "q", "timerKey": "t", "delayMs": 1000}
    row = {"op": "put", "ns": "ns", "key": "k", "value": 1, "forever": True}
    (letter,) = api.letters()
    broker.call(lambda node: change(node, "low on disk"))
    refused = [
        api.post("/api/v1/push", {"items": items}),
        api.post("/api/v1/transaction", {"operations": [push]}),
        api.post("/streams/v1/cycle", cycle),
        api.post("/api/v1/ephemeral/push", ephemeral),
        api.post("/api/v1/timers", {"operations": [timer]}),
        api.post("/api/v1/transaction", {"operations": [], "timers": [timer]}),
        api.post("/api/v1/kv", {"operations": [row]}),
        api.http.put("/api/v1/kv/ns/k", json={"value": 1, "forever": True}),
        api.post("/api/v1/transaction", {"operations": [], "kv": [row]}),
        api.post("/api/v1/traces", {"transactionId": "a", "partitionId": letter["partitionId"], "data": 1}),
        api.post(f"/api/v1/dlq/{letter['id']}/replay"),
    ]
    cancelled = api.delete("/api/v1/timers/q/early").json()
    deleted = api.delete("/api/v1/kv/ns/early").json()
    first, second = api.pop("q", batch=2)
    settled = api.ack(first)
    through = api.post("/api/v1/transaction", {"operations": [{"type": "ack", **address(second)}]}).json()
    broker.call(lambda node: change(node, ""))

    assert {(r.status_code, r.json()["error"], r.json()["code"]) for r in refused} == {
        (503, "publishers are blocked: the broker is low on disk", "publishers_blocked")
    }
    assert cancelled["status"] == "cancelled"
    assert deleted["applied"]
    assert settled["success"]
    assert through["success"]
    assert api.post("/api/v1/push", {"items": items}).status_code == 201

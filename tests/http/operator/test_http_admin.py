"""Queues, messages, status, figures, maintenance and rows over HTTP."""

import base64
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from http_support import Api, address, ids
from prometheus_client.registry import Collector

from holtmq.broker.partitioned.commands.admin import clear, delete_queue
from holtmq.http.operator import queen_metrics, resources
from holtmq.http.operator.standby_metrics import exposition
from holtmq.http.queues import reads
from holtmq.node import Node
from holtmq.testing import TestBroker


def test_configure_echoes_effective_options_and_merges(api: Api) -> None:
    first = api.configure("q", leaseTime=10, retryLimit=0, somethingNew=5)
    second = api.configure("q", windowBuffer=2)
    reset = api.configure("q", leaseTime=None)

    assert first["configured"] is True
    assert (first["options"]["leaseTime"], first["options"]["retryLimit"]) == (10, 0)
    assert (first["options"]["ttl"], first["options"]["retryDelay"]) == (3600, 1000)
    assert (second["options"]["leaseTime"], second["options"]["windowBuffer"]) == (10, 2)
    assert reset["options"]["leaseTime"] == 300
    replaced = api.post("/api/v1/configure", {"queue": "q", "options": {}, "mode": "replace"}).json()
    assert (replaced["options"]["retryLimit"], replaced["options"]["windowBuffer"]) == (3, 0)


def test_options_may_stand_beside_the_name_of_their_queue(api: Api) -> None:
    beside = api.post("/api/v1/configure", {"queue": "q", "leaseTime": 7, "retryLimit": 0, "other": 1}).json()
    within = api.post("/api/v1/configure", {"queue": "r", "leaseTime": 7, "options": {}}).json()

    assert (beside["options"]["leaseTime"], beside["options"]["retryLimit"]) == (7, 0)
    assert within["options"]["leaseTime"] == 300
    assert api.post("/api/v1/configure", {"queue": "q", "leaseTime": []}).status_code == 400


@pytest.mark.parametrize(
    "options",
    [{}, {"leaseTime": 7, "retryLimit": 0, "retryDelay": 0, "ttl": 60, "maxSize": 9, "priority": 2}],
)
def test_every_view_of_a_queue_shows_the_options_that_configure_echoed(
    api: Api, options: dict[str, int]
) -> None:
    echoed = api.configure("q", **options)["options"]
    (row,) = api.push("q", "a")

    of_queue = api.get("/api/v1/status/queues/q").json()["queue"]["config"]
    of_message = api.get(f"/api/v1/messages/{row['partition_id']}/a").json()["queueConfig"]

    shared = ("leaseTime", "retryLimit", "retryDelay", "ttl")
    for view, names in ((of_queue, (*shared, "maxQueueSize")), (of_message, (*shared, "priority"))):
        assert {name: view[name] for name in names} == {name: echoed[name] for name in names}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (None, "Empty request body"),
        ({}, "queue is required"),
        ({"queue": 5}, "queue is required"),
        ({"queue": "q", "options": {"leaseTime": "long"}}, "option leaseTime must be a number"),
        ({"queue": "q", "options": {"leaseTime": -1}}, "option leaseTime must not be negative"),
        ({"queue": "q", "options": {"retentionEnabled": 1}}, "option retentionEnabled must be true or false"),
        ({"queue": "q", "options": {"retryLimit": 10**20}}, "option retryLimit must be at most"),
        ({"queue": "q", "options": {"retryLimit": 1.5}}, "option retryLimit must be a whole number"),
        ({"queue": "q", "options": {"leaseTime": 1e300}}, "option leaseTime must be at most"),
        ({"queue": "q", "mode": "merg"}, "mode must be 'merge' or 'replace', not 'merg'"),
    ],
)
def test_a_queue_that_cannot_be_configured_says_why(api: Api, body: object, text: str) -> None:
    answer = api.post("/api/v1/configure", body)

    assert answer.status_code == 400
    assert answer.json()["error"].startswith(text)


def test_a_deleted_queue_takes_everything_with_it(api: Api) -> None:
    api.push("q", "a")
    api.pop("q", consumerGroup="g")

    gone = api.delete("/api/v1/resources/queues/q")
    again = api.delete("/api/v1/resources/queues/q")

    assert gone.json() == {"deleted": True, "queue": "q", "existed": True}
    assert (again.status_code, again.json()["existed"]) == (200, False)
    assert api.get("/api/v1/resources/queues/q").status_code == 404
    assert api.get("/api/v1/consumer-groups").json() == []
    assert api.push("q", "a")[0]["status"] == "queued"


def test_queues_are_listed_newest_first_with_their_figures(broker: TestBroker, api: Api) -> None:
    api.push("shop.old", "a", "b", "c")
    broker.clock.advance(1)
    api.push("shop.new", "d")
    api.ack(api.pop("shop.old", batch=1)[0])
    api.pop("shop.old", batch=1)

    rows = api.get("/api/v1/resources/queues").json()["queues"]

    assert [row["name"] for row in rows] == ["shop.new", "shop.old"]
    assert rows[1]["messages"] == {
        "total": 3,
        "pending": 1,
        "processing": 1,
        "completed": 1,
        "failed": 0,
        "deadLetter": 0,
    }
    one = api.get("/api/v1/resources/queues/shop.old").json()
    assert one["partitions"][0]["stats"] == one["totals"] == rows[1]["messages"]
    spaces = api.get("/api/v1/resources/namespaces").json()["namespaces"]
    assert [(row["namespace"], row["queues"]) for row in spaces] == [("shop", 2)]
    assert len(api.get("/api/v1/resources/tasks").json()["tasks"]) == 2
    assert len(api.get("/api/v1/resources/partitions").json()["partitions"]) == 2
    overview = api.get("/api/v1/resources/overview").json()
    assert (overview["queues"], overview["messages"]["total"]) == (2, 4)


def test_depth_tells_waiting_from_ready(broker: TestBroker, api: Api) -> None:
    api.configure("q", delayedProcessing=10)
    api.push("q", "a", "b")
    api.pop("q", consumerGroup="g")

    early = api.get("/api/v1/resources/queues/q/depth", group="g").json()
    broker.clock.advance(11)
    late = api.get("/api/v1/resources/queues/q/depth", group="g").json()

    assert (early["pending"], early["ready"]) == (2, 0)
    assert (late["pending"], late["ready"], late["partitionsReady"]) == (2, 2, 1)
    assert api.get("/api/v1/resources/queues/q/depth").json()["pending"] == 2
    assert api.get("/api/v1/resources/queues/none/depth").status_code == 404


def test_a_queue_can_be_cleared(api: Api) -> None:
    api.push("q", *"abc")

    assert api.delete("/api/v1/queues/q/clear").json() == {"cleared": 3}
    assert api.pop("q") == []


def test_messages_are_listed_with_their_state(api: Api) -> None:
    api.configure("q", retryLimit=0)
    api.push("q", *"abcd")
    api.ack(api.pop("q", batch=1)[0])
    api.ack(api.pop("q", batch=1)[0], "dlq")
    api.pop("q", batch=1)

    everything = api.get("/api/v1/messages", queue="q").json()

    assert ids(everything["messages"]) == ["d", "c", "b", "a"]
    assert everything["mode"]["type"] == "queue"
    states = {row["transactionId"]: row["status"] for row in everything["messages"]}
    assert states == {"a": "completed", "b": "dead_letter", "c": "processing", "d": "processing"}
    done = api.get("/api/v1/messages", queue="q", status="completed").json()
    assert (ids(done["messages"]), done["total"]) == (["a"], 1)
    page = api.get("/api/v1/messages", queue="q", limit=2, offset=1).json()
    assert (ids(page["messages"]), page["total"]) == (["c", "b"], 4)
    short = api.get("/api/v1/status/queues/q/messages", limit=1).json()
    assert ids(short) == ["d"]


def test_one_message_is_shown_deleted_and_moved(api: Api) -> None:
    (row, _) = api.push("q", "a", "b")
    path = f"/api/v1/messages/{row['partition_id']}"

    shown = api.get(f"{path}/a").json()
    moved = api.post(f"{path}/a/dlq").json()
    gone = api.delete(f"{path}/a").json()

    assert (shown["payload"], shown["status"], shown["isEncrypted"]) == ({"id": "a"}, "pending", False)
    assert moved == {"success": True, "dlq": True}
    assert gone["success"] is True
    assert api.letters() == []
    assert api.get(f"{path}/a").status_code == 404
    assert api.delete(f"{path}/zzz").status_code == 404
    assert api.get("/api/v1/messages/nowhere/a").json()["error"] == "Message not found"


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        (
            "status",
            {"timeRange", "throughput", "queues", "messages", "leases", "deadLetterQueue", "statsAge"},
        ),
        ("status/queues", {"queues", "pagination"}),
        ("status/queues/q", {"queue", "partitions", "totals"}),
        ("status/analytics", {"dataPoints", "interval", "from", "to"}),
        ("status/buffers", {"pending", "failed", "dbHealthy", "worker"}),
        ("analytics/system-metrics", {"timeRange", "replicas", "replicaCount", "pointCount"}),
        ("analytics/worker-metrics", {"timeSeries", "workers", "queues", "summary", "pointCount"}),
        ("analytics/queue-ops", {"series", "queues", "bucketMinutes"}),
        ("analytics/queue-parked-replicas", {"series", "replicas"}),
        ("analytics/retention", {"series", "totals"}),
    ],
)
def test_every_dashboard_page_has_its_keys(api: Api, path: str, keys: set[str]) -> None:
    api.push("q", "a")
    api.ack(api.pop("q")[0])

    answer = api.get(f"/api/v1/{path}")

    assert answer.status_code == 200
    assert keys <= set(answer.json())


def test_the_time_line_adds_up(broker: TestBroker, api: Api) -> None:
    api.push("q", *"abc")
    broker.clock.advance(60)
    api.ack_batch(api.pop("q"))

    status = api.get("/api/v1/status").json()
    ops = api.get("/api/v1/analytics/queue-ops", queue="q").json()["series"]
    lag = api.get("/api/v1/analytics/queue-lag").json()

    assert sum(point["ingested"] for point in status["throughput"]) == 3
    assert sum(point["processed"] for point in status["throughput"]) == 3
    assert sum(row["pushMessages"] for row in ops) == 3
    assert lag[0]["avgLagMs"] == pytest.approx(60_000, abs=1000)
    assert api.post("/api/v1/stats/refresh").json()["success"] is True


def test_prometheus_has_the_queues_of_both_kinds(api: Api) -> None:
    api.push('odd"name', "a")

    answer = api.get("/metrics/prometheus")

    assert answer.headers["content-type"].startswith("text/plain")
    assert 'holt_queue_messages{queue="odd\\"name"} 1.0' in answer.text
    assert 'queen_cluster_push_messages_total{scope="cluster"} 1.0' in answer.text
    assert "holt_journal_syncs_total" in answer.text
    assert {"uptime", "requests", "messages", "database", "memory", "cpu"} <= set(api.get("/metrics").json())
    assert api.get("/health").json()["status"] == "healthy"


def test_prometheus_has_very_many_queues_in_parts(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queen_metrics, "_ROWS", 2)
    parts: list[int] = []

    def write(part: Collector) -> bytes:
        parts.append(sum(len(metric.samples) for metric in part.collect()))
        return exposition(part)

    monkeypatch.setattr(queen_metrics, "exposition", write)
    for number in range(5):
        api.push(f"q{number}", "a")

    text = api.get("/metrics/prometheus").text

    lines = [line for line in text.splitlines() if "holt_queue_messages" in line]
    assert [line[:6] for line in lines[:2]] == ["# HELP", "# TYPE"]
    assert lines[2:] == [f'holt_queue_messages{{queue="q{number}"}} 1.0' for number in range(5)]
    assert text.count("# TYPE holt_amqp_queue_consumers gauge\n") == 1
    assert max(parts) == 2


def test_maintenance_keeps_pushes_and_delivers_each_once_in_order(api: Api) -> None:
    assert api.post("/api/v1/system/maintenance", {"enabled": "yes"}).status_code == 400
    assert api.post("/api/v1/system/maintenance", {"enabled": True}).json()["maintenanceMode"] is True

    rows = api.push("q", *"abc") + api.push("q", "a")

    assert [row["status"] for row in rows] == ["buffered"] * 4
    assert api.pop("q") == []
    assert api.get("/api/v1/system/maintenance").json()["bufferedMessages"] == 4
    off = api.post("/api/v1/system/maintenance", {"enabled": False}).json()
    assert (off["maintenanceMode"], off["bufferedMessages"]) == (False, 0)
    assert ids(api.pop("q")) == ["a", "b", "c"]
    assert api.push("q", "d")[0]["status"] == "queued"


def test_a_transaction_under_maintenance_acks_at_once_and_spools_its_pushes_in_order(api: Api) -> None:
    api.push("in", "a")
    (message,) = api.pop("in")
    api.post("/api/v1/system/maintenance", {"enabled": True})
    api.push("out", "before")
    push = {"type": "push", "items": [{"queue": "out", "payload": 1, "transactionId": "with"}]}

    done = api.post("/api/v1/transaction", {"operations": [push, {"type": "ack", **address(message)}]}).json()
    refused = api.post(
        "/api/v1/transaction", {"operations": [push, {"type": "ack", **address(message)}]}
    ).json()

    assert done["success"] is True
    assert [(row["type"], row["success"]) for row in done["results"]] == [("push", True), ("ack", True)]
    assert (done["results"][0]["status"], done["results"][0]["messageId"]) == ("buffered", None)
    assert refused["success"] is False
    assert (api.pop("out"), api.pop("in")) == ([], [])
    api.push("out", "after")
    assert api.post("/api/v1/system/maintenance", {"enabled": False}).json()["bufferedMessages"] == 0
    assert ids(api.pop("out")) == ["before", "with", "after"]


def test_a_cycle_under_maintenance_keeps_its_state_and_spools_its_pushes(api: Api) -> None:
    api.push("in", "a")
    (message,) = api.pop("in")
    query = {"name": "q", "source_queue": "in", "sink_queue": "out", "config_hash": "h"}
    query_id = api.post("/streams/v1/queries", query).json()["query_id"]
    api.post("/api/v1/system/maintenance", {"enabled": True})
    cycle = {
        "query_id": query_id,
        "partition_id": message["partitionId"],
        "state_ops": [{"type": "upsert", "key": "k", "value": 1}],
        "push_items": [{"queue": "out", "payload": 1, "transactionId": "b"}],
        "ack": {"transactionId": "a", "leaseId": message["leaseId"]},
    }

    done = api.post("/streams/v1/cycle", cycle).json()

    assert done["success"] is True
    assert (done["push_results"][0]["status"], done["ack_result"]["success"]) == ("buffered", True)
    asked = {"query_id": query_id, "partition_id": message["partitionId"], "keys": []}
    assert len(api.post("/streams/v1/state/get", asked).json()["rows"]) == 1
    assert (api.pop("out"), api.pop("in")) == ([], [])
    api.post("/api/v1/system/maintenance", {"enabled": False})
    assert ids(api.pop("out")) == ["b"]


def test_paused_pops_are_empty_until_they_are_not(api: Api) -> None:
    api.push("q", "a")

    api.post("/api/v1/system/maintenance/pop", {"enabled": True})
    paused = api.get("/api/v1/pop/queue/q")
    shown = api.get("/api/v1/system/maintenance/pop").json()
    api.post("/api/v1/system/maintenance/pop", {"enabled": False})

    assert (paused.status_code, paused.content) == (204, b"")
    assert shown["popMaintenanceMode"] is True
    assert ids(api.pop("q")) == ["a"]


def test_a_queue_without_a_name_is_configured_in_word_only(api: Api) -> None:
    answer = api.configure("", leaseTime=7)

    assert (answer["configured"], answer["queue"], answer["options"]["leaseTime"]) == (True, "", 7)
    assert api.get("/api/v1/resources/queues").json()["queues"] == []


def _kv(api: Api, *operations: dict[str, object]) -> dict[str, Any]:
    return dict(api.post("/api/v1/kv", {"operations": list(operations)}).json())


def test_a_lost_required_operation_undoes_the_call(api: Api) -> None:
    put = {"op": "put", "ns": "n", "value": 1, "forever": True}

    lost = _kv(api, {**put, "key": "a"}, {**put, "key": "b", "expect": 7, "required": True})
    kept = _kv(api, {**put, "key": "a"}, {**put, "key": "b", "expect": 7})

    assert (lost["ok"], lost["reason"], lost["failedIndex"]) == (False, "kv_precondition", 1)
    assert [row["applied"] for row in kept["results"]] == [True, False]


def test_a_check_that_holds_answers_no_value_and_one_that_loses_the_row(api: Api) -> None:
    put = {"op": "put", "ns": "n", "key": "k", "value": {"a": 1}, "forever": True}
    (row,) = _kv(api, put)["results"]
    check = {"op": "check", "ns": "n", "key": "k", "expect": row["version"]}

    (held,) = _kv(api, check)["results"]
    (lost,) = _kv(api, {**check, "expect": 10**6})["results"]

    assert held == {"index": 0, "op": "check", "applied": True, "key": "k", "version": row["version"]}
    assert (lost["applied"], lost["reason"], lost["value"]) == (False, "version", {"a": 1})


def test_rows_expire_and_versions_only_grow(broker: TestBroker, api: Api) -> None:
    put = {"op": "put", "ns": "n", "key": "k", "value": 1, "ttlSeconds": 5}
    (first,) = _kv(api, put)["results"]
    broker.clock.advance(6)

    (found,) = _kv(api, {"op": "get", "ns": "n", "key": "k"})["results"]
    (second,) = _kv(api, {**put, "expect": 0})["results"]

    assert found["found"] is False
    assert second["version"] > first["version"]


def test_a_bad_row_operation_is_refused_in_the_familys_shape(api: Api) -> None:
    both = {"op": "put", "ns": "n", "key": "k", "value": 1, "ttlSeconds": 1, "forever": True}
    big = {"op": "put", "ns": "n", "key": "k", "value": "x" * 70_000, "forever": True}

    refused = api.post("/api/v1/kv", {"operations": [both]})
    large = api.post("/api/v1/kv", {"operations": [big]})

    assert (refused.status_code, refused.json()["error"]) == (400, "kv_bad_request")
    assert (large.status_code, large.json()["error"]) == (413, "payload_too_large")


def test_a_lock_passes_on_with_a_higher_token(broker: TestBroker, api: Api) -> None:
    def lock(**operation: object) -> dict[str, object]:
        body = {"operations": [{"name": "l", **operation}]}
        return dict(api.post("/api/v1/locks", body).json()["results"][0])

    first = lock(op="acquire", ttlSeconds=5, owner="a")
    held = lock(op="acquire", ttlSeconds=5, owner="b")
    broker.clock.advance(6)
    second = lock(op="acquire", ttlSeconds=5, owner="b")

    assert first["acquired"] is True
    assert (held["acquired"], held["reason"]) == (False, "held")
    assert second["token"] > first["token"]  # type: ignore[operator]
    assert lock(op="renew", token=first["token"], ttlSeconds=5)["reason"] == "lost"
    assert lock(op="release", token=second["token"])["released"] is True
    assert lock(op="get")["held"] is False


def test_a_timer_fires_as_a_message_in_its_time(broker: TestBroker, api: Api) -> None:
    payload = base64.b64encode(b'{"n":1}').decode()
    operation = {"op": "schedule", "queue": "q", "timerKey": "a/b", "payload": payload, "delayMs": 5000}
    body = {"operations": [{**operation, "txn": "t"}]}

    (row,) = api.post("/api/v1/timers", body).json()["results"]
    assert (row["status"], row["ok"]) == ("scheduled", True)
    assert api.get("/api/v1/timers/q/a/b").json()["found"] is True
    broker.clock.advance(4.9)
    assert api.pop("q") == []
    broker.clock.advance(0.2)

    (message,) = api.pop("q")
    assert (message["transactionId"], message["data"]) == ("t", {"n": 1})
    assert api.get("/api/v1/timers/q/a/b").json() == {"found": False}
    assert api.delete("/api/v1/timers/q/a/b").json()["status"] == "absent"


def test_fetch_reads_by_offset_and_names_what_is_out_of_range(api: Api) -> None:
    api.push("q", *"abc", partition="p")

    def fetch(**entry: object) -> dict[str, object]:
        body = {"entries": [{"queue": "q", "partition": "p", **entry}]}
        return dict(api.post("/api/v1/fetch", body).json()["entries"][0])

    whole = fetch(offset=1)
    one = fetch(offset=0, maxBytes=1)

    assert [(r["offset"], r["transactionId"]) for r in whole["records"]] == [(1, "b"), (2, "c")]  # type: ignore[attr-defined]
    assert (whole["highWatermark"], whole["logStartOffset"]) == (3, 0)
    assert len(one["records"]) == 1  # type: ignore[arg-type]
    assert fetch(offset=4)["error"] == "OFFSET_OUT_OF_RANGE"
    assert fetch(queue="none", offset=0)["error"] == "UNKNOWN_TOPIC_OR_PARTITION"
    changed = api.post("/api/v1/partitions/changed", {"entries": [{"queue": "q"}]}).json()
    assert [row["name"] for row in changed["entries"][0]["partitions"]] == ["p"]
    assert changed["entries"][0]["next"] is None


def test_a_fetch_waits_for_records_and_shows_only_durable_ones(
    broker: TestBroker, api: Api, connect: Callable[..., Api]
) -> None:
    api.push("q", "a")
    body = {"entries": [{"queue": "q", "partition": "Default", "offset": 1}]}
    reader, pusher = connect(), connect()
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(reader.post, "/api/v1/fetch", {**body, "maxWaitMs": 20_000})
        broker.disk.stall()
        pushing = pool.submit(pusher.push, "q", "b")
        deadline = time.monotonic() + 60
        while api.get("/api/v1/resources/queues/q").json()["totals"]["total"] < 2:
            assert time.monotonic() < deadline, "the push never came"
        stalled = api.post("/api/v1/fetch", body).json()["entries"][0]
        broker.disk.resume()
        found = waiting.result(60).json()["entries"][0]
        pushing.result(60)

    assert (stalled["highWatermark"], stalled["records"]) == (1, [])
    assert [record["transactionId"] for record in found["records"]] == ["b"]


def test_a_timer_is_due_within_a_year_and_at_once_when_its_time_is_past(api: Api) -> None:
    def schedule(delay_ms: float) -> httpx.Response:
        timer = {"op": "schedule", "queue": "q", "timerKey": str(delay_ms), "payload": "MQ==", "txn": "t"}
        return api.post("/api/v1/timers", {"operations": [timer | {"delayMs": delay_ms}]})

    far, past = schedule(1e18), schedule(-1e18)

    assert (far.status_code, far.json()["error"]) == (403, "timer_horizon_exceeded")
    assert past.json()["results"][0]["status"] == "scheduled"
    assert ids(api.pop("q", wait="true")) == ["t"]


@pytest.mark.parametrize("path", ["/api/v1/resources/queues/q", "/api/v1/status/queues/q"])
def test_very_many_partitions_are_the_same_answer_in_pieces(
    api: Api, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c", "d", "e"):
        api.push("q", f"in {name}", partition=name)
    whole = api.get(path)
    monkeypatch.setattr(resources, "_ROWS_AT_ONCE", 2)

    pieces = api.get(path)

    assert "content-length" in whole.headers
    assert "content-length" not in pieces.headers
    assert pieces.json() == whole.json()
    assert [row["name"] for row in pieces.json()["partitions"]] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("how", ["cleared", "deleted"])
def test_a_fetch_ends_where_messages_leave_while_it_reads(
    broker: TestBroker, api: Api, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "_READ_AT_ONCE", 2)
    api.push("q", *"abcdef", partition="p")

    def read(node: Node) -> list[object]:
        queue = node.partitioned.store.queues["q"]
        call: Any = SimpleNamespace(service=node.partitioned)
        steps = reads._records(call, queue, queue.partitions[0], 0, 6, 1 << 20)
        next(steps)
        if how == "deleted":
            delete_queue(node.partitioned, "q")
        else:
            deque(clear(node.partitioned, queue, None), maxlen=0)
        with pytest.raises(StopIteration) as end:
            next(steps)
        records, _ = end.value.value
        return [record["transactionId"] for record in records]

    assert broker.call(read) == ["a", "b"]
    assert api.get("/health").json()["status"] == "healthy"

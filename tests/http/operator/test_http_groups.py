"""Consumer groups, traces and streams over HTTP."""

from typing import Any

import pytest
from http_support import Api, address, ids

from holtmq.testing import TestBroker

GROUPS = "/api/v1/consumer-groups"


def test_groups_are_listed_by_queue_with_their_lag(broker: TestBroker, api: Api) -> None:
    api.push("q", *"abc")
    api.ack(api.pop("q", consumerGroup="g", batch=1)[0])
    api.pop("q")
    broker.clock.advance(400)

    rows = {row["name"]: row for row in api.get(GROUPS).json()}

    assert set(rows) == {"g", "__QUEUE_MODE__"}
    assert rows["g"]["topics"] == ["q"]
    assert (rows["g"]["totalLag"], rows["g"]["members"], rows["g"]["state"]) == (2, 1, "Lagging")
    assert rows["g"]["subscriptionMode"] == "all"
    assert rows["g"]["maxTimeLag"] == pytest.approx(400, abs=1)
    (lagging, *_) = api.get(f"{GROUPS}/lagging", minLagSeconds=60).json()
    assert (lagging["queue_name"], lagging["partition_name"]) == ("q", "Default")
    detail = api.get(f"{GROUPS}/g").json()
    assert detail["q"]["partitions"][0]["offsetLag"] == 2


def test_a_deleted_group_is_new_again(api: Api) -> None:
    api.push("q", "a")
    api.ack(api.pop("q", consumerGroup="g")[0])
    assert api.pop("q", consumerGroup="g") == []

    gone = api.delete(f"{GROUPS}/g", deleteMetadata="true").json()

    assert (gone["success"], gone["deletedPartitions"], gone["metadataDeleted"]) == (True, 1, True)
    assert ids(api.pop("q", consumerGroup="g")) == ["a"]
    assert api.delete(f"{GROUPS}/nobody").json()["deletedPartitions"] == 0


def test_a_group_can_go_from_one_queue_alone(api: Api) -> None:
    for queue in ("q", "r"):
        api.push(queue, "a")
        api.ack(api.pop(queue, consumerGroup="g")[0])

    gone = api.delete(f"{GROUPS}/g/queues/q").json()

    assert gone["queueName"] == "q"
    assert ids(api.pop("q", consumerGroup="g")) == ["a"]
    assert api.pop("r", consumerGroup="g") == []


def test_a_subscription_can_be_moved(broker: TestBroker, api: Api) -> None:
    api.push("q", "old")
    broker.clock.advance(10)
    api.pop("q", consumerGroup="g", subscriptionMode="new")

    body = {"subscriptionTimestamp": "2000-01-01T00:00:00Z"}
    moved = api.post(f"{GROUPS}/g/subscription", body).json()

    assert (moved["success"], moved["rowsUpdated"]) == (True, 1)
    assert ids(api.pop("q", consumerGroup="g")) == ["old"]
    empty = api.post(f"{GROUPS}/g/subscription")
    assert empty.status_code == 400
    assert empty.json()["error"] == "Missing subscriptionTimestamp in request body"


def test_a_seek_goes_back_and_forth(broker: TestBroker, api: Api) -> None:
    api.push("q", "a")
    broker.clock.advance(10)
    api.push("q", "b")
    created = api.pop("q", consumerGroup="g")[1]["createdAt"]
    path = f"{GROUPS}/g/queues/q/seek"

    end = api.post(path, {"toEnd": True}).json()
    assert (end["success"], end["seekToEnd"], end["partitionsUpdated"]) == (True, True, 1)
    assert api.pop("q", consumerGroup="g") == []
    api.post(path, {"timestamp": created})
    assert ids(api.pop("q", consumerGroup="g")) == ["b"]
    api.post(path, {"timestamp": "2000-01-01T00:00:00Z"})
    assert ids(api.pop("q", consumerGroup="g")) == ["a", "b"]


def test_a_seek_needs_a_target_a_queue_and_a_real_time(api: Api) -> None:
    api.push("q", "a")

    nowhere = api.post(f"{GROUPS}/g/queues/q/seek")
    unknown = api.post(f"{GROUPS}/g/queues/none/seek", {"toEnd": True})
    odd = api.post(f"{GROUPS}/g/queues/q/seek", {"timestamp": "soon"})

    assert nowhere.status_code == 400
    assert nowhere.json()["error"] == "Must specify 'toEnd': true, 'toStart': true, 'timestamp' or 'offset'"
    assert unknown.status_code == 404
    assert odd.status_code == 400


def test_one_partition_seeks_to_its_end_without_a_body(api: Api) -> None:
    api.push("q", "a", partition="1")
    api.push("q", "b", partition="2")

    done = api.post(f"{GROUPS}/g/queues/q/partitions/1/seek").json()

    assert (done["success"], done["updated"], done["partitionName"]) == (True, True, "1")
    assert ids(api.pop("q", consumerGroup="g", partitions=2)) == ["b"]


def test_traces_are_found_by_message_and_by_name(api: Api) -> None:
    api.push("q", "a")
    (message,) = api.pop("q")
    where = {name: message[name] for name in ("transactionId", "partitionId")}

    first = api.post("/api/v1/traces", {**where, "data": {"step": 1}, "traceNames": "order-1"})
    api.post("/api/v1/traces", {**where, "data": "two", "traceNames": ["order-1", "b"], "eventType": "x"})

    assert (first.status_code, first.json()["success"]) == (201, True)
    mine = api.get(f"/api/v1/traces/{message['partitionId']}/a").json()["traces"]
    assert [row["data"] for row in mine] == [{"step": 1}, "two"]
    assert mine[1]["trace_names"] == ["order-1", "b"]
    named = api.get("/api/v1/traces/by-name/order-1").json()
    assert named["total"] == 2
    assert named["traces"][0]["message_payload"] == {"id": "a"}
    assert named["traces"][0]["queue_name"] == "q"
    names = api.get("/api/v1/traces/names").json()
    assert {row["trace_name"]: row["trace_count"] for row in names["trace_names"]} == {"order-1": 2, "b": 1}


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"data": 1}, 400, "transactionId and partitionId are required"),
        ({"transactionId": "a", "partitionId": "1"}, 400, "data is required"),
        ({"transactionId": "a", "partitionId": "1", "data": 1}, 404, "Message not found"),
    ],
)
def test_a_trace_that_cannot_be_left_says_why(api: Api, body: dict[str, Any], status: int, text: str) -> None:
    answer = api.post("/api/v1/traces", body)

    assert (answer.status_code, answer.json()["error"]) == (status, text)


def _query(api: Api, name: str = "sums", config_hash: str = "h1", **more: object) -> Any:
    body = {"name": name, "source_queue": "in", "config_hash": config_hash, **more}
    return api.post("/streams/v1/queries", body)


def test_a_query_registers_reattaches_conflicts_and_resets(api: Api) -> None:
    fresh = _query(api).json()
    again = _query(api).json()
    other = _query(api, config_hash="h2")
    reset = _query(api, config_hash="h2", reset=True).json()

    assert (fresh["success"], fresh["fresh"], again["fresh"]) == (True, True, False)
    assert again["query_id"] == fresh["query_id"] == reset["query_id"]
    assert other.status_code == 409
    assert "config_hash mismatch" in other.json()["error"]
    assert reset["reset"] is True
    missing = api.post("/streams/v1/queries", {"name": "x", "config_hash": "h"})
    assert (missing.status_code, missing.json()["error"]) == (400, "source_queue is required")


def _cycle(api: Api, query: str, message: dict[str, Any], **more: Any) -> dict[str, Any]:
    ack = {"transactionId": message["transactionId"], "leaseId": message["leaseId"], "count": 1}
    body = {
        "query_id": query,
        "partition_id": message["partitionId"],
        "consumer_group": message["consumerGroup"],
        "ack": ack,
        **more,
    }
    answer = api.post("/streams/v1/cycle", body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_cycle_moves_state_pushes_and_ack_together(api: Api) -> None:
    query = _query(api).json()["query_id"]
    api.push("in", "a", "b")
    messages = api.pop("in", consumerGroup="streams.x")

    done = _cycle(
        api,
        query,
        messages[0],
        state_ops=[
            {"type": "upsert", "key": "w1", "value": {"windowEnd": 10, "n": 1}},
            {"type": "upsert", "key": "w2", "value": {"windowEnd": 20}},
            {"type": "delete", "key": "none"},
        ],
        push_items=[{"queue": "out", "payload": {"sum": 1}, "transactionId": "r"}],
    )

    assert (done["success"], done["queueName"], done["state_ops_applied"]) == (True, "in", 3)
    assert done["ack_result"] == {"success": True, "count": 1, "lease_released": True, "dlq": False}
    assert done["push_results"][0]["status"] == "queued"
    assert ids(api.pop("out")) == ["r"]
    assert ids(api.pop("in", consumerGroup="streams.x")) == ["b"]
    where = {"query_id": query, "partition_id": messages[0]["partitionId"]}
    rows = api.post("/streams/v1/state/get", {**where, "keys": []}).json()["rows"]
    assert [(row["key"], row["value"].get("n")) for row in rows] == [("w1", 1), ("w2", None)]
    ripe = api.post("/streams/v1/state/get", {**where, "keys": [], "ripe_at_or_before": 15}).json()["rows"]
    assert [row["key"] for row in ripe] == ["w1"]
    one = api.post("/streams/v1/state/get", {**where, "keys": ["w2", "none"]}).json()["rows"]
    assert [row["key"] for row in one] == ["w2"]


def test_a_refused_cycle_changes_nothing(broker: TestBroker, api: Api) -> None:
    query = _query(api).json()["query_id"]
    api.configure("in", leaseTime=1)
    api.push("in", "a")
    (message,) = api.pop("in", consumerGroup="s")
    state = [{"type": "upsert", "key": "k", "value": 1}]
    pushes = [{"queue": "out", "payload": 1}]

    stranger = _cycle(api, "nobody", message, state_ops=state, push_items=pushes)
    broker.clock.advance(2)
    late = _cycle(api, query, message, state_ops=state, push_items=pushes)

    assert stranger["success"] is late["success"] is False
    assert "lease" in late["error"].lower()
    assert api.pop("out") == []
    where = {"query_id": query, "partition_id": message["partitionId"]}
    assert api.post("/streams/v1/state/get", {**where, "keys": []}).json()["rows"] == []


def test_a_gate_keeps_its_lease_for_the_rest(broker: TestBroker, api: Api) -> None:
    query = _query(api).json()["query_id"]
    api.configure("in", leaseTime=10)
    api.push("in", "a", "b")
    messages = api.pop("in", consumerGroup="s")

    done = _cycle(api, query, messages[0], release_lease=False)

    assert done["ack_result"]["lease_released"] is False
    assert api.pop("in", consumerGroup="s") == []
    broker.clock.advance(11)
    assert ids(api.pop("in", consumerGroup="s")) == ["b"]


def test_a_cycle_without_an_ack_flushes_state_alone(api: Api) -> None:
    query = _query(api).json()["query_id"]
    (row,) = api.push("in", "a")

    body = {"query_id": query, "partition_id": row["partition_id"], "consumer_group": "s", "ack": None}
    done = api.post("/streams/v1/cycle", {**body, "push_items": [{"queue": "out", "payload": 1}]}).json()

    assert (done["success"], done["ack_result"]) == (True, None)
    assert len(api.pop("out")) == 1


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"])
def test_a_start_outside_of_all_years_can_be_told(api: Api, time: str) -> None:
    api.push("q", "a")

    api.pop("q", consumerGroup="g", subscriptionFrom=time)
    moved = api.post("/api/v1/consumer-groups/g/subscription", {"subscriptionTimestamp": time})

    assert moved.status_code == 200
    (row,) = api.get("/api/v1/consumer-groups").json()
    assert row["subscriptionTimestamp"][:4] in ("1970", "9999")
    for page in ("status", "status/analytics", "analytics/queue-ops", "analytics/retention"):
        assert api.get(f"/api/v1/{page}", to=time).status_code in (200, 400)


def test_a_failed_cycle_files_its_message_at_once(api: Api) -> None:
    query = _query(api).json()["query_id"]
    api.push("in", "a")
    (message,) = api.pop("in", consumerGroup="s")

    ack = {**{k: v for k, v in address(message).items() if k != "partitionId"}, "status": "failed"}
    body = {"query_id": query, "partition_id": message["partitionId"], "consumer_group": "s", "ack": ack}
    done = api.post("/streams/v1/cycle", body).json()

    assert done["ack_result"]["dlq"] is True
    assert ids(api.letters(consumerGroup="s")) == ["a"]

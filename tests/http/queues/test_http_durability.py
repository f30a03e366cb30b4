"""What was answered survives: a power cut under every kind of durable change, and a killed process."""

import base64

from http_support import Api, ids

from holtmq.config import Config, Limits, Queue
from holtmq.config.settings import Journal
from holtmq.config.values import Secret
from holtmq.testing import TestBroker

GROUPS = "/api/v1/consumer-groups"


def test_messages_cursors_retries_and_letters_survive_a_power_cut(broker: TestBroker, api: Api) -> None:
    api.configure("q", retryLimit=1, leaseTime=7)
    api.push("q", *"abcd")
    api.ack(api.pop("q", batch=1)[0])
    api.ack(api.pop("q", batch=1)[0], "failed")
    api.ack(api.pop("q", batch=1)[0], "failed", error="broken")
    api.pop("q", batch=1)

    broker.crash_and_restart()

    assert ids(api.pop("q")) == ["c", "d"]
    assert [(m["transactionId"], m["errorMessage"]) for m in api.letters()] == [("b", "broken")]
    assert api.push("q", "a")[0]["status"] == "duplicate"
    assert api.get("/api/v1/resources/queues/q").json()["options"]["leaseTime"] == 7


def test_groups_subscriptions_and_seeks_survive(broker: TestBroker, api: Api) -> None:
    api.push("q", "old")
    broker.clock.advance(10)
    api.pop("q", consumerGroup="new", subscriptionMode="new")
    api.pop("empty", consumerGroup="new", subscriptionMode="new")
    api.pop("q", consumerGroup="end")
    api.post(f"{GROUPS}/end/queues/q/seek", {"toEnd": True})

    broker.crash_and_restart()
    api.push("q", "young")
    api.push("empty", "first")

    assert ids(api.pop("q", consumerGroup="new")) == ["young"]
    assert ids(api.pop("q", consumerGroup="end")) == ["young"]
    assert ids(api.pop("empty", consumerGroup="new")) == ["first"]


def test_an_auto_acked_message_does_not_come_again(broker: TestBroker, api: Api) -> None:
    api.push("q", "a", "b")
    api.pop("q", batch=1, autoAck="true")

    broker.crash_and_restart()

    assert ids(api.pop("q")) == ["b"]


def test_transactions_traces_streams_rows_and_timers_survive(broker: TestBroker, api: Api) -> None:
    (row,) = api.push("q", "a")
    push = {"type": "push", "items": [{"queue": "out", "payload": 1, "transactionId": "b"}]}
    put = {"op": "put", "ns": "n", "key": "k", "value": {"x": 1}, "forever": True}
    timer = {"op": "schedule", "queue": "late", "timerKey": "t", "payload": "MQ==", "delayMs": 60_000}
    body = {"operations": [push], "kv": [put], "timers": [timer]}
    assert api.post("/api/v1/transaction", body).json()["success"] is True
    api.post("/api/v1/traces", {"transactionId": "a", "partitionId": row["partition_id"], "data": 1})
    query = {"name": "s", "source_queue": "q", "config_hash": "h"}
    first = api.post("/streams/v1/queries", query).json()
    cycle = {"query_id": first["query_id"], "partition_id": row["partition_id"], "ack": None}
    api.post("/streams/v1/cycle", {**cycle, "state_ops": [{"type": "upsert", "key": "k", "value": 5}]})

    broker.crash_and_restart()

    assert ids(api.pop("out")) == ["b"]
    assert api.get("/api/v1/kv/n/k").json()["value"] == {"x": 1}
    assert len(api.get(f"/api/v1/traces/{row['partition_id']}/a").json()["traces"]) == 1
    assert api.post("/streams/v1/queries", query).json()["fresh"] is False
    state = api.post("/streams/v1/state/get", {**cycle, "keys": []}).json()["rows"]
    assert [(r["key"], r["value"]) for r in state] == [("k", 5)]
    broker.clock.advance(61)
    assert [m["data"] for m in api.pop("late")] == [1]


def test_a_deleted_queue_stays_deleted_and_its_number_is_not_used_again(broker: TestBroker, api: Api) -> None:
    (before,) = api.push("q", "a")
    api.pop("q", consumerGroup="g", subscriptionMode="new")
    api.delete("/api/v1/resources/queues/q")

    broker.crash_and_restart()
    (after,) = api.push("q", "a")

    assert after["status"] == "queued"
    assert after["partition_id"] != before["partition_id"]
    assert ids(api.pop("q", consumerGroup="g")) == ["a"]


def test_a_checkpoint_stands_for_everything_before_it(broker: TestBroker, api: Api) -> None:
    api.configure("q", retryLimit=0)
    api.push("q", *"abcde", partition="p")
    api.ack(api.pop("q", batch=1)[0])
    api.ack(api.pop("q", batch=1)[0], "dlq")
    api.post("/api/v1/system/maintenance", {"enabled": True})
    api.push("q", "spooled")
    api.post(
        "/api/v1/kv", {"operations": [{"op": "put", "ns": "n", "key": "k", "value": 1, "forever": True}]}
    )

    def checkpoint(node: object) -> None:
        from holtmq.broker.records.checkpoint import snapshot

        node.journal.checkpoint(*snapshot(node.broker, node.partitioned.store))  # type: ignore[attr-defined]

    broker.call(checkpoint)
    api.push("q", "more")
    broker.restart()

    assert api.get("/api/v1/system/maintenance").json()["bufferedMessages"] == 2
    assert ids(api.letters()) == ["b"]
    api.post("/api/v1/system/maintenance", {"enabled": False})
    assert ids(api.pop("q", "p")) == ["c", "d", "e"]
    assert ids(api.pop("q", "Default")) == ["spooled", "more"]
    assert api.push("q", "a", partition="p")[0]["status"] == "duplicate"
    assert api.get("/api/v1/kv/n/k").json()["found"] is True


def test_the_node_checkpoints_by_itself_and_bodies_outlive_it(tmp_path: object) -> None:
    config = Config(
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
        journal=Journal(segment_bytes=64 << 10, checkpoint_bytes=64 << 10),
    )
    with TestBroker(config=config) as broker:
        api = Api(broker.http_url)
        for n in range(40):
            items = [
                {"queue": "q", "payload": "x" * 100, "transactionId": f"{n:02d}-{i:02d}"} for i in range(50)
            ]
            assert api.post("/api/v1/push", {"items": items}).status_code == 201
            broker.call(lambda node: node.checkpoint_if_due())
        broker.crash_and_restart()

        found: list[str] = []
        while messages := api.pop("q", batch=500):
            found += ids(messages)
            api.ack(messages[-1])

        assert found == [f"{n:02d}-{i:02d}" for n in range(40) for i in range(50)]
        api.http.close()


def test_a_broker_without_a_key_does_not_claim_to_encrypt(api: Api) -> None:
    configured = api.configure("q", encryptionEnabled=True)
    other = api.configure("other")
    shown = api.get("/api/v1/resources/queues/q").json()
    (listed,) = api.get("/api/v1/resources/queues", search="q").json()["queues"]

    assert configured["options"]["encryptionEnabled"] is True  # Queen's own suites compare it
    for answer in (configured, shown, listed):
        assert answer["encrypted"] is False
        assert "queue.encryption_key" in answer["warning"]
    assert "encrypted" not in other
    assert "warning" not in other


def test_a_sealed_payload_is_nowhere_in_the_journal_and_comes_back_plain() -> None:
    key = Secret("ab" * 32)
    config = Config(
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0), queue=Queue(encryption_key=key)
    )
    with TestBroker(config=config) as broker:
        api = Api(broker.http_url)
        assert api.configure("q", encryptionEnabled=True)["encrypted"] is True
        body = {"items": [{"queue": "q", "payload": {"card": "4111-secret"}, "transactionId": "a"}]}
        api.post("/api/v1/push", body)
        api.post("/api/v1/push", {"items": [{"queue": "plain", "payload": "seen-in-clear"}]})

        broker.crash_and_restart()

        written = broker.call(
            lambda node: b"".join(
                node.journal.read(position)[1]
                for queue in node.partitioned.store.queues.values()
                for position in queue.live_positions()
            )
        )
        assert b"4111-secret" not in written
        assert b"seen-in-clear" in written
        (message,) = api.pop("q")
        assert message["data"] == {"card": "4111-secret"}
        api.ack(message, "dlq")
        assert api.letters()[0]["data"] == {"card": "4111-secret"}
        api.http.close()


def test_a_timers_payload_is_sealed_while_it_waits_and_needs_the_key_to_fire() -> None:
    limits = Limits(memory_high_watermark=1.0, disk_free_min_bytes=0)
    key = Queue(encryption_key=Secret("ab" * 32))
    payload = base64.b64encode(b'{"card":"4111-secret"}').decode()
    operation = {"op": "schedule", "timerKey": "k", "delayMs": 5000, "txn": "t", "payload": payload}
    with TestBroker(config=Config(limits=limits, queue=key)) as broker:
        api = Api(broker.http_url)
        api.configure("q", encryptionEnabled=True)
        api.post("/api/v1/timers", [{**operation, "queue": "q"}, {**operation, "queue": "plain"}])

        broker.crash_and_restart()

        sealed, plain = broker.call(lambda node: [node.partitioned.timed.get(q, "k") for q in ("q", "plain")])
        assert sealed is not None
        assert b"4111-secret" not in sealed.payload
        assert plain is not None
        assert b"4111-secret" in plain.payload
        assert api.get("/api/v1/timers/q/k").json()["payload"] == payload
        broker.call(lambda node: setattr(node.partitioned.store, "cipher", None))
        broker.clock.advance(6)
        assert ids(api.pop("plain")) == ["t"]
        assert api.pop("q") == []
        broker.crash_and_restart()
        (message,) = api.pop("q", wait="true")
        assert message["data"] == {"card": "4111-secret"}
        api.http.close()


def test_after_the_disk_failed_nothing_is_acknowledged_and_health_says_why(
    broker: TestBroker, api: Api
) -> None:
    api.push("q", "a")
    broker.disk.fail_next_sync()

    refused = api.post("/api/v1/push", {"items": [{"queue": "q", "payload": 1}]})
    again = api.post("/api/v1/push", {"items": [{"queue": "q", "payload": 1}]})
    health = api.get("/health")

    assert refused.status_code == again.status_code == 503
    assert health.status_code == 503
    assert health.json()["status"] == "unhealthy"
    assert health.json()["reason"]

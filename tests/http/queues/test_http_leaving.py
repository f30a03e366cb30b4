"""What goes away over HTTP: single messages, idle partitions, what retention took. And ids promised ahead."""

import base64
from collections.abc import Callable

import pytest
from http_support import Api, Json, ids

from holtmq.config import Config, Limits, Queue
from holtmq.testing import TestBroker

DAY = 86_400
Connect = Callable[[], Api]


def message_path(row: Json) -> str:
    return f"/api/v1/messages/{row['partition_id']}/{row['transaction_id']}"


@pytest.mark.parametrize("gone", [0, 1, 2, 3])
def test_any_message_can_be_deleted(broker: TestBroker, connect: Connect, gone: int) -> None:
    api = connect()
    rows = api.push("q", *"abcd")
    left = [one for place, one in enumerate("abcd") if place != gone]

    answer = api.delete(message_path(rows[gone]))

    assert (answer.status_code, answer.json()["success"]) == (200, True)
    assert api.delete(message_path(rows[gone])).status_code == 404
    assert api.get(message_path(rows[gone])).status_code == 404
    assert ids(api.get("/api/v1/messages", queue="q").json()["messages"]) == left[::-1]
    assert ids(api.get("/api/v1/messages", queue="q", partition="Default").json()["messages"]) == left[::-1]
    assert api.get("/api/v1/resources/queues/q").json()["totals"]["total"] == 3
    broker.restart()
    other = connect()
    assert ids(other.pop("q", consumerGroup="g")) == left
    assert ids(other.pop("q")) == left


def test_a_deleted_message_takes_its_dead_letters_along_and_frees_its_id(api: Api) -> None:
    api.configure("q", retryLimit=0)
    rows = api.push("q", "a", "b", "c")
    for group in ("g", "h"):
        (message, *_) = api.pop("q", consumerGroup=group, batch=1)
        api.ack(message, "failed", consumerGroup=group)
    assert len(api.letters()) == 2

    assert api.delete(message_path(rows[0])).json()["success"] is True

    assert api.letters() == []
    (again,) = api.push("q", "a")
    assert again["status"] == "queued"
    assert ids(api.pop("q", consumerGroup="g")) == ["b", "c", "a"]


def test_a_dead_letter_whose_message_retention_took_can_be_deleted(api: Api) -> None:
    api.configure("q", retryLimit=0)
    (row,) = api.push("q", "a")
    (message,) = api.pop("q")
    api.ack(message, "failed")
    api.delete("/api/v1/queues/q/clear")
    assert len(api.letters()) == 1

    assert api.delete(message_path(row)).json()["success"] is True
    assert api.letters() == []


def test_offsets_of_the_others_do_not_move(api: Api) -> None:
    rows = api.push("q", *"abcd", partition="p")

    api.delete(message_path(rows[1]))

    entry = {"queue": "q", "partition": "p", "offset": 0}
    (read,) = api.post("/api/v1/fetch", {"entries": [entry]}).json()["entries"]
    assert [(row["offset"], row["transactionId"]) for row in read["records"]] == [
        (0, "a"),
        (2, "c"),
        (3, "d"),
    ]
    assert [row["offset"] for row in api.pop("q", partition="p")] == [0, 2, 3]
    entry["offset"] = 1  # a reader that stood before the hole
    (read,) = api.post("/api/v1/fetch", {"entries": [entry]}).json()["entries"]
    assert [row["transactionId"] for row in read["records"]] == ["c", "d"]


def test_a_message_in_a_workers_hands_can_be_deleted(api: Api) -> None:
    api.push("q", *"abc")
    held = api.pop("q", batch=2)

    api.delete(f"/api/v1/messages/{held[1]['partitionId']}/b")

    assert api.ack(held[1])["success"] is False
    assert api.ack(held[0])["leaseReleased"] is True
    assert ids(api.pop("q")) == ["c"]


def names(api: Api) -> list[str]:
    return [row["name"] for row in api.get("/api/v1/resources/queues/q").json()["partitions"]]


@pytest.fixture(params=["retention", "clear"])
def take_all(request: pytest.FixtureRequest, broker: TestBroker, api: Api) -> Callable[[], object]:
    """Removes every message of the queue ``q``."""
    api.configure("q", retentionEnabled=True, retentionSeconds=60, leaseTime=300, retryLimit=1)

    def retention() -> None:
        broker.clock.advance(61)
        broker.call(lambda node: node.partitioned.retain(node.clock()))

    return retention if request.param == "retention" else lambda: api.delete("/api/v1/queues/q/clear")


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_worker_whose_messages_were_all_removed_gives_the_partition_back(
    api: Api, take_all: Callable[[], object], status: str
) -> None:
    api.push("q", "a", "b")
    messages = api.pop("q")
    take_all()
    api.push("q", "c")

    held = api.pop("q")
    verdicts = api.ack_batch(messages, status)

    assert held == []
    assert [(verdict["success"], verdict["leaseReleased"]) for verdict in verdicts] == [
        (status == "completed", True)
    ] * 2
    assert ids(api.pop("q")) == ["c"]


def test_a_message_does_not_inherit_the_retries_of_one_that_was_removed(
    api: Api, take_all: Callable[[], object]
) -> None:
    api.push("q", "a")
    (failing,) = api.pop("q")
    api.ack(failing, "failed")
    take_all()
    api.push("q", "b")

    (first,) = api.pop("q")
    verdict = api.ack(first, "failed")
    (second,) = api.pop("q")

    assert verdict["message"] == "failed_retry"
    assert [first["deliveryAttempt"], second["deliveryAttempt"]] == [1, 2]


def test_an_empty_partition_is_deleted_after_its_days_and_comes_back_new(
    broker: TestBroker, connect: Connect
) -> None:
    api = connect()
    (old, *_) = api.push("q", "a", partition="p")
    api.push("q", "b", partition="r")
    for message in api.pop("q", partitions=2):
        api.ack(message)
    api.delete("/api/v1/queues/q/clear", partition="p")
    broker.clock.advance(20 * DAY)
    assert names(api) == ["p", "r"]

    broker.clock.advance(20 * DAY)

    assert names(api) == ["r"]  # which still has its message
    overview = api.get("/api/v1/resources/overview").json()
    assert overview["partitions"] == 1
    assert api.get(f"/api/v1/messages/{old['partition_id']}/a").status_code == 404
    assert api.ack({"partitionId": old["partition_id"], "transactionId": "a"})["success"] is False
    broker.restart()
    other = connect()
    (new,) = other.push("q", "a", partition="p")
    assert (new["status"], new["partition_id"] != old["partition_id"]) == ("queued", True)
    assert [(m["transactionId"], m["offset"]) for m in other.pop("q")] == [("a", 0)]
    assert names(other) == ["r", "p"]
    assert len(other.get("/api/v1/status/queues/q").json()["partitions"]) == 2
    changed = other.post("/api/v1/partitions/changed", {"entries": [{"queue": "q"}]}).json()
    assert [row["name"] for row in changed["entries"][0]["partitions"]] == ["r", "p"]


def test_partitions_are_kept_when_the_setting_says_so() -> None:
    limits = Limits(memory_high_watermark=1.0, disk_free_min_bytes=0)
    with TestBroker(config=Config(limits=limits, queue=Queue(partition_cleanup_days=0))) as broker:
        api = Api(broker.http_url)
        api.push("q", "a", partition="p")
        api.delete("/api/v1/queues/q/clear")

        broker.clock.advance(1000 * DAY)

        assert names(api) == ["p"]
        api.http.close()


def test_created_and_deleted_partitions_are_counted(broker: TestBroker, api: Api) -> None:
    api.push("q", "a", partition="p")
    api.push("q", "b", partition="r")
    api.delete("/api/v1/queues/q/clear")

    def counted() -> tuple[int, int]:
        api.post("/api/v1/stats/refresh")
        series = api.get("/api/v1/analytics/queue-ops").json()["series"]
        return sum(row["partitionsCreated"] for row in series), sum(
            row["partitionsDeleted"] for row in series
        )

    assert counted() == (2, 0)
    broker.clock.advance(40 * DAY)
    api.push("q", "c", partition="p")
    assert counted()[0] == 1


def test_each_kind_of_retention_is_counted_by_itself(broker: TestBroker, api: Api) -> None:
    api.configure("aged", retentionEnabled=True, retentionSeconds=5)
    api.configure("done", retentionEnabled=True, completedRetentionSeconds=5)
    api.configure("late", maxWaitTimeSeconds=5)
    api.push("aged", *"ab")
    api.push("done", *"cdefg")
    api.push("late", *"hij")
    for message in api.pop("done", batch=4):
        api.ack(message)
    broker.clock.advance(400)
    api.post("/api/v1/stats/refresh")

    totals = api.get("/api/v1/analytics/retention").json()["totals"]

    assert (totals["retentionMsgs"], totals["completedRetentionMsgs"], totals["evictionMsgs"]) == (2, 4, 3)
    assert totals["totalMsgs"] == 9


def test_a_queue_with_both_limits_says_which_one_took_a_message(broker: TestBroker, api: Api) -> None:
    api.configure("q", retentionEnabled=True, retentionSeconds=1000, completedRetentionSeconds=5)
    api.push("q", *"abcde")
    for message in api.pop("q", batch=2):
        api.ack(message)
    broker.clock.advance(400)
    api.push("q", "f")
    broker.clock.advance(1000)
    api.post("/api/v1/stats/refresh")

    totals = api.get("/api/v1/analytics/retention").json()["totals"]

    assert (totals["retentionMsgs"], totals["completedRetentionMsgs"]) == (3, 2)


def test_retention_keeps_up_with_more_than_one_step_takes(broker: TestBroker, api: Api) -> None:
    api.configure("q", retentionEnabled=True, retentionSeconds=5)
    for start in range(0, 25_000, 5_000):
        api.push("q", *map(str, range(start, start + 5_000)))

    broker.clock.advance(8)

    assert api.get("/api/v1/resources/queues/q").json()["totals"]["total"] == 0


def test_limits_of_seconds_are_kept_within_seconds(broker: TestBroker, api: Api) -> None:
    """Queen's own suites set ten seconds and look after fifteen."""
    api.configure("aged", retentionEnabled=True, retentionSeconds=10, completedRetentionSeconds=5)
    api.configure("late", retentionEnabled=True, maxWaitTimeSeconds=10)
    broker.clock.advance(1)
    for queue in ("aged", "late"):
        api.push(queue, *"abc")

    broker.clock.advance(9)
    assert [len(api.get("/api/v1/messages", queue=q).json()["messages"]) for q in ("aged", "late")] == [3, 3]
    broker.clock.advance(4)

    assert api.pop("aged") == []
    assert api.pop("late") == []


def schedule(api: Api, key: str, delay_ms: float, txn: str, queue: str = "q", **more: object) -> Json:
    payload = base64.b64encode(b"1").decode()
    operation = {"op": "schedule", "queue": queue, "timerKey": key, "payload": payload, "delayMs": delay_ms}
    answer = api.post("/api/v1/timers", {"operations": [{**operation, "txn": txn, **more}]})
    return dict(answer.json()["results"][0])


def test_a_timers_promised_id_is_the_one_delivered_everywhere(broker: TestBroker, connect: Connect) -> None:
    api = connect()
    api.configure("q", retryLimit=0)
    promised = schedule(api, "k", 5000, "t")["messageId"]
    api.push("q", "before")
    broker.clock.advance(6)
    api.push("q", "after")

    messages = api.pop("q")
    (row,) = [message for message in messages if message["transactionId"] == "t"]

    assert row["id"] == promised
    assert api.get(f"/api/v1/messages/{row['partitionId']}/t").json()["id"] == promised
    (again,) = api.push("q", "t")
    assert (again["status"], again["message_id"]) == ("duplicate", promised)
    operation = {"type": "push", "items": [{"queue": "q", "payload": 1, "transactionId": "t"}]}
    (result,) = api.post("/api/v1/transaction", {"operations": [operation]}).json()["results"]
    assert (result["duplicate"], result["messageId"]) == (True, promised)
    broker.restart()
    broker.clock.advance(hours=1)  # the lease of the pop before
    other = connect()
    (row,) = [message for message in other.pop("q") if message["transactionId"] == "t"]
    assert row["id"] == promised
    other.ack(row, "dlq")
    other.delete("/api/v1/queues/q/clear")
    assert [letter["messageId"] for letter in other.letters()] == [promised]


def test_ids_sort_in_partition_order_where_times_are_equal(broker: TestBroker, api: Api) -> None:
    """Stream clients order a batch by (milliseconds, id)."""
    for n in range(20):
        schedule(api, f"k{n}", 1000 + n % 3, f"timer{n}")
    api.push("q", *(f"early{n}" for n in range(5)))
    broker.clock.advance(1.0025)
    api.push("q", *(f"late{n}" for n in range(2000)))

    messages = api.pop("q", batch=3000)

    assert len(messages) == 2025
    keys = [(message["createdAt"][:23], message["id"]) for message in messages]
    assert keys == sorted(keys)


def test_a_rescheduled_timer_fires_under_its_newest_promise(broker: TestBroker, api: Api) -> None:
    schedule(api, "k", 5000, "t")
    promised = schedule(api, "k", 1000, "t")["messageId"]

    broker.clock.advance(10)

    assert [message["id"] for message in api.pop("q")] == [promised]


def test_a_timer_waits_while_pushes_are_spooled_and_then_keeps_its_promise(
    broker: TestBroker, api: Api
) -> None:
    promised = schedule(api, "k", 1000, "t")["messageId"]
    api.post("/api/v1/system/maintenance", {"enabled": True})
    broker.clock.advance(10)
    assert api.get("/api/v1/timers/q/k").json()["found"] is True
    assert api.pop("q") == []

    api.post("/api/v1/system/maintenance", {"enabled": False})
    broker.clock.advance(10)

    assert [message["id"] for message in api.pop("q")] == [promised]
    assert api.get("/api/v1/timers/q/k").json()["found"] is False


def test_a_timer_for_a_full_queue_comes_later_under_the_same_id(broker: TestBroker, api: Api) -> None:
    api.configure("q", maxSize=1)
    api.push("q", "a")
    promised = schedule(api, "k", 1000, "t")["messageId"]
    other = schedule(api, "k", 1000, "t", queue="r")["messageId"]
    broker.clock.advance(2)
    assert [message["id"] for message in api.pop("r")] == [other]
    (message,) = api.pop("q")

    api.ack(message)
    broker.clock.advance(5)

    assert [message["id"] for message in api.pop("q")] == [promised]

"""One push, and one batch of acknowledgments, over work queues and partitioned queues together."""

from collections.abc import Callable, Iterator
from threading import Thread
from time import monotonic
from typing import Any

import httpx
import pika
import pytest
from http_support import Api, Json, address, ids
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.node import Node
from holtmq.testing import TestBroker

PATIENCE = 60.0
NARROW = {"x-max-length": 2, "x-overflow": "reject-publish"}


@pytest.fixture(autouse=True)
def channel(broker: TestBroker) -> Iterator[BlockingChannel]:
    """A work queue ``jobs``, and who declares more of them."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.queue_declare("jobs", durable=True)
    yield channel
    connection.close()


def push(api: Api, *items: tuple[str, str]) -> httpx.Response:
    rows = [{"queue": queue, "payload": name, "transactionId": name} for queue, name in items]
    return api.post("/api/v1/push", {"items": rows})


def stored(broker: TestBroker, queue: str) -> list[bytes]:
    return [message.body for message in broker.messages(queue)]


def data(messages: list[Json]) -> list[Any]:
    return [message["data"] for message in messages]


def test_one_push_reaches_both_kinds_of_queue_and_is_answered_in_order(
    broker: TestBroker, api: Api, channel: BlockingChannel
) -> None:
    channel.queue_declare("more", durable=True)
    alone = [push(api, item).json()[0] for item in (("log", "a"), ("jobs", "b"))]

    answer = push(api, ("jobs", "c"), ("log", "a"), ("new", "d"), ("more", "e"), ("log", "f"), ("jobs", "g"))

    results = answer.json()
    assert answer.status_code == 201
    assert [result["index"] for result in results] == [*range(6)]
    assert [result["transaction_id"] for result in results] == ["c", "a", "d", "e", "f", "g"]
    assert [result["queueName"] for result in results] == ["jobs", "log", "new", "more", "log", "jobs"]
    assert [result["status"] for result in results] == ["queued", "duplicate", *["queued"] * 4]
    assert results[1] == {**alone[0], "index": 1, "status": "duplicate"}
    assert results[5] == {**alone[1], "index": 5, "transaction_id": "g", "message_id": "g"}
    assert {frozenset(result) for result in results} == {frozenset(alone[0])}
    assert stored(broker, "jobs") == [b'"b"', b'"c"', b'"g"']
    assert stored(broker, "more") == [b'"e"']
    assert [(message["data"], message["id"]) for message in api.pop("log")] == [
        ("a", alone[0]["message_id"]),
        ("f", results[4]["message_id"]),
    ]
    assert data(api.pop("new")) == ["d"]


def test_a_push_to_both_kinds_is_counted_as_a_push(broker: TestBroker, api: Api) -> None:
    push(api, ("log", "a"))

    push(api, ("jobs", "b"), ("log", "a"), ("log", "c"))

    counted = broker.call(lambda node: node.partitioned.counters.of("log"))
    assert (counted.push_requests, counted.push_messages, counted.transactions) == (2, 2, 0)
    assert counted.partitions_created == 1


def test_a_full_queue_of_either_kind_refuses_a_push_to_both(
    broker: TestBroker, api: Api, channel: BlockingChannel
) -> None:
    channel.queue_declare("narrow", durable=True, arguments=NARROW)
    api.configure("tiny", maxSize=1)
    push(api, ("tiny", "only"))

    refused = [
        push(api, ("jobs", "a"), ("tiny", "b")),
        push(api, ("tiny", "b"), ("jobs", "a")),
        push(api, ("narrow", "a"), ("log", "b"), ("narrow", "c"), ("narrow", "d")),
    ]

    assert [(answer.status_code, answer.json()["code"]) for answer in refused] == [(429, "queue_full")] * 3
    assert {answer.json()["error"] for answer in refused} == {
        "queue tiny is full: it may hold 1 waiting messages",
        "queue narrow is full and refuses publishers",
    }
    assert (stored(broker, "jobs"), stored(broker, "narrow"), api.pop("log")) == ([], [], [])
    fits = push(api, ("narrow", "a"), ("log", "b"), ("narrow", "c"), ("tiny", "only"))
    assert [result["status"] for result in fits.json()] == ["queued", "queued", "queued", "duplicate"]
    assert stored(broker, "narrow") == [b'"a"', b'"c"']


def test_a_push_to_both_kinds_has_the_limits_of_any_push(broker: TestBroker, api: Api) -> None:
    most = broker.call(lambda node: node.config.http.max_batch)

    too_many = push(api, *[("jobs", "a"), ("log", "b")] * (most // 2 + 1))
    nameless = push(api, ("jobs", "a"), ("log", "b"), ("", "c"))
    long_id = push(api, ("jobs", "a"), ("log", "b" * 70_000))
    broker.call(lambda node: set_alarm(node, "low on disk"))
    blocked = push(api, ("jobs", "a"), ("log", "b"))
    broker.call(lambda node: set_alarm(node, ""))

    assert (too_many.status_code, too_many.json()["code"]) == (413, "batch_too_large")
    assert (nameless.status_code, long_id.status_code) == (400, 400)
    assert (blocked.status_code, blocked.json()["code"]) == (503, "publishers_blocked")
    assert (stored(broker, "jobs"), api.pop("log")) == ([], [])


def set_alarm(node: Node, reason: str) -> None:
    node.alarms.reason = lambda: reason  # type: ignore[method-assign]
    node.alarms.check()


def test_under_maintenance_a_push_to_both_kinds_buffers_what_any_push_would(
    broker: TestBroker, api: Api
) -> None:
    api.post("/api/v1/system/maintenance", {"enabled": True})

    results = push(api, ("log", "a"), ("jobs", "b"), ("log", "c")).json()

    statuses = [(result["index"], result["transaction_id"], result["status"]) for result in results]
    assert statuses == [(0, "a", "buffered"), (1, "b", "queued"), (2, "c", "buffered")]
    assert stored(broker, "jobs") == [b'"b"']
    assert api.get("/api/v1/system/maintenance").json()["bufferedMessages"] == 2


def test_waiting_pops_of_both_kinds_are_woken_by_one_push(
    broker: TestBroker, api: Api, connect: Callable[..., Api], channel: BlockingChannel
) -> None:
    got: list[Json] = []

    def wait_for(worker: Api, queue: str) -> None:
        got.extend(worker.pop(queue, wait="true", timeout=60_000))

    workers = [Thread(target=wait_for, args=(connect(), queue)) for queue in ("jobs", "log")]
    for worker in workers:
        worker.start()
    deadline = monotonic() + PATIENCE
    while (
        not channel.queue_declare("jobs", passive=True).method.consumer_count
        or not broker.call(lambda node: len(node.partitioned.line))
    ) and monotonic() < deadline:
        pass

    push(api, ("jobs", "a"), ("log", "b"))
    for worker in workers:
        worker.join(PATIENCE)

    assert sorted(data(got)) == ["a", "b"]


def test_one_batch_acknowledges_messages_of_both_kinds_each_with_its_own_answer(
    broker: TestBroker, api: Api
) -> None:
    push(api, *[("jobs", name) for name in "abc"], *[("log", name) for name in "def"], ("other", "g"))
    work, log, other = api.pop("jobs"), api.pop("log"), api.pop("other")
    wrong_lease = {**work[2], "leaseId": "another"}
    unknown = {**log[2], "transactionId": "?"}
    mixed = [work[0], log[0], wrong_lease, other[0], log[1], unknown, work[1]]
    done = "completed"

    answers = api.ack_batch(mixed, [done, done, done, "dlq", done, done, "retry"])

    assert [answer["index"] for answer in answers] == [*range(7)]
    assert ids(answers) == ids(mixed)
    assert [answer["queueName"] for answer in answers] == [message["queue"] for message in mixed]
    assert [answer["success"] for answer in answers] == [True, True, False, True, True, False, True]
    assert [answer["dlq"] for answer in answers] == [False, False, False, True, False, False, False]
    assert answers[2]["error"] == "Invalid or expired lease"
    assert answers[5]["error"].startswith("Message not found")
    assert data(api.pop("jobs")) == ["b"]
    assert data(api.letters()) == ["g"]
    assert api.ack(log[2])["leaseReleased"] is True  # the last of what was popped
    broker.clock.advance(seconds=301)
    assert (data(api.pop("jobs")), api.pop("log"), api.pop("other")) == (["b", "c"], [], [])


def test_messages_of_one_queue_take_effect_together_whatever_stands_between_them(api: Api) -> None:
    api.configure("log", retryLimit=1, retryDelay=0)
    push(api, ("jobs", "a"), ("log", "b"), ("log", "c"))
    (work,), (first, second) = api.pop("jobs"), api.pop("log")

    answers = api.ack_batch([first, work, second], ["failed", "completed", "failed"])

    # Two calls would have been two failures, the second of them under a lease that the first had ended.
    assert [(answer["success"], answer["dlq"]) for answer in answers] == [(True, False)] * 3
    assert data(api.pop("log")) == ["b", "c"]


def test_a_batch_s_group_is_for_its_partitioned_queues(api: Api) -> None:
    push(api, ("jobs", "a"), ("log", "b"))
    (work,) = api.pop("jobs")
    (message,) = api.pop("log", consumerGroup="g")
    acks = [{**address(work), "consumerGroup": None}, {**address(message), "consumerGroup": None}]

    answers = api.post("/api/v1/ack/batch", {"acknowledgments": acks, "consumerGroup": "g"}).json()

    assert [answer["success"] for answer in answers] == [True, True]
    assert (api.pop("log", consumerGroup="g"), data(api.pop("log"))) == ([], ["b"])


def test_what_one_push_and_one_batch_did_to_both_kinds_is_there_after_a_crash() -> None:
    with TestBroker(durable=True) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        connection.channel().queue_declare("jobs", durable=True)
        connection.close()
        api = Api(broker.http_url)
        assert push(api, ("jobs", "a"), ("log", "b"), ("jobs", "c"), ("log", "d")).status_code == 201
        answers = api.ack_batch([*api.pop("jobs", batch=1), *api.pop("log", batch=1)])
        assert [answer["success"] for answer in answers] == [True, True]
        api.http.close()

        broker.crash_and_restart()

        again = Api(broker.http_url)
        assert (data(again.pop("jobs")), data(again.pop("log"))) == (["c"], ["d"])
        again.http.close()

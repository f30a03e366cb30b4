"""Searching messages wherever they are, in bounded steps that a cursor connects."""

import json
from collections.abc import Iterator

import pika
import pytest
from http_support import Api, Json

from holtmq.auth.permissions import Permissions
from holtmq.auth.users import User
from holtmq.first_start import GUEST_HASH
from holtmq.http.dashboard import search
from holtmq.testing import TestBroker

PATH = "/api/v1/dashboard/messages"


@pytest.fixture
def channel(broker: TestBroker) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    opened = connection.channel()
    opened.confirm_delivery()
    yield opened
    connection.close()


def everything(api: Api, **asked: object) -> list[Json]:
    """All results, over as many requests as it takes."""
    found: list[Json] = []
    cursor = ""
    while True:
        answer = api.post(PATH, {**asked, "cursor": cursor})
        assert answer.status_code == 200, answer.text
        found += answer.json()["messages"]
        cursor = answer.json()["cursor"]
        if cursor is None:
            return found


def put(channel, queue: str, body: object, exchange: str = "", **properties: object) -> None:  # type: ignore[no-untyped-def]
    raw = body if isinstance(body, bytes) else json.dumps(body)
    channel.basic_publish(exchange, queue, raw, pika.BasicProperties(**properties))


def test_a_message_is_found_in_every_state(broker: TestBroker, api: Api, channel) -> None:  # type: ignore[no-untyped-def]
    channel.exchange_declare("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    channel.exchange_declare("dlx", "fanout")
    channel.queue_declare("work", arguments={"x-dead-letter-exchange": "dlx"})
    channel.queue_declare("dead")
    channel.queue_bind("dead", "dlx")
    channel.queue_bind("work", "later", "work")
    for n in range(3):
        put(channel, "work", {"needle": n}, message_id=f"m{n}")
    put(channel, "work", {"needle": 9}, "later", headers={"x-delay": 60_000})
    channel.basic_get("work")
    method, _, _ = channel.basic_get("work")
    channel.basic_reject(method.delivery_tag, requeue=False)
    channel.queue_declare("work", passive=True)
    api.push("log", "t1", "t2")
    (popped,) = api.pop("log", consumerGroup="g", batch=1)
    api.ack(popped, "dlq", error="broken 17", consumerGroup="g")

    found = everything(api)

    assert sorted((row["state"], row["queue"]) for row in found) == [
        ("dead", "dead"),
        ("dead", "log"),
        ("delayed", ""),
        ("ready", "dead"),
        ("ready", "work"),
        ("retained", "log"),
        ("retained", "log"),
        ("unacked", "work"),
    ]
    (letter,) = everything(api, states=["dead"], queue="log")
    assert (letter["error"], letter["group"], letter["payload"]) == ("broken 17", "g", {"id": "t1"})
    (delayed,) = everything(api, states=["delayed"])
    assert delayed["due_at"] - delayed["arrived_at"] == 60_000
    assert broker.queue_depth("work") == 1


def test_conditions_are_met_all_together(api: Api, channel) -> None:  # type: ignore[no-untyped-def]
    channel.queue_declare("q")
    put(channel, "q", {"order": {"total": 5}}, message_id="a", headers={"tenant": "acme"})
    put(channel, "q", {"order": {"total": 500}}, message_id="b", headers={"tenant": "acme"})
    put(channel, "q", {"order": {"total": 500}}, message_id="c", headers={"tenant": "other"})
    put(channel, "q", b"\xff\x00 not text", message_id="d", type="raw")

    def ids(**asked: object) -> list[str]:
        return [row["properties"]["message_id"] for row in everything(api, **asked)]

    assert ids(id="b") == ["b"]
    assert ids(filter=["json.order.total>100", "header.tenant=acme"]) == ["b"]
    assert ids(text="not text") == ["d"]
    assert ids(filter=["property.type=raw"]) == ["d"]
    assert ids(until=1) == []
    assert ids(queue="other") == []
    wrong = api.post(PATH, {"filter": ["colour=red"]})
    assert wrong.status_code == 400
    assert "colour" in wrong.text
    assert api.post(PATH, {"states": ["lost"]}).status_code == 400
    assert api.post(PATH, {"cursor": "x"}).status_code == 400


def test_a_search_goes_on_where_its_budget_ended_over_priorities_and_queues(  # type: ignore[no-untyped-def]
    api: Api, channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_LOOKED_AT", 4)
    channel.queue_declare("a", arguments={"x-max-priority": 3})
    channel.queue_declare("b")
    for n in range(10):
        put(channel, "a", n, priority=n % 3, message_id=f"a{n}")
        put(channel, "b", n, message_id=f"b{n}")
    api.push("log", *[f"t{n}" for n in range(9)])

    found = everything(api, states=["ready", "retained"], limit=3)

    ids = [row["properties"].get("message_id") or row["transaction_id"] for row in found]
    assert sorted(ids) == sorted([f"{q}{n}" for q in "ab" for n in range(10)] + [f"t{n}" for n in range(9)])
    assert ids[:10] == ["a2", "a5", "a8", "a1", "a4", "a7", "a0", "a3", "a6", "a9"]


def test_only_what_the_user_may_read_is_searched(broker: TestBroker, connect, channel) -> None:  # type: ignore[no-untyped-def]
    channel.exchange_declare("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    for name in ("mine", "theirs"):
        channel.queue_declare(name)
        put(channel, name, name)
    put(channel, "theirs", "secret", "later", headers={"x-delay": 60_000})

    def prepare(node) -> None:  # type: ignore[no-untyped-def]
        node.broker.access.put_user(User("ann", GUEST_HASH, ()))
        node.amqp.authenticator.remember("ann", "ann", GUEST_HASH)
        node.broker.access.set_permissions("ann", "/", Permissions("", "", "^mine"))

    broker.call(prepare)
    ann = connect(auth=("ann", "ann"))

    assert [row["payload"] for row in everything(ann)] == ['"mine"']
    assert everything(ann, queue="theirs") == []

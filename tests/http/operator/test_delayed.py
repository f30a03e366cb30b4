"""Delayed messages: list, deliver now, cancel, over HTTP and with ``holt delayed``."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress

import httpx
import pika
import pytest
from click.testing import CliRunner
from http_support import Api, Json
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.cli import main
from holtmq.testing import TestBroker, VirtualClock

HOUR = 3_600_000


@pytest.fixture
def channel(broker: TestBroker) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    declare(channel)
    yield channel
    with suppress(pika.exceptions.AMQPError):  # its broker may have crashed
        connection.close()


def declare(channel: BlockingChannel) -> None:
    channel.exchange_declare(
        "later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
    )
    channel.queue_declare("jobs", durable=True)
    channel.queue_bind("jobs", "later", "jobs")


def delay(channel: BlockingChannel, body: bytes, delay_ms: int, key: str = "jobs", mode: int = 2) -> None:
    properties = pika.BasicProperties(
        headers={"x-delay": delay_ms}, delivery_mode=mode, message_id=body.decode()
    )
    channel.basic_publish("later", key, body, properties)


def ok(answer: httpx.Response) -> Json:
    assert answer.status_code in (200, 201, 204), answer.text
    return dict(answer.json()) if answer.content else {}


def refused(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"])


def listed(api: Api, **query: object) -> list[str]:
    answer = ok(api.get("/api/v1/delayed", **query))
    return [row["properties"]["message_id"] for row in answer["messages"]]


def id_of(api: Api, name: str) -> str:
    rows = ok(api.get("/api/v1/delayed"))["messages"]
    return str(next(row["id"] for row in rows if row["properties"]["message_id"] == name))


def waiting(channel: BlockingChannel) -> list[bytes]:
    bodies = []
    while (body := channel.basic_get("jobs", auto_ack=True)[2]) is not None:
        bodies.append(body)
    return bodies


def test_a_row_says_where_the_message_waits_and_what_it_is(
    broker: TestBroker, api: Api, channel: BlockingChannel
) -> None:
    delay(channel, b"one", HOUR)

    answer = ok(api.get("/api/v1/delayed"))

    assert answer["total"] == 1
    assert answer["next"] is None
    [row] = answer["messages"]
    assert row["properties"] == {"headers": {"x-delay": HOUR}, "delivery_mode": 2, "message_id": "one"}
    assert (row["vhost"], row["exchange"], row["routingKey"], row["queues"]) == (
        "/",
        "later",
        "jobs",
        ["jobs"],
    )
    assert (row["bytes"], row["persistent"]) == (3, True)
    assert row["dueAt"][:19] > row["publishedAt"][:19]


def test_the_next_due_comes_first_and_pages_follow_each_other(api: Api, channel: BlockingChannel) -> None:
    for number in (3, 1, 2, 5, 4):
        delay(channel, b"%d" % number, number * HOUR)
    seen, after = list[str](), dict[str, str]()
    while True:
        answer = ok(api.get("/api/v1/delayed", limit=2, **after))
        assert len(answer["messages"]) <= 2
        seen += [row["properties"]["message_id"] for row in answer["messages"]]
        if answer["next"] is None:
            break
        after = {"after": answer["next"]}

    assert seen == ["1", "2", "3", "4", "5"]


def test_filters_by_vhost_exchange_and_queue(api: Api, channel: BlockingChannel) -> None:
    delay(channel, b"bound", HOUR)
    delay(channel, b"unbound", HOUR, key="nowhere")

    assert listed(api, vhost="/", exchange="later") == ["bound", "unbound"]
    assert listed(api, queue="jobs") == ["bound"]
    assert listed(api, exchange="other") == []
    assert listed(api, vhost="none") == []


def test_a_cursor_that_was_not_given_out_is_refused(api: Api) -> None:
    assert "'soon'" in refused(api.get("/api/v1/delayed", after="soon"), 400)


@pytest.mark.parametrize("mode", [1, 2], ids=["transient", "persistent"])
def test_delivered_now_and_not_again_when_due(
    broker: TestBroker, api: Api, channel: BlockingChannel, mode: int
) -> None:
    delay(channel, b"one", HOUR, mode=mode)

    answer = ok(api.post(f"/api/v1/delayed/{id_of(api, 'one')}/deliver"))

    assert (answer["delivered"], answer["queues"]) == (True, ["jobs"])
    assert waiting(channel) == [b"one"]
    assert isinstance(broker.clock, VirtualClock)
    broker.clock.advance(hours=2)
    assert waiting(channel) == []
    assert listed(api) == []


def test_a_full_queue_is_waited_for_and_the_caller_is_told(
    broker: TestBroker, api: Api, channel: BlockingChannel
) -> None:
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    channel.queue_declare("small", durable=True, arguments=full)
    channel.queue_bind("small", "later", "small")
    channel.basic_publish("", "small", b"first")
    delay(channel, b"one", HOUR, key="small")
    found = id_of(api, "one")

    for _ in range(2):
        assert "full queue" in refused(api.post(f"/api/v1/delayed/{found}/deliver"), 409)

    assert channel.basic_get("small", auto_ack=True)[2] == b"first"
    assert isinstance(broker.clock, VirtualClock)
    broker.clock.advance(seconds=2)
    assert channel.basic_get("small", auto_ack=True)[2] == b"one"
    assert listed(api) == []


def test_a_cancelled_message_never_comes_also_after_a_crash(
    broker: TestBroker, api: Api, channel: BlockingChannel
) -> None:
    for name in (b"cancelled", b"delivered", b"kept"):
        delay(channel, name, HOUR)
    ok(api.delete(f"/api/v1/delayed/{id_of(api, 'cancelled')}"))
    ok(api.post(f"/api/v1/delayed/{id_of(api, 'delivered')}/deliver"))

    broker.crash_and_restart()

    assert isinstance(broker.clock, VirtualClock)
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        again = connection.channel()
        assert waiting(again) == [b"delivered"]
        broker.clock.advance(hours=2)
        assert waiting(again) == [b"kept"]


def test_what_no_longer_waits_is_not_found(api: Api, channel: BlockingChannel) -> None:
    delay(channel, b"one", HOUR)
    found = id_of(api, "one")
    ok(api.delete(f"/api/v1/delayed/{found}"))

    for method, path in (("DELETE", found), ("POST", f"{found}/deliver"), ("DELETE", "x"), ("DELETE", "7")):
        answer = api.http.request(method, f"/api/v1/delayed/{path}")
        assert "no delayed message" in refused(answer, 404)


def test_rights_are_those_on_the_exchange(
    broker: TestBroker, api: Api, connect: Callable[..., Api], channel: BlockingChannel
) -> None:
    delay(channel, b"one", HOUR)
    found = id_of(api, "one")
    for name, patterns in {
        "stranger": ("other", "other", "other"),
        "reader": ("other", "other", "later"),
        "writer": ("other", "later", "later"),
        "owner": ("later", "later", "later"),
    }.items():
        ok(api.http.put(f"/api/users/{name}", json={"password": name, "tags": ""}))
        rights = dict(zip(("configure", "write", "read"), patterns, strict=True))
        ok(api.http.put(f"/api/permissions/%2F/{name}", json=rights))
    as_user = {name: connect(auth=(name, name)) for name in ("stranger", "reader", "writer", "owner")}

    assert listed(as_user["stranger"]) == []
    assert ok(as_user["stranger"].get("/api/v1/delayed"))["total"] is None
    assert listed(as_user["reader"]) == ["one"]
    refused(as_user["stranger"].delete(f"/api/v1/delayed/{found}"), 404)
    refused(as_user["reader"].post(f"/api/v1/delayed/{found}/deliver"), 403)
    refused(as_user["writer"].delete(f"/api/v1/delayed/{found}"), 403)
    ok(as_user["owner"].delete(f"/api/v1/delayed/{found}"))
    assert listed(api) == []


def test_holt_delayed_lists_delivers_and_cancels(
    broker: TestBroker, api: Api, channel: BlockingChannel
) -> None:
    for name in (b"one", b"two"):
        delay(channel, name, HOUR)

    def holt(*arguments: str) -> str:
        result = CliRunner().invoke(main, ["delayed", *arguments], env={"HOLT_ADMIN_URL": broker.http_url})
        assert result.exit_code == 0, result.output
        return result.output

    rows = json.loads(holt("list", "--exchange", "later", "--json"))
    assert [row["properties"]["message_id"] for row in rows] == ["one", "two"]
    assert "later" in holt("list", "--limit", "1")
    assert "delivered to jobs" in holt("deliver", rows[0]["id"])
    assert "cancelled" in holt("cancel", rows[1]["id"])
    assert json.loads(holt("list", "--json")) == []
    assert waiting(channel) == [b"one"]

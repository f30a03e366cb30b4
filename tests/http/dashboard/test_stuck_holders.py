"""What holds messages without a consumer is named: channel, connection or worker, and since when."""

import base64
from collections.abc import Iterator

import pika
import pytest
from click.testing import CliRunner
from http_support import Api, Json
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.cli import main
from holtmq.config import Amqp, Config, Limits
from holtmq.testing import TestBroker


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    """With RabbitMQ's basic.cancel: a cancelled consumer keeps what it has."""
    config = Config(
        amqp=Amqp(cancel_requeue=False), limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0)
    )
    with TestBroker(config=config) as one:
        yield one


@pytest.fixture
def worker(broker: TestBroker) -> Iterator[pika.BlockingConnection]:
    parameters = pika.URLParameters(broker.amqp_url)
    parameters.client_properties = {"connection_name": "billing"}
    connection = pika.BlockingConnection(parameters)
    yield connection
    connection.close()


def filled(connection: pika.BlockingConnection, *queues: str) -> BlockingChannel:
    channel = connection.channel()
    channel.confirm_delivery()
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        for _ in range(3):
            channel.basic_publish("", queue, b"x")
    return channel


def unacked(api: Api) -> dict[str, Json]:
    found = api.get("/api/v1/dashboard/attention").json()["findings"]
    return {one["name"]: one for one in found if one["rule"] == "unacked"}


def test_messages_taken_by_basic_get_name_their_channel_per_queue(
    broker: TestBroker, api: Api, worker: pika.BlockingConnection
) -> None:
    channel = filled(worker, "first", "second")
    began = broker.call(lambda node: node.clock())
    channel.basic_get("first")
    broker.clock.advance(250)
    channel.basic_get("second")
    channel.basic_get("second")
    broker.clock.advance(100)

    (found,) = unacked(api).values()
    assert found["name"] == "first"
    assert "billing at 127.0.0.1:" in found["text"]
    (who,) = found["who"]
    assert (who["kind"], who["channel"], who["user"], who["unacked"]) == ("get", 1, "guest", 1)
    assert abs(who["since"] - began * 1000) <= 1000

    broker.clock.advance(250)
    assert {name: one["who"][0]["unacked"] for name, one in unacked(api).items()} == {"first": 1, "second": 2}
    ended = CliRunner().invoke(main, ["stuck", "--url", broker.http_url])
    assert ended.exit_code == 1
    assert "basic.get on channel 1, 2 unacked since" in ended.output
    (row,) = api.get("/api/v1/dashboard/connections").json()["rows"]
    assert abs(row["held_since"] - began * 1000) <= 1000
    page = api.get("/api/v1/dashboard/queues/%2F/second").json()
    assert [(one["kind"], one["unacked"]) for one in page["others"]] == [("get", 2)]

    channel.basic_ack(0, multiple=True)
    channel.queue_declare("first", passive=True)
    broker.clock.advance(3)
    assert unacked(api) == {}
    channel.close()
    assert broker.call(lambda node: len(node.broker.other_holders)) == 0


def test_messages_kept_by_a_cancelled_consumer_name_it(
    broker: TestBroker, api: Api, worker: pika.BlockingConnection
) -> None:
    channel = filled(worker, "kept")
    channel.basic_consume("kept", lambda *_: None, consumer_tag="gone")
    worker.process_data_events(0)
    while api.get("/api/queues/%2F/kept").json()["messages_unacknowledged"] != 3:
        worker.process_data_events(0.01)
    # pika's own cancel gives the messages back: this is what other clients send.
    channel._impl._send_method(pika.spec.Basic.Cancel("gone", nowait=True))
    channel.queue_declare("kept", passive=True)
    broker.clock.advance(301)

    (who,) = unacked(api)["kept"]["who"]
    assert (who["kind"], who["consumer"], who["unacked"]) == ("cancelled", "gone", 3)
    channel.close()
    assert broker.call(lambda node: len(node.broker.other_holders)) == 0


def test_messages_leased_over_http_name_user_and_host_until_the_lease_ends(
    broker: TestBroker, api: Api, worker: pika.BlockingConnection
) -> None:
    filled(worker, "leased")
    popped = api.get("/api/v1/pop/queue/leased", batch=2, leaseSeconds=3600).json()["messages"]
    broker.clock.advance(301)

    (who,) = unacked(api)["leased"]["who"]
    assert (who["kind"], who["consumer"], who["unacked"]) == ("lease", popped[0]["leaseId"], 2)
    assert (who["user"], who["host"]) == ("guest", "127.0.0.1")
    assert who["expires"] - who["since"] == 3_600_000
    broker.clock.advance(3400)
    assert unacked(api) == {}
    assert broker.call(lambda node: len(node.broker.other_holders)) == 0


def of_rule(api: Api, rule: str) -> list[Json]:
    return [one for one in api.get("/api/v1/dashboard/attention").json()["findings"] if one["rule"] == rule]


def test_a_shovel_that_fails_shows_since_its_first_failure(broker: TestBroker, api: Api) -> None:
    ends = {"src-uri": "amqp://", "src-queue": "s", "dest-uri": "amqp://127.0.0.1:9", "dest-queue": "t"}
    api.http.put("/api/parameters/shovel/%2F/mover", json={"value": ends}).raise_for_status()
    while api.get("/api/shovels").json()[0]["last_error"] is None:
        pass
    began = api.get("/api/shovels").json()[0]["failing_since"]
    broker.clock.advance(60)

    api.http.delete("/api/shovels/vhost/%2F/mover/restart").raise_for_status()
    while api.get("/api/shovels").json()[0]["state"] != "terminated":
        pass

    (found,) = of_rule(api, "shovel")
    assert (found["severity"], found["since"]) == ("bad", began)
    assert "cannot connect to amqp://127.0.0.1:9" in found["text"]


def test_a_timer_whose_queue_is_full_shows_until_it_is_delivered(broker: TestBroker, api: Api) -> None:
    api.post("/api/v1/configure", {"queue": "full", "options": {"maxQueueSize": 1}}).raise_for_status()
    payload = base64.b64encode(b"1").decode()
    timer = {
        "op": "schedule",
        "queue": "full",
        "timerKey": "k",
        "delayMs": 1000,
        "txn": "t",
        "payload": payload,
    }
    api.post("/api/v1/timers", {"operations": [timer]}).raise_for_status()
    due = broker.call(lambda node: node.clock()) + 1
    api.post("/api/v1/push", {"items": [{"queue": "full", "payload": 1}]}).raise_for_status()
    broker.clock.advance(30)

    (found,) = of_rule(api, "timers")
    assert (found["name"], abs(found["since"] / 1000 - due) < 5) == ("full", True)
    assert "queue full is full" in found["text"]

    (message,) = api.get("/api/v1/pop/queue/full", batch=1).json()["messages"]
    api.post("/api/v1/ack", {**message, "status": "completed"}).raise_for_status()
    broker.clock.advance(5)
    assert of_rule(api, "timers") == []


def test_a_queue_of_dead_letters_is_told_from_a_queue_without_a_reader(
    broker: TestBroker, api: Api, worker: pika.BlockingConnection
) -> None:
    channel = filled(worker, "unread", "graves")
    channel.queue_purge("graves")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}
    channel.queue_declare("dying", durable=True, arguments=arguments)
    channel.basic_publish("", "dying", b"x")
    channel.basic_reject(channel.basic_get("dying")[0].delivery_tag, requeue=False)
    channel.queue_declare("dying", passive=True)
    broker.clock.advance(100)

    assert [one["name"] for one in of_rule(api, "unread")] == ["unread"]
    assert [one["name"] for one in of_rule(api, "dead-letter-queue")] == ["graves"]

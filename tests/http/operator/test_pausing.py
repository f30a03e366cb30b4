"""A paused queue takes messages and hands out none, over every door, also after a restart."""

import json
from typing import Any

import pika
import pytest
from click.testing import CliRunner
from http_support import Api

from holtmq.cli import main
from holtmq.testing import TestBroker

_PAUSE = "/api/v1/operator/queues/%2F/{}/pause"


def publish(broker: TestBroker, queue: str, *bodies: bytes) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))


def restart(broker: TestBroker, *, from_checkpoint: bool) -> None:
    if from_checkpoint:
        made = broker.call(lambda node: node.journal.stats().checkpoints)
        broker.call(lambda node: node.checkpoints.make())
        while broker.call(lambda node: node.journal.stats().checkpoints) == made:
            pass
    broker.crash_and_restart()


def take_all(channel: Any, queue: str) -> list[bytes]:
    taken: list[bytes] = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        taken.append(got[2])
    return taken


def holt(broker: TestBroker, *arguments: str) -> str:
    result = CliRunner().invoke(main, arguments, env={"HOLT_ADMIN_URL": broker.http_url})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_a_paused_work_queue_hands_out_nothing_until_it_is_resumed(
    broker: TestBroker, api: Api, from_checkpoint: bool
) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        connection.channel().queue_declare("q", durable=True)
    publish(broker, "q", b"1")
    assert "is paused by guest (repair)" in holt(broker, "queue", "pause", "q", "--reason", "repair")
    publish(broker, "q", b"2")
    restart(broker, from_checkpoint=from_checkpoint)
    publish(broker, "q", b"3")
    seen: list[bytes] = []
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        assert channel.basic_get("q")[0] is None
        channel.basic_consume("q", lambda c, m, p, body: seen.append(body), auto_ack=True)
        row = api.get("/api/queues/%2F/q").json()
        assert (row["state"], row["messages_ready"], row["consumers"]) == ("paused", 3, 1)
        assert (row["paused"]["by"], row["paused"]["reason"]) == ("guest", "repair")
        assert api.get("/api/v1/dashboard/queues").json()["rows"][0]["paused"] is True
        (finding,) = api.get("/api/v1/dashboard/attention").json()["findings"]
        assert (finding["rule"], finding["since"]) == ("paused", row["paused"]["since"])
        assert finding["text"] == "paused by guest (repair), 3 messages held back"
        assert api.pop("q") == []
        assert api.post("/api/queues/%2F/q/get", _GET).json() == []
        (listed,) = json.loads(holt(broker, "queue", "list", "--json"))
        assert listed["state"] == "paused"

        holt(broker, "queue", "resume", "q")
        while len(seen) < 3:
            connection.process_data_events(time_limit=None)
    assert seen == [b"1", b"2", b"3"]
    broker.restart()
    assert api.get("/api/queues/%2F/q").json()["state"] == "running"


_GET = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}


def test_what_was_handed_out_before_the_pause_can_be_settled(broker: TestBroker, api: Api) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        publish(broker, "q", b"1", b"2")
        first = channel.basic_get("q")[0]
        second = channel.basic_get("q")[0]
        assert api.http.put(_PAUSE.format("q")).status_code == 200
        channel.basic_ack(first.delivery_tag)
        channel.basic_nack(second.delivery_tag, requeue=True)
        assert channel.basic_get("q")[0] is None
        assert api.delete(_PAUSE.format("q")).json() == {"vhost": "/", "queue": "q", "paused": False}
        assert take_all(channel, "q") == [b"2"]


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_a_paused_partitioned_queue_serves_no_group_and_no_reader(
    broker: TestBroker, api: Api, from_checkpoint: bool
) -> None:
    api.push("s.t", "a")
    first = api.http.put(_PAUSE.format("s.t"), json={"reason": "r"}).json()
    assert (first["by"], first["paused"]) == ("guest", True)
    again = api.http.put(_PAUSE.format("s.t"), json={"reason": "other"}).json()
    assert again == first, "a second pause changes nothing"
    api.push("s.t", "b", partition="other")
    restart(broker, from_checkpoint=from_checkpoint)
    assert api.pop("s.t", consumerGroup="g", subscriptionMode="all", partitions=10) == []
    wide = api.get("/api/v1/pop", namespace="s", consumerGroup="w", subscriptionMode="all")
    assert wide.status_code == 204
    seen: list[bytes] = []
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        channel.basic_consume(
            "s.t", lambda c, m, p, body: seen.append(body), arguments={"x-stream-offset": "first"}
        )
        assert broker.call(lambda node: node.broker.vhosts["/"].queues["s.t"].unacked) == 0
        assert api.get("/api/queues/%2F/s.t").json()["state"] == "paused"
        assert api.delete(_PAUSE.format("s.t")).status_code == 200
        while len(seen) < 2:
            connection.process_data_events(time_limit=None)
    popped = api.pop("s.t", consumerGroup="g", partitions=10)
    assert sorted(message["transactionId"] for message in popped) == ["a", "b"]
    wide = api.get("/api/v1/pop", namespace="s", consumerGroup="w", batch=10, partitions=10)
    assert len(wide.json()["messages"]) == 2


def test_a_stream_without_a_message_can_be_paused(broker: TestBroker, api: Api) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        connection.channel().queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    assert api.http.put(_PAUSE.format("s")).status_code == 200
    publish(broker, "s", b"1")
    broker.restart()
    assert api.pop("s", consumerGroup="g", subscriptionMode="all") == []
    api.delete(_PAUSE.format("s"))
    assert len(api.pop("s", consumerGroup="g", subscriptionMode="all")) == 1


def test_pausing_says_what_is_wrong(api: Api) -> None:
    missing = api.http.put(_PAUSE.format("nowhere"))
    assert missing.status_code == 404
    assert "no queue 'nowhere' in vhost '/'" in missing.text
    vhost = api.http.put("/api/v1/operator/queues/none/q/pause")
    assert vhost.status_code == 404
    assert "no vhost 'none'" in vhost.text
    api.push("s", "a")
    wrong = api.http.put(_PAUSE.format("s"), json={"reson": "r"})
    assert wrong.status_code == 400
    assert "reson" in wrong.text

"""An operator cancels a consumer: the client is told, and its messages go to another."""

import pika
import pytest
from click.testing import CliRunner
from http_support import Api

from holtmq.cli import main
from holtmq.testing import TestBroker

_CANCEL = "/api/v1/operator/consumers/cancel"


def holt(broker: TestBroker, *arguments: str) -> str:
    result = CliRunner().invoke(main, arguments, env={"HOLT_ADMIN_URL": broker.http_url})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_client_is_told_and_what_it_held_is_ready_again(broker: TestBroker, api: Api) -> None:
    with (
        pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection,
        pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as other,
    ):
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        held: list[bytes] = []
        cancelled: list[str] = []
        channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        channel.basic_consume("q", lambda c, m, p, body: held.append(body), consumer_tag="stuck")
        channel.basic_publish("", "q", b"1")
        while not held:
            connection.process_data_events(time_limit=None)
        assert "Consumer 'stuck' cancelled." in holt(broker, "consumer", "cancel", "stuck", "--queue", "q")
        while not cancelled:
            connection.process_data_events(time_limit=None)
        assert cancelled == ["stuck"]
        method, _, body = other.channel().basic_get("q", auto_ack=True)
        assert (body, method.redelivered) == (b"1", True)
        channel.queue_declare("q", passive=True)  # the channel is as usable as before
        assert api.get("/api/consumers").json() == []


def test_a_client_that_cannot_be_told_is_named(broker: TestBroker) -> None:
    parameters = pika.URLParameters(broker.amqp_url)
    parameters.client_properties = {"capabilities": {"consumer_cancel_notify": False}}
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_consume("q", lambda *_: None, consumer_tag="old")
        assert "does not understand basic.cancel" in holt(broker, "consumer", "cancel", "old")


@pytest.mark.parametrize(("extra", "status"), [({}, 409), ({"queue": "none"}, 404), ({"vhost": "none"}, 404)])
def test_which_consumer_is_meant_must_be_clear(
    broker: TestBroker, api: Api, extra: dict[str, str], status: int
) -> None:
    with (
        pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as one,
        pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as two,
    ):
        for connection in (one, two):
            channel = connection.channel()
            channel.queue_declare("q")
            channel.basic_consume("q", lambda *_: None, consumer_tag="same")
        answer = api.post(_CANCEL, {"consumer_tag": "same", **extra})
        assert answer.status_code == status, answer.text
        if status == 409:
            name = api.get("/api/connections").json()[0]["name"]
            assert name in answer.text
            assert api.post(_CANCEL, {"consumer_tag": "same", "connection": name}).json()["cancelled"] == 1
            assert len(api.get("/api/consumers").json()) == 1

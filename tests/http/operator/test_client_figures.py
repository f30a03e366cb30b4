"""Messages per exchange and per connection: totals and rates."""

import pika
from http_support import Api

from holtmq.testing import TestBroker


def exchange(api: Api, name: str) -> dict[str, float]:
    stats = api.get(f"/api/exchanges/%2F/{name}").json()["message_stats"]
    return {"in": stats["publish_in"], "rate": stats["publish_in_details"]["rate"]}


def connection(api: Api) -> dict[str, object]:
    (row,) = api.get("/api/v1/dashboard/connections").json()["rows"]
    return dict(row)


def test_publishes_are_counted_for_the_exchange_they_name(broker: TestBroker, api: Api) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as client:
        channel = client.channel()
        channel.exchange_declare("x", "fanout")
        channel.queue_declare("q")
        channel.queue_bind("q", "x")
        for _ in range(30):  # in turn: a run of publishes changes its exchange
            channel.basic_publish("x", "k", b"1")
            channel.basic_publish("", "q", b"2")
            channel.basic_publish(
                "", "q", b"3", pika.BasicProperties(headers={"CC": ["q"]})
            )  # the general path
        channel.queue_declare("q", passive=True)
        assert exchange(api, "x")["in"] == 30
        assert exchange(api, "amq.default")["in"] == 60
        broker.call(lambda node: node.sample_figures())
        broker.clock.advance(seconds=1)
        assert exchange(api, "x")["rate"] == 6.0  # over the last five seconds
        (row,) = [one for one in api.get("/api/v1/dashboard/exchanges").json()["rows"] if one["name"] == "x"]
        assert (row["published"], row["publishing"]) == (30, 6.0)
        assert exchange(api, "amq.fanout") == {"in": 0, "rate": 0.0}


def test_a_connections_messages_are_counted_over_all_its_channels(broker: TestBroker, api: Api) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as client:
        first, second = client.channel(), client.channel()
        first.queue_declare("q")
        for _ in range(10):
            first.basic_publish("", "q", b"1")
        first.close()
        tags = [second.basic_get("q")[0].delivery_tag for _ in range(6)]
        second.basic_ack(tags[3], multiple=True)
        second.basic_get("q", auto_ack=True)
        row = connection(api)
        assert (row["published"], row["delivered"], row["settled"]) == (10, 7, 5)
        assert row["publishing"] is None, "unknown after one look, not 0"
        for _ in range(8):
            second.basic_publish("", "q", b"2")
        second.queue_declare("q", passive=True)
        broker.clock.advance(seconds=2)
        row = connection(api)
        assert (row["published"], row["publishing"], row["delivering"]) == (18, 4.0, 0.0)

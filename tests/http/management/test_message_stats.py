"""Rates, samples and bytes of queues and of the node, as dashboards and autoscalers read them."""

from collections.abc import Iterator
from typing import Any

import httpx
import pika
import pytest

from holtmq.testing import TestBroker


class Watched:
    """A broker whose seconds pass when a test says so."""

    def __init__(self, broker: TestBroker) -> None:
        self.broker = broker
        self.http = httpx.Client(base_url=broker.http_url + "/api", auth=("guest", "guest"))
        self.connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        self.channel = self.connection.channel()
        self.channel.queue_declare("q", durable=True)

    def second(self, publish: int = 0, get: int = 0, ack: bool = False) -> None:
        """A second in which so much happens."""
        for _ in range(publish):
            self.channel.basic_publish("", "q", b"12345")
        for _ in range(get):
            method, _, _ = self.channel.basic_get("q")
            if ack:
                self.channel.basic_ack(method.delivery_tag)
        self.channel.queue_declare("q", passive=True)  # all of it has arrived
        self.broker.call(lambda node: node.sample_figures())
        self.broker.clock.advance(1)

    def queue(self, **query: int) -> dict[str, Any]:
        return dict(self.http.get("/queues/%2F/q", params=query).raise_for_status().json())

    def close(self) -> None:
        self.connection.close()
        self.http.close()


@pytest.fixture
def watched() -> Iterator[Watched]:
    with TestBroker() as broker:
        one = Watched(broker)
        yield one
        one.close()


def test_a_queue_shows_totals_rates_and_bytes(watched: Watched) -> None:
    for _ in range(5):
        watched.second(publish=10, get=4, ack=True)
    watched.second(get=3)

    row = watched.queue()

    stats = row["message_stats"]
    assert (stats["publish"], stats["deliver_get"], stats["ack"]) == (50, 23, 20)
    assert stats["publish_details"] == {"rate": 8.0}  # the last five seconds, one of them without a publish
    assert stats["ack_details"] == {"rate": 3.2}
    assert row["messages_details"] == {"rate": 3.6}  # from 12 to 30 in five seconds
    assert (row["message_bytes_ready"], row["message_bytes_unacknowledged"]) == (27 * 5, 3 * 5)
    assert row["message_bytes"] == 30 * 5


def test_deliveries_are_told_apart_by_how_they_were_made(watched: Watched) -> None:
    channel = watched.channel
    watched.second(publish=10)
    for n in range(4):
        method, _, _ = channel.basic_get("q", auto_ack=n == 0)
    channel.basic_nack(method.delivery_tag, requeue=True)
    for _ in range(2):  # one of them for the second time
        channel.basic_get("q")
    watched.second()
    got: list[bool] = []
    for no_ack, most in ((False, 2), (True, 3)):
        channel.basic_qos(prefetch_count=2)
        tag = channel.basic_consume("q", lambda *_: got.append(True), auto_ack=no_ack)
        while len(got) < most:
            watched.connection.process_data_events(1)
        channel.basic_cancel(tag)
    watched.second()

    stats = watched.queue(msg_rates_age=3, msg_rates_incr=1)["message_stats"]
    overview = watched.http.get("/overview").json()["message_stats"]

    assert (stats["get"], stats["get_no_ack"], stats["redeliver"]) == (5, 1, overview["redeliver"])
    assert stats["deliver"] == 2
    assert stats["deliver_no_ack"] >= 1
    assert stats["redeliver"] >= 1
    parts = ("deliver", "deliver_no_ack", "get", "get_no_ack")
    assert sum(stats[name] for name in parts) == stats["deliver_get"]
    for name in parts:
        assert overview[name] == stats[name]
    assert stats["get_details"]["rate"] == 1.0  # five in five seconds
    assert stats["redeliver_details"]["rate"] > 0
    assert [sample["sample"] for sample in stats["deliver_details"]["samples"]] == [2, 2, 0, 0]
    assert [sample["sample"] for sample in stats["get_details"]["samples"]] == [5, 5, 5, 0]


def test_a_vhost_a_connection_and_a_channel_show_totals_and_rates(watched: Watched) -> None:
    def look() -> tuple[dict[str, Any], ...]:
        paths = ("/vhosts/%2F", "/connections", "/channels")
        vhost, (connection,), (channel,) = (watched.http.get(path).json() for path in paths)
        return vhost, connection, channel

    before = look()
    watched.second(publish=20, get=6, ack=True)
    watched.broker.clock.advance(1)
    vhost, connection, channel = look()

    stats = vhost["message_stats"]
    assert (stats["publish"], stats["get"], stats["ack"]) == (20, 6, 6)
    assert (vhost["messages"], stats["publish_details"]) == (14, {"rate": 4.0})
    received = connection["recv_oct"] - before[1]["recv_oct"]
    assert connection["recv_oct_details"] == {"rate": round(received / 2, 1)}  # in two seconds
    assert connection["send_oct_details"]["rate"] > 0
    assert vhost["recv_oct"] == connection["recv_oct"]
    assert vhost["recv_oct_details"] == connection["recv_oct_details"]
    assert connection["auth_mechanism"] == "PLAIN"
    stats = channel["message_stats"]
    assert (stats["publish"], stats["deliver_get"], stats["ack"]) == (20, 6, 6)
    assert (stats["publish_details"], stats["ack_details"]) == ({"rate": 10.0}, {"rate": 3.0})
    assert before[2]["message_stats"]["publish_details"] == {"rate": 0.0}
    assert look()[2]["message_stats"] == stats  # asked again at once: the same rates


def test_a_channel_shows_what_waits_for_a_commit(watched: Watched) -> None:
    watched.second(publish=2, get=1)
    watched.channel.tx_select()
    watched.channel.basic_publish("", "q", b"waits")
    watched.channel.basic_ack(1)
    watched.channel.queue_declare("q", passive=True)

    (row,) = watched.http.get("/channels").json()

    assert (row["messages_uncommitted"], row["acks_uncommitted"]) == (1, 1)
    assert row["messages_unconfirmed"] == 0


def test_samples_go_back_as_far_as_asked(watched: Watched) -> None:
    for _ in range(10):
        watched.second(publish=2)

    row = watched.queue(msg_rates_age=6, msg_rates_incr=2, lengths_age=6, lengths_incr=3)

    rates = row["message_stats"]["publish_details"]
    # The current second has not been sampled: the newest total stands for it, too.
    assert [sample["sample"] for sample in rates["samples"]] == [20, 18, 14, 10]
    stamps = [sample["timestamp"] for sample in rates["samples"]]
    assert [stamps[0] - stamp for stamp in stamps] == [0, 2000, 4000, 6000]
    assert rates["avg_rate"] == round(10 / 6, 3)
    assert [sample["sample"] for sample in row["messages_details"]["samples"]] == [20, 16, 10]
    minutes = watched.queue(msg_rates_age=120, msg_rates_incr=60)["message_stats"]["publish_details"]
    assert minutes["samples"][0]["sample"] == 20
    assert minutes["samples"][-1]["sample"] == 0


@pytest.mark.parametrize(
    "query", ["msg_rates_age=60", "lengths_age=x&lengths_incr=1", "lengths_age=99999&lengths_incr=1"]
)
def test_samples_that_cannot_be_had_are_refused(watched: Watched, query: str) -> None:
    assert watched.http.get(f"/queues?{query}").status_code == 400


def test_the_overview_sums_up_and_counts_what_comes_and_goes(watched: Watched) -> None:
    watched.channel.queue_declare("other")
    watched.channel.queue_delete("other")
    watched.second(publish=10, get=2)

    row = watched.http.get("/overview").json()

    assert row["message_stats"]["publish"] == 10
    assert row["message_stats"]["publish_details"]["rate"] == 2.0
    assert (row["queue_totals"]["messages_ready"], row["queue_totals"]["messages_unacknowledged"]) == (8, 2)
    churn = row["churn_rates"]
    assert (churn["queue_created"], churn["queue_deleted"], churn["connection_created"]) == (2, 1, 1)
    assert (churn["channel_created"], churn["connection_closed"]) == (1, 0)
    assert churn["queue_created_details"]["rate"] == 0.4
    assert row["rates_mode"] == "basic"


def test_the_requests_of_keda_get_what_it_reads(watched: Watched) -> None:
    watched.second(publish=5)

    one = watched.http.get("/queues/%2F/q").json()
    several = watched.http.get(
        "/queues/%2F?page=1&use_regex=true&pagination=false&name=%5Eq%24&page_size=100"
    ).json()

    for row in (one, *several["items"]):
        assert (row["name"], row["messages"], row["messages_unacknowledged"]) == ("q", 5, 0)
        assert row["message_stats"]["publish_details"]["rate"] == 1.0


def test_logins_are_counted_by_protocol_until_they_are_reset(watched: Watched) -> None:
    node = watched.http.get("/overview").json()["node"]
    with httpx.Client(base_url=watched.http.base_url, auth=("guest", "wrong")) as stranger:
        assert stranger.get("/whoami").status_code == 401

    rows = {row["protocol"]: row for row in watched.http.get(f"/auth/attempts/{node}").json()}

    assert rows["amqp091"]["auth_attempts_succeeded"] == 1
    assert rows["http"]["auth_attempts_failed"] == 1
    assert rows["http"]["auth_attempts_succeeded"] >= 1
    assert watched.http.delete(f"/auth/attempts/{node}").status_code == 204
    rows = {row["protocol"]: row for row in watched.http.get(f"/auth/attempts/{node}").json()}
    assert rows["amqp091"]["auth_attempts"] == 0
    assert watched.http.get("/auth/attempts/elsewhere").status_code == 404


def test_connections_of_a_user_are_listed_and_closed(watched: Watched) -> None:
    (row,) = watched.http.get("/connections/username/guest").json()
    (channel,) = watched.http.get(f"/connections/{row['name']}/channels").json()

    assert watched.http.get(f"/channels/{channel['name']}").json()["number"] == 1
    assert watched.http.get("/channels/none").status_code == 404
    assert watched.http.get("/connections/username/nobody").json() == []
    assert watched.http.delete("/connections/username/guest").status_code == 204
    with pytest.raises(pika.exceptions.AMQPError):
        watched.channel.queue_declare("q", passive=True)
    watched.connection = pika.BlockingConnection(pika.URLParameters(watched.broker.amqp_url))

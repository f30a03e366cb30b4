"""The figures behind the dashboard, asked of a real node with real AMQP clients."""

import json
from collections.abc import Iterator

import pika
import pytest
from http_support import Api

from holtmq.testing import TestBroker


@pytest.fixture
def client(broker: TestBroker) -> Iterator[pika.BlockingConnection]:
    parameters = pika.URLParameters(broker.amqp_url)
    parameters.client_properties = {"connection_name": "billing-worker"}
    connection = pika.BlockingConnection(parameters)
    yield connection
    if connection.is_open:
        connection.close()


def second(broker: TestBroker) -> None:
    """Let a second pass and be counted."""
    broker.clock.advance(1)
    broker.call(lambda node: node.sample_figures())


def test_a_stuck_consumer_is_found_with_client_host_and_since(
    broker: TestBroker, api: Api, client: pika.BlockingConnection
) -> None:
    channel = client.channel()
    channel.queue_declare("orders")
    channel.basic_qos(prefetch_count=2)
    held_since = broker.clock.now_ms  # type: ignore[union-attr]
    channel.basic_consume("orders", lambda *_: None, consumer_tag="worker-1")
    for n in range(5):
        channel.basic_publish("", "orders", b"%d" % n)
    client.process_data_events(0.2)
    channel.queue_declare("orders", passive=True)  # everything before has been taken in
    assert api.get("/api/v1/dashboard/attention").json()["findings"] == []

    broker.clock.advance(600)

    found = {one["rule"]: one for one in api.get("/api/v1/dashboard/attention").json()["findings"]}
    who = found["unacked"]["who"][0]
    assert (who["client"], who["consumer"], who["user"], who["unacked"]) == (
        "billing-worker",
        "worker-1",
        "guest",
        2,
    )
    assert who["host"].startswith("127.0.0.1:")
    assert held_since - 1_000 <= found["unacked"]["since"] <= held_since + 1_000
    assert found["oldest"]["name"] == "orders"


def test_a_group_with_many_partitions_is_counted_over_several_scans(
    broker: TestBroker, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holtmq.http.dashboard.watch._PARTITIONS_AT_ONCE", 10)
    for n in range(25):
        api.push("wide", f"w{n}", partition=f"p{n}")
    api.push("small", "s1")
    for queue in ("wide", "small"):
        api.pop(queue, consumerGroup="g", subscriptionMode="all")
    broker.clock.advance(400)

    seen: list[set[str]] = []
    for _ in range(5):
        found = api.get("/api/v1/dashboard/attention").json()["findings"]
        seen.append({one["name"] + " " + one["text"][:11] for one in found if one["rule"] == "group-lag"})
        broker.clock.advance(11)  # each answer is a scan of its own

    assert seen[0] == set()
    assert seen[-1] == {"g on wide 25 messages", "g on small 1 message b"}


def test_the_worst_findings_are_shown_and_all_are_counted(
    broker: TestBroker, api: Api, client: pika.BlockingConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = client.channel()
    for number in (5, 1, 8, 3, 0, 7, 2, 6, 4):  # not in the order of their ages
        channel.queue_declare(f"unread-{number}")
    for number in range(9):
        channel.basic_publish("", f"unread-{number}", b"x")
        channel.queue_declare(f"unread-{number}", passive=True)
        broker.clock.advance(10)
    broker.clock.advance(400)
    everything = api.get("/api/v1/dashboard/attention").json()
    monkeypatch.setattr("holtmq.http.dashboard.watch._SHOWN_MOST", 3)
    monkeypatch.setattr("holtmq.http.dashboard.watch._COLLECTED_MOST", 4)
    broker.clock.advance(11)  # each answer is a scan of its own

    worst = api.get("/api/v1/dashboard/attention").json()

    assert [one["name"] for one in everything["findings"]] == [f"unread-{number}" for number in range(9)]
    assert [one["name"] for one in worst["findings"]] == ["unread-0", "unread-1", "unread-2"]
    assert worst["total"] == everything["total"] == 9


def test_thresholds_can_be_changed_and_bad_ones_are_refused(broker: TestBroker, api: Api) -> None:
    api.http.put("/api/v1/dashboard/thresholds", json={"unread_seconds": 5})

    assert api.get("/api/v1/dashboard/attention").json()["thresholds"]["unread_seconds"] == 5
    broker.crash_and_restart()
    assert api.get("/api/v1/dashboard/attention").json()["thresholds"]["unread_seconds"] == 5
    assert api.get("/api/without-meaning").json() == []
    wrong = api.http.put("/api/v1/dashboard/thresholds", json={"unread_minutes": 5})
    assert wrong.status_code == 400
    assert "unread_minutes" in wrong.text


def test_rates_and_totals_of_both_kinds_of_queue(
    broker: TestBroker, api: Api, client: pika.BlockingConnection
) -> None:
    channel = client.channel()
    channel.confirm_delivery()
    channel.queue_declare("work")
    second(broker)
    for n in range(10):
        channel.basic_publish("", "work", b"%d" % n)
    api.push("log", *[f"m{n}" for n in range(20)])
    second(broker)
    for _ in range(4):
        method, _, _ = channel.basic_get("work", auto_ack=True)
        assert method is not None
    second(broker)
    broker.clock.advance(1)

    rows = {row["name"]: row for row in api.get("/api/v1/dashboard/queues").json()["rows"]}
    work = api.get("/api/v1/dashboard/queues/%2F/work").json()

    assert (rows["work"]["ready"], rows["work"]["incoming"], rows["work"]["outgoing"]) == (6, 2.0, 0.8)
    assert (rows["log"]["kind"], rows["log"]["ready"], rows["log"]["incoming"]) == ("stream", 20, 4.0)
    assert work["totals"] == {
        "published": 10,
        "delivered": 4,
        "acked": 4,
        "returned": 0,
        "dropped": 0,
        "purged": 0,
    }
    assert sum(work["series"]["bySecond"]["published"]) == 10


def test_queues_are_filtered_sorted_and_paged_by_the_broker(
    api: Api, client: pika.BlockingConnection
) -> None:
    channel = client.channel()
    for n in range(12):
        channel.queue_declare(f"q{n:02}")
        for _ in range(n):
            channel.basic_publish("", f"q{n:02}", b"x")
    channel.queue_declare("other", passive=False)
    ask = "/api/v1/dashboard/queues"

    first = api.get(ask, text="Q", sort="ready", descending="true", limit=3).json()
    then = api.get(ask, text="q", sort="ready", descending="true", limit=3, offset=3).json()
    empty = api.get(ask, hideEmpty="true").json()

    assert [row["name"] for row in first["rows"] + then["rows"]] == ["q11", "q10", "q09", "q08", "q07", "q06"]
    assert first["total"] == 12
    assert empty["total"] == 11
    assert api.get(ask, sort="colour").status_code == 400


def test_peeking_takes_nothing_and_marks_nothing(api: Api, client: pika.BlockingConnection) -> None:
    channel = client.channel()
    channel.queue_declare("q", arguments={"x-max-priority": 3})
    for n in range(4):
        properties = pika.BasicProperties(
            priority=n, headers={"k": [1, {"deep": True}]}, message_id=f"id-{n}"
        )
        channel.basic_publish("", "q", json.dumps({"n": n}), properties)
    channel.basic_publish("", "q", b"\xff\x00", pika.BasicProperties(priority=0))
    channel.queue_declare("q", passive=True)

    seen = api.get("/api/v1/dashboard/queues/%2F/q/messages", limit=3, offset=1).json()

    assert [row["properties"]["message_id"] for row in seen["messages"]] == ["id-2", "id-1", "id-0"]
    assert seen["messages"][0]["properties"]["headers"] == {"k": [1, {"deep": True}]}
    assert seen["total"] == 5
    last = api.get("/api/v1/dashboard/queues/%2F/q/messages", offset=4).json()["messages"][0]
    assert (last["payload_encoding"], last["payload"]) == ("base64", "/wA=")
    method, _, body = channel.basic_get("q", auto_ack=True)
    assert method is not None
    assert not method.redelivered
    assert json.loads(body) == {"n": 3}


def test_where_a_message_would_go(api: Api, client: pika.BlockingConnection) -> None:
    channel = client.channel()
    channel.exchange_declare("events", "topic")
    channel.queue_declare("orders")
    channel.queue_bind("orders", "events", "order.*")

    def to(key: str) -> list[str]:
        asked = {"exchange": "events", "routing_key": key}
        return list(api.post("/api/v1/dashboard/route-test", asked).json()["queues"])

    assert to("order.new") == ["orders"]
    assert to("invoice.new") == []
    assert api.post("/api/v1/dashboard/route-test", {"exchange": "nope"}).status_code == 404


def test_connections_show_what_they_hold(
    broker: TestBroker, api: Api, client: pika.BlockingConnection
) -> None:
    channel = client.channel()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"x")
    channel.basic_consume("q", lambda *_: None)
    client.process_data_events(0.2)

    found = api.get("/api/v1/dashboard/connections", text="billing").json()

    assert found["total"] == 1
    assert (found["rows"][0]["client"], found["rows"][0]["unacked"]) == ("billing-worker", 1)
    assert found["rows"][0]["held_since"] is not None
    assert api.get("/api/v1/dashboard/connections", text="nobody").json() == {"rows": [], "total": 0}


def test_the_page_and_its_files_load_nothing_from_elsewhere(api: Api) -> None:
    page = api.get("/")

    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy
    assert "http" not in policy
    assert api.get("/ui/app.js").headers["content-type"].startswith("text/javascript")
    assert api.get("/ui/vendor/preact.js").status_code == 200
    assert api.get("/ui/../api.py").status_code == 404
    assert api.get("/ui/vendor/nothing.js").status_code == 404


def test_the_event_stream_sends_the_overview(api: Api) -> None:
    with api.http.stream("GET", "/api/v1/dashboard/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = next(answer.iter_text())

    assert text.startswith("event: overview\ndata: {")
    assert json.loads(text.split("data: ", 1)[1])["queues"] == 0

"""What single pages of the dashboard ask for, checked against a real node."""

import json
from collections.abc import Iterator

import pika
import pytest
from http_support import Api, Json
from prometheus_client.parser import text_string_to_metric_families

from holtmq.auth.permissions import Permissions
from holtmq.auth.users import User
from holtmq.first_start import GUEST_HASH
from holtmq.http.dashboard import watch
from holtmq.http.dashboard.queue_columns import COLUMNS
from holtmq.testing import TestBroker


@pytest.fixture
def channel(broker: TestBroker) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    opened = connection.channel()
    opened.confirm_delivery()
    yield opened
    connection.close()


def second(broker: TestBroker) -> None:
    """Let a second pass and be counted."""
    broker.clock.advance(1)
    broker.call(lambda node: node.sample_figures())


def test_ages_and_delivery_counts_are_counted_into_ranges(broker: TestBroker, api: Api, channel) -> None:  # type: ignore[no-untyped-def]
    channel.queue_declare("q", durable=True)
    for n in range(3):
        channel.basic_publish("", "q", b"%d" % n)
    broker.clock.advance(30)
    channel.basic_publish("", "q", b"young")
    method, _, _ = channel.basic_get("q")
    channel.basic_nack(method.delivery_tag, requeue=True)
    channel.queue_declare("q", passive=True)

    found = api.get("/api/v1/dashboard/queues/%2F/q/histograms").json()

    assert (found["seen"], found["total"]) == (4, 4)
    assert {row["from"]: row["count"] for row in found["ages"] if row["count"]} == {0: 1, 10: 3}
    assert {row["from"]: row["count"] for row in found["deliveries"] if row["count"]} == {0: 3, 1: 1}


def test_the_depth_of_a_queue_is_known_over_time_also_when_nothing_happens(  # type: ignore[no-untyped-def]
    broker: TestBroker, api: Api, channel
) -> None:
    channel.queue_declare("q")
    second(broker)
    for _ in range(5):
        channel.basic_publish("", "q", b"x")
    second(broker)
    broker.clock.advance(3)

    depth = api.get("/api/v1/dashboard/queues/%2F/q").json()["depth"]["bySecond"]

    assert depth[-6:] == [0, 0, 5, 5, 5, 5]


def test_every_setting_says_where_it_comes_from(api: Api, channel) -> None:  # type: ignore[no-untyped-def]
    api.http.put(
        "/api/policies/%2F/short",
        json={"pattern": "^q", "definition": {"max-length": 10, "message-ttl": 5000}, "apply-to": "queues"},
    ).raise_for_status()
    channel.queue_declare("q", arguments={"x-message-ttl": 1000, "x-mine": 1})

    rows = api.get("/api/v1/dashboard/queues/%2F/q").json()["settings"]
    origin = {row["name"]: (row["value"], row["origin"]) for row in rows}

    assert origin["x-max-length"] == (10, "policy short")
    assert origin["x-message-ttl"] == (1000, "argument")  # of limits the stricter applies
    assert origin["x-overflow"] == (None, "default")
    assert origin["x-mine"] == (1, "argument, without effect")
    assert "x-max-age" not in origin  # means nothing to a classic queue


def test_partitions_come_by_backlog_of_a_group_and_idle_ones_can_be_deleted(
    broker: TestBroker, api: Api
) -> None:
    api.push("log", "a", "b", "c", partition="p1")
    api.push("log", "d", partition="p2")
    taken = api.pop("log", partition="p1", consumerGroup="g", batch=2)
    api.ack_batch(taken, consumerGroup="g")
    base = "/api/v1/dashboard/queues/%2F/log/partitions"

    all_stored = api.get(base).json()
    of_group = api.get(base, group="g").json()
    unknown = api.get(base, group="nobody")

    assert [(row["name"], row["backlog"]) for row in all_stored["rows"]] == [("p1", 3), ("p2", 1)]
    assert [(row["name"], row["backlog"]) for row in of_group["rows"]] == [("p1", 1), ("p2", 0)]
    assert (of_group["total"], of_group["behind"], of_group["backlog"]) == (2, 1, 1)
    assert all_stored["bytes"] == 4 * len(b'{"id":"a"}')
    assert unknown.status_code == 404

    api.delete("/api/v1/queues/log/clear", partition="p2")
    broker.clock.advance(200_000)
    counted = api.http.request("DELETE", f"{base}/idle", json={"dryRun": True, "idleSeconds": 100}).json()
    assert counted == {"queue": "log", "dryRun": True, "partitions": 1}
    assert api.get(base).json()["total"] == 2
    deleted = api.http.request("DELETE", f"{base}/idle", json={"idleSeconds": 100}).json()
    assert deleted["partitions"] == 1
    assert [row["name"] for row in api.get(base).json()["rows"]] == ["p1"]


def test_a_group_shows_its_leases_and_a_released_one_is_delivered_again(broker: TestBroker, api: Api) -> None:
    api.push("log", "a", "b", partition="p1")
    first = api.pop("log", consumerGroup="g", batch=1)
    base = "/api/v1/dashboard/groups/log/g"

    (place,) = api.get(base).json()["partitions"]
    assert (place["partition"], place["messages"], place["lease_size"]) == ("p1", 2, 1)
    assert place["lease"] == first[0]["leaseId"]
    assert 0 < place["lease_left"] <= 3600
    assert api.pop("log", consumerGroup="g") == []

    path = "/api/v1/consumer-groups/g/queues/log/partitions/p1/lease"
    assert api.delete(path).json()["leaseId"] == first[0]["leaseId"]
    assert api.delete(path).status_code == 404
    again = api.pop("log", consumerGroup="g", batch=1)
    assert again[0]["transactionId"] == "a"
    assert api.ack(first[0], consumerGroup="g")["success"] is False


def test_a_groups_partitions_can_be_sorted_by_each_column(broker: TestBroker, api: Api) -> None:
    for count, name in ((3, "p3"), (1, "p1"), (4, "q4"), (2, "p2")):
        api.push("log", *(f"{name}-{number}" for number in range(count)), partition=name)
        broker.clock.advance(10)
    api.ack_batch(api.pop("log", consumerGroup="g", batch=2), consumerGroup="g")  # of p3, the oldest one
    broker.clock.advance(10)
    api.pop("log", consumerGroup="g", batch=1)  # a lease, by another partition's message
    base = "/api/v1/dashboard/groups/log/g"
    rows = api.get(base).json()["partitions"]
    assert sorted(row["messages"] for row in rows) == [1, 1, 2, 4]
    assert sum(row["lease"] is not None for row in rows) == 1

    for column in rows[0]:
        low = "" if column in ("partition", "lease") else -1
        rising = [row[column] for row in api.get(base, sort=column).json()["partitions"]]
        assert len(rising) == 4
        assert rising == sorted(rising, key=lambda value: low if value is None else value), column
        falling = [row[column] for row in api.get(base, sort=column, descending="true").json()["partitions"]]
        assert falling == rising[::-1], column

    page = api.get(base, sort="partition", text="P", offset=1, limit=1).json()
    assert ([row["partition"] for row in page["partitions"]], page["total"]) == (["p2"], 3)
    assert page["row"]["messages"] == 8  # of the group, not of what the text is in


def test_a_dry_run_of_a_seek_counts_and_changes_nothing(broker: TestBroker, api: Api) -> None:
    api.push("log", "a", "b", "c", partition="p1")
    api.push("log", "d", "e", partition="p2")
    api.ack_batch(api.pop("log", consumerGroup="g", batch=2), consumerGroup="g")  # of p1, the older one
    path = "/api/v1/consumer-groups/g/queues/log/seek"

    def effect(**asked: object) -> tuple[int, int]:
        answer = api.post(path, {**asked, "dryRun": True}).json()
        return answer["skipped"], answer["repeated"]

    assert effect(toEnd=True) == (3, 0)
    assert effect(toStart=True) == (0, 2)
    assert effect(offset=3) == (1, 0)
    assert api.get("/api/v1/dashboard/groups").json()["rows"][0]["messages"] == 3
    assert api.post(path, {"offset": -1}).status_code == 400

    api.post(path, {"offset": 3}).raise_for_status()
    assert api.get("/api/v1/dashboard/groups").json()["rows"][0]["messages"] == 2


def test_exchanges_that_lead_nowhere_are_marked(api: Api, channel) -> None:  # type: ignore[no-untyped-def]
    channel.exchange_declare("unbound", "topic")
    channel.exchange_declare("unread", "direct")
    channel.exchange_declare("read", "fanout")
    channel.queue_declare("idle")
    channel.queue_declare("busy")
    channel.queue_bind("idle", "unread", "k")
    channel.queue_bind("idle", "read")
    channel.queue_bind("busy", "read")
    channel.basic_consume("busy", lambda *_: None)

    rows = {row["name"]: row for row in api.get("/api/v1/dashboard/exchanges").json()["rows"]}
    one = api.get("/api/v1/dashboard/exchanges/%2F/read").json()

    assert (rows["unbound"]["is_unbound"], rows["unbound"]["is_unread"]) == (True, None)
    assert (rows["unread"]["bindings"], rows["unread"]["is_unread"]) == (1, True)
    assert (rows["read"]["bindings"], rows["read"]["is_unread"]) == (2, False)
    assert rows[""]["bindings"] is None
    assert {row["destination"]: row["is_unread"] for row in one["bindings"]} == {"idle": True, "busy": False}


def test_a_policy_preview_says_which_queues_it_wins_and_changes_nothing(api: Api, channel) -> None:  # type: ignore[no-untyped-def]
    for name in ("orders.new", "orders.old", "other"):
        channel.queue_declare(name)
    api.http.put(
        "/api/policies/%2F/strong",
        json={"pattern": "old", "definition": {"max-length": 1}, "priority": 9},
    ).raise_for_status()
    asked = {"vhost": "/", "name": "p", "pattern": "^orders", "definition": {"max-length": 5}, "priority": 1}

    found = api.post("/api/v1/dashboard/policy-preview", asked).json()
    wrong = api.post("/api/v1/dashboard/policy-preview", {**asked, "definition": {"max-lenght": 5}})

    assert (found["total"], found["takes_effect_on"]) == (2, 1)
    assert {row["name"]: row["stays_with"] for row in found["queues"]} == {
        "orders.new": None,
        "orders.old": "strong",
    }
    assert wrong.status_code == 400
    assert "max-length" in wrong.text
    assert [row["name"] for row in api.get("/api/policies").json()] == ["strong"]


def test_a_diff_of_definitions_shows_what_an_import_would_do(api: Api, channel) -> None:  # type: ignore[no-untyped-def]
    channel.queue_declare("orders", durable=True)
    channel.exchange_declare("events", "topic", durable=True)
    channel.queue_bind("orders", "events", "order.*")
    api.http.put("/api/policies/%2F/p", json={"pattern": "^o", "definition": {"max-length": 5}})
    exported = api.get("/api/definitions").json()
    path = "/api/v1/dashboard/definitions-diff"

    same = api.post(path, exported).json()["parts"]
    exported["policies"][0]["definition"] = {"max-length": 6}
    exported["queues"].append({"name": "new", "vhost": "/", "durable": True})
    changed = api.post(path, exported).json()["parts"]

    assert all(part["added_count"] == part["changed_count"] == 0 for part in same.values()), same
    assert same["bindings"]["unchanged"] == 1
    assert changed["queues"]["added"] == [{"vhost": "/", "name": "new"}]
    assert changed["policies"]["changed"][0]["fields"] == [
        {"field": "definition", "before": {"max-length": 5}, "after": {"max-length": 6}}
    ]
    assert api.post(path, {"queues": "all"}).status_code == 400
    assert "password_hash" not in json.dumps(same)


def test_the_journal_says_why_each_segment_is_kept_and_checkpoints_on_request(  # type: ignore[no-untyped-def]
    broker: TestBroker, api: Api, channel
) -> None:
    channel.queue_declare("q", durable=True)
    for _ in range(5):
        channel.basic_publish("", "q", bytes(400_000), pika.BasicProperties(delivery_mode=2))

    before = api.get("/api/v1/dashboard/journal").json()
    assert before["segments"][-1]["why"] == "it is being written"
    assert before["segments"][0]["why"].startswith("a restart reads it")
    assert before["segments"][0]["queues"] == ["q"]
    assert before["syncP50Ms"] is not None

    api.post("/api/v1/dashboard/journal/checkpoint").raise_for_status()
    while (after := api.get("/api/v1/dashboard/journal").json())["checkpointing"]:
        pass
    assert after["checkpoints"] == before["checkpoints"] + 1
    assert after["segments"][0]["why"] == "it has messages that are still stored"
    assert after["segments"][0]["live"] >= 1


@pytest.mark.parametrize(
    ("tags", "sees_queues", "sees_overview"),
    [((), 403, 403), (("policymaker",), 200, 403), (("monitoring",), 200, 200)],
)
def test_what_is_offered_follows_the_rights(  # type: ignore[no-untyped-def]
    broker: TestBroker, connect, channel, tags: tuple[str, ...], sees_queues: int, sees_overview: int
) -> None:
    channel.queue_declare("mine.q")
    channel.queue_declare("other.q")

    def prepare(node) -> None:  # type: ignore[no-untyped-def]
        node.broker.access.put_user(User("ann", GUEST_HASH, tags))
        node.amqp.authenticator.remember("ann", "ann", GUEST_HASH)
        node.broker.access.set_permissions("ann", "/", Permissions("^mine", "", "^mine"))

    broker.call(prepare)
    ann = connect(auth=("ann", "ann"))

    session = ann.get("/api/v1/session").json()
    listed = ann.get("/api/v1/dashboard/queues")

    assert session["may"] == {"configure": True, "write": False, "read": True}
    assert listed.status_code == sees_queues
    assert ann.get("/api/v1/dashboard/overview").status_code == sees_overview
    if sees_queues == 200:
        found = listed.json()
        can = {row["name"]: can for row, can in zip(found["rows"], found["can"], strict=True)}
        assert can == {"mine.q": ["configure", "read"], "other.q": []}


def test_names_with_quotes_and_backslashes_survive_a_scrape_per_object(api: Api, channel) -> None:  # type: ignore[no-untyped-def]
    name = 'a "quoted\\name'
    channel.queue_declare(name)
    channel.basic_publish("", name, b"x")

    text = api.http.get("/metrics/per-object", headers={"accept": "text/plain"}).text

    ready = {
        sample.labels["queue"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "rabbitmq_detailed_queue_messages_ready"
    }
    assert ready == {name: 1.0}


def test_the_age_is_that_of_the_message_that_is_oldest_now(  # type: ignore[no-untyped-def]
    broker: TestBroker, api: Api, channel
) -> None:
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"old")
    broker.clock.advance(100)

    def row() -> Json:
        broker.clock.advance(2)
        return dict(api.get("/api/v1/dashboard/queues").json()["rows"][0])

    assert (row()["oldest"], row()["oldest"]) == (102.0, 104.0)
    channel.basic_publish("", "q", b"new")
    channel.basic_get("q", auto_ack=True)
    channel.queue_declare("q", passive=True)

    found = row()

    assert (found["ready"], found["oldest"]) == (1, 2.0)  # as many as before, but another message


def test_a_queue_with_priorities_is_as_old_as_its_oldest_message_not_its_next(  # type: ignore[no-untyped-def]
    broker: TestBroker, api: Api, channel
) -> None:
    channel.queue_declare("q", arguments={"x-max-priority": 5})
    channel.basic_publish("", "q", b"starves", pika.BasicProperties(priority=1))
    broker.clock.advance(400)
    channel.basic_publish("", "q", b"next", pika.BasicProperties(priority=5))

    assert api.get("/api/v1/dashboard/queues").json()["rows"][0]["oldest"] == 400.0
    text = api.http.get("/metrics/per-object", headers={"accept": "text/plain"}).text
    assert 'holtmq_queue_oldest_message_age_seconds{vhost="/",queue="q"} 400.0\n' in text


def test_queues_of_both_kinds_are_sorted_by_each_column(broker: TestBroker, api: Api, channel) -> None:  # type: ignore[no-untyped-def]
    for n, kind in enumerate(("classic", "quorum", "classic", "stream")):
        channel.queue_declare(f"q{n}", durable=True, arguments={"x-queue-type": kind})
        for _ in range(1 + n % 3):
            channel.basic_publish("", f"q{n}", b"x" * n)
        second(broker)
    channel.basic_get("q1")
    assert api.post("/api/v1/push", {"items": [{"queue": "over-http", "payload": 1}]}).is_success

    for column in sorted(COLUMNS):
        for descending in ("true", "false"):
            rows = api.get("/api/v1/dashboard/queues", sort=column, descending=descending).json()["rows"]
            values = [-1 if row[column] is None else row[column] for row in rows]
            assert values == sorted(values, reverse=descending == "true"), column
            assert len(rows) == 5


def test_a_stuck_consumer_of_a_stream_is_found(broker: TestBroker, api: Api, channel) -> None:  # type: ignore[no-untyped-def]
    channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
    channel.basic_publish("", "events", b"x")
    channel.basic_qos(prefetch_count=10)
    taken: list[bytes] = []
    arguments = {"x-stream-offset": "first"}
    channel.basic_consume(
        "events", lambda *got: taken.append(got[3]), consumer_tag="slow", arguments=arguments
    )
    while not taken:
        channel.connection.process_data_events(1)
    broker.clock.advance(600)

    found = api.get("/api/v1/dashboard/attention").json()["findings"]

    assert [one["who"][0]["consumer"] for one in found if one["rule"] == "unacked"] == ["slow"]
    text = api.http.get("/metrics/per-object", headers={"accept": "text/plain"}).text
    assert 'holtmq_consumer_oldest_unacked_age_seconds{vhost="/",queue="events"} 600' in text


def test_more_findings_than_are_shown_are_counted_and_the_oldest_come_first(
    broker: TestBroker, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_SHOWN_MOST", 3)
    monkeypatch.setattr(watch, "_COLLECTED_MOST", 4)
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    for n in (7, 3, 9, 1, 8, 2, 6):  # how long their message has waited, in minutes
        channel.queue_declare(f"q{n}")
    for n in range(9, 0, -1):
        channel.basic_publish("", f"q{n}", b"x") if n not in (5, 4) else None
        broker.clock.advance(60)
    connection.close()

    found = api.get("/api/v1/dashboard/attention").json()

    assert [one["name"] for one in found["findings"]] == ["q9", "q8", "q7"]
    assert found["total"] == 7

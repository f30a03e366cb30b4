"""Shovels between two brokers, declared as in RabbitMQ: what arrives, what is shown, when they end."""

import httpx
import pytest
from shovel_support import Operator, eventually

LOCAL = "amqp://"


def test_messages_arrive_in_order_with_their_properties_and_leave_the_source(
    old: Operator, new: Operator
) -> None:
    old.declare("whole")
    headers = {"n": 1, "deep": {"list": [1, "two"]}, "flag": True}
    old.publish(
        "whole",
        [f"m{number}" for number in range(200)],
        headers=headers,
        timestamp=1_600_000_000,
        message_id="id",
        correlation_id="c",
        content_type="text/plain",
        priority=3,
        user_id="guest",
    )

    made = new.put_shovel(
        "whole", src_uri=old.amqp_url, src_queue="whole", dest_uri=LOCAL, dest_queue="whole-here"
    )

    assert made.status_code == 201, made.text
    eventually(lambda: new.shovel("whole")["forwarded"] == 200)
    taken = new.take("whole-here", 200)
    assert [body for _, _, body in taken] == [f"m{number}".encode() for number in range(200)]
    _, properties, _ = taken[0]
    assert properties.headers == headers
    assert (properties.timestamp, properties.message_id, properties.correlation_id) == (
        1_600_000_000,
        "id",
        "c",
    )
    assert (properties.content_type, properties.priority, properties.delivery_mode) == ("text/plain", 3, 2)
    assert properties.user_id == "guest"
    eventually(lambda: old.messages("whole") == 0)
    row = new.shovel("whole")
    assert (row["state"], row["type"], row["pending"]) == ("running", "dynamic", 0)
    assert "guest" not in row["src_uri"]
    new.delete_shovel("whole")


def test_a_shovel_pushes_to_a_broker_elsewhere(old: Operator, new: Operator) -> None:
    new.declare("pushed")
    new.publish("pushed", ["a", "b" * 300_000, "", "d"])

    new.put_shovel(
        "push", src_uri=LOCAL, src_queue="pushed", dest_uri=old.amqp_url, dest_queue="pushed-there"
    )

    taken = old.take("pushed-there", 4)
    assert [len(body) for _, _, body in taken] == [1, 300_000, 0, 1]
    assert {method.routing_key for method, _, _ in taken} == {"pushed-there"}
    eventually(lambda: new.messages("pushed") == 0)
    new.delete_shovel("push")


def test_an_exchange_can_be_source_and_destination(old: Operator, new: Operator) -> None:
    channel = new.channel()
    channel.exchange_declare("here", "topic", durable=True)
    channel.queue_declare("from-exchange", durable=True)
    channel.queue_bind("from-exchange", "here", "#")
    new.put_shovel(
        "topics",
        src_uri=old.amqp_url,
        src_exchange="amq.topic",
        src_exchange_key="orders.#",
        dest_uri=LOCAL,
        dest_exchange="here",
    )
    new.in_state("topics", "running")

    old.publish("orders.new", ["x"], exchange="amq.topic")

    ((method, _, body),) = new.take("from-exchange", 1)
    assert (method.exchange, method.routing_key, body) == ("here", "orders.new", b"x")
    new.delete_shovel("topics")
    channel.connection.close()


def test_keep_address_places_a_copy_without_routing_it_again(old: Operator, new: Operator) -> None:
    for queue in ("copy-1", "copy-2"):
        old.declare(queue)
        new.declare(queue)
    channel = old.channel()
    channel.queue_bind("copy-1", "amq.topic", "a.b")
    channel.connection.close()
    old.publish("a.b", ["x"], exchange="amq.topic", headers={"CC": ["copy-2"]})
    old.publish("copy-1", ["y"], headers={"CC": ["copy-2"]})

    new.put_shovel(
        "kept",
        src_uri=old.amqp_url,
        src_queue="copy-1",
        dest_uri=LOCAL,
        dest_queue="copy-1",
        dest_keep_address=True,
    )

    first, second = new.take("copy-1", 2)
    assert (first[0].exchange, first[0].routing_key) == ("amq.topic", "a.b")
    assert (second[0].exchange, second[0].routing_key) == ("", "copy-1")
    assert second[1].headers == {"CC": ["copy-2"]}
    assert new.messages("copy-2") == 0
    new.delete_shovel("kept")


def test_forward_headers_name_the_way_and_keep_earlier_entries(old: Operator, new: Operator) -> None:
    old.declare("trail")
    old.publish("trail", ["x"], headers={"x-shovelled": [{"shovel-name": "before"}], "n": 5})

    new.put_shovel(
        "trail",
        src_uri=old.amqp_url,
        src_queue="trail",
        dest_uri=LOCAL,
        dest_queue="trail-here",
        add_forward_headers=True,
        add_timestamp_header=True,
        publish_properties={"app_id": "mover", "delivery_mode": 2},
    )

    ((_, properties, _),) = new.take("trail-here", 1)
    ours, before = properties.headers["x-shovelled"]
    assert before == {"shovel-name": "before"}
    assert (ours["shovel-name"], ours["src-queue"], ours["dest-queue"]) == ("trail", "trail", "trail-here")
    assert "guest" not in ours["src-uri"]
    assert properties.headers["x-shovelled-timestamp"] > 1_600_000_000
    assert properties.headers["n"] == 5
    assert properties.app_id == "mover"
    new.delete_shovel("trail")


@pytest.mark.parametrize(("after", "moved"), [("queue-length", 5), (3, 3)])
def test_a_shovel_ends_itself_after_so_many_messages(
    old: Operator, new: Operator, after: object, moved: int
) -> None:
    name = f"after-{after}"
    old.declare(name)
    old.publish(name, list("abcde"))

    new.put_shovel(
        name, src_uri=old.amqp_url, src_queue=name, dest_uri=LOCAL, dest_queue=name, src_delete_after=after
    )

    assert [body for _, _, body in new.take(name, moved)] == [b"a", b"b", b"c", b"d", b"e"][:moved]
    eventually(lambda: not new.shovel_exists(name))
    assert new.http.get(f"/parameters/shovel/%2F/{name}").status_code == 404
    eventually(lambda: old.messages(name) == 5 - moved)


@pytest.mark.parametrize("mode", ["on-publish", "no-ack"])
def test_the_weaker_ack_modes_move_messages_too(old: Operator, new: Operator, mode: str) -> None:
    old.declare(mode)
    old.publish(mode, list("abc"))

    new.put_shovel(mode, src_uri=old.amqp_url, src_queue=mode, dest_uri=LOCAL, dest_queue=mode, ack_mode=mode)

    assert [body for _, _, body in new.take(mode, 3)] == [b"a", b"b", b"c"]
    eventually(lambda: old.messages(mode) == 0)
    new.delete_shovel(mode)


@pytest.mark.parametrize("remote", [False, True])
def test_a_message_that_nothing_takes_stays_at_the_source_and_is_reported(
    old: Operator, new: Operator, remote: bool
) -> None:
    name = f"unroutable-{remote}"
    source, target = (new, old) if remote else (old, new)
    source.declare(name)
    source.publish(name, ["lost?"])
    uris = (
        {"src_uri": LOCAL, "dest_uri": old.amqp_url}
        if remote
        else {"src_uri": old.amqp_url, "dest_uri": LOCAL}
    )

    new.put_shovel(name, src_queue=name, dest_exchange="amq.direct", dest_exchange_key=name, **uris)

    eventually(lambda: new.shovel(name)["refused"] >= 1)
    row = new.shovel(name)
    assert row["state"] == "running"
    assert "amq.direct" in row["last_error"]
    assert row["forwarded"] == 0
    channel = target.channel()
    channel.queue_declare(name + "-late", durable=True)
    channel.queue_bind(name + "-late", "amq.direct", name)
    channel.connection.close()
    assert target.take(name + "-late", 1)[0][2] == b"lost?"
    eventually(lambda: source.messages(name) == 0)
    new.delete_shovel(name)


def test_messages_beyond_the_count_survive_when_some_were_refused_first(old: Operator, new: Operator) -> None:
    """The refused ones come back with later tags than those the shovel leaves alone."""
    bodies = [str(number) for number in range(60)]
    old.declare("beyond")
    old.publish("beyond", bodies)
    new.put_shovel(
        "beyond",
        src_uri=old.amqp_url,
        src_queue="beyond",
        dest_uri=LOCAL,
        dest_exchange="amq.direct",
        dest_exchange_key="beyond",
        src_delete_after=40,
    )
    eventually(lambda: new.shovel("beyond")["refused"] >= 40)

    channel = new.channel()
    channel.queue_declare("beyond", durable=True)
    channel.queue_bind("beyond", "amq.direct", "beyond")
    channel.connection.close()

    moved = [body.decode() for _, _, body in new.take("beyond", 40)]
    eventually(lambda: not new.shovel_exists("beyond"))
    left = [body.decode() for _, _, body in old.take("beyond", 20)]
    assert sorted(moved + left) == sorted(bodies)


def test_an_unreachable_or_refusing_broker_is_shown_with_its_reason(old: Operator, new: Operator) -> None:
    new.put_shovel(
        "wrong",
        src_uri=old.amqp_url.replace("guest:guest", "guest:wrong"),
        src_queue="q",
        dest_uri=LOCAL,
        dest_queue="q",
        reconnect_delay=0.05,
    )
    assert "ACCESS_REFUSED" in new.in_state("wrong", "terminated")["last_error"]

    new.put_shovel("wrong", src_uri=old.amqp_url, src_queue="wrong", dest_uri=LOCAL, dest_queue="wrong")

    new.in_state("wrong", "running")
    assert new.http.delete("/shovels/vhost/%2F/wrong/restart").status_code == 204
    new.in_state("wrong", "running")
    new.delete_shovel("wrong")
    assert new.http.delete("/shovels/vhost/%2F/wrong/restart").status_code == 404
    assert new.get("/shovels") == []


BOTH = {"src-uri": "amqp://", "dest-uri": "amqp://"}


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ({}, "src-uri"),
        ({"src-uri": "amqp://"}, "dest-uri"),
        (BOTH, "src-queue"),
        ({"src-uri": "http://x", "dest-uri": "amqp://", "src-queue": "q"}, "amqp://"),
        ({**BOTH, "src-queue": "q", "src-exchange": "x"}, "src-exchange"),
        ({**BOTH, "src-queue": "q", "ack-mode": "never"}, "ack-mode"),
        ({**BOTH, "src-queue": "q", "colour": "red"}, "colour"),
        ({**BOTH, "src-queue": "q", "src-delete-after": "now"}, "now"),
        ({**BOTH, "src-queue": "q", "src-protocol": "amqp10"}, "amqp091"),
        ({**BOTH, "src-queue": "q", "publish-properties": {"colour": 1}}, "colour"),
        ({**BOTH, "src-queue": "q", "dest-keep-address": True}, "dest-keep-address"),
    ],
)
def test_a_wrong_definition_is_refused_with_what_is_wrong(
    new: Operator, value: dict[str, object], word: str
) -> None:
    answer = new.http.put("/parameters/shovel/%2F/bad", json={"value": value})

    assert answer.status_code == 400
    assert word in answer.json()["reason"]
    assert not new.shovel_exists("bad")


def test_only_administrators_see_the_passwords(new: Operator) -> None:
    secret = "amqp://mover:s3cret@127.0.0.1:1/vh"
    new.put_shovel("secret", src_uri=[secret], src_queue="q", dest_uri=LOCAL, dest_queue="q")
    new.http.put("/users/watcher", json={"password": "watcher", "tags": "monitoring"}).raise_for_status()
    url = str(new.http.base_url)

    with httpx.Client(base_url=url, auth=("watcher", "watcher")) as watcher:
        seen = [
            watcher.get("/parameters/shovel/%2F/secret").text,
            watcher.get("/parameters").text,
            watcher.get("/shovels").text,
        ]

    assert all("s3cret" not in text and "mover" not in text for text in seen)
    assert "127.0.0.1:1/vh" in seen[0]
    assert new.get("/parameters/shovel/%2F/secret")["value"]["src-uri"] == [secret]
    new.delete_shovel("secret")

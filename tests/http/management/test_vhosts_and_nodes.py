"""Settings of a vhost, details of the node, logins by source, and copies per exchange."""

import base64
import hashlib
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pika
import pytest
from pika.exceptions import ProbableAuthenticationError

from holtmq.auth.attempts import AuthAttempts, Protocol
from holtmq.config import Auth, Config, Secret
from holtmq.testing import TestBroker

REFUSAL = "Refusing to delete virtual host 'kept' because it is protected from deletion"


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as one:
        yield one


@pytest.fixture(scope="module")
def http(broker: TestBroker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url + "/api", auth=("guest", "guest"), timeout=60) as client:
        yield client


def vhost_row(http: httpx.Client, name: str) -> dict[str, object]:
    rows = {row["name"]: row for row in http.get("/definitions").json()["vhosts"]}
    found: dict[str, object] = rows[name]
    return found


def node(http: httpx.Client) -> str:
    name: str = http.get("/overview").json()["node"]
    return name


def test_a_protected_vhost_is_not_deleted_until_the_protection_goes(
    broker: TestBroker, http: httpx.Client
) -> None:
    http.put("/vhosts/kept", json={"description": "of value"})
    assert http.post("/vhosts/kept/deletion/protection").status_code == 204
    assert http.post("/vhosts/no-such/deletion/protection").status_code == 404
    refused = http.delete("/vhosts/kept")
    broker.crash_and_restart()

    again = http.delete("/vhosts/kept")

    assert (refused.status_code, refused.json()["reason"]) == (412, REFUSAL)
    assert (again.status_code, again.json()["reason"]) == (412, REFUSAL)
    metadata = vhost_row(http, "kept")["metadata"]
    assert metadata == {"description": "of value", "tags": [], "protected_from_deletion": True}
    assert http.delete("/vhosts/kept/deletion/protection").status_code == 204
    assert http.delete("/vhosts/kept").status_code == 204


def test_settings_of_vhosts_come_with_definitions_of_rabbitmq_4(
    broker: TestBroker, http: httpx.Client
) -> None:
    metadata = {
        "description": "team a",
        "tags": ["a", "b"],
        "default_queue_type": "quorum",
        "protected_from_deletion": True,
    }
    document = {"vhosts": [{"name": "imported", "limits": [], "metadata": metadata}]}

    assert http.post("/definitions", json=document).status_code == 204
    made = broker.call(lambda node: node.journal.stats().checkpoints)
    broker.call(lambda node: node.checkpoints.make())
    while broker.call(lambda node: node.journal.stats().checkpoints) == made:
        pass
    broker.crash_and_restart()

    assert vhost_row(http, "imported") == {"name": "imported", **metadata, "metadata": metadata}
    assert http.delete("/vhosts/imported").status_code == 412


def test_the_default_queue_type_applies_to_queues_that_every_type_can_be(
    broker: TestBroker, http: httpx.Client
) -> None:
    http.put("/vhosts/typed", json={"default_queue_type": "quorum"})
    refused = http.put("/vhosts/typed", json={"default_queue_type": "fast"})
    parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, "typed")
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare("plain", durable=True)
        channel.queue_declare("plain", durable=True)  # is the same declaration
        channel.queue_declare("chosen", durable=True, arguments={"x-queue-type": "classic"})
        channel.queue_declare("own", exclusive=True)
        rows = {row["name"]: row["type"] for row in http.get("/queues/typed").json()}

    assert rows == {"plain": "quorum", "chosen": "classic", "own": "classic"}
    assert refused.status_code == 400
    assert refused.json()["reason"].startswith("fast is not a valid queue type")


def test_copies_that_enter_queues_are_counted_per_exchange(broker: TestBroker, http: httpx.Client) -> None:
    parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        for exchange, kind in (("spread", "fanout"), ("matched", "headers")):
            channel.exchange_declare(exchange, kind)
            for name in ("copy-1", "copy-2", "copy-3"):
                channel.queue_declare(name, auto_delete=True)
                channel.queue_bind(name, exchange, arguments={"x-match": "any", "kind": "a"})
        for _ in range(2):
            channel.basic_publish("spread", "", b"to three")
            channel.basic_publish("matched", "", b"to three", pika.BasicProperties(headers={"kind": "a"}))
            channel.basic_publish("matched", "", b"to none", pika.BasicProperties(headers={"kind": "b"}))
        channel.queue_declare("copy-1", passive=True)  # the publishes have been read

    stats = {
        name: http.get(f"/exchanges/%2F/{name}").json()["message_stats"] for name in ("spread", "matched")
    }
    counted = {name: (row["publish_in"], row["publish_out"]) for name, row in stats.items()}
    assert counted == {"spread": (2, 6), "matched": (4, 6)}
    assert stats["spread"]["publish_out_details"].keys() == {"rate"}


def test_logins_are_counted_by_address_and_name(broker: TestBroker, http: httpx.Client) -> None:
    where = f"/auth/attempts/{node(http)}/source"
    http.delete(where)
    for password in ("guest", "wrong"):
        credentials = pika.PlainCredentials("guest", password)
        try:
            pika.BlockingConnection(
                pika.ConnectionParameters("127.0.0.1", broker.amqp_port, credentials=credentials)
            ).close()
        except ProbableAuthenticationError:
            assert password == "wrong"
    with httpx.Client(base_url=broker.http_url, auth=("mallory", "x")) as stranger:
        assert stranger.get("/api/overview").status_code == 401

    rows = {(row["protocol"], row["username"]): row for row in http.get(where).json()}

    assert rows["amqp091", "guest"] == {
        "remote_address": "127.0.0.1",
        "username": "guest",
        "protocol": "amqp091",
        "auth_attempts": 2,
        "auth_attempts_failed": 1,
        "auth_attempts_succeeded": 1,
    }
    assert rows["http", "mallory"]["auth_attempts_failed"] == 1


def test_made_up_names_share_a_row_beyond_a_thousand() -> None:
    attempts = AuthAttempts()
    for number in range(1_500):
        attempts.count(Protocol.AMQP, "192.0.2.1", f"name-{number}", succeeded=False)

    rows = dict(attempts.sources())

    assert len(rows) == 1_001
    assert attempts.of(Protocol.AMQP).failed == 1_500
    assert [row.failed for source, row in rows.items() if not source.name] == [500]


def test_the_settings_of_the_node_are_shown_without_secrets() -> None:
    secret = "of at least thirty-two characters, as HS256 wants"
    auth = Auth(jwt_secret=Secret(secret))
    with TestBroker(config=Config(auth=auth)) as one:
        shown = httpx.get(one.http_url + "/api/environment", auth=("guest", "guest"))

    assert shown.json()["amqp.frame_max"] == "128KiB"
    assert secret not in shown.text


def test_a_hash_for_definitions_is_the_salted_one_of_rabbitmq(http: httpx.Client) -> None:
    made = base64.b64decode(http.get("/auth/hash_password/open%20sesame").json()["ok"])

    assert made[4:] == hashlib.sha256(made[:4] + b"open sesame").digest()
    user = {"password_hash": base64.b64encode(made).decode(), "tags": "management"}
    assert http.put("/users/hashed", json=user).status_code == 201
    assert http.get("/whoami", auth=("hashed", "open sesame")).status_code == 200


def test_a_quorum_queue_has_one_member_and_gets_no_other(http: httpx.Client) -> None:
    arguments = {"x-queue-type": "quorum"}
    http.put("/queues/%2F/raft", json={"durable": True, "arguments": arguments})
    http.put("/queues/%2F/plain", json={"durable": True})

    (member,) = http.get("/queues/quorum/%2F/raft/status").json()
    refused = http.post("/queues/quorum/%2F/raft/replicas/add", json={"node": "other"})

    assert (member["Node Name"], member["Raft State"]) == (node(http), "leader")
    assert http.get("/queues/quorum/%2F/plain/status").status_code == 400
    assert refused.status_code == 400
    assert "one member" in refused.json()["reason"]


def test_queues_are_listed_without_statistics(http: httpx.Client) -> None:
    http.put("/queues/%2F/brief", json={"durable": True})

    (brief,) = [row for row in http.get("/queues?disable_stats=true").json() if row["name"] == "brief"]
    totals = http.get("/queues?disable_stats=true&enable_queue_totals=true").json()

    assert "message_stats" not in brief
    assert "messages" not in brief
    assert {"messages", "messages_ready", "messages_unacknowledged"} <= totals[0].keys()


def test_memory_of_the_node_adds_up(http: httpx.Client) -> None:
    memory = http.get(f"/nodes/{node(http)}/memory").json()["memory"]
    share = http.get(f"/nodes/{node(http)}/memory/relative").json()["memory"]

    assert memory["msg_index"] + memory["other_system"] == memory["total"]["rss"] > 0
    assert share["msg_index"] + share["other_system"] == share["total"] == 100
    assert http.delete("/reset").status_code == 204
    assert http.get(f"/healthchecks/node/{node(http)}").json() == {"status": "ok"}


def test_a_queue_and_a_channel_list_their_consumers(broker: TestBroker, http: httpx.Client) -> None:
    parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare("read", auto_delete=True)
        channel.basic_consume("read", lambda *_: None, consumer_tag="reader")
        queue = http.get("/queues/%2F/read").json()
        (one,) = queue["consumer_details"]
        found = http.get(f"/channels/{quote(one['channel_details']['name'], safe='')}").json()

    assert (one["consumer_tag"], one["queue"]) == ("reader", {"name": "read", "vhost": "/"})
    assert found["consumer_details"] == [one]
    assert found["consumer_count"] == 1
    assert "members" not in queue


def test_a_queue_that_was_never_used_has_samples_of_its_length(http: httpx.Client) -> None:
    http.put("/queues/%2F/idle", json={"durable": True})

    row = http.get("/queues/%2F/idle?lengths_age=1800&lengths_incr=30").json()

    assert {sample["sample"] for sample in row["messages_details"]["samples"]} == {0}


def test_an_upstream_needs_an_address(http: httpx.Client) -> None:
    where = "/parameters/federation-upstream/%2F/up"

    refused = http.put(where, json={"value": {"expires": 1}})

    assert refused.status_code == 400
    assert refused.json()["reason"].startswith("Validation failed")
    assert http.put(where, json={"value": {"uri": "amqp://elsewhere"}}).status_code == 201
    meaning = http.get("/without-meaning").json()
    assert [row["reason"] for row in meaning if row["name"] == "up"] == ["there is no federation here"]


def test_a_shovel_for_amqp_1_0_is_named_and_an_import_keeps_it(http: httpx.Client) -> None:
    value = {
        "src-protocol": "amqp10",
        "src-uri": "amqp://elsewhere",
        "src-address": "a",
        "dest-uri": "amqp://",
        "dest-queue": "read",
    }
    document = {"parameters": [{"vhost": "/", "component": "shovel", "name": "one-o", "value": value}]}

    refused = http.put("/parameters/shovel/%2F/one-o", json={"value": value})
    kept = http.post("/definitions", json=document)

    assert (refused.status_code, refused.json()["reason"]) == (
        400,
        "src-protocol amqp10 is not supported; amqp091 is",
    )
    assert kept.status_code == 204
    assert http.get("/parameters/shovel/%2F/one-o").json()["value"] == value


def test_a_node_has_what_monitors_divide(http: httpx.Client) -> None:
    (row,) = http.get("/nodes").json()

    for name in ("fd", "sockets", "proc"):
        assert 0 <= row[f"{name}_used"] <= row[f"{name}_total"], name

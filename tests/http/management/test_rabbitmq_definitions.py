"""A full export of RabbitMQ 3.10.8 comes in with one call, and everything in it does here what it did there.

The export is from Debian's package with the plugins management, shovel, federation, consistent hash and
random exchange. Its users' passwords: alice "wonderland" (SHA-256), bob "builder" (SHA-512), carol "carousel"
(MD5).
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from pika.exceptions import (
    AMQPError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from holtmq.auth import passwords
from holtmq.testing import TestBroker

PATIENCE = 60.0
EXPORT = json.loads((Path(__file__).parent / "fixtures" / "rabbitmq-3.10.8-definitions.json").read_text())
Connect = Callable[..., pika.BlockingConnection]


class Api:
    def __init__(self, broker: TestBroker) -> None:
        self.http = httpx.Client(base_url=broker.http_url + "/api", auth=("guest", "guest"), timeout=60)

    def __call__(self, method: str, path: str, body: object = None) -> httpx.Response:
        return (
            self.http.request(method, path, json=body)
            if body is not None
            else self.http.request(method, path)
        )


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TestBroker]:
    with TestBroker(tmp_path) as one:
        yield one


@pytest.fixture
def api(broker: TestBroker) -> Iterator[Api]:
    one = Api(broker)
    yield one
    one.http.close()


@pytest.fixture
def loaded(api: Api) -> Api:
    """With the export in it."""
    assert api("POST", "/definitions", EXPORT).status_code == 204
    return api


@pytest.fixture
def connect(broker: TestBroker) -> Iterator[Connect]:
    opened: list[pika.BlockingConnection] = []

    def one(user: str, password: str, vhost: str = "shop") -> pika.BlockingConnection:
        credentials = pika.PlainCredentials(user, password)
        parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, vhost, credentials)
        opened.append(pika.BlockingConnection(parameters))
        return opened[-1]

    yield one
    for connection in opened:
        with suppress(AMQPError):  # the broker may have closed it
            connection.close()


def rows(document: dict[str, Any], part: str) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in document[part])


def test_what_came_in_goes_out_again_as_it_was(loaded: Api, broker: TestBroker) -> None:
    for _ in range(2):
        document = loaded("GET", "/definitions").json()

        for part in (
            "permissions",
            "topic_permissions",
            "parameters",
            "global_parameters",
            "policies",
            "queues",
            "exchanges",
            "bindings",
        ):
            assert rows(document, part) == rows(EXPORT, part), part
        users = {user["name"]: user for user in document["users"]}
        assert [users[name] for name in ("alice", "bob", "carol", "certified")] == [
            next(user for user in EXPORT["users"] if user["name"] == name)
            for name in ("alice", "bob", "carol", "certified")
        ]
        assert {vhost["name"] for vhost in document["vhosts"]} == {"/", "shop", "jobs"}
        broker.crash_and_restart()
        loaded.http.close()
        loaded.http = Api(broker).http


def test_every_dropped_meaning_is_named(api: Api) -> None:
    answer = api("POST", "/definitions?report=true", EXPORT)

    assert answer.status_code == 200
    report = answer.json()["without_meaning"]
    assert report == api("GET", "/without-meaning").json()
    assert {(row["what"], row["name"], row["key"]) for row in report} == {
        ("policy", "ha-all", "ha-mode"),
        ("policy", "ha-all", "ha-sync-mode"),
        ("policy", "ha-two", "ha-mode"),
        ("policy", "ha-two", "ha-params"),
        ("policy", "ha-two", "ha-promote-on-shutdown"),
        ("policy", "upstream", "federation-upstream-set"),
        ("federation-upstream", "west", None),
        ("global parameter", "mqtt_port_to_vhost_mapping", None),
        ("global parameter", "internal_cluster_id", None),
    }
    assert all(row["reason"] for row in report)


@pytest.mark.parametrize(
    ("user", "password", "vhost"),
    [("alice", "wonderland", "/"), ("bob", "builder", "shop"), ("carol", "carousel", "shop")],
)
def test_users_log_in_with_their_old_passwords_and_are_hashed_anew(
    loaded: Api, broker: TestBroker, connect: Connect, user: str, password: str, vhost: str
) -> None:
    with pytest.raises((ProbableAuthenticationError, ConnectionClosedByBroker)):
        connect(user, password + "!", vhost)
    assert passwords.exported_hash(stored_hash(broker, user)) is not None

    connect(user, password, vhost)

    until = time.monotonic() + PATIENCE
    while passwords.exported_hash(stored_hash(broker, user)) is not None:  # argon2 runs in a thread
        assert time.monotonic() < until, "not hashed anew"
    assert stored_hash(broker, user).startswith("$argon2id$")
    document = loaded("GET", "/definitions").json()
    assert user in document["users_with_argon2_hashes"]
    broker.crash_and_restart()
    connect(user, password, vhost)
    with pytest.raises((ProbableAuthenticationError, ConnectionClosedByBroker)):
        connect(user, password + "!", vhost)


def stored_hash(broker: TestBroker, user: str) -> str:
    def look(node: Any) -> str:
        return str(node.broker.users.user(user).password_hash)

    return broker.call(look)


def test_a_user_without_a_password_cannot_log_in(loaded: Api, connect: Connect) -> None:
    with pytest.raises((ProbableAuthenticationError, ConnectionClosedByBroker)):
        connect("certified", "", "/")


def test_topic_permissions_hold(loaded: Api, connect: Connect) -> None:
    api_permissions(loaded, "bob")
    connection = connect("bob", "builder")
    channel = connection.channel()
    channel.confirm_delivery()

    channel.basic_publish("shop.events", "orders.bob.new", b"1")
    channel.queue_declare("shop.mine")
    channel.queue_bind("shop.mine", "shop.events", "orders.#")
    for refused in (
        lambda ch: (ch.confirm_delivery(), ch.basic_publish("shop.events", "orders.eve.new", b"1")),
        lambda ch: ch.queue_bind("shop.mine", "shop.events", "invoices.#"),
        lambda ch: ch.queue_unbind("shop.mine", "shop.events", "invoices.#"),
        lambda ch: ch.exchange_bind("shop.dead", "shop.events", "invoices.#"),
    ):
        with pytest.raises(ChannelClosedByBroker) as refusal:
            refused(connection.channel())
        assert refusal.value.reply_code == 403
        assert "in exchange 'shop.events' in vhost 'shop' refused for user 'bob'" in refusal.value.reply_text
        assert refusal.value.reply_text.startswith("ACCESS_REFUSED - access to topic '")


def test_a_topic_permission_that_changes_reaches_publishers_that_are_at_it(
    loaded: Api, connect: Connect
) -> None:
    channel = connect("bob", "builder").channel()
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("shop.events", "orders.bob.new", b"1")

    body = {"exchange": "shop.events", "write": "^nothing$", "read": ".*"}
    assert loaded("PUT", "/topic-permissions/shop/bob", body).status_code == 204

    with pytest.raises(ChannelClosedByBroker):
        channel.basic_publish("shop.events", "orders.bob.new", b"1")
    assert loaded("DELETE", "/topic-permissions/shop/bob").status_code == 204
    channel = connect("bob", "builder").channel()
    channel.confirm_delivery()
    channel.basic_publish("shop.events", "anything", b"1")


def api_permissions(api: Api, user: str) -> None:
    body = {"configure": ".*", "write": ".*", "read": ".*"}
    assert api("PUT", f"/permissions/shop/{user}", body).status_code == 204


def test_limits_of_a_user_hold(loaded: Api, connect: Connect) -> None:
    connections = [connect("bob", "builder") for _ in range(5)]
    with pytest.raises(ProbableAccessDeniedError) as refusal:
        connect("bob", "builder")
    assert "connection refused for user 'bob': user connection limit (5) is reached" in str(refusal.value)

    for connection in connections[1:]:
        connection.close()
    for _ in range(10):
        connections[0].channel()
    with pytest.raises(ConnectionClosedByBroker) as closed:
        connections[0].channel()
    assert (closed.value.reply_code, closed.value.reply_text) == (
        530,
        "NOT_ALLOWED - number of channels opened for user 'bob' "
        "has reached the maximum allowed user limit of (10)",
    )
    channels = connect("bob", "builder")
    for _ in range(10):
        channels.channel().close()
    channels.channel()


def test_limits_of_a_vhost_hold(loaded: Api, connect: Connect) -> None:
    api_permissions(loaded, "bob")
    assert loaded("PUT", "/vhost-limits/shop/max-connections", {"value": 1}).status_code == 204
    connection = connect("bob", "builder")
    with pytest.raises(ProbableAccessDeniedError) as refusal:
        connect("bob", "builder")
    assert "access to vhost 'shop' refused for user 'bob': connection limit (1) is reached" in str(
        refusal.value
    )

    assert loaded("PUT", "/vhost-limits/shop/max-queues", {"value": 5}).status_code == 204
    with pytest.raises(ChannelClosedByBroker) as closed:
        connection.channel().queue_declare("shop.sixth")
    assert (closed.value.reply_code, closed.value.reply_text) == (
        406,
        "PRECONDITION_FAILED - cannot declare queue 'shop.sixth': queue limit in vhost 'shop' (5) is reached",
    )
    connection.channel().queue_declare("dead", durable=True)  # it is there
    answer = loaded("PUT", "/queues/shop/seventh", {})
    assert (answer.status_code, "queue limit" in answer.json()["reason"]) == (400, True)
    assert loaded("POST", "/definitions/shop", {"queues": [{"name": "eighth"}]}).status_code == 400
    assert loaded("DELETE", "/vhost-limits/shop/max-queues").status_code == 204
    connection.channel().queue_declare("shop.sixth")


def test_policies_of_the_export_apply_as_far_as_they_mean_something(loaded: Api) -> None:
    queues = {row["name"]: row for row in loaded("GET", "/queues").json()}

    assert (queues["ha.work"]["policy"], queues["two.work"]["policy"]) == ("ha-all", "ha-two")
    assert queues["shop.orders"]["operator_policy"] == "cap"
    assert queues["shop.stream"]["type"] == "stream"
    assert loaded("GET", "/policies/%2F/ha-all").json()["definition"] == {
        "ha-mode": "all",
        "ha-sync-mode": "automatic",
    }


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/vhost-limits/shop/max-nothing", {"value": 3}, "the nearest right one is 'max-connections'"),
        ("/vhost-limits/shop/max-queues", {"value": "x"}, "should be a number"),
        ("/user-limits/bob/max-x", {"value": 1}, "unknown limit 'max-x' for user 'bob'"),
        ("/parameters/nothing/shop/x", {"value": {}}, "component nothing not found"),
        ("/topic-permissions/shop/bob", {"exchange": "x", "write": "(", "read": ""}, "write"),
        ("/topic-permissions/shop/bob", {"write": "", "read": ""}, "exchange"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(
    loaded: Api, path: str, body: object, text: str
) -> None:
    answer = loaded("PUT", path, body)

    assert answer.status_code == 400
    assert text in answer.json()["reason"]


def test_parameters_limits_and_names_are_read_one_by_one(loaded: Api) -> None:
    shovel = next(row for row in EXPORT["parameters"] if row["component"] == "shovel")

    assert loaded("GET", "/parameters/shovel/shop/move-orders").json() == shovel
    assert loaded("GET", "/parameters/shovel").json() == [shovel]
    assert loaded("GET", "/vhost-limits/shop").json() == [
        {"vhost": "shop", "value": {"max-queues": 20, "max-connections": 50}}
    ]
    assert loaded("GET", "/user-limits/bob").json() == [
        {"user": "bob", "value": {"max-channels": 10, "max-connections": 5}}
    ]
    assert loaded("GET", "/global-parameters/mqtt_port_to_vhost_mapping").json()["value"] == {"1883": "shop"}
    assert loaded("PUT", "/cluster-name", {"name": "otters"}).status_code == 204
    assert loaded("GET", "/cluster-name").json() == {"name": "otters"}
    assert loaded("DELETE", "/parameters/shovel/shop/move-orders").status_code == 204
    assert loaded("GET", "/parameters/shovel/shop/move-orders").status_code == 404
    assert [user["name"] for user in loaded("GET", "/users/without-permissions").json()] == ["certified"]


def test_a_user_of_this_broker_is_exported_such_that_rabbitmq_takes_the_rest(loaded: Api) -> None:
    assert loaded("PUT", "/users/new", {"password": "secret", "tags": ""}).status_code == 201

    document = loaded("GET", "/definitions").json()

    user = next(user for user in document["users"] if user["name"] == "new")
    assert (user["password_hash"], user["hashing_algorithm"]) == ("", "rabbit_password_hashing_sha256")
    assert "new" in document["users_with_argon2_hashes"]
    loaded("DELETE", "/users/new")
    assert loaded("POST", "/definitions", document).status_code == 204
    whoami = loaded.http.get("/whoami", auth=("new", "secret"))
    assert whoami.json()["name"] == "new"


def test_what_a_cluster_of_one_has_nothing_to_do_for_is_answered(loaded: Api) -> None:
    assert loaded("POST", "/rebalance/queues", {}).status_code == 204
    assert loaded("POST", "/queues/shop/dead/actions", {"action": "sync"}).status_code == 204
    refusal = loaded("POST", "/queues/shop/dead/actions", {"action": "dance"})
    assert (refusal.status_code, "sync, cancel_sync" in refusal.json()["reason"]) == (400, True)
    assert loaded("GET", "/extensions").json() == []
    assert loaded("GET", "/auth").json()["enable_uaa"] is False
    assert {flag["state"] for flag in loaded("GET", "/feature-flags").json()} == {"enabled"}
    refusal = loaded("POST", "/users/bulk-delete", {"users": ["carol", "nobody"]})
    assert refusal.status_code == 404
    assert loaded("POST", "/users/bulk-delete", {"users": ["carol"]}).status_code == 204
    assert loaded("GET", "/users/carol").status_code == 404


def test_max_queues_holds_for_queues_made_over_http(api: Api, broker: TestBroker) -> None:
    item = {"queue": "one", "payload": 1}
    with httpx.Client(base_url=broker.http_url + "/api/v1", auth=("guest", "guest"), timeout=60) as http:
        assert http.post("/push", json={"items": [item]}).status_code == 201
        assert api("PUT", "/vhost-limits/%2F/max-queues", {"value": 2}).status_code == 204

        two = [{"queue": name, "payload": 1} for name in ("two", "three")]
        refused = [
            http.post("/push", json={"items": two}),
            http.post("/transaction", json={"operations": [{"type": "push", "items": two}]}),
        ]
        assert http.post("/push", json={"items": [item, two[0]]}).status_code == 201
        refused += [
            http.post("/push", json={"items": two[1:]}),
            http.post("/configure", json={"queue": "three", "options": {}}),
        ]

    assert [answer.status_code for answer in refused] == [429, 200, 429, 429]
    assert not refused[1].json()["success"]  # as every refusal of a transaction
    for answer in refused:
        assert "queue limit in vhost '/' (2) is reached" in answer.text
    assert [queue["name"] for queue in api("GET", "/queues/%2F").json()] == ["one", "two"]

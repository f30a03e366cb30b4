"""RabbitMQ's management API against the real broker, with pika on the other side."""

import base64
from collections.abc import Callable, Iterator
from contextlib import suppress

import httpx
import pika
import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from holtmq.auth.login import is_loopback
from holtmq.broker.message import Message
from holtmq.http.engine.authentication import read_basic
from holtmq.http.management import messages
from holtmq.testing import TestBroker

Api = Callable[..., httpx.Response]
Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as one:
        yield one


@pytest.fixture
def api(broker: TestBroker) -> Iterator[Api]:
    """``api("PUT", "/vhosts/v1", {...})`` as guest, or as another user."""
    with httpx.Client(base_url=broker.http_url + "/api", timeout=60) as client:

        def call(
            method: str, path: str, body: object = None, user: tuple[str, str] = ("guest", "guest")
        ) -> httpx.Response:
            if body is None:
                return client.request(method, path, auth=user)
            return client.request(method, path, json=body, auth=user)

        yield call


@pytest.fixture
def connect(broker: TestBroker) -> Iterator[Connect]:
    opened: list[pika.BlockingConnection] = []

    def one(user: str = "guest", password: str = "guest", vhost: str = "/") -> pika.BlockingConnection:
        credentials = pika.PlainCredentials(user, password)
        parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, vhost, credentials)
        opened.append(pika.BlockingConnection(parameters))
        return opened[-1]

    yield one
    for connection in opened:
        with suppress(AMQPError):
            if connection.is_open:
                connection.close()


def add_user(api: Api, name: str, *patterns: str, tags: str = "", vhost: str = "%2F") -> None:
    assert api("PUT", f"/users/{name}", {"password": "secret", "tags": tags}).status_code == 201
    if patterns:
        rights = dict(zip(("configure", "write", "read"), patterns, strict=True))
        assert api("PUT", f"/permissions/{vhost}/{name}", rights).status_code == 201


def publish(api: Api, queue: str, payload: str, **properties: object) -> httpx.Response:
    body = {
        "properties": properties,
        "routing_key": queue,
        "payload": payload,
        "payload_encoding": "string",
    }
    return api("POST", "/exchanges/%2F/amq.default/publish", body)


def get(api: Api, queue: str, ackmode: str = "ack_requeue_true", **more: object) -> list[dict[str, object]]:
    body = {"count": 10, "ackmode": ackmode, "encoding": "auto", **more}
    answer = api("POST", f"/queues/%2F/{queue}/get", body)
    assert answer.status_code == 200, answer.text
    return list(answer.json())


def test_whoami_says_who(api: Api) -> None:
    assert api("GET", "/whoami").json() == {"name": "guest", "tags": ["administrator"]}


def test_without_or_with_wrong_credentials_there_is_a_challenge(broker: TestBroker, api: Api) -> None:
    outside = {"x-forwarded-for": "203.0.113.9"}
    nobody = httpx.get(f"{broker.http_url}/api/overview", headers=outside, timeout=60)
    wrong = api("GET", "/overview", user=("guest", "wrong"))
    unknown = api("GET", "/overview", user=("mallory", "guest"))

    for refused in (nobody, wrong, unknown):
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Basic")
    assert wrong.json() == unknown.json() == {"error": "not_authorized", "reason": "Login failed"}


def test_guest_is_refused_from_outside(broker: TestBroker) -> None:
    # A proxy on this machine names its client; the header is believed from loopback alone.
    outside = {"x-forwarded-for": "203.0.113.9"}
    url = f"{broker.http_url}/api/whoami"

    assert httpx.get(url, auth=("guest", "guest"), timeout=60).status_code == 200
    assert httpx.get(url, auth=("guest", "guest"), headers=outside, timeout=60).status_code == 401


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1", False),
        ("", False),
        ("localhost.evil.example", False),
    ],
)
def test_only_this_machines_own_addresses_are_loopback(host: str, own: bool) -> None:
    assert is_loopback(host) is own


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Basic",
        b"Basic !!!",
        b"Bearer Z3Vlc3Q6Z3Vlc3Q=",
        b"Basic Z3Vlc3Q=",
        b"Basic /w==",
        b"Basic \xff",
    ],
)
def test_a_header_that_is_not_basic_is_no_login(header: bytes) -> None:
    assert read_basic(header) is None


def test_a_password_may_hold_colons() -> None:
    assert read_basic(b"Basic " + base64.b64encode(b"me:a:b")) == ("me", "a:b")


def test_tags_decide_what_a_user_may_ask(api: Api) -> None:
    add_user(api, "viewer", tags="monitoring")
    add_user(api, "worker")
    viewer, worker = ("viewer", "secret"), ("worker", "secret")

    assert api("GET", "/queues", user=viewer).status_code == 200
    assert api("PUT", "/vhosts/mine", {}, user=viewer).status_code == 403
    assert api("GET", "/users", user=viewer).status_code == 403  # hashes
    assert api("GET", "/definitions", user=viewer).status_code == 403
    assert api("GET", "/queues", user=worker).status_code == 403
    assert api("GET", "/whoami", user=worker).json() == {"name": "worker", "tags": []}
    assert api("GET", "/vhosts/mine").status_code == 404


def test_an_administrator_without_permissions_cannot_touch_queues(api: Api) -> None:
    add_user(api, "boss", tags="administrator")

    answer = api("PUT", "/queues/%2F/work", {}, user=("boss", "secret"))

    assert answer.status_code == 403
    assert answer.json()["reason"] == (
        "ACCESS_REFUSED - configure access to 'work' in vhost '/' refused for user 'boss'"
    )


def test_web_pages_of_others_are_not_let_in(broker: TestBroker) -> None:
    preflight = httpx.options(
        f"{broker.http_url}/api/users/evil",
        headers={"origin": "http://evil.example", "access-control-request-method": "PUT"},
    )

    assert preflight.status_code == 403
    assert "access-control-allow-origin" not in preflight.headers


def test_paths_methods_and_bodies_that_are_wrong_are_told_apart(api: Api) -> None:
    wrong_method = api("POST", "/users/bob", {})

    assert api("GET", "/nonsense").json() == {"error": "Object Not Found", "reason": "Not Found"}
    assert api("GET", "/queues/nowhere").status_code == 404
    assert api("GET", "/queues/%2F/none").status_code == 404
    assert api("DELETE", "/queues/%2F/none").status_code == 404
    assert api("DELETE", "/queues/%2F/none/contents").status_code == 404
    assert api("DELETE", "/users/none").status_code == 404
    assert api("DELETE", "/policies/%2F/none").status_code == 404
    assert wrong_method.status_code == 405
    assert wrong_method.headers["allow"] == "DELETE, GET, HEAD, PUT"
    assert api("PUT", "/users/bob", {"password": "x"}).status_code == 400  # no tags
    assert api("PUT", "/users/bob", ["x"]).status_code == 400
    assert api("PUT", f"/queues/%2F/{'n' * 256}", {}).status_code == 400


def test_what_cannot_be_written_down_changes_nothing(api: Api) -> None:
    answer = api("PUT", "/queues/%2F/big", {"durable": True, "arguments": {"x-note": 2**70}})

    assert answer.status_code == 400
    assert api("GET", "/queues/%2F/big").status_code == 404


def test_a_failed_disk_refuses_changes_and_keeps_the_state(broker: TestBroker, api: Api) -> None:
    broker.disk.fail_next_sync()

    failed = api("PUT", "/vhosts/first", {})
    later = api("PUT", "/vhosts/second", {})

    assert (failed.status_code, later.status_code) == (503, 503)
    assert api("GET", "/vhosts/second").status_code == 404


def test_a_user_is_kept_inside_its_patterns(api: Api, connect: Connect) -> None:
    add_user(api, "app", "^app\\.", "^(app\\.|amq\\.default)", "^app\\.")
    channel = connect("app", "secret").channel()

    channel.queue_declare("app.work")
    channel.basic_publish("", "app.work", b"x")
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare("other")

    assert refused.value.reply_code == 403
    assert refused.value.reply_text == (
        "ACCESS_REFUSED - configure access to 'other' in vhost '/' refused for user 'app'"
    )
    assert get(api, "app.work")[0]["payload"] == "x"


def test_permissions_changed_under_a_live_connection_hold_from_the_next_publish(
    api: Api, connect: Connect
) -> None:
    api("PUT", "/exchanges/%2F/news", {"type": "fanout"})
    add_user(api, "app", "", ".*", "")
    channel = connect("app", "secret").channel()
    channel.confirm_delivery()
    channel.basic_publish("news", "", b"cached from here on")
    channel.basic_publish("news", "", b"still")

    api("PUT", "/permissions/%2F/app", {"configure": "", "write": "^other$", "read": ""})
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.basic_publish("news", "", b"no more")

    assert refused.value.reply_text == (
        "ACCESS_REFUSED - write access to 'news' in vhost '/' refused for user 'app'"
    )


def test_users_survive_a_crash_as_soon_as_they_are_answered(
    broker: TestBroker, api: Api, connect: Connect
) -> None:
    add_user(api, "app", ".*", ".*", ".*")
    add_user(api, "gone")
    assert api("DELETE", "/users/gone").status_code == 204

    broker.crash_and_restart()

    assert connect("app", "secret").is_open
    assert api("GET", "/users/app").json()["hashing_algorithm"] == "argon2id"
    assert api("GET", "/users/gone").status_code == 404
    assert api("GET", "/users/app/permissions").json() == [
        {"user": "app", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    ]


def test_a_new_password_replaces_the_old_one(api: Api) -> None:
    add_user(api, "app", tags="monitoring")
    assert api("GET", "/overview", user=("app", "secret")).status_code == 200

    assert api("PUT", "/users/app", {"password": "other", "tags": ["monitoring"]}).status_code == 204

    assert api("GET", "/overview", user=("app", "secret")).status_code == 401
    assert api("GET", "/overview", user=("app", "other")).status_code == 200


def test_a_user_without_a_password_cannot_log_in_with_one(api: Api) -> None:
    api("PUT", "/users/cert", {"tags": "administrator"})

    assert api("GET", "/whoami", user=("cert", "")).status_code == 401


@pytest.mark.parametrize(
    ("algorithm", "encoded", "text"),
    [
        ("bcrypt", "lbYeaj3KbsSKe5GKMk4IUngTZCRJTyEGWIO7NO6Jd4pYy7V9", "'bcrypt' is none of rabbit_password"),
        ("rabbit_password_hashing_sha512", "lbYeaj3KbsSKe5GKMk4IUngTZCRJTyEGWIO7NO6Jd4pYy7V9", "36 bytes"),
        ("rabbit_password_hashing_sha256", "not base64", "not base64"),
    ],
)
def test_a_hash_that_cannot_be_checked_is_refused(api: Api, algorithm: str, encoded: str, text: str) -> None:
    body = {"password_hash": encoded, "hashing_algorithm": algorithm, "tags": ""}

    answer = api("PUT", "/users/old", body)

    assert answer.status_code == 400
    assert text in answer.json()["reason"]


def test_a_deleted_user_is_sent_away(api: Api, connect: Connect) -> None:
    add_user(api, "app", ".*", ".*", ".*")
    connection = connect("app", "secret")

    api("DELETE", "/users/app")
    with pytest.raises(ConnectionClosedByBroker) as closed:
        connection.channel()

    assert closed.value.reply_text == "CONNECTION_FORCED - user 'app' is deleted"


def test_permissions_need_a_user_a_vhost_and_patterns(api: Api) -> None:
    rights = {"configure": "", "write": "", "read": ""}

    for path, missing in (("%2F/nobody", "nobody"), ("nowhere/guest", "nowhere")):
        refused = api("PUT", f"/permissions/{path}", rights)
        assert refused.status_code == 400  # as in RabbitMQ
        assert missing in refused.json()["reason"]
    bad = api("PUT", "/permissions/%2F/guest", {**rights, "write": "("})
    assert bad.status_code == 400
    assert "write permission" in bad.json()["reason"]
    assert api("DELETE", "/permissions/%2F/guest").status_code == 204
    assert api("DELETE", "/permissions/%2F/guest").status_code == 404


def test_whoever_makes_a_vhost_can_use_it(api: Api, connect: Connect) -> None:
    assert api("PUT", "/vhosts/team%2Fa", {}).status_code == 201
    assert api("PUT", "/vhosts/team%2Fa", {}).status_code == 204

    channel = connect(vhost="team/a").channel()
    channel.queue_declare("work", durable=True)

    assert [row["name"] for row in api("GET", "/queues/team%2Fa").json()] == ["work"]
    assert [row["name"] for row in api("GET", "/vhosts").json()] == ["/", "team/a"]


def test_a_deleted_vhost_takes_its_clients_along_and_stays_gone(
    broker: TestBroker, api: Api, connect: Connect
) -> None:
    api("PUT", "/vhosts/v", {})
    connection = connect(vhost="v")
    channel = connection.channel()
    channel.queue_declare("work", durable=True)

    assert api("DELETE", "/vhosts/v").status_code == 204
    with pytest.raises(ConnectionClosedByBroker) as closed:
        channel.queue_declare("more", durable=True)

    assert closed.value.reply_text == "CONNECTION_FORCED - vhost 'v' is deleted"
    broker.crash_and_restart()
    assert api("GET", "/vhosts/v").status_code == 404


def test_a_policy_changes_a_live_queue_and_goes_without_a_trace(api: Api) -> None:
    api("PUT", "/queues/%2F/work", {"durable": True})
    for payload in "abc":
        publish(api, "work", payload)
    policy = {"pattern": "^work$", "definition": {"max-length": 1}, "apply-to": "queues", "priority": 7}

    assert api("PUT", "/policies/%2F/short", policy).status_code == 201
    shortened = api("GET", "/queues/%2F/work").json()
    publish(api, "work", "d")
    assert api("DELETE", "/policies/%2F/short").status_code == 204
    publish(api, "work", "e")

    assert (shortened["messages_ready"], shortened["policy"]) == (1, "short")
    assert shortened["effective_policy_definition"] == {"max-length": 1}
    assert [row["payload"] for row in get(api, "work")] == ["d", "e"]


def test_policies_are_listed_as_they_were_set(api: Api) -> None:
    policy = {"pattern": "^q", "definition": {"max-length": 5}, "apply-to": "queues", "priority": 1}
    api("PUT", "/policies/%2F/p", policy)
    api("PUT", "/operator-policies/%2F/o", policy)

    row = {**policy, "vhost": "/", "name": "p"}
    assert api("GET", "/policies").json() == api("GET", "/policies/%2F").json() == [row]
    assert api("GET", "/policies/%2F/p").json() == row
    assert api("GET", "/operator-policies/%2F/o").json() == {**row, "name": "o"}
    assert api("GET", "/policies/%2F/o").status_code == 404


def test_a_misspelt_policy_comes_with_the_right_key(api: Api) -> None:
    answer = api("PUT", "/policies/%2F/p", {"pattern": "", "definition": {"max-lenght": 5}})

    assert answer.status_code == 400
    assert "'max-length'" in answer.json()["reason"]


def test_a_queue_is_made_compared_listed_and_deleted(api: Api) -> None:
    assert api("PUT", "/queues/%2F/work", {"durable": "true"}).status_code == 201
    assert api("PUT", "/queues/%2F/work", {"durable": True}).status_code == 204
    other = api("PUT", "/queues/%2F/work", {"durable": False})
    publish(api, "work", "x")

    assert other.status_code == 400
    assert other.json()["reason"].startswith("inequivalent arg 'durable' for queue 'work' in vhost '/'")
    assert api("GET", "/queues?columns=name,messages").json() == [{"name": "work", "messages": 1}]
    assert api("DELETE", "/queues/%2F/work?if-empty=true").status_code == 400
    assert api("DELETE", "/queues/%2F/work").status_code == 204
    assert api("GET", "/queues").json() == []


def test_system_exchanges_stay(api: Api) -> None:
    assert api("PUT", "/exchanges/%2F/mine", {"type": "topic"}).status_code == 201
    assert api("PUT", "/exchanges/%2F/mine", {"type": "nonsense"}).status_code == 400
    assert api("DELETE", "/exchanges/%2F/mine").status_code == 204
    assert api("DELETE", "/exchanges/%2F/amq.topic").status_code == 403
    assert api("DELETE", "/exchanges/%2F/amq.default").status_code == 403
    assert api("GET", "/exchanges/%2F/amq.topic").json()["type"] == "topic"


@pytest.mark.parametrize(
    ("key", "arguments"), [("", {}), ("a b/c~", {}), ("k", {"x-match": "all", "n": 1}), ("ü", {})]
)
def test_a_binding_is_found_and_deleted_under_the_name_it_was_given(
    api: Api, key: str, arguments: dict[str, object]
) -> None:
    api("PUT", "/exchanges/%2F/from", {"type": "headers"})
    api("PUT", "/queues/%2F/to", {})
    between = "/bindings/%2F/e/from/q/"

    made = api("POST", between + "to", {"routing_key": key, "arguments": arguments})
    found = api("GET", between + made.headers["location"])

    assert made.status_code == 201
    assert (found.json()["routing_key"], found.json()["arguments"]) == (key, arguments)
    assert found.json() in api("GET", "/bindings/%2F").json()
    assert api("GET", "/queues/%2F/to/bindings").json()[1:] == [found.json()]
    assert api("DELETE", between + made.headers["location"]).status_code == 204
    assert api("GET", between + made.headers["location"]).status_code == 404
    assert api("POST", between + "none", {}).status_code == 404


def test_a_published_message_keeps_its_properties(api: Api) -> None:
    api("PUT", "/queues/%2F/work", {})
    given = {"headers": {"a": [1, None]}, "content_type": "text/plain", "timestamp": 1000, "delivery_mode": 2}

    assert publish(api, "work", "täxt", **given).json() == {"routed": True}
    assert publish(api, "none", "x").json() == {"routed": False}

    (row,) = get(api, "work")
    assert (row["properties"], row["payload"], row["payload_bytes"]) == (given, "täxt", 5)
    assert (row["exchange"], row["routing_key"], row["redelivered"]) == ("", "work", False)


def test_the_mode_of_a_get_decides_what_becomes_of_messages(api: Api) -> None:
    api("PUT", "/queues/%2F/dead", {})
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    api("PUT", "/queues/%2F/work", {"arguments": dead})
    for payload in "ab":
        publish(api, "work", payload)

    looked = get(api, "work", "ack_requeue_true")
    rejected = get(api, "work", "reject_requeue_false", count=1)
    acked = get(api, "work", "ack_requeue_false")

    assert [row["payload"] for row in looked] == ["a", "b"]
    assert [(row["payload"], row["redelivered"]) for row in rejected + acked] == [("a", True), ("b", True)]
    assert [row["payload"] for row in get(api, "dead")] == ["a"]
    assert get(api, "work") == []
    assert api("GET", "/queues/%2F/work").json()["messages"] == 0


def test_an_acknowledged_get_is_durable_when_it_is_answered(broker: TestBroker, api: Api) -> None:
    api("PUT", "/queues/%2F/work", {"durable": True})
    for payload in "ab":
        publish(api, "work", payload, delivery_mode=2)

    get(api, "work", "ack_requeue_false", count=1)
    broker.crash_and_restart()

    assert [row["payload"] for row in get(api, "work")] == ["b"]


def test_an_acknowledged_get_waits_for_the_disk(broker: TestBroker, api: Api) -> None:
    api("PUT", "/queues/%2F/work", {"durable": True})
    publish(api, "work", "a", delivery_mode=2)
    broker.disk.stall()
    body = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}

    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{broker.http_url}/api/queues/%2F/work/get",
            json=body,
            auth=("guest", "guest"),
            timeout=httpx.Timeout(60, read=0.3),
        )

    while api("GET", "/queues/%2F/work").json()["messages"]:  # until the broker, too, has seen the request
        continue
    broker.disk.resume()
    assert get(api, "work") == []


def test_bytes_that_are_no_text_come_as_base64(api: Api) -> None:
    api("PUT", "/queues/%2F/work", {})
    body = {"properties": {}, "routing_key": "work", "payload": "/w==", "payload_encoding": "base64"}
    api("POST", "/exchanges/%2F/amq.default/publish", body)

    (row,) = get(api, "work", truncate=1)
    assert (row["payload"], row["payload_encoding"]) == ("/w==", "base64")
    assert api("POST", "/exchanges/%2F/amq.default/publish", {**body, "payload": "_w"}).status_code == 400


def test_nobody_publishes_in_the_name_of_another(api: Api) -> None:
    assert publish(api, "work", "x", user_id="guest").status_code == 200
    assert publish(api, "work", "x", user_id="boss").status_code == 400
    assert publish(api, "work", "x", priority=300).status_code == 400


def test_a_purged_queue_is_empty_after_a_crash_too(broker: TestBroker, api: Api) -> None:
    api("PUT", "/queues/%2F/work", {"durable": True})
    publish(api, "work", "x", delivery_mode=2)

    assert api("DELETE", "/queues/%2F/work/contents").status_code == 204
    broker.crash_and_restart()

    assert api("GET", "/queues/%2F/work").json()["messages"] == 0


def test_connections_channels_and_consumers_are_listed(api: Api, connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    channel.queue_declare("work")
    channel.basic_qos(prefetch_count=3)
    publish(api, "work", "x")
    channel.basic_consume("work", lambda *_: None, consumer_tag="me")

    (one,) = api("GET", "/connections").json()
    (other,) = api("GET", "/channels").json()
    (consumer,) = api("GET", "/consumers").json()

    assert (one["user"], one["vhost"], one["state"], one["channels"]) == ("guest", "/", "running", 1)
    assert other["connection_details"]["name"] == one["name"]
    assert (other["consumer_count"], other["messages_unacknowledged"]) == (1, 1)
    assert (consumer["consumer_tag"], consumer["prefetch_count"]) == ("me", 3)
    assert consumer["queue"] == {"name": "work", "vhost": "/"}
    totals = api("GET", "/overview").json()
    assert totals["object_totals"]["connections"] == totals["object_totals"]["consumers"] == 1
    assert totals["queue_totals"]["messages_unacknowledged"] == 1


def test_definitions_carry_a_broker_over_to_another(api: Api, connect: Connect) -> None:
    api("PUT", "/vhosts/v", {})
    add_user(api, "app", "^a", "", ".*", tags="monitoring", vhost="v")
    policy = {"pattern": "^q", "definition": {"max-length": 5}, "apply-to": "queues", "priority": 1}
    api("PUT", "/policies/v/p", policy)
    api("PUT", "/operator-policies/v/o", policy)
    api("PUT", "/queues/v/quick", {"durable": True, "arguments": {"x-max-priority": 3}})
    api("PUT", "/queues/v/fleeting", {})
    api("PUT", "/exchanges/v/from", {"type": "topic", "durable": True})
    api("POST", "/bindings/v/e/from/q/quick", {"routing_key": "a.#", "arguments": {"note": "x"}})
    api("POST", "/bindings/v/e/from/q/fleeting", {})
    exported = api("GET", "/definitions").json()

    with TestBroker() as second:
        url, guest = f"{second.http_url}/api", ("guest", "guest")
        answer = httpx.post(f"{url}/definitions", json=exported, auth=guest, timeout=60)
        again = httpx.post(f"{url}/definitions", json=exported, auth=guest, timeout=60)
        carried = httpx.get(f"{url}/definitions", auth=guest, timeout=60).json()
        second.crash_and_restart()
        lasting = httpx.get(f"{url}/definitions", auth=guest, timeout=60).json()
        login = httpx.get(f"{url}/whoami", auth=("app", "secret"), timeout=60)

    assert (answer.status_code, again.status_code) == (204, 204)
    assert carried == exported
    assert login.json() == {"name": "app", "tags": ["monitoring"]}
    assert [queue["name"] for queue in lasting["queues"]] == ["quick"]
    assert [binding["routing_key"] for binding in lasting["bindings"]] == ["a.#"]
    assert lasting | {"queues": [], "bindings": []} == exported | {"queues": [], "bindings": []}
    assert exported["parameters"][0]["value"] == policy


def test_definitions_have_what_is_not_durable_and_nothing_that_is_exclusive(
    api: Api, connect: Connect
) -> None:
    channel = connect().channel()
    channel.queue_declare("lasting", durable=True)
    channel.queue_declare("fleeting", auto_delete=True)
    generated = channel.queue_declare("").method.queue
    channel.queue_declare("mine", exclusive=True)
    channel.queue_declare("mine too", exclusive=True, durable=True)
    channel.exchange_declare("wind", "fanout")
    channel.exchange_declare("rock", "fanout", durable=True)
    for queue in ("lasting", "fleeting", "mine", "mine too"):
        channel.queue_bind(queue, "wind")
        channel.queue_bind(queue, "rock")
    channel.exchange_bind("wind", "rock")

    exported = api("GET", "/definitions").json()
    inside = api("GET", "/definitions/%2F").json()

    # As RabbitMQ 3.10 exports them.
    for document in (exported, inside):
        queues = {row["name"]: (row["durable"], row["auto_delete"]) for row in document["queues"]}
        assert queues == {"lasting": (True, False), "fleeting": (False, True), generated: (False, False)}
        exchanges = {row["name"]: row["durable"] for row in document["exchanges"]}
        assert exchanges == {"wind": False, "rock": True}
        assert {(row["source"], row["destination"]) for row in document["bindings"]} == {
            ("wind", "lasting"),
            ("wind", "fleeting"),
            ("rock", "lasting"),
            ("rock", "fleeting"),
            ("rock", "wind"),
        }
    assert api("POST", "/definitions", exported).status_code == 204


@pytest.mark.parametrize(
    "part",
    [
        {"topic_permissions": [{"user": "guest"}]},
        {"parameters": [{"component": "teleport", "vhost": "/", "name": "up", "value": {}}]},
        {"parameters": [{"component": "vhost-limits", "vhost": "v", "name": "limits", "value": {"max": 1}}]},
        {"policies": [{"name": "p", "vhost": "v", "pattern": "(", "definition": {"max-length": 1}}]},
        {"permissions": [{"user": "nobody", "vhost": "v", "configure": "", "write": "", "read": ""}]},
        {
            "exchanges": [{"name": "x", "vhost": "v", "type": "direct"}],
            "queues": [{"name": "q", "vhost": "w"}],
        },
        {"queues": [{"name": "q", "vhost": "v"}, {"name": "q", "vhost": "v", "durable": True}]},
        {"bindings": [{"source": "amq.topic", "vhost": "v", "destination": "nowhere"}]},
        {"users": [{"name": "old", "tags": "", "password_hash": "c2hhMjU2"}]},
        {"queues": "none"},
    ],
)
def test_definitions_that_cannot_be_honoured_are_refused_whole(api: Api, part: dict[str, object]) -> None:
    answer = api("POST", "/definitions", {"vhosts": [{"name": "v"}], **part})

    assert answer.status_code in (400, 404)
    assert answer.json()["reason"]
    assert api("GET", "/vhosts/v").status_code == 404


def test_messages_are_shown_in_steps_when_they_are_back_in_their_queue(
    broker: TestBroker, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api("PUT", "/queues/%2F/q", {"durable": True})
    for number in range(3):
        publish(api, "q", str(number))
    queue = broker.call(lambda node: node.broker.vhost("/").queues["q"])
    unacked: list[int] = []
    shown = messages.properties_row

    def look(message: Message) -> dict[str, object]:
        unacked.append(queue.unacked)
        return shown(message)

    monkeypatch.setattr(messages, "properties_row", look)

    found = get(api, "q")

    assert unacked == [0, 0, 0]
    assert [(row["payload"], row["redelivered"], row["message_count"]) for row in found] == [
        ("0", False, 2),
        ("1", False, 1),
        ("2", False, 0),
    ]
    assert [row["redelivered"] for row in get(api, "q")] == [True] * 3

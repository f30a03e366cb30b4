"""Management API: health checks, the node, and lists in pages."""

import os
from collections.abc import Callable, Iterator

import httpx
import pika
import pytest

from holtmq.node import Node
from holtmq.testing import TestBroker

Api = Callable[..., httpx.Response]


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as one:
        yield one


@pytest.fixture
def api(broker: TestBroker) -> Iterator[Api]:
    with httpx.Client(base_url=broker.http_url + "/api", timeout=60) as client:

        def call(
            path: str,
            method: str = "GET",
            body: object = None,
            user: tuple[str, str] = ("guest", "guest"),
            **params: object,
        ) -> httpx.Response:
            return client.request(method, path, json=body, auth=user, params=params or None)  # type: ignore[arg-type]

        yield call


def add_user(api: Api, name: str, tags: str) -> tuple[str, str]:
    assert api(f"/users/{name}", "PUT", {"password": "secret", "tags": tags}).status_code == 201
    return name, "secret"


def set_alarm(broker: TestBroker, reason: str) -> None:
    def change(node: Node) -> None:
        node.alarms.reason = lambda: reason  # type: ignore[method-assign]
        node.alarms.check()

    broker.call(change)


@pytest.mark.parametrize(
    ("check", "more"),
    [
        ("alarms", {}),
        ("local-alarms", {}),
        ("ready-to-serve-clients", {}),
        ("virtual-hosts", {}),
        ("node-is-quorum-critical", {"reason": "single node cluster"}),
        ("node-is-mirror-sync-critical", {"reason": "single node cluster"}),
        ("protocol-listener/amqp091", {"protocol": "amqp"}),
        ("protocol-listener/HTTP", {"protocol": "http"}),
    ],
)
def test_a_node_that_is_well_says_so_to_any_user(api: Api, check: str, more: dict[str, object]) -> None:
    plain = add_user(api, "plain", "")

    answer = api(f"/health/checks/{check}", user=plain)

    assert (answer.status_code, answer.json()) == (200, {"status": "ok", **more})
    assert api(f"/health/checks/{check}", user=("plain", "wrong")).status_code == 401


@pytest.mark.parametrize(("reason", "resource"), [("low on memory", "memory"), ("low on disk", "disk")])
def test_an_alarm_fails_its_checks_and_no_other(
    broker: TestBroker, api: Api, reason: str, resource: str
) -> None:
    set_alarm(broker, reason)

    cluster, local = api("/health/checks/alarms"), api("/health/checks/local-alarms")
    row = api("/nodes").json()[0]

    assert cluster.status_code == local.status_code == 503
    assert cluster.json() == {
        "status": "failed",
        "reason": "There are alarms in effect in the cluster",
        "alarms": [{"node": row["name"], "resource": resource}],
    }
    assert local.json()["reason"] == "There are alarms in effect on the node"
    assert (row["mem_alarm"], row["disk_free_alarm"]) == (resource == "memory", resource == "disk")
    assert api("/health/checks/ready-to-serve-clients").status_code == 200
    assert api("/aliveness-test/%2F").json() == {"status": "ok"}  # it asks for life, not for room

    set_alarm(broker, "")
    assert api("/health/checks/alarms").status_code == 200


def test_a_node_whose_journal_failed_is_not_ready(broker: TestBroker, api: Api) -> None:
    broker.disk.fail_next_sync()
    assert api("/queues/%2F/q", "PUT", {"durable": True}).status_code == 503

    ready, vhosts = api("/health/checks/ready-to-serve-clients"), api("/health/checks/virtual-hosts")

    assert (ready.status_code, ready.json()["status"]) == (503, "failed")
    assert ready.json()["reason"] == httpx.get(f"{broker.http_url}/health", timeout=60).json()["reason"]
    assert (vhosts.status_code, vhosts.json()["virtual-hosts"]) == (503, ["/"])
    assert api("/aliveness-test/%2F").status_code == 503


def test_ports_and_protocols_are_those_that_listen(broker: TestBroker, api: Api) -> None:
    amqp, http = broker.amqp_port, broker.http_port
    unused = next(port for port in range(1, 9) if port not in (amqp, http))

    missing = api(f"/health/checks/port-listener/{unused}")
    strange = api("/health/checks/protocol-listener/amqps")

    for port in (amqp, http):
        assert api(f"/health/checks/port-listener/{port}").json() == {"status": "ok", "port": port}
    assert missing.status_code == 503
    assert missing.json() == {
        "status": "failed",
        "reason": "No active listener",
        "missing": unused,
        "ports": sorted([amqp, http]),
    }
    assert strange.status_code == 503
    assert strange.json() == {
        "status": "failed",
        "reason": "No active listener",
        "missing": "amqp/ssl",
        "protocols": ["amqp", "http"],
    }
    assert api("/health/checks/port-listener/abc").json() == {
        "error": "bad_request",
        "reason": "Invalid port",
    }
    found = {(row["protocol"], row["port"]) for row in api("/overview").json()["listeners"]}
    assert found == {("amqp", amqp), ("http", http)}


def test_the_aliveness_test_sends_a_message_there_and_back(api: Api) -> None:
    plain = add_user(api, "plain", "")

    answers = [api("/aliveness-test/%2F") for _ in range(3)]

    assert [(answer.status_code, answer.json()) for answer in answers] == [(200, {"status": "ok"})] * 3
    queue = api("/queues/%2F/aliveness-test").json()
    assert (queue["durable"], queue["messages"]) == (False, 0)
    assert api("/aliveness-test/nowhere").status_code == 404
    assert api("/aliveness-test/%2F", user=plain).status_code == 403


def test_the_aliveness_test_fails_when_somebody_else_takes_the_message(broker: TestBroker, api: Api) -> None:
    parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port)
    api("/aliveness-test/%2F")
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.basic_consume("aliveness-test", lambda *_: None, auto_ack=True)

        answer = api("/aliveness-test/%2F")

    assert answer.status_code == 503
    assert answer.json()["status"] == "failed"


def test_a_node_shows_what_it_uses_and_what_it_may_use(api: Api) -> None:
    (listed,) = api("/nodes").json()
    shown = api(f"/nodes/{listed['name']}").json()

    assert shown.keys() == listed.keys()
    assert shown["os_pid"] == str(os.getpid())
    assert shown["running"] is True
    assert 0 < shown["fd_used"] <= shown["fd_total"]
    assert shown["mem_used"] > 0 < shown["mem_limit"]
    assert api("/nodes/other@host").status_code == 404


@pytest.fixture
def queues(api: Api) -> None:
    for name in ("alpha", "beta", "Gamma", "gamut", "zeta"):
        assert api(f"/queues/%2F/{name}", "PUT", {}).status_code == 201


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize("path", ["/queues", "/queues/%2F"])
def test_a_list_comes_in_pages(api: Api, path: str) -> None:
    last = api(path, page=2, page_size=3, columns="name", sort="name", sort_reverse="true").json()

    assert last == {
        "total_count": 5,
        "filtered_count": 5,
        "item_count": 2,
        "page": 2,
        "page_size": 3,
        "page_count": 2,
        "items": [{"name": "alpha"}, {"name": "Gamma"}],
    }
    assert api(path, page=1).json()["page_size"] == 100
    assert len(api(path, page_size=2).json()) == 5  # without a page's number it is all of the list


@pytest.mark.usefixtures("queues")
def test_a_page_may_be_of_names_alone_that_match(api: Api) -> None:
    part = api("/queues", page=1, name="GAM", columns="name").json()
    pattern = api("/queues", page=1, name="^(b|z)eta$", use_regex="true", columns="name").json()
    none = api("/queues", page=1, name="nothing").json()

    assert part["items"] == [{"name": "Gamma"}, {"name": "gamut"}]
    assert (part["total_count"], part["filtered_count"]) == (5, 2)
    assert pattern["items"] == [{"name": "beta"}, {"name": "zeta"}]
    assert (none["items"], none["page_count"]) == ([], 0)


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"page": 0}, "invalid_pagination_parameters"),
        ({"page": 1, "page_size": 0}, "invalid_pagination_parameters"),
        ({"page": 1, "page_size": 501}, "invalid_pagination_parameters"),
        ({"page": 3, "page_size": 3}, "page_out_of_range"),
        ({"page": "one"}, "bad_request"),
        ({"page": 1, "name": "[a", "use_regex": "true"}, "bad_request"),
    ],
)
def test_a_page_that_is_not_there_is_refused(api: Api, params: dict[str, object], error: str) -> None:
    answer = api("/queues", **params)

    assert (answer.status_code, answer.json()["error"]) == (400, error)


@pytest.mark.usefixtures("queues")
def test_patterns_are_for_all_and_cannot_stall_the_broker(api: Api) -> None:
    monitor = add_user(api, "monitor", "monitoring")
    assert api("/queues/%2F/" + "a" * 60, "PUT", {}).status_code == 201

    answer = api("/queues", user=monitor, page=1, name="^(a+)+$!", use_regex="true", columns="name")

    assert (answer.status_code, answer.json()["items"]) == (200, [])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/policies/%2F/p", {"pattern": "^(?!amq).*", "definition": {"max-length": 1}}),
        ("/permissions/%2F/guest", {"configure": ".*", "write": "^(?!amq).*", "read": ".*"}),
    ],
)
def test_what_only_pcre_has_is_refused_by_its_name(api: Api, path: str, body: dict[str, object]) -> None:
    answer = api(path, "PUT", body)

    assert answer.status_code == 400
    assert "a negative lookahead, (?!...)" in answer.json()["reason"]


def test_exchanges_connections_channels_and_vhosts_come_in_pages_too(broker: TestBroker, api: Api) -> None:
    parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        connection.channel()
        connection.channel()

        exchanges = api("/exchanges", page=2, page_size=2, columns="name").json()
        connections = api("/connections", page=1, name="127.0.0.1").json()
        channels = api("/channels", page=1, page_size=1).json()
        inside = api("/vhosts/%2F/channels", page=2, page_size=1).json()

    assert (exchanges["item_count"], exchanges["items"][0].keys()) == (2, {"name"})
    assert (connections["total_count"], connections["items"][0]["vhost"]) == (1, "/")
    assert [channels["items"][0]["number"], inside["items"][0]["number"]] == [1, 2]
    assert channels["page_count"] == 2
    assert api("/vhosts", page=1, columns="name").json()["items"] == [{"name": "/"}]


@pytest.mark.usefixtures("queues")
def test_slashes_at_the_end_are_read_as_clients_mean_them(broker: TestBroker, api: Api) -> None:
    def names(path: str) -> list[str]:
        answer = httpx.get(f"{broker.http_url}/api/{path}", auth=("guest", "guest"), timeout=60)
        assert answer.status_code == 200, path
        return [row["name"] for row in answer.json()]

    plain = names("queues")

    assert names("queues/") == plain
    assert names("queues/%2F/") == plain
    assert names("queues//") == plain  # Celery's Flower, of vhost /

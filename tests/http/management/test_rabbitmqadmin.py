"""RabbitMQ's command line tool on our management API, and what it asks for beyond the single resources."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker

from holtmq.testing import TestBroker

GUEST = ("guest", "guest")
Api = Callable[..., httpx.Response]
Admin = Callable[..., str]


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as one:
        yield one


@pytest.fixture
def api(broker: TestBroker) -> Iterator[Api]:
    with httpx.Client(base_url=broker.http_url + "/api", timeout=60, auth=GUEST) as client:

        def call(method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
            return client.request(method, path, json=body, headers=headers)

        yield call


@pytest.fixture
def admin(broker: TestBroker) -> Admin:
    """``admin("list", "queues")``: what rabbitmqadmin prints, tables as lines of tab-separated values."""
    program = shutil.which("rabbitmqadmin")
    if program is None:
        pytest.skip("rabbitmqadmin is not installed")

    def run(*arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [program, "-H", "127.0.0.1", "-P", str(broker.http_port), "-f", "tsv", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.rstrip("\n")

    return run


def open_connection(broker: TestBroker) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))


def close_and_reason(connection: pika.BlockingConnection) -> tuple[int, str]:
    """What the broker said when it closed the connection."""
    for _ in range(60):
        try:
            connection.process_data_events(1)
        except ConnectionClosedByBroker as closed:
            return closed.reply_code, closed.reply_text
    raise AssertionError("the broker did not close the connection")


def test_a_list_can_be_sorted_by_any_column_both_ways(api: Api) -> None:
    for name, limit in (("b", 1), ("c", 10), ("a", 9)):
        api("PUT", f"/queues/%2F/{name}", {"arguments": {"x-max-length": limit}})
    api("PUT", "/queues/%2F/none", {})

    def names(query: str) -> list[str]:
        return [row["name"] for row in api("GET", f"/queues?{query}").json()]

    assert names("sort=name") == ["a", "b", "c", "none"]
    assert names("sort=name&sort_reverse=true&columns=name") == ["none", "c", "b", "a"]
    assert names("sort=arguments.x-max-length") == ["none", "b", "a", "c"]
    assert names("sort=nonsense") == ["a", "b", "c", "none"]


def test_a_connection_is_shown_and_closed_by_its_name(broker: TestBroker, api: Api) -> None:
    first, second = open_connection(broker), open_connection(broker)
    names = [row["name"] for row in api("GET", "/connections").json()]
    paths = [f"/connections/{quote(name, safe='')}" for name in names]
    assert [api("GET", path).json()["name"] for path in paths] == names

    with_reason = api("DELETE", paths[0], **{"x-reason": "maintenance"})
    without = api("DELETE", paths[1])

    assert (with_reason.status_code, without.status_code) == (204, 204)
    said = {close_and_reason(first), close_and_reason(second)}
    assert said == {
        (320, "CONNECTION_FORCED - maintenance"),
        (320, "CONNECTION_FORCED - Closed via management plugin"),
    }
    assert api("DELETE", paths[0]).status_code == 404
    assert api("GET", paths[0]).status_code == 404


def test_the_definitions_of_one_vhost_can_be_loaded_into_another(api: Api) -> None:
    for vhost in ("from", "to"):
        api("PUT", f"/vhosts/{vhost}", {})
    policy = {"pattern": "^q", "definition": {"max-length": 5}, "apply-to": "queues", "priority": 1}
    api("PUT", "/policies/from/p", policy)
    api("PUT", "/operator-policies/from/o", policy)
    api("PUT", "/queues/from/q", {"durable": True})
    api("PUT", "/queues/%2F/elsewhere", {"durable": True})
    api("PUT", "/exchanges/from/x", {"type": "topic", "durable": True})
    api("POST", "/bindings/from/e/x/q/q", {"routing_key": "a.#"})
    exported = api("GET", "/definitions/from").json()

    loaded = api("POST", "/definitions/to", exported)

    assert loaded.status_code == 204
    assert api("GET", "/definitions/to").json() == exported
    assert [queue["name"] for queue in exported["queues"]] == ["q"]
    assert not {"users", "vhosts", "permissions"} & set(exported)
    assert "vhost" not in json.dumps(exported)
    assert api("GET", "/queues/to/q").json()["operator_policy"] == "o"
    assert api("GET", "/definitions/nowhere").status_code == 400  # as in RabbitMQ
    queue = {"name": "q", "vhost": "nowhere", "durable": True, "auto_delete": False, "arguments": {}}
    refused = api("POST", "/definitions", {"queues": [queue]})
    assert refused.status_code == 400
    assert "nowhere" in refused.json()["reason"]
    assert api("POST", "/definitions/to", {"users": [{"name": "u", "tags": ""}]}).status_code == 400


def test_the_node_is_listed_and_what_there_is_none_of_is_an_empty_list(api: Api) -> None:
    (node,) = api("GET", "/nodes").json()

    assert node["running"] is True
    assert node["mem_used"] > 0
    assert api("GET", f"/nodes/{quote(node['name'])}").json()["name"] == node["name"]
    assert api("GET", "/nodes/other").status_code == 404
    assert api("GET", "/parameters").json() == api("GET", "/vhost-limits").json() == []


def test_everything_can_be_declared_listed_and_deleted(admin: Admin) -> None:
    admin("declare", "vhost", "name=v")
    admin("declare", "user", "name=u", "password=p", "tags=monitoring")
    admin("declare", "permission", "vhost=v", "user=u", "configure=.*", "write=.*", "read=.*")
    admin("declare", "exchange", "name=x", "type=topic")
    admin("declare", "queue", "name=q", 'arguments={"x-max-length":10}')
    admin("declare", "queue", "name=safe", "queue_type=quorum")
    admin("declare", "binding", "source=x", "destination=q", "routing_key=a.#")
    admin("declare", "policy", "name=p", "pattern=^q", 'definition={"message-ttl":60000}', "apply-to=queues")
    admin("declare", "operator_policy", "name=o", "pattern=^q", 'definition={"max-length":5}')

    assert admin("list", "queues", "name", "type") == "name\ttype\nq\tclassic\nsafe\tquorum"
    assert admin("--sort", "name", "--sort-reverse", "list", "queues", "name") == "name\nsafe\nq"
    assert "x\tq\ta.#" in admin("list", "bindings", "source", "destination", "routing_key")
    assert admin("list", "vhosts", "name") == "name\n/\nv"
    assert admin("list", "users", "name") == "name\nguest\nu"
    assert "v\tu" in admin("list", "permissions", "vhost", "user")
    assert admin("list", "policies", "name", "pattern") == "name\tpattern\np\t^q"
    assert admin("list", "operator_policies", "name") == "name\no"
    assert "holt@" in admin("list", "nodes")
    assert admin("list", "parameters", "name", "component") == "name\tcomponent\no\toperator_policy"
    assert admin("list", "vhost_limits") == "No items"
    assert "holt@" in admin("show", "overview")

    admin("delete", "binding", "source=x", "destination_type=queue", "destination=q", "properties_key=a.%23")
    admin("delete", "policy", "name=p")
    admin("delete", "operator_policy", "name=o")
    admin("delete", "queue", "name=q")
    admin("delete", "queue", "name=safe")
    admin("delete", "exchange", "name=x")
    admin("delete", "permission", "vhost=v", "user=u")
    admin("delete", "user", "name=u")
    admin("delete", "vhost", "name=v")

    for what in ("queues", "policies", "operator_policies"):
        assert admin("list", what) == "No items"
    assert admin("list", "vhosts", "name") == "name\n/"


def test_messages_go_in_and_come_out(admin: Admin) -> None:
    admin("declare", "queue", "name=q")

    assert admin("publish", "routing_key=q", "payload=one") == "Message published"
    assert admin("publish", "routing_key=q", stdin="two") == "Message published"
    assert admin("publish", "routing_key=nowhere", "payload=x") == "Message published but NOT routed"

    peeked = admin("get", "queue=q", "count=5").splitlines()
    assert [line.split("\t")[3] for line in peeked] == ["payload", "one", "two"]
    taken = admin("get", "queue=q", "ackmode=ack_requeue_false", "count=1", "encoding=base64")
    assert "b25l" in taken
    admin("purge", "queue", "name=q")
    assert admin("get", "queue=q") == "No items"


def test_definitions_are_exported_and_imported(admin: Admin, tmp_path: Path) -> None:
    whole, part = str(tmp_path / "all.json"), str(tmp_path / "v.json")
    admin("declare", "vhost", "name=v")
    admin("-V", "v", "declare", "queue", "name=q")
    admin("export", whole)
    admin("-V", "v", "export", part)
    admin("delete", "vhost", "name=v")

    admin("import", whole)
    admin("declare", "vhost", "name=copy")
    admin("-V", "copy", "import", part)

    assert admin("list", "queues", "vhost", "name") == "vhost\tname\ncopy\tq\nv\tq"


def test_a_connection_can_be_closed(broker: TestBroker, admin: Admin) -> None:
    connection = open_connection(broker)
    name = admin("list", "connections", "name").splitlines()[1]

    admin("close", "connection", f"name={name}")

    assert close_and_reason(connection)[0] == 320

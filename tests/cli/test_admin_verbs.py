"""The administrative verbs, against a running broker and against the folder of a stopped one."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pika
import pytest
from click.testing import CliRunner, Result

from holtmq.cli import main
from holtmq.config import load
from holtmq.testing import TestBroker

Holt = Callable[..., Result]

_NOBODY = "http://127.0.0.1:9"  # the discard port: nothing listens there


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as one:
        yield one


@pytest.fixture
def holt(broker: TestBroker) -> Holt:
    """``holt("user", "list")`` against the broker."""

    def run(*arguments: str, stdin: str | None = None, **env: str) -> Result:
        return CliRunner().invoke(
            main, arguments, input=stdin, env={"HOLT_ADMIN_URL": broker.http_url, **env}
        )

    return run


def offline(folder: Path, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, [*arguments, "--url", _NOBODY, "--data-dir", str(folder)], input=stdin)


def done(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.output


def rows(result: Result) -> list[dict[str, object]]:
    return list(json.loads(done(result)))


def logs_in(port: int, user: str, password: str, vhost: str = "/") -> bool:
    credentials = pika.PlainCredentials(user, password)
    try:
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, vhost, credentials)).close()
    except pika.exceptions.AMQPError:
        return False
    return True


def test_a_user_is_added_given_permissions_changed_and_deleted(broker: TestBroker, holt: Holt) -> None:
    done(holt("user", "add", "app", "--tag", "monitoring", "--password-stdin", stdin="first\n"))
    done(holt("permission", "set", "app", "^app", ".*", ""))
    assert logs_in(broker.amqp_port, "app", "first")

    done(holt("user", "passwd", "app", "--password-stdin", stdin="second\n"))
    assert not logs_in(broker.amqp_port, "app", "first")
    done(holt("user", "tags", "app", "administrator", "monitoring"))
    assert logs_in(broker.amqp_port, "app", "second")

    assert rows(holt("user", "list", "--json"))[0] == {"name": "app", "tags": ["administrator", "monitoring"]}
    assert rows(holt("permission", "list", "--of", "app", "--json")) == [
        {"user": "app", "vhost": "/", "configure": "^app", "write": ".*", "read": ""}
    ]
    done(holt("permission", "clear", "app"))
    assert not logs_in(broker.amqp_port, "app", "second")
    done(holt("user", "delete", "app"))
    assert [row["name"] for row in rows(holt("user", "list", "--json"))] == ["guest"]


def test_a_password_is_asked_for_twice_and_never_shown(broker: TestBroker, holt: Holt) -> None:
    differing = holt("user", "add", "app", stdin="hush\nhash\nhush\nhush\n")

    assert "do not match" in done(differing)
    assert "hush" not in differing.output
    done(holt("permission", "set", "app", "", "", ""))
    assert logs_in(broker.amqp_port, "app", "hush")


def test_an_empty_password_and_a_user_that_exists_are_refused(holt: Holt) -> None:
    empty = holt("user", "add", "app", "--password-stdin", stdin="\n")
    again = holt("user", "add", "guest", "--password-stdin", stdin="x\n")

    assert (empty.exit_code, again.exit_code) == (1, 1)
    assert "empty password" in empty.output
    assert "already" in again.output
    assert [row["name"] for row in rows(holt("user", "list", "--json"))] == ["guest"]


def test_vhosts_come_and_go(broker: TestBroker, holt: Holt) -> None:
    done(holt("vhost", "add", "team/a"))

    assert logs_in(broker.amqp_port, "guest", "guest", "team/a")
    assert [row["name"] for row in rows(holt("vhost", "list", "--json"))] == ["/", "team/a"]
    assert holt("vhost", "add", "team/a").exit_code == 1
    done(holt("vhost", "delete", "team/a"))
    assert "vhost team/a not found" in holt("vhost", "delete", "team/a").output


def test_policies_and_queues_are_managed(broker: TestBroker, holt: Holt) -> None:
    guest, queue = ("guest", "guest"), f"{broker.http_url}/api/queues/%2F/work"
    httpx.put(queue, json={"durable": True}, auth=guest, timeout=60).raise_for_status()
    body = {"properties": {}, "routing_key": "work", "payload": "x", "payload_encoding": "string"}
    publish = f"{broker.http_url}/api/exchanges/%2F/amq.default/publish"
    for _ in range(3):
        httpx.post(publish, json=body, auth=guest, timeout=60).raise_for_status()

    done(holt("policy", "set", "short", "^work", '{"max-length": 2}', "--apply-to", "queues"))
    (listed,) = rows(holt("queue", "list", "--json"))
    (policy,) = rows(holt("policy", "list", "--json"))

    assert (listed["name"], listed["messages_ready"], listed["policy"]) == ("work", 2, "short")
    assert (policy["definition"], policy["apply-to"]) == ({"max-length": 2}, "queues")
    assert rows(holt("policy", "list", "--operator", "--json")) == []
    done(holt("policy", "clear", "short"))
    assert holt("queue", "delete", "work", "--if-empty").exit_code == 1
    done(holt("queue", "purge", "work"))
    done(holt("queue", "delete", "work", "--if-empty", "--if-unused"))
    assert rows(holt("queue", "list", "--json")) == []


def test_a_policy_that_makes_no_sense_is_refused_with_the_reason(holt: Holt) -> None:
    assert "not a JSON object" in holt("policy", "set", "p", "", "max-length=1").output
    assert "nearest right one is 'max-length'" in holt("policy", "set", "p", "", '{"max-len": 1}').output


def test_connections_are_listed_as_a_table(broker: TestBroker, holt: Holt) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))

    head, line = done(holt("connection", "list")).splitlines()
    connection.close()

    columns = ["name", "client", "user", "vhost", "product", "channels", "state", "unacked", "held_since"]
    assert head.split() == columns
    assert "running" in line


def test_a_connection_is_closed_by_its_name_with_a_reason(broker: TestBroker, holt: Holt) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    (row,) = rows(holt("connection", "list", "--json"))

    done(holt("connection", "close", str(row["name"]), "--reason", "stuck since noon"))

    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="stuck since noon"):
        connection.process_data_events(10)
    assert "no connection 'nobody'" in holt("connection", "close", "nobody").output


def test_a_connection_is_closed_by_its_clients_name_unless_several_have_it(
    broker: TestBroker, holt: Holt
) -> None:
    def connect(name: str) -> pika.BlockingConnection:
        parameters = pika.URLParameters(broker.amqp_url)
        parameters.client_properties = {"connection_name": name}
        return pika.BlockingConnection(parameters)

    alone, *two = connect("alone"), connect("worker"), connect("worker")

    refused = holt("connection", "close", "worker")
    done(holt("connection", "close", "alone", "--reason", "stuck"))

    assert "2 connections have the client name 'worker': name one of '127.0.0.1:" in refused.output
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="stuck"):
        alone.process_data_events(10)
    for connection in two:
        connection.close()


@pytest.mark.parametrize("client", ["billing", ""])
def test_stuck_names_the_consumer_and_ends_with_status_1(broker: TestBroker, holt: Holt, client: str) -> None:
    assert holt("stuck").output == "Nothing needs attention.\n"
    parameters = pika.URLParameters(broker.amqp_url)
    parameters.client_properties = {"connection_name": client} if client else {}
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare("orders")
    channel.basic_publish("", "orders", b"x")
    channel.basic_consume("orders", lambda *_: None, consumer_tag="worker")
    connection.process_data_events(0.2)
    broker.clock.advance(600)

    found = holt("stuck")
    listed = rows(holt("consumer", "list", "--json"))
    holder = found.output.splitlines()[1]
    closed = holt("connection", "close", holder.rpartition("; connection ")[2])

    assert found.exit_code == 1
    assert f"orders: {client or 'consumer worker'} at 127.0.0.1:" in found.output
    assert holder.startswith(f"      {client or 'a client without a name'}: user guest, 127.0.0.1:")
    assert "consumer worker, 1 unacked since" in holder
    assert closed.exit_code == 0, closed.output
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        connection.process_data_events(60)
    assert (listed[0]["consumer"], listed[0]["unacked"]) == ("worker", 1)


def test_peek_top_and_route_test_show_without_changing(broker: TestBroker, holt: Holt) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.queue_declare("orders")
    for n in range(3):
        channel.basic_publish("", "orders", b"body-%d" % n)
    channel.queue_declare("orders", passive=True)

    peeked = done(holt("queue", "peek", "orders", "--count", "2"))
    listed = rows(holt("top", "--json"))

    assert "body-0" in peeked
    assert "2 of 3 messages." in peeked
    assert [row["name"] for row in listed] == ["orders"]
    assert "orders" in done(holt("top", "--once"))
    assert done(holt("exchange", "route-test", "", "orders")).split() == ["orders"]
    assert holt("exchange", "route-test", "", "nowhere").exit_code == 1
    assert "no queue 'nothing'" in holt("queue", "peek", "nothing").output
    _, _, body = channel.basic_get("orders", auto_ack=True)
    assert body == b"body-0"
    connection.close()


def test_what_clients_send_cannot_steer_the_operators_terminal(broker: TestBroker, holt: Holt) -> None:
    name = "evil\x1b[2J[bold]\x07[/nothing]"
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.queue_declare(name)
    channel.basic_publish("", name, "line 1\nline\t2 \x1b]0;title\x07")
    channel.basic_publish("", name, b"\xff\x00")
    channel.queue_declare(name, passive=True)

    peeked = done(holt("queue", "peek", name))
    outputs = [peeked, done(holt("queue", "list")), done(holt("top", "--once"))]
    outputs.append(done(holt("exchange", "route-test", "", name)))
    connection.close()

    for output in outputs:
        assert "evil\\x1b[2J[bold]\\x07[/nothing]" in output
        assert not {"\x1b", "\x07"} & set(output)
    assert "line 1\nline\t2 \\x1b]0;title\\x07" in peeked
    assert "(body in base64)\n    /wA=" in peeked
    assert holt("top", "--every", "-1").exit_code == 2


def test_a_wrong_login_and_a_missing_broker_are_told_apart(holt: Holt) -> None:
    wrong = holt("user", "list", "--password", "nope")
    nobody = holt("queue", "list", "--url", _NOBODY)

    assert "refused the login of user 'guest'" in wrong.output
    assert "no broker answers at http://127.0.0.1:9" in nobody.output
    assert (wrong.exit_code, nobody.exit_code) == (1, 1)


def test_the_login_comes_from_the_environment_which_serve_does_not_mind(holt: Holt) -> None:
    done(holt("user", "add", "boss", "--tag", "administrator", "--password-stdin", stdin="x\n"))
    env = {"HOLT_ADMIN_USER": "boss", "HOLT_ADMIN_PASSWORD": "x"}

    done(holt("user", "list", **env))
    load({**env, "HOLT_ADMIN_URL": "http://here"})  # raises for a variable it does not know
    # Those of `holt pipeline` and of the project that `holt pipeline init` creates.
    load({"HOLT_TOKEN": "x", "HOLT_TOKEN_FILE": "/run/token", "HOLT_URL": "http://here:6632"})


def test_a_broker_is_set_up_before_its_first_start(tmp_path: Path) -> None:
    done(offline(tmp_path, "vhost", "add", "v"))
    done(offline(tmp_path, "user", "add", "app", "--password-stdin", stdin="secret\n"))
    done(offline(tmp_path, "permission", "set", "app", ".*", ".*", ".*", "-p", "v"))
    done(offline(tmp_path, "user", "tags", "app", "administrator"))

    with TestBroker(tmp_path) as broker:
        assert logs_in(broker.amqp_port, "app", "secret", "v")
        assert not logs_in(broker.amqp_port, "app", "secret", "/")
        assert logs_in(broker.amqp_port, "guest", "guest", "/")


def test_a_stopped_broker_keeps_its_messages_while_its_users_change(tmp_path: Path) -> None:
    with TestBroker(tmp_path) as broker:
        api, guest = f"{broker.http_url}/api", ("guest", "guest")
        httpx.put(f"{api}/vhosts/doomed", auth=guest, timeout=60).raise_for_status()
        app = {"password": "first", "tags": ""}
        httpx.put(f"{api}/users/app", json=app, auth=guest, timeout=60).raise_for_status()
        stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
        httpx.put(f"{api}/queues/doomed/log", json=stream, auth=guest, timeout=60).raise_for_status()
        httpx.put(f"{api}/queues/%2F/work", json={"durable": True}, auth=guest, timeout=60).raise_for_status()
        body = {"properties": {"delivery_mode": 2}, "payload": "x", "payload_encoding": "string"}
        for vhost, queue in (("%2F", "work"), ("doomed", "log")):
            publish = f"{api}/exchanges/{vhost}/amq.default/publish"
            httpx.post(
                publish, json={**body, "routing_key": queue}, auth=guest, timeout=60
            ).raise_for_status()

    assert rows(offline(tmp_path, "vhost", "list", "--json")) == [
        {"name": "/", "messages": 1},
        {"name": "doomed", "messages": 1},
    ]
    done(offline(tmp_path, "vhost", "delete", "doomed"))
    done(offline(tmp_path, "user", "passwd", "app", "--password-stdin", stdin="second\n"))
    done(offline(tmp_path, "permission", "set", "app", ".*", ".*", ".*"))
    done(offline(tmp_path, "permission", "clear", "guest"))

    with TestBroker(tmp_path) as broker:
        assert broker.queues() == ["work"]
        assert broker.queue_depth("work") == 1
        assert not logs_in(broker.amqp_port, "app", "first")
        assert logs_in(broker.amqp_port, "app", "second")
        assert not logs_in(broker.amqp_port, "guest", "guest")  # no permissions left in the vhost
        queues = f"{broker.http_url}/api/v1/resources/queues"
        assert httpx.get(queues, timeout=60).status_code == 403  # which is guest, from this machine
        assert httpx.get(queues, auth=("app", "second"), timeout=60).json() == {"queues": []}


def test_refusals_in_a_folder_are_messages_and_change_nothing(tmp_path: Path) -> None:
    assert "no user 'nobody'" in offline(tmp_path, "user", "delete", "nobody").output
    assert "no user 'nobody'" in offline(tmp_path, "permission", "set", "nobody", "", "", "").output
    assert "not a regular expression" in offline(tmp_path, "permission", "set", "guest", "(", "", "").output
    assert "no permissions" in offline(tmp_path, "permission", "clear", "guest", "-p", "x").output
    assert offline(tmp_path, "user", "add", "a\nb", "--password-stdin", stdin="x\n").exit_code == 1
    assert rows(offline(tmp_path, "permission", "list", "--json")) == [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    ]


def test_the_folder_of_a_running_broker_is_refused(tmp_path: Path) -> None:
    with TestBroker(tmp_path) as broker:
        locked = offline(tmp_path, "user", "list")
        through = CliRunner().invoke(
            main, ["user", "list", "--url", broker.http_url, "--data-dir", str(tmp_path)]
        )

    assert locked.exit_code == 1
    assert f"in use by pid {os.getpid()}" in locked.output
    assert "--url" in locked.output
    assert "guest" in done(through)


def test_a_broker_that_runs_on_another_folder_is_not_taken_for_this_one(holt: Holt, tmp_path: Path) -> None:
    answer = holt("user", "delete", "guest", "--data-dir", str(tmp_path))

    assert answer.exit_code == 1
    assert "does not use" in answer.output
    assert "guest" in done(holt("user", "list"))


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root")

    assert "not a data folder" in offline(tmp_path, "user", "list").output
    assert [entry.name for entry in tmp_path.iterdir()] == ["passwd"]


def test_shovels_are_set_listed_restarted_and_deleted(holt: Holt, broker: TestBroker) -> None:
    ends = {"src-uri": "amqp://", "src-queue": "from", "dest-uri": "amqp://", "dest-queue": "to"}

    done(holt("shovel", "set", "mover", "-", stdin=json.dumps(ends)))

    (row,) = rows(holt("shovel", "list", "--json"))
    assert (row["name"], row["src_queue"], row["dest_queue"]) == ("mover", "from", "to")
    assert "mover" in done(holt("shovel", "list"))
    done(holt("shovel", "restart", "mover"))
    done(holt("shovel", "delete", "mover"))
    assert rows(holt("shovel", "list", "--json")) == []
    assert "not a JSON object" in holt("shovel", "set", "mover", "[").output
    assert "src-queue" in holt("shovel", "set", "mover", json.dumps({**ends, "src-exchange": "x"})).output

"""Every verb that takes a broker's address, against one broker that has TLS alone and asks for a login."""

import json
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click
import httpx
import pika
import pytest
from click.testing import CliRunner, Result

from certificates import Certificates
from holtmq.cli import main
from holtmq.config import Amqp, Config, Http, Limits
from holtmq.testing import TestBroker

# They start Spark: ``tests/spark/test_spark_tls.py`` runs jobs over TLS in the session that its tests share.
WITH_SPARK = {
    f"pipeline {name}" for name in ("dead-letters", "redrive", "replay", "rollup", "run", "serve", "table")
}
WITHOUT_LOGIN = {"health", "pipeline init"}
PASSWORD = "a password of ops"
SHORT = ("--seconds", "0.1", "--warm-up", "0", "--rounds", "1", "--messages", "100")


@dataclass
class Site:
    """The broker and what belongs to it."""

    folder: Path
    authority: Path
    https: str
    amqps: str

    def holt(self, verb: str, *arguments: str, status: int = 0, given: str = "") -> str:
        """Run a verb as ops would; its output."""
        where = ["--tls-ca", str(self.authority)]
        if verb == "bench amqp":
            where += ["--url", self.amqps]
        elif verb == "bench http":
            where += ["--url", self.https.replace("://", f"://ops:{PASSWORD.replace(' ', '%20')}@")]
        else:
            where += ["--url", self.https]
            where += ["--user", "ops", "--password", PASSWORD] if verb not in WITHOUT_LOGIN else []
        done: Result = CliRunner().invoke(main, [*verb.split(), *arguments, *where], input=given)
        assert done.exit_code == status, f"holt {verb}: {done.output}"
        return done.output


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    certificates = Certificates(tmp_path)
    cert, key = certificates.issue("broker")
    config = Config(
        amqp=Amqp(tls_cert=cert, tls_key=key, tls_port=0, plain=False),
        http=Http(tls_cert=cert, tls_key=key, tls_port=0, plain=False, anonymous="none"),
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
    )
    with TestBroker(tmp_path / "data", config=config) as broker:
        amqp, http = broker.call(lambda node: (node.amqp_tls_port, node.http_tls_port))
        assert broker.call(lambda node: (node.amqp_port, node.http_port)) == (0, 0)
        yield Site(tmp_path, certificates.authority, f"https://127.0.0.1:{http}", f"amqps://127.0.0.1:{amqp}")


def connect(site: Site, name: str) -> pika.BlockingConnection:
    parameters = pika.URLParameters(site.amqps)
    context = ssl.create_default_context(cafile=site.authority)
    parameters.ssl_options = pika.SSLOptions(context, "127.0.0.1")
    parameters.client_properties = {"connection_name": name}
    return pika.BlockingConnection(parameters)


def test_every_verb_that_takes_an_address_works_over_tls(site: Site) -> None:
    ran: set[str] = set()

    def holt(verb: str, *arguments: str, status: int = 0, given: str = "") -> str:
        ran.add(verb)
        return site.holt(verb, *arguments, status=status, given=given)

    ops = ["user", "add", "ops", "--password-stdin", "--tag", "administrator", "--url", site.https]
    first = CliRunner().invoke(main, [*ops, "--tls-ca", str(site.authority)], input=PASSWORD)
    assert first.exit_code == 0, first.output
    assert holt("health") == "healthy\n"

    holt("user add", "ann", "--password-stdin", given="a password of ann")
    holt("user passwd", "ann", "--password-stdin", given="another password")
    holt("user tags", "ann", "monitoring")
    assert "ann" in holt("user list")
    holt("vhost add", "v")
    assert "v" in holt("vhost list").split()
    for user, vhost in (("ann", "v"), ("ops", "/")):
        holt("permission set", user, ".*", ".*", ".*", "--vhost", vhost)
    assert "ann" in holt("permission list", "--vhost", "v")
    holt("permission clear", "ann", "--vhost", "v")
    holt("policy set", "p", "^kept$", '{"max-length": 1000}')
    assert "kept" in holt("policy list")
    holt("policy clear", "p")

    connection = connect(site, "worker")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(
        "work", durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    )
    channel.queue_declare("dead", durable=True)
    channel.queue_declare("other", durable=True)
    channel.exchange_declare("later", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    for body in (b"one", b"two", b"three", b"four"):
        channel.basic_publish("", "work", body, pika.BasicProperties(delivery_mode=2))
        channel.basic_publish("later", "", body, pika.BasicProperties(headers={"x-delay": 600_000}))
    for _ in range(2):
        got = channel.basic_get("work")[0]
        channel.basic_reject(got.delivery_tag, requeue=False)
    channel.basic_consume("other", lambda *_: None, consumer_tag="reader")

    assert "work" in holt("queue list")
    assert "work" in holt("top", "--once")
    assert "three" in holt("queue peek", "work")
    holt("queue copy", "work", "--to-queue", "dead", "--count", "1")
    holt("queue pause", "work")
    assert "work: paused by ops" in holt("stuck", status=1)
    holt("queue resume", "work")
    assert "dead" in holt("dead-letters list")
    assert holt("dead-letters export").strip()
    holt("dead-letters redrive", "--queue", "work", "--count", "1")
    holt("dead-letters discard", "--all")
    holt("queue move", "work", "--to-queue", "dead", "--count", "1")
    holt("queue purge", "work")
    holt("queue delete", "work")
    jobs = json.loads(holt("job list", "--json"))
    number = str(jobs[0]["id"])
    holt("job show", number)
    holt("job resume", number, status=1)
    assert "(done): removed from the list" in holt("job cancel", number)

    delayed = [row["id"] for row in json.loads(holt("delayed list", "--json"))]
    holt("delayed deliver", str(delayed[0]))
    holt("delayed cancel", str(delayed[1]))
    assert "no queue" in holt("exchange route-test", "amq.topic", "a.b", status=1)
    assert "worker" in holt("connection list")
    assert "reader" in holt("consumer list")
    holt("consumer cancel", "reader")
    holt("connection close", "worker")
    with suppress(pika.exceptions.ConnectionClosedByBroker):
        while True:
            connection.process_data_events(60)
    uris = {"src-uri": "amqp://", "src-queue": "dead", "dest-uri": "amqp://", "dest-queue": "other"}
    holt("shovel set", "s", json.dumps(uris))
    assert "s" in holt("shovel list")
    holt("shovel restart", "s")
    holt("shovel delete", "s")
    holt("vhost delete", "v")
    holt("user delete", "ann")

    (site.folder / "definitions.json").write_text("{}")
    nothing = "amqp://127.0.0.1:9"
    where = ("--definitions", str(site.folder / "definitions.json"), "--patience", "0", "--yes")
    holt("migrate", nothing, *where)
    holt("backup", str(site.folder / "backups"))
    # They measure a number of messages, not a time: a busy machine may do nothing in a short one.
    assert "deep" in holt("bench amqp", "--workload", "deep", *SHORT)
    assert "pop-ack-100" in holt("bench http", "--workload", "pop-ack-100", *SHORT)
    holt("pipeline list")
    holt("pipeline init", str(site.folder / "project"))
    flow = (site.folder / "project/transformations/flow.py").read_text()
    assert f'"{site.https}"' in flow
    assert f'"{site.authority}"' in flow
    assert "broker" in holt("pipeline doctor")
    lake = str(site.folder / "lake")
    items = [{"queue": "log", "payload": number} for number in range(3)]
    verify = ssl.create_default_context(cafile=site.authority)
    answer = httpx.post(
        f"{site.https}/api/v1/push", json={"items": items}, auth=("ops", PASSWORD), verify=verify, timeout=60
    )
    assert answer.is_success, answer.text
    assert '"rows": 3,' in holt("pipeline archive", "--queue", "log", "--lake", lake, "--engine", "arrow")

    assert verbs_with_an_address() - ran == WITH_SPARK


def verbs_with_an_address() -> set[str]:
    found: set[str] = set()

    def walk(command: click.Command, path: list[str], context: click.Context) -> None:
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                walk(child, [*path, name], click.Context(child, context, info_name=name))
        elif any(parameter.name == "tls_ca" for parameter in command.params):
            found.add(" ".join(path))

    walk(main, [], click.Context(main))
    return found

"""The command itself, from one HoltMQ to another: plans from a file, refusals, being started again."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from click.testing import CliRunner, Result
from shovel_support import Operator

from holtmq.cli import main
from holtmq.cli.broker_api import NoAnswer
from holtmq.cli.migrate.moving import Begun, Line, Moving
from holtmq.cli.migrate.old_broker import OldBroker
from holtmq.testing import TestBroker

Migrate = Callable[..., Result]


@pytest.fixture
def source() -> Iterator[TestBroker]:
    with TestBroker(clock="real") as broker:
        yield broker


@pytest.fixture
def target() -> Iterator[TestBroker]:
    with TestBroker(clock="real") as broker:
        yield broker


@pytest.fixture
def migrate(source: TestBroker, target: TestBroker) -> Migrate:
    """``migrate("--dry-run")`` from one broker to the other."""

    def run(*arguments: str, url: str = "") -> Result:
        where = url or source.amqp_url
        return CliRunner().invoke(
            main, ["migrate", where, *arguments], env={"HOLT_ADMIN_URL": target.http_url}
        )

    return run


def exported(tmp_path: Path, **sections: object) -> str:
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"vhosts": [{"name": "/"}], **sections}))
    return str(file)


def test_it_moves_what_waits_follows_what_comes_and_finishes(
    source: TestBroker, target: TestBroker, migrate: Migrate
) -> None:
    old, new = Operator(source.http_url, source.amqp_url), Operator(target.http_url, target.amqp_url)
    old.declare("q")
    old.publish("q", list("abc"))

    first = migrate("--management", source.http_url, "--yes")

    assert first.exit_code == 0, first.output
    assert new.messages("q") == 3
    old.publish("q", ["d"])
    again = migrate()
    assert again.exit_code == 0, again.output
    assert "Going on" in again.output
    assert new.messages("q") == 4
    finished = migrate("--finish")
    assert finished.exit_code == 0, finished.output
    assert "Moved 4 messages, of which 0 perhaps twice." in finished.output
    assert new.get("/shovels") == []
    assert [body for _, _, body in new.take("q", 4)] == [b"a", b"b", b"c", b"d"]
    assert "no migration is under way" in migrate("--finish").output
    old.close()
    new.close()


def test_a_stream_is_copied_once_however_often_it_is_migrated(
    source: TestBroker, target: TestBroker, migrate: Migrate
) -> None:
    old, new = Operator(source.http_url, source.amqp_url), Operator(target.http_url, target.amqp_url)
    old.declare("log", **{"x-queue-type": "stream"})
    old.publish("log", list("abc"))

    first = migrate("--management", source.http_url, "--yes")
    finished = migrate("--finish", "--json")
    old.publish("log", list("de"))
    second = migrate("--management", source.http_url, "--yes")
    again = migrate("--finish", "--json")

    for result in (first, finished, second, again):
        assert result.exit_code == 0, result.output
    assert "Messages of 0 queues are moved, those of 1 stream copied." in first.output
    lines = {row["queue"]: row for row in json.loads(finished.stdout)["queues"]}
    assert (lines["log"]["at_start"], lines["log"]["moved"], lines["log"]["left"]) == (3, 3, 0)
    assert {row["queue"]: row["moved"] for row in json.loads(again.stdout)["queues"]} == {"log": 5}
    assert (old.messages("log"), new.messages("log")) == (5, 5)
    old.close()
    new.close()


def test_an_empty_stream_is_found_to_be_empty(
    source: TestBroker, migrate: Migrate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holtmq.cli.migrate.stream_ends._EMPTY_SECONDS", 0.05)
    old = Operator(source.http_url, source.amqp_url)
    old.declare("nothing", **{"x-queue-type": "stream"})

    first = migrate("--management", source.http_url, "--yes")
    finished = migrate("--finish", "--json")

    assert first.exit_code == finished.exit_code == 0, first.output + finished.output
    (line,) = json.loads(finished.stdout)["queues"]
    assert (line["queue"], line["at_start"], line["moved"], line["left"]) == ("nothing", 0, 0, 0)
    old.close()


def test_a_stream_that_was_created_again_is_named(
    source: TestBroker, target: TestBroker, migrate: Migrate
) -> None:
    old = Operator(source.http_url, source.amqp_url)
    old.declare("log", **{"x-queue-type": "stream"})
    old.publish("log", list("abc"))
    assert migrate("--management", source.http_url, "--yes").exit_code == 0
    old.http.delete("/queues/%2F/log").raise_for_status()
    old.declare("log", **{"x-queue-type": "stream"})
    old.publish("log", ["x"])

    refused = migrate()

    assert refused.exit_code == 1
    assert (
        "stream 'log' in vhost '/' of the old broker ends at offset 0, but was copied up to 2"
        in refused.output
    )
    old.close()


def test_what_cannot_be_taken_is_named_and_nothing_is_applied(
    target: TestBroker, migrate: Migrate, tmp_path: Path
) -> None:
    file = exported(
        tmp_path,
        exchanges=[{"name": "hist", "vhost": "/", "type": "x-jms-topic", "durable": True}],
        queues=[{"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}],
        bindings=[
            {
                "source": "hist",
                "vhost": "/",
                "destination": "q",
                "destination_type": "queue",
                "routing_key": "",
                "arguments": {},
            }
        ],
    )
    new = Operator(target.http_url, target.amqp_url)

    refused = migrate("--definitions", file, "--yes")

    assert refused.exit_code == 1
    assert "x-jms-topic" in refused.output
    assert new.get("/queues") == []
    taken = migrate("--definitions", file, "--yes", "--skip-unsupported", "--no-messages")
    assert taken.exit_code == 0, taken.output
    assert new.has_queue("q")
    assert new.get("/shovels") == []
    new.close()


def test_a_conflict_with_what_is_here_changes_nothing(
    target: TestBroker, migrate: Migrate, tmp_path: Path
) -> None:
    new = Operator(target.http_url, target.amqp_url)
    new.declare("q", **{"x-max-length": 3})
    queue = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    file = exported(tmp_path, queues=[{"name": "other", **queue}, {"name": "q", **queue}])

    result = migrate("--definitions", file, "--yes")

    assert result.exit_code == 1
    assert "x-max-length" in result.output
    assert not new.has_queue("other")
    new.close()


def test_wrong_arguments_are_refused_with_what_is_right(migrate: Migrate, tmp_path: Path) -> None:
    assert "either --management or --definitions" in migrate("--yes").output
    assert "needs a host" in migrate("--yes", url="amqp://").output
    assert "amqp://" in migrate("--yes", url="http://old").output
    broken = tmp_path / "broken.json"
    broken.write_text("[")
    assert "does not contain definitions" in migrate("--definitions", str(broken)).output
    silent = migrate("--management", "http://127.0.0.1:9")
    assert "no broker answers" in silent.output


def test_another_migration_is_refused_while_one_is_under_way(
    source: TestBroker, migrate: Migrate, tmp_path: Path
) -> None:
    old = Operator(source.http_url, source.amqp_url)
    old.declare("q")
    assert migrate("--management", source.http_url, "--yes").exit_code == 0

    other = migrate("--definitions", exported(tmp_path), "--yes", url="amqp://elsewhere")

    assert other.exit_code == 1
    assert "under way" in other.output
    old.close()


def test_the_plan_names_auto_delete_and_exclusive_queues(
    source: TestBroker, target: TestBroker, migrate: Migrate
) -> None:
    with pika.BlockingConnection(pika.URLParameters(source.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("mine", exclusive=True)
        channel.queue_declare("brief", durable=True, auto_delete=True)
        channel.basic_publish("", "brief", b"stays")

        applied = migrate("--management", source.http_url, "--yes")

    assert applied.exit_code == 0, applied.output
    assert "messages of auto-delete queue 'brief' in vhost '/': the queue is declared here" in applied.output
    assert "exclusive queue 'mine' in vhost '/': it belongs to a connection" in applied.output
    new = Operator(target.http_url, target.amqp_url)
    assert new.messages("brief") == 0
    new.close()


def test_the_account_counts_what_was_still_on_the_way_when_the_old_queue_was_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved = iter((1336, 1500))

    def account(_: Moving, begun: Begun) -> tuple[list[Line], int]:
        return [Line("/", "log", 1500, next(moved), 0, 0, 1500, "running", None, 0)], 0

    monkeypatch.setattr(Moving, "account", account)
    monkeypatch.setattr(Moving, "_pending", lambda _: 0)
    shown: list[int] = []

    lines = Moving.__new__(Moving).wait(
        Begun("amqp://old", [], [("/", "log", 1500)]),
        alone=False,
        on_progress=lambda lines, _: shown.append(lines[0].moved),
    )

    assert [line.moved for line in lines] == [1500]
    assert shown == [1336, 1500]


def test_without_a_broker_to_move_to_it_ends_at_once() -> None:
    nowhere = {"HOLT_ADMIN_URL": "http://127.0.0.1:9"}
    result = CliRunner().invoke(main, ["migrate", "amqp://old", "--patience", "1"], env=nowhere)

    assert result.exit_code == 1
    assert "no broker answers at http://127.0.0.1:9" in result.output
    assert "the shovels go on" not in result.output


def test_waiting_for_a_broker_that_is_down_is_told_once(
    migrate: Migrate, source: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [NoAnswer("the old broker is away"), NoAnswer("the old broker is away")]

    def depths(*_: object) -> dict[object, object]:
        if answers:
            raise answers.pop()
        return {}

    monkeypatch.setattr(OldBroker, "depths", depths)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    result = migrate("--management", source.http_url, "--yes", "--patience", "60")

    assert result.output.count("the old broker is away. Trying again for 60 s (--patience).") == 1

"""The map in docs/architecture.md is true: files exist, every package has a row, the walks are what runs."""

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import httpx
import pika
import pytest

from holtmq.testing import TestBroker

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "holtmq"
TEXT = (ROOT / "docs" / "architecture.md").read_text()


def walk(title: str) -> list[str]:
    """The files that a walk names, in order."""
    section = TEXT.split(f"### {title}", 1)[1].split("\n## ", 1)[0].split("\n### ", 1)[0]
    return re.findall(r"`([a-z_/]+\.py)`", section)


def test_every_file_that_is_named_exists() -> None:
    for name in set(re.findall(r"`([a-z_/]+\.py)`", TEXT)):
        found = [path for path in SOURCE.rglob("*.py") if path.as_posix().endswith("/" + name)]
        assert found, name


def test_every_place_of_a_usual_change_exists() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().split("Where do I change", 1)[1].split("\n## ", 1)[0]
    places = re.findall(r"`([a-z_/]+/(?:\w+\.(?:py|js))?)`", table)
    names = re.findall(r"`([a-z_/]+\.py)` \(`(\w+)`\)", table)

    assert len(places) > 20
    assert [place for place in places if not ((SOURCE / place).exists() or (ROOT / place).exists())] == []
    assert [
        (file, name) for file, name in names if not re.search(rf"\b{name}\b", (SOURCE / file).read_text())
    ] == []


def test_every_package_has_a_row() -> None:
    for init in SOURCE.rglob("__init__.py"):
        package = init.parent.relative_to(SOURCE).as_posix()
        if package != ".":  # a row of its own, of a package that it is in, or of those in it
            assert f"`{package}/" in TEXT or f"`{package.split('/')[0]}/`" in TEXT, package


def test_a_long_file_says_why() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if text.count("\n") > 400:
            head = ast.get_docstring(ast.parse(text)) or ""
            assert "Over 400 lines: " in head, f"{path}: split it, or say at its head why not"


def ran(broker: TestBroker, action: Callable[[], None]) -> set[str]:
    """The files whose functions the broker's loop called while ``action`` ran."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    broker.call(lambda node: sys.setprofile(note))
    try:
        action()
    finally:
        broker.call(lambda node: sys.setprofile(None))
    return {Path(name).as_posix().split("/holtmq/", 1)[1] for name in seen if "/holtmq/" in name}


@pytest.fixture
def broker(tmp_path: Path) -> TestBroker:
    return TestBroker(tmp_path / "data", durable=True)


def test_the_walks_over_amqp_are_what_runs(broker: TestBroker) -> None:
    with broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.exchange_declare("topic", "topic", durable=True)
        channel.queue_bind("q", "topic", "a.*")

        def publish() -> None:
            channel.basic_publish("topic", "a.b", b"x", pika.BasicProperties(delivery_mode=2))

        def consume() -> None:
            for method, _, _ in channel.consume("q", inactivity_timeout=120):
                assert method is not None
                channel.basic_ack(method.delivery_tag)
                break
            channel.cancel()
            channel.queue_declare("q", passive=True)

        published, consumed = ran(broker, publish), ran(broker, consume)
        connection.close()

    assert set(walk("A durable publish, to its confirm")) - published == set()
    assert set(walk("A delivery, and its ack")) - consumed == set()


def test_the_walk_over_http_is_what_runs(broker: TestBroker) -> None:
    def work() -> None:
        with httpx.Client(base_url=broker.http_url) as client:
            pushed = {"items": [{"queue": "q", "partition": "p", "payload": {"n": 1}}]}
            client.post("/api/v1/push", json=pushed).raise_for_status()
            popped = client.get("/api/v1/pop/queue/q?consumerGroup=g&wait=true&timeout=20000").json()
            message = popped["messages"][0]
            acked = {
                "transactionId": message["transactionId"],
                "partitionId": message["partitionId"],
                "leaseId": message["leaseId"],
                "consumerGroup": "g",
                "status": "failed",
                "error": "x",
            }
            client.post("/api/v1/ack", json=acked).raise_for_status()

    with broker:
        seen = ran(broker, work)

    named = set(walk("A push, a pop and an ack over HTTP"))
    missing = {name for name in named if not any(path.endswith(name) for path in seen)}
    assert missing == set()

"""An alarm, wherever it is looked for: /health, /ready, dashboard, /metrics, `holt health`, `holt stuck`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import httpx
import pytest
from click.testing import CliRunner

from holtmq.cli import main
from holtmq.journal import JournalFailed
from holtmq.node import Node
from holtmq.testing import TestBroker


@dataclass
class Places:
    """Where an operator looks."""

    broker: TestBroker
    http: httpx.Client

    def findings(self) -> list[tuple[str, str, int | None]]:
        rows = self.http.get("/api/v1/dashboard/overview").json()["findings"]
        return [(row["rule"], row["text"], row["since"]) for row in rows]

    def metric(self, name: str) -> str:
        scraped = self.http.get("/metrics", headers={"accept": "text/plain"}).text
        return next(line for line in scraped.splitlines() if line.startswith(f"{name} "))

    def holt(self, *verb: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, [*verb, "--url", self.broker.http_url])
        return result.exit_code, result.output

    def alarm(self, reason: str) -> None:
        def change(node: Node) -> None:
            node.alarms.reason = lambda: reason  # type: ignore[method-assign]
            node.alarms.check()

        self.broker.call(change)
        self.broker.clock.advance(60)  # what the dashboard knows is looked at again


@pytest.fixture
def places() -> Iterator[Places]:
    with TestBroker() as broker, httpx.Client(base_url=broker.http_url, timeout=60) as http:
        yield Places(broker, http)


def test_blocked_publishers_are_reported_everywhere_with_the_time_they_began(places: Places) -> None:
    began = int(places.broker.clock() * 1000)
    places.alarm("low on memory")
    text = "publishers are blocked: the broker is low on memory"

    health = places.http.get("/health")

    assert (health.status_code, health.json()["status"], health.json()["reason"]) == (200, "degraded", text)
    assert places.http.get("/ready").status_code == 200  # consumers can work
    assert places.findings() == [("blocked", text, began)]
    assert places.metric("rabbitmq_alarms_memory_used_watermark").endswith(" 1.0")
    assert places.holt("health") == (0, f"degraded: {text}\n")
    status, stuck = places.holt("stuck")
    assert (status, text in stuck, "unknown" in stuck) == (1, True, False)


def test_a_second_reason_replaces_the_first_and_the_time_stays(places: Places) -> None:
    began = int(places.broker.clock() * 1000)
    places.alarm("low on memory")

    places.alarm("low on disk")

    assert places.findings() == [("blocked", "publishers are blocked: the broker is low on disk", began)]
    assert places.metric("rabbitmq_alarms_memory_used_watermark").endswith(" 0.0")
    assert places.metric("rabbitmq_alarms_free_disk_space_watermark").endswith(" 1.0")
    places.alarm("")
    assert places.findings() == []
    assert places.http.get("/health").json()["status"] == "healthy"


def test_a_journal_that_failed_says_everywhere_what_to_do(places: Places) -> None:
    places.broker.disk.fail_next_sync()
    with suppress(JournalFailed):  # the broker's own work may have met the failing sync first
        places.broker.call(lambda node: node.broker.declare_queue(node.broker.vhost("/"), "q", durable=True))
    places.broker.clock.advance(60)
    advice = "Check the disk, then restart the node"

    health = places.http.get("/health")

    assert (health.status_code, health.json()["status"]) == (503, "unhealthy")
    assert advice in health.json()["reason"]
    assert advice in places.http.get("/ready").json()["reason"]
    ((rule, text, _),) = places.findings()
    assert (rule, advice in text) == ("health", True)
    assert places.metric("holtmq_up").endswith(" 0.0")
    status, said = places.holt("health")
    assert (status, advice in said) == (1, True)
    status, said = places.holt("stuck")
    assert (status, advice in said) == (1, True)

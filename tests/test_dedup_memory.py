"""A node with too little memory for transaction ids says so: log, metric, finding."""

from collections import deque
from pathlib import Path

import httpx
import pytest

from holtmq.config import Config, Limits
from holtmq.node import Node
from holtmq.testing import TestBroker

MESSAGE = "transaction ids forgotten before the end of their dedup window"


def look(node: Node) -> None:
    """What the node does each second; it may have done so already."""
    store, now_us = node.partitioned.store, int(node.clock() * 1_000_000)
    deque(store.dedup_budget.keep(store.queues.values(), now_us), maxlen=0)
    node._dedup_memory._report(now_us)


def test_a_shortened_window_is_logged_counted_and_needs_attention(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(limits=Limits(dedup_memory=145.0 * 10))
    with (
        TestBroker(tmp_path, config=config) as broker,
        httpx.Client(base_url=broker.http_url, auth=("guest", "guest")) as http,
    ):
        items = [{"queue": "q", "transactionId": f"t{number}", "payload": 1} for number in range(25)]
        http.post("/api/v1/push", json={"items": items}).raise_for_status()

        broker.call(look)
        broker.call(look)

        (record,) = [record for record in caplog.records if record.message == MESSAGE]
        assert (record.__dict__["ids"], record.__dict__["shortest"]) == (15, "q")
        scrape = http.get("/metrics/prometheus").text
        assert "holt_dedup_ids_forgotten_early_total 15.0" in scrape
        found = http.get("/api/v1/dashboard/attention").json()
        assert "dedup-window" in str(found)

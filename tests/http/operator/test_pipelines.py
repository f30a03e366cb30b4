"""Queries that report to the broker."""

from collections.abc import Iterator

import httpx
import pytest

from holtmq.http.engine import pipeline_reports
from holtmq.http.engine.pipeline_reports import PipelineReports, QueryState, Report
from holtmq.testing import TestBroker


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as one:
        yield one


@pytest.fixture
def http(broker: TestBroker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, timeout=60) as client:
        yield client


def test_the_last_report_of_each_query_is_shown_and_rows_add_up(
    broker: TestBroker, http: httpx.Client
) -> None:
    for batch, rows in ((0, 10), (1, 5), (1, 5)):  # the last one is told twice
        body = {
            "name": "totals",
            "batch": batch,
            "rows": rows,
            "lag": 7,
            "stateRows": 3,
            "sources": ["orders"],
        }
        assert http.post("/api/v1/pipelines/q1", json=body).status_code == 200
    http.post("/api/v1/pipelines/q2", json={"name": "archive", "state": "failed", "error": "boom"})
    http.post("/api/v1/pipelines/q2", json={"name": "archive", "batch": 3, "rows": 1})
    broker.clock.advance(30)

    archive, totals = http.get("/api/v1/pipelines").json()["pipelines"]

    assert (totals["batch"], totals["rowsTotal"], totals["batches"], totals["lag"]) == (1, 15, 2, 7)
    assert (totals["state"], totals["sources"], totals["silentSeconds"]) == ("running", ["orders"], 30.0)
    assert (archive["state"], archive["error"], archive["lastError"]) == ("running", "", "boom")


def test_a_query_hears_with_its_next_report_that_it_should_stop(
    broker: TestBroker, http: httpx.Client
) -> None:
    path = "/api/v1/pipelines/q1"
    assert http.post(f"{path}/stop").status_code == 404
    assert http.post(path, json={"name": "totals", "batch": 4, "rows": 2}).json()["stop"] is False

    assert http.post(f"{path}/stop").status_code == 202

    broker.clock.advance(100)
    assert http.get("/api/v1/pipelines").json()["pipelines"][0]["isAskedToStop"] is True
    assert http.post(path, json={"idle": True}).json()["stop"] is True
    (row,) = http.get("/api/v1/pipelines").json()["pipelines"]
    assert (row["batch"], row["rows"], row["silentSeconds"]) == (4, 2, 0.0)  # an idle query is not silent
    assert http.post(path, json={"state": "stopped"}).json()["stop"] is False
    assert http.post(f"{path}/stop").status_code == 404
    assert http.post(path, json={"state": "running"}).json()["stop"] is False  # started again


def test_metrics_have_every_query(http: httpx.Client) -> None:
    http.post("/api/v1/pipelines/q1", json={"name": "totals", "batch": 0, "rows": 10, "lag": 7})

    text = http.get("/metrics/prometheus").text

    assert 'holt_pipeline_rows_total{name="totals",query="q1"} 10.0' in text
    assert 'holt_pipeline_lag{name="totals",query="q1"} 7.0' in text
    assert 'holt_pipeline_running{name="totals",query="q1"} 1.0' in text


def test_a_wrong_report_is_refused_and_a_forgotten_query_is_gone(http: httpx.Client) -> None:
    assert http.post("/api/v1/pipelines/q", json={"state": "sleeping"}).status_code == 400
    assert http.post("/api/v1/pipelines/q", json={"batch": "x"}).status_code == 400
    http.post("/api/v1/pipelines/q", json={})

    assert http.delete("/api/v1/pipelines/q").status_code == 200
    assert http.delete("/api/v1/pipelines/q").status_code == 404
    assert http.get("/api/v1/pipelines").json() == {"pipelines": []}


def test_only_so_many_are_remembered_and_those_that_run_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_reports, "QUERIES_MAX", 2)
    reports = PipelineReports()

    reports.add(Report("runs"), 1.0)
    reports.add(Report("ended", state=QueryState.STOPPED), 2.0)
    reports.add(Report("new"), 3.0)

    assert [kept.report.query for kept in reports.all()] == ["new", "runs"]

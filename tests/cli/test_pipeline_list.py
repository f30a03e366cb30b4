"""``holt pipeline list`` against a running broker; no Spark is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from holtmq.cli import main
from holtmq.testing import TestBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as running:
        yield running


def test_a_broker_without_queries_shows_an_empty_list(broker: TestBroker) -> None:
    listed = CliRunner().invoke(main, ["pipeline", "list", "--json", "--url", broker.http_url])

    assert (listed.exit_code, json.loads(listed.output)) == (0, [])


def test_a_token_that_the_broker_refuses_is_named_in_the_error(broker: TestBroker) -> None:
    listed = CliRunner().invoke(main, ["pipeline", "list", "--url", broker.http_url, "--token", "no"])

    assert listed.exit_code == 1
    assert "refused the token (--token)" in listed.output


def test_an_address_where_no_broker_is_gets_an_error_not_a_traceback() -> None:
    listed = CliRunner().invoke(main, ["pipeline", "list", "--url", "http://127.0.0.1:1"])

    assert listed.exit_code == 1
    assert "no broker answers at" in listed.output

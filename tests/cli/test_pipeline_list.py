"""``holt pipeline list`` against a running broker; no Spark is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from certificates import Certificates
from holtmq.cli import main
from holtmq.config import Config, Http, Limits
from holtmq.testing import TestBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as running:
        yield running


def test_a_broker_without_queries_shows_an_empty_list(broker: TestBroker) -> None:
    listed = CliRunner().invoke(main, ["pipeline", "list", "--json", "--url", broker.http_url])

    assert (listed.exit_code, json.loads(listed.output)) == (0, [])


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment for a broker with TLS that lets only its users in."""
    certificates = Certificates(tmp_path_factory.mktemp("tls"))
    cert, key = certificates.issue("server")
    config = Config(
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
        http=Http(tls_cert=cert, tls_key=key, tls_port=0, anonymous="none"),
    )
    with TestBroker(config=config) as broker:
        url = f"https://127.0.0.1:{broker.call(lambda node: node.http_tls_port)}"
        yield {"HOLT_ADMIN_URL": url, "HOLT_ADMIN_TLS_CA": str(certificates.authority)}


def pipeline(env: dict[str, str], *arguments: str) -> Result:
    return CliRunner().invoke(main, ["pipeline", *arguments], env=env)


def test_the_options_of_the_other_verbs_name_broker_and_user(secure: dict[str, str]) -> None:
    login = {"HOLT_ADMIN_USER": "guest", "HOLT_ADMIN_PASSWORD": "guest"}

    by_environment = pipeline(secure | login, "list", "--json")
    by_options = pipeline(secure, "list", "--json", "--user", "guest", "--password", "guest")
    wrong = pipeline(secure | login, "list", "--password", "wrong")
    none = pipeline(secure, "list")

    assert (by_environment.exit_code, by_options.exit_code) == (0, 0), by_environment.output
    assert "refused the login of user 'guest'" in wrong.output
    assert "asks for a login: give --user and --password, or --token" in none.output


def test_a_login_by_option_counts_more_than_one_of_the_environment(secure: dict[str, str]) -> None:
    login = {"HOLT_ADMIN_USER": "guest", "HOLT_ADMIN_PASSWORD": "guest"}
    typed = ("--user", "guest", "--password", "guest")

    assert pipeline(secure | {"HOLT_TOKEN": "no"}, "list", *typed).exit_code == 0
    assert "refused the token" in pipeline(secure | login, "list", "--token", "no").output
    for arguments, words in (
        ((*typed, "--token", "t"), "or --token, not both"),
        (("--user", "guest"), "--user guest needs --password or HOLT_ADMIN_PASSWORD"),
        (("--password", "guest"), "--password goes with --user"),
    ):
        refused = pipeline(secure, "list", *arguments)
        assert (refused.exit_code, words in refused.output) == (2, True), refused.output


def test_a_job_and_the_doctor_log_in_as_the_user(secure: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    typed = ("--user", "guest", "--password", "guest")
    archive = ("archive", "--engine", "arrow", "--queue", "nothing", "--lake", str(tmp_path / "lake"))

    assert "queue nothing does not exist" in pipeline(secure, *archive, *typed).output
    assert "the broker refused (401)" in pipeline(secure, *archive).output
    assert "queues can be written" in pipeline(secure, "doctor", *typed).output
    assert "give --user and --password, or a --token" in pipeline(secure, "doctor").output


def test_a_token_that_the_broker_refuses_is_named_in_the_error(broker: TestBroker) -> None:
    listed = CliRunner().invoke(main, ["pipeline", "list", "--url", broker.http_url, "--token", "no"])

    assert listed.exit_code == 1
    assert "refused the token (--token)" in listed.output


def test_an_address_where_no_broker_is_gets_an_error_not_a_traceback() -> None:
    listed = CliRunner().invoke(main, ["pipeline", "list", "--url", "http://127.0.0.1:1"])

    assert listed.exit_code == 1
    assert "no broker answers at" in listed.output

"""Short rounds of every HTTP workload on a real broker, and the command that runs them."""

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result
from load_support import measured

from certificates import Certificates
from holtmq.cli import main
from holtmq.config import Config, Http, Limits
from holtmq.load.comparison import distinct
from holtmq.load.errors import LoadError
from holtmq.load.http_comparison import compare_http
from holtmq.load.http_rounds import run_http_round
from holtmq.load.http_stage import HttpTarget
from holtmq.load.http_wire import HttpAddress
from holtmq.load.http_workloads import HTTP_WORKLOADS, HttpMode
from holtmq.load.link import Address
from holtmq.testing import TestBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as running:
        yield running


@pytest.mark.parametrize("name", HTTP_WORKLOADS)
def test_every_workload_runs_and_loses_nothing(broker: TestBroker, name: str) -> None:
    workload = HTTP_WORKLOADS[name]
    if workload.messages:
        workload = replace(workload, messages=10_000 if workload.mode is HttpMode.ACK else 3_000)

    seen = measured(lambda: run_http_round(HttpTarget.at(broker.http_url), workload, 0.2, 0.05))

    assert seen.messages > 0
    assert seen.request_rate
    assert seen.confirm_us is not None
    assert seen.confirm_us.samples > 0
    if workload.mode is HttpMode.DRAIN:
        assert seen.messages >= 3_000


def test_half_of_a_backlog_is_left_for_the_measurement_on_a_fast_machine(broker: TestBroker) -> None:
    workload = replace(HTTP_WORKLOADS["ack-100"], messages=12_000)

    seen = measured(lambda: run_http_round(HttpTarget.at(broker.http_url), workload, 1.0, 0))

    assert seen.messages >= 4_000  # some acks of 100 are on their way when half is settled


def test_a_round_leaves_no_queue_behind(broker: TestBroker) -> None:
    target = HttpTarget.at(broker.http_url)

    measured(lambda: run_http_round(target, HTTP_WORKLOADS["push-10"], 0.1, 0))

    with socket.create_connection((target.address.host, target.address.port), 60) as asking:
        asking.sendall(target.address.get("/api/v1/resources/queues"))
        assert b"holt-load" not in asking.recv(65536)


def test_two_brokers_of_one_product_are_told_apart(broker: TestBroker) -> None:
    target = HttpTarget.at(broker.http_url)
    assert target.label.startswith("HoltMQ ")

    labels = [one.label for one in distinct([target, replace(target, pid=None)])]

    assert all(str(target.address) in label for label in labels)


def test_a_round_that_fails_is_reported_and_not_measured(broker: TestBroker) -> None:
    target = HttpTarget.at(broker.http_url)
    workload = replace(HTTP_WORKLOADS["ack-100"], messages=100)
    pauses = f"{broker.http_url}/api/v1/system/maintenance/pop"
    httpx.post(pauses, json={"enabled": True}).raise_for_status()

    outcome = compare_http([target], workload, rounds=1, seconds=0.1, warm_up=0)

    httpx.post(pauses, json={"enabled": False}).raise_for_status()
    assert outcome.figures == []
    assert "not one message was acknowledged" in outcome.failures[0]


def test_bench_http_compares_two_brokers_and_writes_what_it_found(broker: TestBroker, tmp_path: Path) -> None:
    with TestBroker() as theirs:
        arguments = ["bench", "http", "--url", broker.http_url, "--against", theirs.http_url]
        arguments += ["--workload", "push-10", "--seconds", "0.5", "--warm-up", "0", "--rounds", "1"]
        arguments += ["--json", str(tmp_path / "out.json"), "--html", str(tmp_path / "out.html")]
        result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 0, result.output
    assert "push-10" in result.output
    assert "requests/s" in result.output
    written = json.loads((tmp_path / "out.json").read_bytes())
    assert [figures["rounds"] for figures in written["outcomes"][0]["figures"]] == [1, 1]
    assert "<svg" in (tmp_path / "out.html").read_text()


def test_an_http_broker_that_is_not_there_is_an_error_not_a_traceback() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        result = CliRunner().invoke(main, ["bench", "http", "--url", url])

    assert result.exit_code == 1
    assert "cannot connect" in result.output
    assert "not an address" in CliRunner().invoke(main, ["bench", "http", "--url", "amqp://x"]).output


def test_a_broker_with_tls_and_logins_is_measured_and_refusals_come_before_the_first_round(
    tmp_path: Path,
) -> None:
    certificates = Certificates(tmp_path)
    cert, key = certificates.issue("server")
    config = Config(
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
        http=Http(tls_cert=cert, tls_key=key, tls_port=0, anonymous="none"),
    )
    short = ("--seconds", "0.5", "--warm-up", "0", "--rounds", "1", "--messages", "500")

    with TestBroker(config=config) as broker:
        port = broker.call(lambda node: node.http_tls_port)

        def bench(login: str, *options: str) -> Result:
            url = f"https://{login}127.0.0.1:{port}"
            return CliRunner().invoke(
                main, ["bench", "http", "--url", url, "--workload", "pop-ack-100", *short, *options]
            )

        shown = bench("guest:guest@", "--tls-ca", str(certificates.authority))
        anonymous = bench("", "--tls-ca", str(certificates.authority))
        untrusted = bench("guest:guest@")

    assert shown.exit_code == 0, shown.output
    assert "pop-ack-100" in shown.output
    assert "refused (401): name a user" in anonymous.output
    assert "--tls-ca names the authority that signed it" in untrusted.output


def test_an_address_that_makes_no_sense_is_refused_without_its_password() -> None:
    for url in ("ftp://me:secret@host", "https://me:secret@host/path"):
        with pytest.raises(LoadError) as refused:
            HttpAddress.parse(url)
        assert "secret" not in str(refused.value)
    with pytest.raises(LoadError, match="leave the token out"):
        HttpAddress.parse("http://me:secret@host", token="t")
    with pytest.raises(LoadError, match=r"http://me:\*\*\*@") as refused:
        Address.parse("http://me:secret@host")
    assert "secret" not in str(refused.value)

"""A certificate near its end is noticed: finding, metric, log, health check; it is the one that is served."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from cryptography.x509 import load_der_x509_certificate
from prometheus_client.parser import text_string_to_metric_families

from alert_rules import firing
from certificates import Certificates
from holtmq.cli import main as holt
from holtmq.config import Amqp, Config, Http, Limits
from holtmq.http.standby import StandbyServer
from holtmq.listeners import Listeners
from holtmq.testing import TestBroker

DAY = 86_400
AS_TEXT = {"accept": "text/plain"}


class Site:
    """A broker whose TLS listeners both have one certificate."""

    def __init__(self, folder: Path) -> None:
        self.authority = Certificates(folder)
        self.cert, self.key = self.authority.issue("broker", days=20)
        config = Config(
            amqp=Amqp(tls_cert=self.cert, tls_key=self.key, tls_port=0),
            http=Http(tls_cert=self.cert, tls_key=self.key, tls_port=0),
            limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
        )
        self.broker = TestBroker(config=config)

    def get(self, path: str, status: int = 200) -> Any:
        answer = httpx.get(self.broker.http_url + path, auth=("guest", "guest"), timeout=60)
        assert answer.status_code == status, answer.text
        return answer.json()

    def findings(self) -> list[Any]:
        return list(self.get("/api/v1/dashboard/attention")["findings"])

    def wait(self, days: float) -> None:
        self.broker.clock.advance(days * DAY)

    def renew(self, days: float) -> None:
        """Replace both files."""
        cert, key = self.authority.issue("renewed", days=days)
        self.cert.write_bytes(cert.read_bytes())
        self.key.write_bytes(key.read_bytes())

    def reload(self) -> None:
        """What SIGHUP does."""
        self.broker.call(lambda node: node.reload())

    def metrics(self) -> str:
        return httpx.get(f"{self.broker.http_url}/metrics", headers=AS_TEXT, timeout=60).text

    def days_left(self) -> dict[str, float]:
        """By listener, from the metrics."""
        return days_left(self.metrics())


def days_left(metrics: str) -> dict[str, float]:
    return {
        sample.labels["listener"]: sample.value / DAY
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == "holtmq_certificate_expiry_seconds"
    }


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    with site.broker:
        yield site


def test_a_certificate_near_its_end_is_a_finding_that_becomes_urgent(site: Site) -> None:
    (warning,) = site.findings()
    site.wait(14)
    (urgent,) = site.findings()
    site.wait(7)
    (ended,) = site.findings()

    assert (warning["rule"], warning["severity"], warning["name"]) == ("certificate", "warn", "amqps, https")
    assert warning["text"].startswith(f"the certificate in {site.cert} ends in 19 days, on ")
    since_days = (site.broker.clock.now - warning["since"] / 1000) / DAY
    assert since_days == pytest.approx(21 + 10, abs=0.5)
    assert urgent["severity"] == "bad"
    assert ended["severity"] == "bad"
    assert "ended on" in ended["text"]


def test_the_alert_rules_fire(site: Site) -> None:
    soon, urgent = "HoltMQCertificateEndsSoon", "HoltMQCertificateUrgent"
    warned = firing(site.metrics())
    site.wait(14)
    pressed = firing(site.metrics())
    site.renew(days=90)
    site.reload()

    assert warned == {(soon, "amqps"), (soon, "https")}
    assert pressed == warned | {(urgent, "amqps"), (urgent, "https")}
    assert firing(site.metrics()) == set()


def test_holt_stuck_names_it(site: Site) -> None:
    said = CliRunner().invoke(holt, ["stuck", "--url", site.broker.http_url])

    assert said.exit_code == 1, said.output
    assert said.output.startswith("warn  amqps, https: the certificate in ")


def test_the_thresholds_can_be_changed(site: Site) -> None:
    url = f"{site.broker.http_url}/api/v1/dashboard/thresholds"
    for days, urgent, expected in ((10, 2, []), (10, 25, ["bad"]), (25, 0, ["warn"])):
        wanted = {"certificate_days": days, "certificate_urgent_days": urgent}
        httpx.put(url, json=wanted, auth=("guest", "guest"), timeout=60).raise_for_status()

        assert [one["severity"] for one in site.findings()] == expected


def test_a_renewed_file_counts_once_it_is_served(site: Site) -> None:
    site.renew(days=90)
    (before,) = site.findings()
    left_before = site.days_left()
    check = "/api/health/checks/certificate-expiration/4/weeks"
    failed = site.get(check, 503)

    site.reload()
    site.wait(0.001)  # a list of findings is two seconds old at most

    assert before["rule"] == "certificate"
    assert left_before == {"amqps": pytest.approx(20, abs=0.5), "https": pytest.approx(20, abs=0.5)}
    assert [one["certfile"] for one in failed["expired"]] == [str(site.cert)]
    assert site.findings() == []
    assert site.days_left() == {"amqps": pytest.approx(90, abs=0.5), "https": pytest.approx(90, abs=0.5)}
    assert site.get(check)["status"] == "ok"


def test_the_first_end_in_the_chain_counts(site: Site, tmp_path: Path) -> None:
    site.renew(days=90)
    folder = tmp_path / "intermediate"
    folder.mkdir()
    intermediate = Certificates(folder, days=5).authority.read_bytes()
    site.cert.write_bytes(site.cert.read_bytes() + intermediate)
    site.reload()

    (found,) = site.findings()

    assert found["severity"] == "bad"
    assert found["text"].startswith("an intermediate certificate in ")
    assert site.days_left()["amqps"] == pytest.approx(5, abs=0.5)
    assert site.get("/api/health/checks/certificate-expiration/6/days", 503)["status"] == "failed"


def test_it_is_logged_at_start_once_a_day_and_after_a_reload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def logged() -> list[int]:
        found = [one.levelno for one in caplog.records if one.getMessage() == "certificate needs renewal"]
        caplog.clear()
        return found

    site = Site(tmp_path)
    with caplog.at_level(logging.WARNING), site.broker:
        at_start = logged()
        site.broker.call(lambda node: node.certificate_ends.report_if_due())
        same_day = logged()
        site.wait(14)
        site.broker.call(lambda node: node.certificate_ends.report_if_due())
        later = logged()
        site.renew(days=25)
        site.reload()
        renewed_shortly = logged()
        site.renew(days=90)
        site.reload()
        renewed = logged()

    assert (at_start, same_day, later) == ([logging.WARNING], [], [logging.ERROR])
    assert (renewed_shortly, renewed) == ([logging.WARNING], [])


async def test_a_standby_reloads_its_certificate_and_exposes_its_end(tmp_path: Path) -> None:
    site = Site(tmp_path)
    config = Config(http=Http(tls_cert=site.cert, tls_key=site.key))
    listeners = Listeners(config)
    server = StandbyServer(dict, lambda: "a standby", listeners.certificates)
    port = await server.listen(["127.0.0.1"], 0, listeners.context(config.http))
    try:
        first = await asyncio.to_thread(served, port)
        site.renew(days=90)
        listeners.reload()
        second = await asyncio.to_thread(served, port)
        verify = ssl.create_default_context(cafile=site.authority.authority)
        async with httpx.AsyncClient(verify=verify, timeout=60) as http:
            metrics = (await http.get(f"https://127.0.0.1:{port}/metrics")).text
    finally:
        await server.close()

    assert first != second
    assert "\nholtmq_standby 1.0\n" in metrics
    assert days_left(metrics) == {"https": pytest.approx(90, abs=0.5)}


def served(port: int) -> int:
    """The serial number of what a listener presents."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain) as peer,
    ):
        der = peer.getpeercert(binary_form=True)
        assert der is not None
        return load_der_x509_certificate(der).serial_number

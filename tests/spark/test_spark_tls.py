"""The connector over TLS, with certificates of its own: the client by itself, then a whole job."""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from lake_support import ids
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_processes import until
from spark_support import Shop

from certificates import Certificates
from holtmq.cli import main
from holtmq.config import Config, Http, Limits, TlsVerify
from holtmq.spark.client import BrokerClient
from holtmq.spark.errors import BrokerUnreachable
from holtmq.spark.jobs.running import Progress, Setting
from holtmq.spark.jobs.service import Service
from holtmq.spark.jobs.service_file import load_jobs
from holtmq.spark.options import Connection, Selection
from holtmq.testing import TestBroker

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def authority(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@contextmanager
def tls_shop(authority: Certificates, **http: object) -> Iterator[tuple[Shop, str]]:
    cert, key = authority.issue("server")
    config = Config(
        http=Http(tls_port=0, tls_cert=cert, tls_key=key, **http),  # type: ignore[arg-type]
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
    )
    with TestBroker(clock="real", config=config) as broker:
        shop = Shop(broker, "tls")
        yield shop, f"https://127.0.0.1:{broker.call(lambda node: node.http_tls_port)}"
        shop.http.close()


@pytest.fixture
def safe(authority: Certificates) -> Iterator[tuple[Shop, str]]:
    with tls_shop(authority) as found:
        yield found


def names(connection: Connection) -> list[str]:
    with BrokerClient(connection) as client:
        return [head.name for head in client.heads(Selection((), ".*"))]


def test_a_certificate_is_trusted_by_its_authority_or_when_told_not_to_look(
    safe: tuple[Shop, str], authority: Certificates
) -> None:
    shop, door = safe
    shop.push("q", range(1))

    assert shop.name("q") in names(Connection(door, tls_ca=str(authority.authority)))
    assert shop.name("q") in names(Connection(door, tls_verify=False))


def test_a_certificate_nobody_vouches_for_is_refused_at_once_with_the_way_out(
    safe: tuple[Shop, str],
) -> None:
    # The deadline is never reached: a client that retries hangs, and the test with it.
    with pytest.raises(BrokerUnreachable, match=r"not trusted.*option tlsCa"):
        names(Connection(safe[1], retry_seconds=1e9))


def test_a_broker_that_wants_a_certificate_gets_the_one_of_the_options(authority: Certificates) -> None:
    cert, key = authority.issue("spark")
    ca = str(authority.authority)
    with tls_shop(authority, tls_ca=authority.authority, tls_verify=TlsVerify.REQUIRED) as (shop, url):
        shop.push("q", range(1))

        assert shop.name("q") in names(Connection(url, tls_ca=ca, tls_cert=str(cert), tls_key=str(key)))
        with pytest.raises(BrokerUnreachable):
            names(Connection(url, tls_ca=ca, retry_seconds=0.2))


def test_the_doctor_looks_over_tls(safe: tuple[Shop, str], authority: Certificates) -> None:
    asked = ["pipeline", "doctor", "--no-spark", "--url", safe[1]]

    trusting = CliRunner().invoke(main, [*asked, "--tls-ca", str(authority.authority)])
    wary = CliRunner().invoke(main, asked)

    assert (trusting.exit_code, "queues can be written" in trusting.output) == (0, True), trusting.output
    assert (wary.exit_code, "not trusted" in wary.output) == (1, True), wary.output


def test_jobs_are_served_over_tls_and_an_untrusted_certificate_is_reported(
    safe: tuple[Shop, str], authority: Certificates, tmp_path: Path
) -> None:
    shop, url = safe
    shop.push("q", range(10))
    path = tmp_path / "jobs.toml"
    job = '[jobs.{0}]\nkind = "archive"\nqueue = "{1}"\nlake = "{0}"\nengine = "arrow"\nevery = "10ms"\n'
    trusting = job.format("trusting", shop.name("q")) + f'tls_ca = "{authority.authority}"\n'
    path.write_text(trusting + job.format("wary", shop.name("q")))
    service = Service(load_jobs(path, Setting(url, out=io.StringIO())), Progress(io.StringIO()))
    runner = threading.Thread(target=service.run)
    runner.start()
    good, bad = service.lives
    until(lambda: good.total("rows") == 10 and bad.restarts >= 1, "one archives, one is refused")
    service.stop.set()
    runner.join()

    assert "is not trusted" in bad.last_error
    assert "--tls-ca" in bad.last_error
    assert ids(tmp_path / "trusting", "parquet") == list(range(10))


def test_a_job_reads_and_writes_over_tls_in_driver_and_executors(
    spark: SparkSession, safe: tuple[Shop, str], authority: Certificates, tmp_path: Path
) -> None:
    shop, door = safe
    shop.push("q", range(50))
    given = {"url": door, "tlsCa": str(authority.authority)}
    frame = spark.readStream.format("holtmq").options(
        **given, queue=shop.name("q"), startingOffsets="earliest", minPartitions="2"
    )
    writer = frame.load().select("payload", "partition").writeStream.format("holtmq")
    writer = writer.options(**given, queue=shop.name("out")).option("checkpointLocation", str(tmp_path / "c"))

    assert writer.trigger(availableNow=True).start().awaitTermination(300), "never caught up"

    copied = spark.read.format("holtmq").options(**given, queue=shop.name("out")).load()
    assert (
        copied.selectExpr("get_json_object(CAST(payload AS STRING), '$.id') AS id").distinct().count() == 50
    )
    assert shop.next_offset("out") == 50
    with pytest.raises(PySparkException, match="tlsCa"):
        spark.read.format("holtmq").options(url=door, queue=shop.name("q")).load().count()

"""The connector over TLS, with certificates of its own: the client by itself, then a whole job."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_support import Shop
from tls_door import Authority, tls_door

from holtmq.spark.client import BrokerClient
from holtmq.spark.errors import BrokerUnreachable
from holtmq.spark.options import Connection, Selection

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def door(shop: Shop, authority: Authority) -> Iterator[str]:
    with tls_door(shop.broker.http_port, *authority.issue("server")) as url:
        yield url


def names(connection: Connection) -> list[str]:
    with BrokerClient(connection) as client:
        return [head.name for head in client.heads(Selection((), ".*"))]


def test_a_certificate_is_trusted_by_its_authority_or_when_told_not_to_look(
    shop: Shop, door: str, authority: Authority
) -> None:
    shop.push("q", range(1))

    assert shop.name("q") in names(Connection(door, tls_ca=str(authority.ca)))
    assert shop.name("q") in names(Connection(door, tls_verify=False))


def test_a_certificate_nobody_vouches_for_is_refused_at_once_with_the_way_out(door: str) -> None:
    # No deadline would ever be reached: whoever asks again hangs, and the test with it.
    with pytest.raises(BrokerUnreachable, match=r"not trusted.*option tlsCa"):
        names(Connection(door, retry_seconds=1e9))


def test_a_door_that_wants_a_certificate_gets_the_one_of_the_options(
    shop: Shop, authority: Authority, tmp_path: Path
) -> None:
    cert, key = authority.issue("spark")
    ca = str(authority.ca)
    with tls_door(shop.broker.http_port, *authority.issue("server"), client_ca=authority.ca) as url:
        shop.push("q", range(1))

        assert shop.name("q") in names(Connection(url, tls_ca=ca, tls_cert=str(cert), tls_key=str(key)))
        with pytest.raises(BrokerUnreachable):
            names(Connection(url, tls_ca=ca, retry_seconds=0.2))


def test_a_job_reads_and_writes_over_tls_in_driver_and_executors(
    spark: SparkSession, shop: Shop, door: str, authority: Authority, tmp_path: Path
) -> None:
    shop.push("q", range(50))
    safe = {"url": door, "tlsCa": str(authority.ca)}
    frame = spark.readStream.format("holtmq").options(
        **safe, queue=shop.name("q"), startingOffsets="earliest", minPartitions="2"
    )
    writer = frame.load().select("payload", "partition").writeStream.format("holtmq")
    writer = writer.options(**safe, queue=shop.name("out")).option("checkpointLocation", str(tmp_path / "c"))

    assert writer.trigger(availableNow=True).start().awaitTermination(600), "never caught up"

    copied = spark.read.format("holtmq").options(**safe, queue=shop.name("out")).load()
    assert (
        copied.selectExpr("get_json_object(CAST(payload AS STRING), '$.id') AS id").distinct().count() == 50
    )
    assert shop.next_offset("out") == 50
    with pytest.raises(PySparkException, match="tlsCa"):
        spark.read.format("holtmq").options(url=door, queue=shop.name("q")).load().count()

"""Shovels whose brokers crash: nothing is lost, and what may have come twice is counted."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from shovel_support import Operator, eventually

from certificates import Certificates
from holtmq.config import Amqp, Config, Limits
from holtmq.testing import TestBroker

LOCAL = "amqp://"
COUNT = 2000  # more than moves between two looks, mostly


class Pair:
    """Two brokers that a test may crash."""

    def __init__(self, source: TestBroker, target: TestBroker) -> None:
        self.source, self.target = source, target
        self.old = Operator(source.http_url, source.amqp_url)
        self.new = Operator(target.http_url, target.amqp_url)

    def fill(self, with_ids: bool) -> None:
        self.old.declare("q")
        channel = self.old.channel()
        for number in range(COUNT):
            name = str(number)
            sent = pika.BasicProperties(delivery_mode=2, message_id=name if with_ids else None)
            channel.basic_publish("", "q", name.encode(), sent)
        channel.connection.close()

    def shovel(self, **more: object) -> None:
        self.new.put_shovel(
            "s",
            src_uri=self.source.amqp_url,
            src_queue="q",
            dest_uri=LOCAL,
            dest_queue="q",
            src_prefetch_count=50,
            reconnect_delay=0.02,
            **more,
        ).raise_for_status()

    def wait_for(self, forwarded: int) -> None:
        eventually(lambda: self.new.shovel("s")["forwarded"] >= forwarded)

    def drained(self) -> None:
        eventually(lambda: self.old.messages("q") == 0 and self.new.shovel("s")["pending"] == 0)

    def arrived(self) -> Counter[str]:
        taken = self.new.take("q", self.new.messages("q"))
        return Counter(body.decode() for _, _, body in taken)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with TestBroker(clock="real") as source, TestBroker(clock="real") as target:
        both = Pair(source, target)
        yield both
        both.old.close()
        both.new.close()


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_lost_connection_to_the_source_loses_nothing(pair: Pair, with_ids: bool) -> None:
    pair.fill(with_ids)
    pair.shovel()

    for wanted in (1, 400, 900):
        pair.wait_for(wanted)
        pair.source.drop_connections()
    pair.drained()

    row = pair.new.shovel("s")
    arrived = pair.arrived()
    assert set(arrived) == set(map(str, range(COUNT)))
    twice = sum(arrived.values()) - COUNT
    assert twice <= row["redelivered"]
    if with_ids:
        assert twice == 0


def test_a_crash_of_the_source_loses_nothing(pair: Pair) -> None:
    pair.fill(with_ids=True)
    pair.shovel()

    pair.wait_for(200)
    pair.source.crash_and_restart()
    pair.drained()

    arrived = pair.arrived()
    assert set(arrived) == set(map(str, range(COUNT)))
    assert sum(arrived.values()) == COUNT  # equal messages with an id are not moved twice


def test_a_crash_of_the_broker_that_runs_it_loses_nothing_and_the_shovel_goes_on(pair: Pair) -> None:
    pair.fill(with_ids=True)
    pair.shovel()

    pair.wait_for(200)
    pair.target.crash_and_restart()
    pair.drained()

    row = pair.new.shovel("s")
    arrived = pair.arrived()
    assert set(arrived) == set(map(str, range(COUNT)))
    assert sum(arrived.values()) == row["forwarded"]  # counted with the messages, so not lost either
    assert sum(arrived.values()) - COUNT <= row["redelivered"]
    assert pair.new.get("/parameters") == pair.new.get("/parameters/shovel")


def test_a_crash_of_a_destination_elsewhere_loses_nothing(pair: Pair) -> None:
    pair.fill(with_ids=True)
    here, there = pair.old, pair.new  # the shovel runs at the source and pushes
    there.declare("q")
    here.put_shovel(
        "s",
        src_uri=LOCAL,
        src_queue="q",
        dest_uri=pair.target.amqp_url,
        dest_queue="q",
        src_prefetch_count=50,
        reconnect_delay=0.02,
    ).raise_for_status()

    eventually(lambda: here.shovel("s")["forwarded"] >= 200)
    pair.target.crash_and_restart()
    eventually(lambda: here.messages("q") == 0 and here.shovel("s")["pending"] == 0)

    row = here.shovel("s")
    arrived = pair.arrived()
    assert set(arrived) == set(map(str, range(COUNT)))
    assert sum(arrived.values()) - COUNT <= row["redelivered"]


def test_messages_for_a_full_queue_stay_at_the_source_until_there_is_room(pair: Pair) -> None:
    pair.new.declare("q", **{"x-max-length": 2, "x-overflow": "reject-publish"})
    pair.old.declare("q")
    pair.old.publish("q", list("abcd"))
    pair.shovel()

    eventually(lambda: pair.new.shovel("s")["refused"] >= 2)

    assert pair.new.messages("q") == 2
    assert "full" in pair.new.shovel("s")["last_error"]
    taken = [body for _, _, body in pair.new.take("q", 4)]
    assert sorted(taken) == [b"a", b"b", b"c", b"d"]
    eventually(lambda: pair.old.messages("q") == 0)


def test_a_shovel_reads_over_tls_from_a_broker_whose_certificate_it_can_verify(
    pair: Pair, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    cert, key = certificates.issue("broker")
    config = Config(
        amqp=Amqp(tls_port=0, tls_cert=cert, tls_key=key),
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
    )
    with TestBroker(config=config) as source:
        port = source.call(lambda node: node.amqp_tls_port)
        old = Operator(source.http_url, source.amqp_url)
        old.declare("q")
        old.publish("q", ["x"])
        uri = f"amqps://guest:guest@127.0.0.1:{port}/%2F"
        ends = {"src_queue": "q", "dest_uri": LOCAL, "dest_queue": "q", "reconnect_delay": 0.02}

        pair.new.put_shovel("tls", src_uri=uri, **ends).raise_for_status()
        eventually(lambda: "certificate" in (pair.new.shovel("tls")["last_error"] or "").lower())
        pair.new.put_shovel("tls", src_uri=f"{uri}?cacertfile={certificates.authority}", **ends)

        assert [body for _, _, body in pair.new.take("q", 1)] == [b"x"]
        old.close()

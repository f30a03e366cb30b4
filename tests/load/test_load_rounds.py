"""Every workload runs against a real broker, loses nothing, and cleans up."""

from dataclasses import replace
from pathlib import Path

import pytest
from load_support import measured

from certificates import Certificates
from holtmq.config import Amqp, Config, Limits
from holtmq.load.comparison import Target, compare, distinct
from holtmq.load.engine import Engine
from holtmq.load.errors import LoadError
from holtmq.load.link import Address, Link
from holtmq.load.rounds import run_round
from holtmq.load.workloads import WORKLOADS, Workload
from holtmq.testing import TestBroker

pytestmark = pytest.mark.e2e


@pytest.fixture
def by_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round lasts for some messages, not for a time: a thread frozen that long would send not one."""

    def some(engine: Engine, _workload: Workload, _seconds: float) -> None:
        enough = engine.consumed + 100
        engine.run(lambda: engine.consumed >= enough)

    monkeypatch.setattr("holtmq.load.rounds._work", some)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=list(WORKLOADS))
def test_a_round_measures_and_leaves_no_queue_behind(workload: Workload) -> None:
    small = replace(
        workload,
        messages=min(workload.messages, 5000),
        distinct=min(workload.distinct, 2000),
        backlog=min(workload.backlog, 20_000),
    )
    warm_up = 0.05
    with TestBroker() as broker:
        address = Address.parse(broker.amqp_url)
        seen = measured(lambda: run_round(address, small, seconds=0.2, warm_up=warm_up))
        left = broker.queues()

    assert seen.messages > 0
    assert seen.rate == pytest.approx(seen.messages / seen.seconds)
    assert seen.slow_reads == 0
    assert left == []
    if workload.name == "latency":
        assert seen.latency_us is not None
        assert 0 < seen.latency_us.p50 <= seen.latency_us.p99 <= seen.latency_us.p999
        # Never ahead of its pace, and behind only as far as this machine is slow; the warm-up's last ones
        # may arrive in the round.
        assert seen.messages <= workload.rate * (seen.seconds + warm_up) + 1
    if workload.window == 1:
        assert seen.confirm_us is not None
        assert seen.confirm_us.samples > 0


def test_a_fanout_counts_messages_once_and_deliveries_for_each_queue() -> None:
    with TestBroker() as broker:
        address = Address.parse(broker.amqp_url)
        seen = measured(lambda: run_round(address, WORKLOADS["fanout-5"], seconds=0.2, warm_up=0))

    assert seen.deliveries >= 5 * seen.messages


def test_a_lost_message_fails_the_round() -> None:
    # A queue that keeps its ten newest messages loses the others without a word.
    lossy = replace(WORKLOADS["manual-ack"], prefetch=1, queue_arguments={"x-max-length": 10}, backlog=0)
    with TestBroker() as broker, pytest.MonkeyPatch.context() as patch:
        patch.setattr("holtmq.load.engine._STALL_SECONDS", 0.3)
        with pytest.raises(LoadError, match="nothing moved"):
            run_round(Address.parse(broker.amqp_url), lossy, seconds=0.1, warm_up=0)


@pytest.mark.usefixtures("by_count")
def test_a_dropped_connection_fails_the_round_and_the_comparison_goes_on() -> None:
    drain = Engine.drain
    with TestBroker() as broker, pytest.MonkeyPatch.context() as patch:

        def drop_once_then_drain(engine: Engine) -> None:
            patch.setattr(Engine, "drain", drain)
            broker.drop_connections()
            engine.publishers[0].send(1)  # or everything may have arrived, and the round has nothing to miss
            drain(engine)

        patch.setattr(Engine, "drain", drop_once_then_drain)
        target = Target.at(broker.amqp_url)
        outcome = compare([target], WORKLOADS["auto-ack"], rounds=2, seconds=0.1, warm_up=0)

    assert [figures.rounds for figures in outcome.figures] == [1]
    assert len(outcome.failures) == 1
    assert "closed a" in outcome.failures[0]


def test_a_wrong_password_is_told_with_the_brokers_words() -> None:
    with TestBroker() as broker:
        address = replace(Address.parse(broker.amqp_url), password="wrong")
        with pytest.raises(LoadError, match=r"closed the connection|403|ACCESS_REFUSED"):
            Link(address)


@pytest.mark.usefixtures("by_count")
def test_two_brokers_of_one_product_are_told_apart() -> None:
    with TestBroker() as first, TestBroker() as second:
        targets = distinct([Target.at(first.amqp_url), Target.at(second.amqp_url)])
        outcome = compare(targets, WORKLOADS["auto-ack"], rounds=2, seconds=0.1, warm_up=0)

    assert [figures.rounds for figures in outcome.figures] == [2, 2]
    assert outcome.speed_ratio == outcome.figures[0].rate / outcome.figures[1].rate
    assert len({target.label for target in targets}) == 2


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://host", Address("host", 5672)),
        ("amqp://ann:s%40crt@host:99/my%2Fvhost", Address("host", 99, "ann", "s@crt", "my/vhost")),
        ("amqp://[::1]:1/", Address("::1", 1)),
    ],
)
def test_an_url_becomes_an_address(url: str, expected: Address) -> None:
    assert Address.parse(url) == expected


@pytest.mark.parametrize("url", ["http://host", "host:5672", "amqp://"])
def test_an_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(LoadError, match="not an address"):
        Address.parse(url)


def test_a_round_over_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    cert, key = certificates.issue("broker")
    limits = Limits(memory_high_watermark=1.0, disk_free_min_bytes=0)
    config = Config(amqp=Amqp(tls_cert=cert, tls_key=key, tls_port=0), limits=limits)
    many = replace(WORKLOADS["deep"], messages=5_000, body_bytes=2_000)  # more than socket buffers hold
    with TestBroker(config=config) as broker:
        url = f"amqps://127.0.0.1:{broker.call(lambda node: node.amqp_tls_port)}"
        seen = run_round(Address.parse(url, str(certificates.authority)), many, seconds=0.1, warm_up=0)
        with pytest.raises(LoadError, match="--tls-ca names the authority"):
            Link(Address.parse(url))

    assert seen.messages == 5_000
    assert seen.slow_reads == 0

"""Metrics about standbys: what the owner of the log knows of them, and what a standby itself exposes.

Owns: those families. Must not touch: counting. A standby has no broker yet: it exposes its role and its
certificates, which matter on the day it takes over.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from holtmq.http.engine.context import ServedCertificate
from holtmq.journal.replica.view import Peer

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


class Standby(Collector):
    """All metrics of a node that waits for the log."""

    def __init__(self, served: Iterable[ServedCertificate], now: float) -> None:
        self._served = served
        self._now = now

    def collect(self) -> Iterable[Metric]:
        """Every family, once."""
        yield role(is_standby=True)
        yield certificate_expiry(self._served, self._now)


def role(*, is_standby: bool) -> Metric:
    """Whether this node waits for the log."""
    return GaugeMetricFamily("holtmq_standby", "1 while another node owns the log", value=float(is_standby))


def certificate_expiry(served: Iterable[ServedCertificate], now: float) -> Metric:
    """How long the certificates of the TLS listeners are valid; no sample for one that cannot be parsed."""
    family = GaugeMetricFamily(
        "holtmq_certificate_expiry_seconds",
        "Until the first certificate of the chain ends that this TLS listener presents; negative: since then",
        labels=("listener",),
    )
    for one in served:
        if one.ends:
            family.add_metric((one.listener,), min(one.ends) - now)
    return family


def standbys(peers: Iterable[Peer]) -> Iterator[Metric]:
    """How far other nodes are behind, for the owner of the log."""
    seconds = GaugeMetricFamily(
        "holtmq_standby_behind_seconds",
        "How far a standby is behind this node, or since when it is silent",
        labels=("node",),
    )
    size = GaugeMetricFamily(
        "holtmq_standby_behind_bytes", "How much of the log a standby lacked when last seen", labels=("node",)
    )
    for peer in peers:
        if not peer.is_gone:
            seconds.add_metric((peer.name,), peer.lag_seconds)
            size.add_metric((peer.name,), peer.behind_bytes)
    yield seconds
    yield size


def exposition(collector: Collector) -> bytes:
    """The metrics in Prometheus' text form."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)

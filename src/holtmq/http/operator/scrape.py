"""``GET /metrics`` for scrapers: RabbitMQ's metric names where it has the metric, ``holtmq_`` for ours.

Owns: the families and their names. Must not touch: counting. ``/metrics`` reads running totals, so its cost
does not depend on the number of queues; ``/metrics/per-object`` has a row for every queue and group.
"""

import os
import resource
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from holtmq import __version__
from holtmq.auth.rights import PUBLIC
from holtmq.http.engine.context import Context
from holtmq.http.engine.endpoints import MONITOR, Call, Endpoint, Reply
from holtmq.http.operator.system import metrics as metrics_as_json
from holtmq.http.operator.system import resident_bytes, total_memory

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_ASKS_FOR_TEXT: Final = (b"text/plain", b"openmetrics-text")
_PROTOCOL: Final = ("protocol",)
_QUEUE: Final = ("vhost", "queue")


class Node(Collector):
    """Totals of the node."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def collect(self) -> Iterable[Metric]:
        """Every family, once."""
        yield from self._messages()
        yield from self._objects()
        yield from self._resources()
        yield from self._journal()

    def _messages(self) -> Iterator[Metric]:
        work, partitioned = self._context.sampler.work, self._context.sampler.streams
        for name, text, values in (
            ("rabbitmq_global_messages_received", "Messages that queues took in", (work[0], partitioned[0])),
            ("rabbitmq_global_messages_delivered", "Messages handed out", (work[1], partitioned[1])),
            ("rabbitmq_global_messages_acknowledged", "Messages acknowledged", (work[2], partitioned[2])),
        ):
            family = CounterMetricFamily(name, text, labels=_PROTOCOL)
            for protocol, value in zip(("amqp091", "http"), values, strict=True):
                family.add_metric((protocol,), value)
            yield family
        ready, unacked = self._context.sampler.ready, self._context.sampler.unacked
        yield GaugeMetricFamily("rabbitmq_queue_messages_ready", "Messages that wait", value=ready)
        yield GaugeMetricFamily("rabbitmq_queue_messages_unacked", "Out with consumers", value=unacked)
        yield GaugeMetricFamily("rabbitmq_queue_messages", "Both together", value=ready + unacked)
        dropped = self._context.broker.flow.dead_lettered
        yield CounterMetricFamily("holtmq_dead_lettered_messages", "Dead-lettered", value=dropped)

    def _objects(self) -> Iterator[Metric]:
        context = self._context
        info = GaugeMetricFamily(
            "rabbitmq_identity_info", "This node", labels=("rabbitmq_node", "rabbitmq_cluster")
        )
        info.add_metric(("holt@localhost", "holt@localhost"), 1)
        build = GaugeMetricFamily("rabbitmq_build_info", "Versions", labels=("rabbitmq_version", "product"))
        build.add_metric((__version__, "HoltMQ"), 1)
        yield from (info, build)
        yield GaugeMetricFamily("rabbitmq_connections", "Open connections", value=context.clients.counts()[0])
        yield GaugeMetricFamily("rabbitmq_queues", "Work queues", value=len(context.broker.queues_by_id))
        queues = len(context.service.store.queues)
        yield GaugeMetricFamily("holtmq_partitioned_queues", "Partitioned queues", value=queues)

    def _resources(self) -> Iterator[Metric]:
        context = self._context
        limits, alarm = context.config.limits, context.alarm()
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield GaugeMetricFamily(
            "rabbitmq_process_resident_memory_bytes", "Memory in use", value=resident_bytes()
        )
        limit = limits.memory_bytes(total_memory())
        yield GaugeMetricFamily("rabbitmq_resident_memory_limit_bytes", "Alarm above this", value=limit)
        try:
            disk = os.statvfs(context.config.data.dir)
        except OSError:  # an in-memory journal has no directory
            pass
        else:
            free = disk.f_bavail * disk.f_frsize
            yield GaugeMetricFamily("rabbitmq_disk_space_available_bytes", "Free disk", value=free)
        yield GaugeMetricFamily(
            "rabbitmq_disk_space_available_limit_bytes", "Alarm below this", value=limits.disk_free_min_bytes
        )
        for name, word in (("memory_used", "memory"), ("free_disk_space", "disk")):
            yield GaugeMetricFamily(
                f"rabbitmq_alarms_{name}_watermark", "1 while it blocks publishers", value=int(word in alarm)
            )
        yield GaugeMetricFamily("holtmq_up", "1 when usable", value=int(context.health()[0]))
        uptime = context.clock() - context.started_at
        yield GaugeMetricFamily("holtmq_uptime_seconds", "Since the start", value=uptime)
        yield CounterMetricFamily("holtmq_cpu_seconds", "CPU time", value=used.ru_utime + used.ru_stime)

    def _journal(self) -> Iterator[Metric]:
        journal, stats = self._context.journal, self._context.journal.stats()
        for name, text, value in (
            ("bytes_written", "Bytes written", stats.bytes_written),
            ("records", "Records written", stats.records),
            ("commits", "Group commits", stats.commits),
            ("checkpoints", "Checkpoints", stats.checkpoints),
            ("checkpoint_failures", "Checkpoints that failed", stats.checkpoint_failures),
        ):
            yield CounterMetricFamily(f"holtmq_journal_{name}", text, value=value)
        for name, text, size in (
            ("last_sync_seconds", "How long the last sync took", stats.last_sync_seconds),
            ("bytes_on_disk", "Size of all segments", stats.bytes_on_disk),
            ("segments", "Segments", stats.segments),
            ("backlog_bytes", "Appended and not yet durable", journal.backlog),
        ):
            yield GaugeMetricFamily(f"holtmq_journal_{name}", text, value=size)


class Rows(Collector):
    """Families that were collected beforehand."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        return self._families


async def metrics(call: Call) -> object:
    """Text for scrapers, which ask for it in Accept; JSON for Queen's clients and all others."""
    accepted = call.exchange.headers.get(b"accept", b"")
    if not any(kind in accepted for kind in _ASKS_FOR_TEXT):
        return await metrics_as_json(call)
    return _text(Node(call.context))


async def per_object(call: Call) -> object:
    """The node's totals, and a row for every queue and group."""
    return _text(Node(call.context), Rows(await _per_queue(call)))


async def _per_queue(call: Call) -> list[Metric]:
    from holtmq.http.dashboard.api import dashboard_of

    dashboard = dashboard_of(call.context)
    ready = GaugeMetricFamily("rabbitmq_detailed_queue_messages_ready", "Messages that wait", labels=_QUEUE)
    unacked = GaugeMetricFamily("rabbitmq_detailed_queue_messages_unacked", "Out", labels=_QUEUE)
    consumers = GaugeMetricFamily("rabbitmq_detailed_queue_consumers", "Consumers", labels=_QUEUE)
    oldest = GaugeMetricFamily("holtmq_queue_oldest_message_age_seconds", "Oldest waiting", labels=_QUEUE)
    letters = GaugeMetricFamily("holtmq_queue_dead_letters", "Dead letters kept", labels=_QUEUE)
    for row in (await dashboard.facts.queues()).rows:
        where = (row.vhost, row.name)
        ready.add_metric(where, row.ready)
        consumers.add_metric(where, row.consumers)
        if row.unacked is not None:
            unacked.add_metric(where, row.unacked)
        if row.oldest is not None or not row.ready:
            oldest.add_metric(where, row.oldest or 0.0)
        if row.dead_letters is not None:
            letters.add_metric(where, row.dead_letters)
    lag = GaugeMetricFamily("holtmq_group_lag_messages", "Messages behind", labels=("queue", "group"))
    behind = GaugeMetricFamily(
        "holtmq_group_lag_seconds", "Age of the oldest unread", labels=("queue", "group")
    )
    await dashboard.watch.findings()  # refreshes the lags
    for one in dashboard.watch.lags():
        lag.add_metric((one.queue, one.group), one.messages)
        behind.add_metric((one.queue, one.group), one.seconds)
    held = GaugeMetricFamily("holtmq_consumer_oldest_unacked_age_seconds", "Longest held", labels=_QUEUE)
    now_ms = int(call.now * 1000)
    for (vhost, queue), holders in (await dashboard.watch.holders()).items():
        held.add_metric((vhost, queue), max((now_ms - one.since) / 1000 for one in holders))
    return [ready, unacked, consumers, oldest, letters, lag, behind, held]


def _text(*collectors: Collector) -> Reply:
    registry = CollectorRegistry(auto_describe=False)
    for one in collectors:
        registry.register(one)
    return Reply(200, generate_latest(registry), _TEXT)


ENDPOINTS: Final = (
    Endpoint("GET", "/metrics", PUBLIC, "system", "Figures: text for scrapers, else JSON", metrics),
    Endpoint("GET", "/metrics/per-object", MONITOR, "system", "Figures of every queue and group", per_object),
)

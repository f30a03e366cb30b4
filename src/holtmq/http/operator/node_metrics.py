"""``GET /metrics`` for scrapers: RabbitMQ's metric names where it has the metric, ``holtmq_`` for ours.

Owns: the families and their names. Must not touch: counting. ``/metrics`` reads running totals, so its cost
does not depend on the number of queues; ``/metrics/per-object`` adds ``object_metrics.py``.
"""

import os
import platform
import resource
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from holtmq import __version__
from holtmq.auth.rights import PUBLIC
from holtmq.durations import Durations
from holtmq.http.engine.context import NODE, Context
from holtmq.http.engine.endpoints import MONITOR, Call, Endpoint, Reply, Stream
from holtmq.http.management.runtime import cluster_name
from holtmq.http.operator import standby_metrics
from holtmq.http.operator.standby_metrics import TEXT, exposition
from holtmq.http.operator.system import metrics as metrics_as_json
from holtmq.http.operator.system import resident_bytes, total_memory

_ASKS_FOR_TEXT: Final = (b"text/plain", b"openmetrics-text")
_PROTOCOL: Final = ("protocol",)
_AMQP: Final = "amqp091"
_HTTP: Final = "http"


class Node(Collector):
    """Totals of the node."""

    def __init__(self, context: Context, endpoint: str = "aggregated") -> None:
        self._context = context
        self._endpoint = endpoint  # as RabbitMQ calls it: its boards choose by this label

    def collect(self) -> Iterable[Metric]:
        """Every family, once."""
        yield from self._identity()
        yield from self._messages()
        yield from self._objects()
        yield from self._resources()
        yield from self._journal()

    def _identity(self) -> Iterator[Metric]:
        name = cluster_name(self._context.broker)
        yield _info(
            "rabbitmq_identity",
            "This node",
            rabbitmq_node=NODE,
            rabbitmq_cluster=name,
            rabbitmq_cluster_permanent_id=name,
            rabbitmq_endpoint=self._endpoint,
        )
        yield _info(
            "rabbitmq_build",
            "Versions; erlang_version is where RabbitMQ's boards show the runtime",
            rabbitmq_version=__version__,
            product_name="HoltMQ",
            product_version=__version__,
            erlang_version=f"Python {platform.python_version()}",
        )
        uptime = self._context.clock() - self._context.started_at
        yield _gauge(
            "rabbitmq_erlang_uptime_seconds", "Since the start, as RabbitMQ's boards name it", uptime
        )
        yield _gauge("holtmq_uptime_seconds", "Since the start", uptime)

    def _messages(self) -> Iterator[Metric]:
        counts, sampler = self._context.broker.counts, self._context.sampler
        work, partitioned = sampler.work, sampler.streams
        consumed = counts.delivered_auto_ack + counts.delivered_manual_ack
        delivered = consumed + counts.get_auto_ack + counts.get_manual_ack
        for name, text, amqp, http in (
            ("received", "Messages from publishers", counts.received, partitioned[0]),
            ("received_confirm", "Of these, with confirms", counts.received_confirm, None),
            ("confirmed", "Messages confirmed to publishers", counts.confirmed, None),
            ("routed", "Messages that queues took in: one for each queue", work[0], partitioned[0]),
            ("unroutable_returned", "Mandatory, and no queue took them", counts.returned, None),
            ("unroutable_dropped", "Not mandatory, and no queue took them", counts.dropped, None),
            ("delivered", "Messages handed out", delivered, partitioned[1]),
            ("delivered_consume_auto_ack", "To consumers without acks", counts.delivered_auto_ack, None),
            ("delivered_consume_manual_ack", "To consumers with acks", counts.delivered_manual_ack, None),
            ("delivered_get_auto_ack", "By basic.get without acks", counts.get_auto_ack, None),
            ("delivered_get_manual_ack", "By basic.get with acks", counts.get_manual_ack, None),
            ("get_empty", "basic.get on an empty queue", counts.get_empty, None),
            ("redelivered", "Messages handed out again", counts.redelivered, None),
            ("acknowledged", "Messages acknowledged", work[2], partitioned[2]),
        ):
            family = CounterMetricFamily(f"rabbitmq_global_messages_{name}", text, labels=_PROTOCOL)
            family.add_metric((_AMQP,), amqp)
            if http is not None:
                family.add_metric((_HTTP,), http)
            yield family
        yield _gauge("rabbitmq_queue_messages_ready", "Messages that wait", sampler.ready)
        yield _gauge("rabbitmq_queue_messages_unacked", "Out with consumers", sampler.unacked)
        yield _gauge("rabbitmq_queue_messages", "Both together", sampler.ready + sampler.unacked)
        dropped = self._context.broker.flow.dead_lettering.count
        yield _counter("holtmq_dead_lettered_messages", "Dead-lettered", dropped)

    def _objects(self) -> Iterator[Metric]:
        context, counts = self._context, self._context.broker.counts
        connections = counts.connections_opened - counts.connections_closed
        channels = counts.channels_opened - counts.channels_closed
        yield _gauge("rabbitmq_connections", "Open AMQP connections", connections)
        yield _gauge("rabbitmq_channels", "Open channels", channels)
        yield _gauge("rabbitmq_consumers", "AMQP consumers", counts.consumers)
        yield _gauge("rabbitmq_queues", "Queues that AMQP knows", len(context.broker.queues_by_id))
        for name, text, count in (
            ("consumers", "AMQP consumers", counts.consumers),
            ("publishers", "Open connections that have published", counts.publishers),
        ):
            family = GaugeMetricFamily(f"rabbitmq_global_{name}", text, labels=_PROTOCOL)
            family.add_metric((_AMQP,), count)
            yield family
        for name, text, total in (
            ("connections_opened", "Connections opened", counts.connections_opened),
            ("connections_closed", "Connections closed", counts.connections_closed),
            ("channels_opened", "Channels opened", counts.channels_opened),
            ("channels_closed", "Channels closed", counts.channels_closed),
            ("queues_declared", "Declarations of queues", counts.queues_declared),
            ("queues_created", "Queues created", counts.queues_created),
            ("queues_deleted", "Queues deleted", counts.queues_deleted),
        ):
            yield _counter(f"rabbitmq_{name}", text, total)
        queues = len(context.service.store.queues)
        yield _gauge("holtmq_partitioned_queues", "Partitioned queues", queues)

    def _resources(self) -> Iterator[Metric]:
        context = self._context
        limits, alarm = context.config.limits, context.alarm()
        used = resource.getrusage(resource.RUSAGE_SELF)
        # Since Linux 6.2 the folder's size is their number; listing 10,000 of them takes 8 ms.
        files = os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
        most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        memory_limit = limits.memory_bytes(total_memory())
        yield _gauge("rabbitmq_process_open_fds", "Open files and sockets", files)
        yield _gauge("rabbitmq_process_max_fds", "The most that may be open", most_files)
        yield _gauge("rabbitmq_process_resident_memory_bytes", "Memory in use", resident_bytes())
        yield _gauge("rabbitmq_resident_memory_limit_bytes", "Alarm above this", memory_limit)
        try:
            disk = os.statvfs(context.config.data.dir)
        except OSError:  # an in-memory journal has no directory
            pass
        else:
            free = disk.f_bavail * disk.f_frsize
            yield _gauge("rabbitmq_disk_space_available_bytes", "Free disk", free)
        disk_limit = limits.disk_free_min_bytes
        yield _gauge("rabbitmq_disk_space_available_limit_bytes", "Alarm below this", disk_limit)
        for name, word in (("memory_used", "memory"), ("free_disk_space", "disk")):
            text = "1 while it blocks publishers"
            yield _gauge(f"rabbitmq_alarms_{name}_watermark", text, int(word in alarm))
        yield standby_metrics.role(is_standby=False)
        replica = context.replica()
        yield from standby_metrics.standbys(() if replica is None else replica.peers)
        yield standby_metrics.certificate_expiry(context.certificates(), context.clock())
        yield _gauge("holtmq_up", "1 when usable", int(context.health()[0]))
        yield _counter("holtmq_cpu_seconds", "CPU time", used.ru_utime + used.ru_stime)
        yield _histogram(
            "holtmq_loop_delay_seconds",
            "How late the event loop ran a timer, ten times a second",
            context.loop_delay,
        )

    def _journal(self) -> Iterator[Metric]:
        journal, stats = self._context.journal, self._context.journal.stats()
        for name, text, value in (
            ("bytes_written", "Bytes written", stats.bytes_written),
            ("records", "Records written", stats.records),
            ("commits", "Group commits", stats.commits),
            ("polled_commits", "Group commits that the event loop sent and awaited", stats.polled_commits),
            ("checkpoints", "Checkpoints", stats.checkpoints),
            ("checkpoint_failures", "Checkpoints that failed", stats.checkpoint_failures),
        ):
            yield _counter(f"holtmq_journal_{name}", text, value)
        for name, text, size in (
            ("last_sync_seconds", "How long the last sync took", stats.last_sync_seconds),
            ("bytes_on_disk", "Size of all segments", stats.bytes_on_disk),
            ("segments", "Segments", stats.segments),
            ("backlog_bytes", "Appended and not yet durable", journal.backlog),
        ):
            yield _gauge(f"holtmq_journal_{name}", text, size)
        text = "Time of a group commit: write and sync"
        yield _histogram("holtmq_journal_commit_seconds", text, stats.commit_seconds)
        damage = self._context.broker.flow.damage
        yield _gauge("holtmq_messages_unreadable", "Set aside because they cannot be read", len(damage))


async def metrics(call: Call) -> object:
    """Text for scrapers, which ask for it in Accept; JSON for Queen's clients and all others."""
    accepted = call.request.headers.get(b"accept", b"").lower()
    if not any(kind in accepted for kind in _ASKS_FOR_TEXT):
        return await metrics_as_json(call)
    return Reply(200, exposition(Node(call.context)), TEXT)


async def per_object(call: Call) -> object:
    """The node's totals, and a row for every queue and group."""
    return Stream(_per_object(call.context, call.now), TEXT)


async def _per_object(context: Context, now: float) -> AsyncGenerator[bytes, None]:
    from holtmq.http.operator.object_metrics import row_text  # it imports the dashboard, which imports this

    yield exposition(Node(context, "per-object"))
    async for piece in row_text(context, now):
        yield piece


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _info(name: str, text: str, **labels: str) -> Metric:
    family = GaugeMetricFamily(f"{name}_info", text, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), 1)
    return family


def _histogram(name: str, text: str, durations: Durations) -> Metric:
    buckets = [(f"{bound:g}".replace("inf", "+Inf"), count) for bound, count in durations.cumulative()]
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=durations.total)


ENDPOINTS: Final = (
    Endpoint("GET", "/metrics", PUBLIC, "system", "Figures: text for scrapers, else JSON", metrics),
    Endpoint("GET", "/metrics/per-object", MONITOR, "system", "Figures of every queue and group", per_object),
)

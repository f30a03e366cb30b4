"""``GET /metrics/prometheus``: every counter in Prometheus' text format.

Owns: the families and their names (those of Queen's dashboards, and ours for AMQP queues and the journal).
Must not touch: counting; values are collected on each scrape, in steps: 100,000 queues have 300,000 lines.
"""

import resource
from collections.abc import AsyncGenerator, Iterable, Iterator
from itertools import islice
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from holtmq.auth.rights import PUBLIC
from holtmq.broker.partitioned.groups.group import micros
from holtmq.http.engine.context import Context
from holtmq.http.engine.endpoints import Call, Endpoint, Stream
from holtmq.http.engine.history import MINUTE_US, OTHERS
from holtmq.http.engine.pipeline_reports import QueryState
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.operator.standby_metrics import exposition
from holtmq.http.operator.system import resident_bytes

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_CLUSTER: Final = ("scope",)
_ROWS: Final = 200  # written at once: about 1 ms

Rows = Iterable[tuple[tuple[str, ...], float]]  # the labels and the value of each


class NodeCollector:
    """Collects the node's counters on each scrape."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def parts(self) -> Iterator[Metric]:
        """All families. One with very many rows comes in parts, so it walks over a copy."""
        yield from self._process()
        yield from self._maintenance()
        yield from self._partitioned()
        yield from self._totals()
        yield from self._work_queues()
        yield from self._journal()
        yield from self._pipelines()

    def _process(self) -> Iterator[Metric]:
        now = self._context.clock()
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield _gauge("queen_uptime_seconds", "Seconds since the start", now - self._context.started_at)
        yield _gauge("queen_process_resident_memory_bytes", "Resident memory", resident_bytes())
        yield _gauge("queen_process_virtual_memory_bytes", "Virtual memory", _virtual_bytes())
        yield _counter("queen_cpu_user_microseconds", "CPU time in user mode", used.ru_utime * 1e6)
        yield _counter("queen_cpu_system_microseconds", "CPU time in the kernel", used.ru_stime * 1e6)

    def _maintenance(self) -> Iterator[Metric]:
        spool = self._context.service.spool
        usable = self._context.health()[0]
        yield _gauge("queen_maintenance_mode_enabled", "Pushes are spooled", spool.pushes_spooled)
        yield _gauge("queen_file_buffer_pending", "Messages in the spool", len(spool))
        yield _gauge("queen_file_buffer_failed", "Messages the spool could not place", 0)
        yield _gauge("queen_file_buffer_db_healthy", "The journal accepts writes", usable)

    def _partitioned(self) -> Iterator[Metric]:
        service, history = self._context.service, self._context.history
        minute = history.minute(micros(self._context.clock()) - MINUTE_US)
        minute.pop(OTHERS, None)
        store, line, letter_count = service.store, service.line, 0
        budget = store.dedup_budget
        yield _gauge("holt_dedup_ids", "Transaction ids remembered", budget.ids)
        yield _counter(
            "holt_dedup_ids_forgotten_early", "Forgotten within their dedup window", budget.forgotten_early
        )
        queues = list(store.queues.items())
        of_queue = ("queue",)
        letters: Rows = (((name,), len(queue.dead_letters)) for name, queue in queues)
        for part in _in_parts("queen_dlq_depth_by_queue", "Dead letters", of_queue, letters):
            letter_count += sum(int(sample.value) for sample in part.samples)
            yield part
        yield _gauge("queen_dlq_depth", "Dead letters", letter_count)
        stored: Rows = (((name,), queue.log.live) for name, queue in queues)
        yield from _in_parts("holt_queue_messages", "Messages stored", of_queue, stored)
        parked: Rows = (((name,), line.waiting_on(name)) for name, _ in queues)
        yield from _in_parts("queen_queue_parked_consumers", "Pops that wait", of_queue, parked)
        for metric, field in _PER_MINUTE:
            rows: Rows = [((name,), getattr(row, field)) for name, row in minute.items()]
            yield from _in_parts(metric, "In the last full minute", of_queue, rows)
        acks: Rows = (
            ((name, result), count)
            for name, row in minute.items()
            for result, count in (("success", row.ack_success), ("failed", row.ack_failed))
        )
        with_result = ("queue", "result")
        yield from _in_parts("queen_queue_ack_per_minute", "In the last full minute", with_result, acks)
        lag: Rows = (
            ((name, stat), lag_us / 1000)
            for name, row in minute.items()
            for stat, lag_us in (
                ("avg", row.lag_sum_us / max(row.pop_requests, 1)),
                ("max", row.lag_max_us),
            )
        )
        with_stat, text = ("queue", "stat"), "Age at delivery, last minute"
        yield from _in_parts("queen_queue_pop_lag_milliseconds", text, with_stat, lag)

    def _totals(self) -> Iterator[Metric]:
        total = self._context.service.counters.total
        for metric, value in (
            ("queen_cluster_push_requests", total.push_requests),
            ("queen_cluster_push_messages", total.push_messages),
            ("queen_cluster_pop_requests", total.pop_requests),
            ("queen_cluster_pop_messages", total.pop_messages),
            ("queen_cluster_ack_requests", total.ack_requests),
            ("queen_cluster_ack_messages", total.ack_success + total.ack_failed),
            ("queen_cluster_transactions", total.transactions),
            ("queen_cluster_dlq", total.dead_letters),
            ("queen_cluster_db_errors", 0),
        ):
            family = CounterMetricFamily(metric, "Since the start", labels=_CLUSTER)
            family.add_metric(("cluster",), value)
            yield family
        results = CounterMetricFamily("queen_cluster_ack", "Since the start", labels=("scope", "result"))
        results.add_metric(("cluster", "success"), total.ack_success)
        results.add_metric(("cluster", "failed"), total.ack_failed)
        yield results

    def _work_queues(self) -> Iterator[Metric]:
        labels = ("vhost", "queue")
        queues = list(self._context.broker.queues_by_id.values())
        ready: Rows = (((queue.vhost, queue.name), len(queue)) for queue in queues)
        yield from _in_parts("holt_amqp_queue_messages_ready", "Ready", labels, ready)
        unacked: Rows = (((queue.vhost, queue.name), queue.unacked) for queue in queues)
        yield from _in_parts("holt_amqp_queue_messages_unacked", "Out with consumers", labels, unacked)
        consumers: Rows = (((queue.vhost, queue.name), len(queue.consumers)) for queue in queues)
        yield from _in_parts("holt_amqp_queue_consumers", "Consumers", labels, consumers)

    def _journal(self) -> Iterator[Metric]:
        stats = self._context.journal.stats()
        yield _counter("holt_journal_bytes_written", "Bytes written", stats.bytes_written)
        yield _counter("holt_journal_commits", "Group commits", stats.commits)
        yield _counter("holt_journal_syncs", "Syncs", stats.syncs)
        yield _gauge("holt_journal_bytes_on_disk", "Size of all segments", stats.bytes_on_disk)
        yield _gauge("holt_journal_backlog_bytes", "Not yet durable", self._context.journal.backlog)
        damage = self._context.broker.flow.damage
        yield _gauge("holt_messages_unreadable", "Set aside because they cannot be read", len(damage))
        yield _counter("holt_messages_found_unreadable", "Found unreadable since the start", damage.found)
        yield _counter("holt_messages_given_up", "Met after a repair had given them up", damage.dropped)

    def _pipelines(self) -> Iterator[Metric]:
        labels = ("query", "name")
        up = GaugeMetricFamily("holt_pipeline_running", "The query runs", labels=labels)
        rows = CounterMetricFamily("holt_pipeline_rows", "Rows read since it first reported", labels=labels)
        lag = GaugeMetricFamily("holt_pipeline_lag", "Messages it has not read", labels=labels)
        state = GaugeMetricFamily("holt_pipeline_state_rows", "Rows of state", labels=labels)
        taken = GaugeMetricFamily("holt_pipeline_batch_milliseconds", "Time of a batch", labels=labels)
        silent = GaugeMetricFamily("holt_pipeline_silent_seconds", "Since its last report", labels=labels)
        for kept in self._context.pipelines.all():
            report = kept.report
            who = (report.query, report.name)
            up.add_metric(who, report.state is QueryState.RUNNING)
            rows.add_metric(who, kept.rows_total)
            if report.lag is not None:
                lag.add_metric(who, report.lag)
            state.add_metric(who, report.state_rows)
            taken.add_metric(who, report.duration_ms)
            silent.add_metric(who, max(0.0, self._context.clock() - kept.at))
        yield from (up, rows, lag, state, taken, silent)


_PER_MINUTE: Final = (
    ("queen_queue_push_requests_per_minute", "push_requests"),
    ("queen_queue_push_messages_per_minute", "push_messages"),
    ("queen_queue_pop_messages_per_minute", "pop_messages"),
    ("queen_queue_pop_empty_per_minute", "pop_empty"),
    ("queen_queue_transactions_per_minute", "transactions"),
)


def _in_parts(name: str, text: str, labels: tuple[str, ...], rows: Rows) -> Iterator[Metric]:
    """A gauge with very many rows, as several families of this name."""
    left = iter(rows)
    is_first = True
    while (part := list(islice(left, _ROWS))) or is_first:
        is_first = False
        family = GaugeMetricFamily(name, text, labels=labels)
        for values, value in part:
            family.add_metric(values, value)
        yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _virtual_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


async def prometheus(call: Call) -> object:
    return Stream(_written(call.context), _TEXT)


async def _written(context: Context) -> AsyncGenerator[bytes, None]:
    stepwise, last = Stepwise(), ""
    await context.history.read(micros(context.clock()), stepwise)
    for part in NodeCollector(context).parts():
        text = exposition(_Part(part))
        yield text.split(b"\n", 2)[2] if part.name == last else text  # # HELP and # TYPE come once
        last = part.name
        await stepwise.between()


class _Part(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


ENDPOINTS: Final = (
    Endpoint("GET", "/metrics/prometheus", PUBLIC, "system", "Figures for scrapers", prometheus),
)

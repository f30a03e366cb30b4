"""HTTP pushes, pops and acks whose traced messages leave spans, and range reads with links to their messages.

Owns: where spans begin and end. Must not touch: requests and answers, but for the ``traceId`` that a push's
``traceparent`` gives to items without one: it is how a later pop finds the trace.
"""

from collections.abc import Iterable
from typing import Final

from opentelemetry.trace import Span, SpanContext, SpanKind

from holtmq.broker.partitioned.groups.group import QUEUE_MODE
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.log.identifiers import partition_id
from holtmq.broker.partitioned.requests import Popped, PushItem
from holtmq.broker.work.timed_leases import WorkMessage
from holtmq.http.engine.context import Context
from holtmq.http.engine.request import HttpRequest
from holtmq.http.hot_routes import HotApis
from holtmq.http.queues.ack import AckApi, AckIn
from holtmq.http.queues.pop import Parameters, PopApi
from holtmq.http.queues.push import PushApi, PushItemIn
from holtmq.http.queues.work import WorkApi
from holtmq.tracing.spans import (
    Attributes,
    Spans,
    failed,
    of_header,
    of_properties,
    of_text,
    of_trace_id,
    trace_id_of,
)

_LINKS_MAX: Final = 128  # what OpenTelemetry's SDK keeps of a span
_LEASED_MAX: Final = 100_000


class Leased:
    """The traces of messages that workers hold: an ack names a message, but not its trace."""

    def __init__(self) -> None:
        self._traces: dict[tuple[str, str, str], SpanContext] = {}

    def add(self, partition: str, group: str, transaction: str, trace: SpanContext) -> None:
        """Note a delivered message; the oldest is forgotten when there are too many."""
        if len(self._traces) >= _LEASED_MAX:
            del self._traces[next(iter(self._traces))]
        self._traces[partition, group, transaction] = trace

    def take(self, partition: str, group: str, transaction: str) -> SpanContext | None:
        """The trace of a message that is settled now."""
        return self._traces.pop((partition, group, transaction), None)


def of_body(body: Body) -> SpanContext | None:
    """The trace of a stored message: by its ``traceId``, or by its headers if it came over AMQP."""
    found = of_trace_id(body.trace_id)
    if found is None and body.metadata is not None:
        return of_properties(body.metadata.header)
    return found


class TracedPushApi(PushApi):
    """A span for each pushed message that has a trace."""

    def __init__(self, spans: Spans, context: Context, work: WorkApi) -> None:
        super().__init__(context, work)
        self._spans = spans
        self._begun: list[Span] = []  # of the push being read

    def push(self, request: HttpRequest) -> None:
        """Push; the spans end when the messages are durable."""
        try:
            super().push(request)
        except Exception as error:
            self._end(str(error))
            raise
        if self._begun:
            spans, self._begun = self._begun, []
            self._journal.on_durable(lambda failure: end_all(spans, "" if failure is None else str(failure)))

    def _end(self, reason: str) -> None:
        spans, self._begun = self._begun, []
        end_all(spans, reason)

    def _read(self, request: HttpRequest, incoming: list[PushItemIn]) -> list[PushItem]:
        parent = of_text(request.header(b"traceparent"))
        if parent is not None:
            trace_id = trace_id_of(parent)
            for one in incoming:
                if one.trace_id is None:
                    one.trace_id = trace_id
        items = super()._read(request, incoming)
        for item in items:
            own = of_trace_id(item.body.trace_id)
            if own is not None:
                within = parent if parent is not None and parent.trace_id == own.trace_id else own
                attributes: Attributes = {
                    "messaging.message.id": item.body.transaction_id,
                    "messaging.destination.partition.id": item.partition,
                    "messaging.message.body.size": len(item.body.payload),
                }
                links = () if parent is None or within is parent else (parent,)
                self._begun.append(
                    self._spans.begin("publish", item.queue, within, SpanKind.SERVER, attributes, links)
                )
        return items


def end_all(spans: list[Span], reason: str) -> None:
    """End spans; with a reason, as failed."""
    for span in spans:
        if reason:
            failed(span, reason)
        span.end()


class TracedPopApi(PopApi):
    """A span for each delivered message that has a trace."""

    def __init__(self, spans: Spans, leased: Leased, context: Context, work: WorkApi) -> None:
        super().__init__(context, work)
        self._spans = spans
        self._leased = leased

    def _deliver(self, request: HttpRequest, asked: Parameters, popped: Popped, *, durable: bool) -> None:
        super()._deliver(request, asked, popped, durable=durable)
        reader = of_text(request.header(b"traceparent"))
        for run in popped.runs:
            for body in run.bodies:
                parent = of_body(body)
                if parent is None:
                    continue
                partition = partition_id(run.queue.number, run.delivery.partition)
                attributes: Attributes = {
                    "messaging.message.id": body.transaction_id,
                    "messaging.consumer.group.name": asked.group,
                    "messaging.destination.partition.id": run.queue.partitions[run.delivery.partition].name,
                }
                links = () if reader is None else (reader,)
                self._spans.begin(
                    "deliver", run.queue.name, parent, SpanKind.PRODUCER, attributes, links
                ).end()
                if not asked.auto_ack:
                    self._leased.add(partition, asked.group, body.transaction_id, parent)


class TracedWorkApi(WorkApi):
    """A span for each traced message of a work queue that a pop delivers."""

    def __init__(self, spans: Spans, leased: Leased, context: Context) -> None:
        super().__init__(context)
        self._spans = spans
        self._leased = leased

    def _deliver(
        self, request: HttpRequest, asked: Parameters, messages: list[WorkMessage], lease_id: str
    ) -> None:
        super()._deliver(request, asked, messages, lease_id)
        reader = of_text(request.header(b"traceparent"))
        for message in messages:
            parent = of_header(message.header)
            if parent is None:
                continue
            attributes: Attributes = {"messaging.message.id": message.transaction_id}
            links = () if reader is None else (reader,)
            queue = message.queue
            self._spans.begin("deliver", queue.name, parent, SpanKind.PRODUCER, attributes, links).end()
            if not asked.auto_ack:
                self._leased.add(self.partition_id(queue), asked.group, message.transaction_id, parent)


class TracedAckApi(AckApi):
    """A span for each settled message that has a trace."""

    def __init__(self, spans: Spans, leased: Leased, context: Context, work: WorkApi) -> None:
        super().__init__(context, work)
        self._spans = spans
        self._leased = leased

    def _settle(self, request: HttpRequest, incoming: list[AckIn], group: str | None) -> None:
        super()._settle(request, incoming, group)
        worker = of_text(request.header(b"traceparent"))
        for ack in incoming:
            reader = ack.consumer_group or group or QUEUE_MODE
            parent = self._leased.take(ack.partition_id, reader, ack.transaction_id)
            if parent is None:
                continue
            queue = self._work.queue_name(ack.partition_id) or ""
            attributes: Attributes = {
                "messaging.message.id": ack.transaction_id,
                "messaging.consumer.group.name": reader,
                "holtmq.settle.outcome": ack.status or "completed",
            }
            links = () if worker is None else (worker,)
            self._spans.begin("settle", queue, parent, SpanKind.SERVER, attributes, links).end()


class TracedRange:
    """One read of a range, as Spark's tasks make them: a span with links to the traces of its messages."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._seen: set[str] = set()

    def saw(self, trace_ids: Iterable[str]) -> None:
        """Link to traces not linked yet, up to a limit."""
        for text in trace_ids:
            if text in self._seen:
                continue
            if len(self._seen) >= _LINKS_MAX:
                return
            self._seen.add(text)
            context = of_trace_id(text)
            if context is not None:
                self._span.add_link(context)

    def ended(self) -> None:
        """The reader has everything, or left."""
        self._span.end()


def traced_apis(spans: Spans) -> HotApis:
    """The handlers of a node with tracing."""
    leased = Leased()
    return HotApis(
        lambda context, work: TracedPushApi(spans, context, work),
        lambda context, work: TracedPopApi(spans, leased, context, work),
        lambda context, work: TracedAckApi(spans, leased, context, work),
        lambda context: TracedWorkApi(spans, leased, context),
    )


def range_watch(spans: Spans, queue: str, first: int, end: int, traceparent: str | None) -> TracedRange:
    """Begin the span of a range read."""
    attributes: Attributes = {"holtmq.offset.first": first, "holtmq.offset.end": end}
    parent: SpanContext | None = of_text(traceparent)
    return TracedRange(spans.begin_linked("read", queue, parent, attributes))

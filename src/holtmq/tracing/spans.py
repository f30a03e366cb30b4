"""Spans of messages, and the trace contexts they join.

Owns: names and attributes (OpenTelemetry's conventions for messaging), and reading trace contexts. Must not
touch: messages.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from holtmq.wire.properties import PROPERTIES_AT, raw_headers

_FIELD: Final = b"traceparent"
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
Attributes = Mapping[str, AttributeValue]
_LOW_HALF: Final = (1 << 64) - 1


def of_text(text: str | None) -> SpanContext | None:
    """The context of a W3C ``traceparent``; None if it is missing or not valid."""
    parts = _TRACEPARENT.fullmatch(text) if text is not None else None
    if parts is None or text is None or text.startswith("ff"):
        return None
    context = SpanContext(int(parts[1], 16), int(parts[2], 16), True, TraceFlags(int(parts[3], 16)))
    return context if context.is_valid else None


def of_header(header: bytes) -> SpanContext | None:
    """The context in the headers of an AMQP message (its content header frame)."""
    return of_properties(header[PROPERTIES_AT:]) if _FIELD in header else None


def of_properties(properties: bytes) -> SpanContext | None:
    """The context in the headers of an AMQP message, by the bytes of its properties."""
    if _FIELD not in properties:
        return None
    value = raw_headers(properties).get("traceparent")
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    return of_text(value) if isinstance(value, str) else None


def of_trace_id(trace_id: str | None) -> SpanContext | None:
    """The trace that a message's ``traceId`` (a UUID) names. Its lower half replaces the unknown span."""
    if trace_id is None:
        return None
    number = int(trace_id.replace("-", ""), 16)
    context = SpanContext(number, number & _LOW_HALF, True, TraceFlags(TraceFlags.SAMPLED))
    return context if context.is_valid else None


def trace_id_of(context: SpanContext) -> str:
    """A trace's id in the form of a ``traceId``."""
    text = f"{context.trace_id:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class Spans:
    """Makes the spans of one node."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def begin(
        self,
        operation: str,
        where: str,
        parent: SpanContext,
        kind: SpanKind,
        attributes: Attributes,
        links: Iterable[SpanContext] = (),
    ) -> Span:
        """A span ``operation where`` in the trace of ``parent``."""
        return self._tracer.start_span(
            f"{operation} {where}",
            set_span_in_context(NonRecordingSpan(parent), Context()),
            kind,
            _attributes(operation, where, attributes),
            [Link(one) for one in links],
        )

    def begin_linked(
        self,
        operation: str,
        where: str,
        parent: SpanContext | None,
        attributes: Attributes,
    ) -> Span:
        """A span of many messages: links to their traces are added as they are seen."""
        context = Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())
        name = f"{operation} {where}"
        return self._tracer.start_span(
            name, context, SpanKind.SERVER, _attributes(operation, where, attributes)
        )


def _attributes(operation: str, where: str, attributes: Attributes) -> dict[str, AttributeValue]:
    return {
        "messaging.system": "holtmq",
        "messaging.operation.name": operation,
        "messaging.destination.name": where,
        **attributes,
    }


def failed(span: Span, reason: str) -> None:
    """Mark a span as failed."""
    span.set_status(Status(StatusCode.ERROR, reason))

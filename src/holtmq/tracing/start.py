"""Starting and stopping OpenTelemetry by its standard environment variables.

Owns: the tracer provider. Must not touch: the process's global provider; it belongs to the program around us.
"""

import os
from functools import partial
from importlib.metadata import entry_points
from typing import Final

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from holtmq import __version__
from holtmq.tracing.amqp import TracedConnection
from holtmq.tracing.http import range_watch, traced_apis
from holtmq.tracing.spans import Spans

_GROUP: Final = "opentelemetry_traces_exporter"
_OTLP: Final = {"": "otlp_proto_http", "http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


class CannotTrace(ValueError):
    """The environment asks for an exporter that is not there."""


class Tracing:
    """The spans of one node, from start to stop."""

    def __init__(self) -> None:
        exporters = [_exporter(name) for name in _wanted()]  # before the provider, which starts threads
        name = os.environ.get("OTEL_SERVICE_NAME", "holtmq")
        self._provider = TracerProvider(
            resource=Resource.create({SERVICE_NAME: name, "service.version": __version__}),
            shutdown_on_exit=False,
        )
        for exporter in exporters:
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        spans = Spans(self._provider.get_tracer("holtmq", __version__))
        self.connect = partial(TracedConnection, spans)
        self.apis = traced_apis(spans)
        self.watch_range = partial(range_watch, spans)

    def stop(self) -> None:
        """Export what is left. Blocks: call it from a thread."""
        self._provider.shutdown()


def _wanted() -> list[str]:
    names = [name.strip() for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",")]
    return [name for name in names if name not in ("", "none")]


def _exporter(name: str) -> SpanExporter:
    if name == "otlp":
        default = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", default)
        name = _OTLP.get(protocol, protocol)
    found = entry_points(group=_GROUP, name=name)
    if not found:
        known = ", ".join(sorted({one.name for one in entry_points(group=_GROUP)})) or "none"
        raise CannotTrace(f"no exporter of traces is called {name!r}; installed are: {known}")
    make = next(iter(found)).load()
    exporter = make()
    assert isinstance(exporter, SpanExporter)
    return exporter

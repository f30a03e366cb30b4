"""A receiver of spans, as a collector would be: OTLP over HTTP.

Owns: what arrived. A real socket and the real wire format; only the store is missing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Received:
    """Spans with plain attributes, in the order of their arrival."""

    url: str = ""
    spans: list["Span"] = field(default_factory=list)
    services: set[str] = field(default_factory=set)

    def named(self, name: str) -> list["Span"]:
        return [span for span in self.spans if span.name == name]


@dataclass
class Span:
    name: str
    trace: str
    parent: str
    links: list[tuple[str, str]]
    failed: str
    attributes: dict[str, Any]


@contextmanager
def receiver() -> Iterator[Received]:
    """Listen on a free port."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            _take(received, body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    received.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _take(received: Received, body: bytes) -> None:
    request = ExportTraceServiceRequest.FromString(body)
    for resource in request.resource_spans:
        names = {one.key: one.value.string_value for one in resource.resource.attributes}
        received.services.add(names["service.name"])
        for scope in resource.scope_spans:
            for span in scope.spans:
                received.spans.append(
                    Span(
                        span.name,
                        span.trace_id.hex(),
                        span.parent_span_id.hex(),
                        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                        span.status.message,
                        {
                            one.key: getattr(one.value, one.value.WhichOneof("value"))
                            for one in span.attributes
                        },
                    )
                )

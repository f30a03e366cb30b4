"""Health and metrics of a job service, over HTTP.

Owns: two pages: ``/health`` (200 or 503, as JSON) and ``/metrics`` (Prometheus). Must not touch: the jobs.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from holtmq.spark.errors import InvalidOption
from holtmq.spark.jobs.service import JobLife, Service, State


class ServiceHttp:
    """Listens on ``host:port`` while the context is open; port 0 takes a free one."""

    def __init__(self, service: Service, address: str) -> None:
        host, _, port = address.rpartition(":")
        if not port.isdigit():
            raise InvalidOption(f"--health {address}: write it as HOST:PORT, for example 127.0.0.1:6650")
        try:
            self._server = ThreadingHTTPServer((host or "127.0.0.1", int(port)), _handler(service))
        except OSError as error:
            raise InvalidOption(f"--health {address}: {error}") from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> "ServiceHttp":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(service: Service) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/health":
                self._answer(200 if service.healthy else 503, "application/json", health(service))
            elif path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4; charset=utf-8", metrics(service))
            else:
                self._answer(404, "text/plain", "there are /health and /metrics\n")

        def _answer(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: probes come every few seconds."""

    return Handler


def health(service: Service) -> str:
    """The state of each job as JSON."""
    jobs = {
        life.job.name: {
            "state": life.state.value,
            "restarts": life.restarts,
            "behind": life.figures.get("behind"),
            "last_error": life.last_error or None,
        }
        for life in service.lives
    }
    return json.dumps({"healthy": service.healthy, "jobs": jobs}) + "\n"


def metrics(service: Service) -> str:
    """The state of each job as Prometheus metrics."""
    lines: list[str] = []

    def family(name: str, kind: str, about: str, values: list[tuple[JobLife, float]]) -> None:
        lines.append(f"# HELP holt_pipeline_{name} {about}")
        lines.append(f"# TYPE holt_pipeline_{name} {kind}")
        for life, value in values:
            job = life.job.name.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'holt_pipeline_{name}{{job="{job}",kind="{life.job.kind}"}} {value}')

    lives = service.lives
    up = [(life, float(life.state is State.RUNNING)) for life in lives]
    family("job_up", "gauge", "1 while the job runs.", up)
    family(
        "job_restarts_total", "counter", "Restarts after a failure.", [(one, one.restarts) for one in lives]
    )
    family("job_rows_total", "counter", "Rows written.", [(one, one.total("rows")) for one in lives])
    family("job_batches_total", "counter", "Batches done.", [(one, one.total("batches")) for one in lives])
    behind = [(one, one.figures["behind"]) for one in lives if "behind" in one.figures]
    family("job_behind_messages", "gauge", "Messages not read yet.", behind)
    family(
        "job_last_progress_seconds",
        "gauge",
        "When the job last reported, as a Unix time.",
        [(one, one.last_progress_at) for one in lives if one.last_progress_at],
    )
    return "\n".join(lines) + "\n"

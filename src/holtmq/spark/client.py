"""The broker over HTTP, as the connector uses it: offsets, counts, rows as Arrow batches, staging.

Owns: one keep-alive connection, retries while the broker is unreachable, resuming a broken stream. Must not
touch: planning, Spark. Standard library and pyarrow only. Not picklable on purpose: each process has its own.

Every call may be repeated: reads change nothing, a part staged again replaces itself, a commit happens once.
"""

import http.client
import json
import logging
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from holtmq.spark.errors import BrokerRefused, BrokerUnreachable, InvalidOption
from holtmq.spark.offsets import Head
from holtmq.spark.options import Connection, Selection

T = TypeVar("T")

_ARROW: Final = "application/vnd.apache.arrow.stream"
_AWAY: Final = (OSError, http.client.HTTPException, pa.ArrowInvalid, EOFError)
_PAUSE: Final = 0.1
_PAUSE_MAX: Final = 2.0
_SILENCE: Final = 5.0  # seconds the broker may be unreachable before this is logged

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fetch:
    """What to fetch: a range of a relation, its columns and a filter."""

    queue: str
    number: int
    first: int
    stop: int
    columns: tuple[str, ...]
    partition: str = ""
    from_us: int | None = None
    to_us: int | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """A batch of rows, and how many messages of the range so far were deleted by retention."""

    rows: pa.RecordBatch
    gone: int


class BrokerClient:
    """The broker's HTTP calls over one connection, retried until ``retry_seconds`` have passed."""

    def __init__(self, connection: Connection) -> None:
        self._options = connection
        parts = urlsplit(connection.url)
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._base = parts.path.rstrip("/")
        self._tls = _tls(connection) if parts.scheme == "https" else None
        self._authorization = _authorization(connection)
        self._open: http.client.HTTPConnection | None = None

    def __enter__(self) -> "BrokerClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def heads(self, selection: Selection) -> list[Head]:
        """The selected queues, by name. A named queue must exist; a pattern may match none."""
        query = {
            "names": ",".join(selection.queues),
            "namespace": selection.namespace,
            "task": selection.task,
        }
        answer = self._json("GET", "/api/v1/ranges", query)
        # Matched here, where a slow pattern delays no other client; the broker accepts simple ones only.
        wanted = re.compile(selection.pattern or ".*", re.DOTALL).fullmatch
        found = [
            Head(row["name"], row["id"], row["firstOffset"], row["nextOffset"], row["messages"])
            for row in answer["queues"]
            if wanted(row["name"])
        ]
        return sorted(found, key=lambda head: head.key)

    def offsets_at(self, queues: Sequence[str], at_us: int) -> dict[str, int]:
        """The first offset at or after a time, by queue."""
        answer = self._json("GET", "/api/v1/ranges/offsets", {"names": ",".join(queues), "us": str(at_us)})
        return dict(answer["offsets"])

    def counts(self, queue: str, bounds: Sequence[int]) -> tuple[list[int], int]:
        """Messages stored between each pair of bounds, and the queue's oldest offset."""
        path = f"/api/v1/ranges/{quote(queue, safe='')}/counts"
        answer = self._json("POST", path, body={"bounds": list(bounds)})
        return list(answer["counts"]), int(answer["firstOffset"])

    def fit(self, queue: str, first: int, stop: int, max_bytes: int) -> tuple[int, int]:
        """How far from ``first`` a read of ``max_bytes`` reaches: (stop, bytes)."""
        path = f"/api/v1/ranges/{quote(queue, safe='')}/fit"
        answer = self._json("GET", path, {"from": str(first), "to": str(stop), "maxBytes": str(max_bytes)})
        return int(answer["to"]), int(answer["bytes"])

    def mirror(self, queue: str, group: str, offset: int) -> None:
        """Show the query's progress as that of a consumer group."""
        path = f"/api/v1/ranges/{quote(queue, safe='')}/groups/{quote(group, safe='')}"
        self._json("PUT", path, body={"offset": offset})

    def health(self) -> object:
        """The broker's health report."""
        return self._json("GET", "/health", {})

    def fetch(self, wanted: Fetch) -> Iterator[Fetched]:
        """The rows, batch by batch. If the connection breaks, wait for the broker and resume."""
        at, gone_before, gone = wanted.first, 0, 0
        deadline = self._deadline()
        pause = _PAUSE
        while True:
            try:
                for rows, following, lost in self._stream(wanted, at):
                    gone = gone_before + lost
                    yield Fetched(rows, gone)
                    at = following
                    deadline, pause = self._deadline(), _PAUSE
                if at >= wanted.stop:
                    return
                raise EOFError(f"the stream of {wanted.queue} ended at {at}, before {wanted.stop}")
            except _AWAY as error:
                self.close()
                pause = self._wait(deadline, pause, error)
                gone_before = gone

    def _stream(self, wanted: Fetch, at: int) -> Iterator[tuple[pa.RecordBatch, int, int]]:
        query = {
            "from": str(at),
            "to": str(wanted.stop),
            "id": str(wanted.number),
            "columns": ",".join(wanted.columns),
            "partition": wanted.partition,
            "fromTime": _iso(wanted.from_us),
            "toTime": _iso(wanted.to_us),
        }
        path = f"/api/v1/ranges/{quote(wanted.queue, safe='')}/rows"
        response = self._send("GET", path, query)
        with pa.ipc.open_stream(pa.PythonFile(response, "r")) as reader:
            while True:
                try:
                    rows, facts = reader.read_next_batch_with_custom_metadata()
                except StopIteration:
                    break
                yield rows, int(facts[b"next"]), int(facts[b"gone"])
        response.read()

    def stage(
        self,
        writer: str,
        batch: int,
        task: int,
        attempt: int,
        part: int,
        rows: bytes,
        defaults: Mapping[str, str],
    ) -> int:
        """Stage a part of a task's rows (an IPC stream); return how many the attempt has staged so far."""
        path = f"/api/v1/staging/{quote(writer, safe='')}/{batch}/{task}/{attempt}"
        answer = self._retried(lambda: self._call("PUT", path, {"part": str(part), **defaults}, rows, _ARROW))
        return int(answer["rows"])

    def commit(self, writer: str, batch: int, tasks: Sequence[Mapping[str, int]]) -> dict[str, int]:
        """Publish the batch; a repeat changes nothing."""
        path = f"/api/v1/staging/{quote(writer, safe='')}/{batch}/commit"
        return dict(self._json("POST", path, body={"tasks": list(tasks)}))

    def abort(self, writer: str, batch: int) -> None:
        """Discard what was staged."""
        self._json("DELETE", f"/api/v1/staging/{quote(writer, safe='')}/{batch}", {})

    def end(self, writer: str) -> None:
        """Discard what was staged, and what running tasks of this writer will still stage."""
        self._json("DELETE", f"/api/v1/staging/{quote(writer, safe='')}", {})

    def pop(self, queue: str, most: int, lease_seconds: float) -> bytes:
        """Lease messages of a work queue; return the raw response, empty when there are none."""
        query = {"batch": str(most), "leaseSeconds": f"{max(1, round(lease_seconds))}"}
        # Messages of a lost response are redelivered when their lease expires.
        path = f"/api/v1/pop/queue/{quote(queue, safe='')}"
        return self._retried(lambda: self._send("GET", path, query).read())

    def extend(self, lease: str, seconds: float) -> None:
        """Renew a lease."""
        self._json("POST", f"/api/v1/lease/{quote(lease, safe='')}/extend", body={"seconds": round(seconds)})

    def settle(self, acks: Sequence[Mapping[str, str]]) -> list[dict[str, object]]:
        """Acknowledge messages; return one result for each."""
        return list(self._json("POST", "/api/v1/ack/batch", body={"acknowledgments": list(acks)}))

    def publish(self, exchange: str, rows: bytes, key: str, ids: str) -> dict[str, object]:
        """Publish rows (an IPC stream) through an exchange."""
        path = f"/api/v1/exchanges/{quote(exchange, safe='')}/rows"
        query = {"routingKey": key, "ids": ids}
        return dict(self._retried(lambda: self._call("POST", path, query, rows, _ARROW)))

    def call(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None
    ) -> object:
        """For jobs: one JSON request to the broker, repeated while it is unreachable."""
        return self._json(method, path, query or {}, body)

    def _json(  # type: ignore[no-untyped-def]  # JSON: the callers above say what they expect
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None
    ):
        sent = None if body is None else json.dumps(body).encode()
        return self._retried(lambda: self._call(method, path, query or {}, sent, "application/json"))

    def _call(  # type: ignore[no-untyped-def]
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None, kind: str
    ):
        data = self._send(method, path, query, body, kind).read()
        return json.loads(data) if data else {}

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: bytes | None = None,
        kind: str = "application/json",
    ) -> http.client.HTTPResponse:
        connection = self._open
        if connection is None:
            connection = self._open = self._connect()
        headers = {"content-type": kind} if body is not None else {}
        if self._authorization:
            headers["authorization"] = self._authorization
        asked = urlencode({name: value for name, value in query.items() if value})
        connection.request(method, f"{self._base}{path}?{asked}", body, headers)
        response = connection.getresponse()
        if response.status >= 300:
            raise BrokerRefused(response.status, _reason(response.read()))
        return response

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._options.timeout)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._options.timeout, context=self._tls
        )

    def _retried(self, call: Callable[[], T]) -> T:
        deadline, pause = self._deadline(), _PAUSE
        while True:
            try:
                return call()
            except BrokerRefused as refusal:
                if refusal.status != 503:
                    raise
                pause = self._wait(deadline, pause, refusal)
            except _AWAY as error:
                self.close()
                pause = self._wait(deadline, pause, error)

    def _deadline(self) -> float:
        return time.monotonic() + self._options.retry_seconds

    def _wait(self, deadline: float, pause: float, error: Exception) -> float:
        if isinstance(error, ssl.SSLCertVerificationError):  # a retry would not help
            raise BrokerUnreachable(
                f"the certificate of {self._options.url} is not trusted: {error.verify_message}; "
                "option tlsCa (of a job: --tls-ca) names the file of the authority that signed it"
            ) from error
        if time.monotonic() + pause > deadline:
            raise BrokerUnreachable(
                f"no answer from {self._options.url} for {self._options.retry_seconds:g} seconds "
                f"(option retryTimeout): {type(error).__name__}: {error}"
            ) from error
        away = self._options.retry_seconds - (deadline - time.monotonic())
        if away <= _SILENCE < away + pause:
            log.warning(
                "no answer from %s for %g seconds, trying again for up to %g: %s: %s",
                self._options.url,
                _SILENCE,
                self._options.retry_seconds,
                type(error).__name__,
                error,
            )
        time.sleep(pause)
        return min(2 * pause, _PAUSE_MAX)


def _authorization(connection: Connection) -> str:
    """The header's value; empty without credentials."""
    if connection.user:
        password = connection.password or _secret_in(connection.password_file, "passwordFile")
        return "Basic " + b64encode(f"{connection.user}:{password}".encode()).decode()
    token = connection.token or _secret_in(connection.token_file, "tokenFile")
    return f"Bearer {token}" if token else ""


def _secret_in(path: str, option: str) -> str:
    try:
        return Path(path).read_text().strip() if path else ""
    except OSError as error:
        raise InvalidOption(f"option {option}: {error}") from None


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")


def _iso(at_us: int | None) -> str:
    if at_us is None:
        return ""
    second, us = divmod(at_us, 1_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)) + f".{us:06d}Z"


def _tls(connection: Connection) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=connection.tls_ca or None)
    if not connection.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if connection.tls_cert:
        context.load_cert_chain(connection.tls_cert, connection.tls_key)
    return context

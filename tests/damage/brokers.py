"""A broker on a data folder, as a process or in this one, and clients of both its doors.

Owns: starting and ending it. Must not touch: what is written to the folder and read from it.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

import httpx
import pika

from holtmq.config import Config, Journal, Limits
from holtmq.journal import JournalError
from holtmq.testing import TestBroker
from holtmq.testing.broker import BrokerDidNotStart

READY_SECONDS: Final = 240.0  # a busy machine is no fault
ANSWER_SECONDS: Final = 120.0
_SETTINGS: Final = {
    "HOLT_AMQP_PORT": "0",
    "HOLT_HTTP_PORT": "0",
    "HOLT_LOG_FORMAT": "json",
    "HOLT_JOURNAL_SEGMENT_BYTES": "65536",
    "HOLT_JOURNAL_CHECKPOINT_BYTES": "65536",
    "HOLT_LIMITS_DISK_FREE_MIN_BYTES": "0",
}


class DidNotStart(Exception):
    """The process ended before it was ready; the text is its log."""


class BrokerProcess:
    """``holt serve`` on one folder, as a user runs it."""

    def __init__(self, folder: Path) -> None:
        self.log: list[str] = []
        keep = {name: value for name, value in os.environ.items() if not name.startswith("HOLT_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holtmq", "serve", "--data-dir", str(folder)],
            env=keep | _SETTINGS,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        ports: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read_log, args=(ports,), daemon=True)
        self._reader.start()
        try:
            found = ports.get(timeout=READY_SECONDS)
        except queue.Empty:
            self.kill()
            raise TimeoutError("the broker neither started nor ended") from None
        if found is None:
            self._close()
            raise DidNotStart("\n".join(self.log))
        self.amqp_port, self.http_port = found

    def _read_log(self, ports: queue.SimpleQueue[tuple[int, int] | None]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.log.append(line.rstrip())
            if line.startswith("{"):
                entry = json.loads(line)
                if "amqp_port" in entry:
                    ports.put((int(entry["amqp_port"]), int(entry["http_port"])))
        ports.put(None)

    def kill(self) -> None:
        """SIGKILL, without a word of warning."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self._close()

    def _close(self) -> None:
        self._process.wait(READY_SECONDS)
        self._reader.join(READY_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


class BrokerHere:
    """The same in this process, with a real disk and real sockets: it starts in milliseconds."""

    def __init__(self, folder: Path) -> None:
        self.log: list[str] = []
        self._handler = _Lines(self.log)
        logging.getLogger("holtmq").addHandler(self._handler)
        config = Config(
            limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
            journal=Journal(segment_bytes=65_536, checkpoint_bytes=65_536),
        )
        try:
            self._broker = TestBroker(folder, clock="real", config=config).start()
        except (BrokerDidNotStart, JournalError, OSError) as error:
            self._forget()
            raise DidNotStart(f"cannot start: {error}") from error
        self.amqp_port, self.http_port = self._broker.amqp_port, self._broker.http_port

    def kill(self) -> None:
        """Stop; the folder is thrown away."""
        self._broker.stop()
        self._forget()

    def _forget(self) -> None:
        logging.getLogger("holtmq").removeHandler(self._handler)


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.INFO)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))


class Clients:
    """Both doors of a running broker."""

    def __init__(self, broker: BrokerProcess | BrokerHere) -> None:
        url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/%2F?blocked_connection_timeout=120"
        self._amqp = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self._amqp.channel()
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{broker.http_port}", timeout=ANSWER_SECONDS, auth=("guest", "guest")
        )

    def close(self) -> None:
        self.http.close()
        if self._amqp.is_open:
            self._amqp.close()

    def call(self, method: str, path: str, body: object = None, **options: Any) -> Any:
        answer = self.http.request(method, path, json=body, **options)
        answer.raise_for_status()
        return answer.json() if answer.content else None

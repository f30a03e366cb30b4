"""A HoltMQ process to kill, a producer that survives its broker, and the command.

Owns: processes and the record of what was confirmed. Must not touch: what is asserted.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import amqp
from ports import free_port

DEADLINE = 180.0  # seconds; reached only by a test that would fail anyhow
PATIENCE = 10.0  # seconds for an answer of RabbitMQ, until the producer connects again


class NewBroker:
    """``holt serve`` on fixed ports, so that it comes back where it was."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.amqp_port, self.http_port = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def start(self) -> None:
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("HOLT_")},
            "HOLT_DATA_DIR": str(self._folder / "data"),
            "HOLT_AMQP_PORT": str(self.amqp_port),
            "HOLT_HTTP_PORT": str(self.http_port),
            "HOLT_LIMITS_DISK_FREE_MIN_BYTES": "0",
        }
        with (self._folder / "broker.log").open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holtmq", "serve"], env=environment, stdout=out, stderr=out
            )
        deadline = time.monotonic() + DEADLINE
        while not self._is_ready():
            assert self._process.poll() is None, (self._folder / "broker.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.http_port)).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


class Producer(threading.Thread):
    """Publishes with confirms until it is told to stop, whatever happens to the broker.

    A RabbitMQ that has just started may answer heartbeats and owe a confirm forever. So each wait has an end,
    which pika's blocking channel does not offer.
    """

    def __init__(self, url: str, exchange: str, key: str) -> None:
        super().__init__(name="producer", daemon=True)
        self._exchange, self._key = exchange, key
        self._host = urlsplit(url).netloc.rpartition("@")[2]
        self._stop_it = threading.Event()
        self.confirmed: set[str] = set()
        self.sent: set[str] = set()

    def run(self) -> None:
        while not self._stop_it.is_set():
            try:
                with amqp.Connection(
                    self._host, confirm_publish=True, connect_timeout=PATIENCE, read_timeout=PATIENCE
                ) as connection:
                    self._publish(connection.channel())
            except (amqp.AMQPError, OSError):
                self._stop_it.wait(0.2)

    def _publish(self, channel: amqp.Channel) -> None:
        while not self._stop_it.is_set():
            number = len(self.sent)
            name = f"live-{number}"
            self.sent.add(name)
            sent = amqp.Message(name, delivery_mode=2, message_id=name, application_headers={"n": number + 1})
            channel.basic_publish(sent, self._exchange, self._key, mandatory=True, confirm_timeout=PATIENCE)
            self.confirmed.add(name)
            self._stop_it.wait(0.05)

    def finish(self) -> None:
        self._stop_it.set()
        self.join(DEADLINE)
        assert not self.is_alive()


def command(new: NewBroker, *arguments: str) -> subprocess.Popen[str]:
    """Start ``holt migrate`` against the new broker."""
    return subprocess.Popen(
        [sys.executable, "-m", "holtmq", "migrate", *arguments, "--url", new.http_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out + err
    return out


def account(process: subprocess.Popen[str]) -> dict[str, dict[str, Any]]:
    """The figures by queue, of a command with --json."""
    return {row["queue"]: row for row in json.loads(outcome(process))["queues"]}

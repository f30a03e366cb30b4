"""Redis Streams doing a queue's work: XADD, XREADGROUP, XACK, each synced to its append-only file.

Owns: a private server (loopback, ``appendfsync always``) and the commands on raw sockets. One stream stands
for the queue: no partitions, no order among consumers, no deduplication, no leases, so its work is the
lighter one. Must not touch: a Redis that already runs here.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

from bench import debian
from bench.rabbitmq import free_port

from holtmq.load.errors import LoadError
from holtmq.load.http_connections import LoadConnection, LoadEngine
from holtmq.load.http_workers import Flow, Popper, Pusher
from holtmq.load.http_workloads import PAYLOAD, HttpWorkload

_START_SECONDS = 30.0
_KEY = b"holt-load"
_ENTRY = re.compile(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*4\r\n")
_READ = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n[^\r]*\r\n\*(\d+)\r\n").match

Command = tuple[bytes, int]  # bytes and how many lines the answer has; _ENTRIES: as many as it says
_ENTRIES = 0


def command(*words: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


class RedisWire:
    """One connection."""

    def __init__(self, port: int) -> None:
        try:
            self._sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        except OSError as error:
            raise LoadError(f"cannot connect to Redis: {error}") from None
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._got = b""
        self._lines = 0

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, request: Command) -> None:
        data, self._lines = request
        self._sock.sendall(data)

    def receive(self) -> bytes | None:
        data = self._sock.recv(1 << 18)
        if not data:
            raise LoadError("Redis closed the connection")
        got = self._got = self._got + data if self._got else data
        if got.startswith(b"-") and got.endswith(b"\r\n"):
            raise LoadError(f"Redis: {got[:200]!r}")
        if not complete(got, self._lines):
            return None
        self._got = b""
        return got

    def call(self, *words: bytes) -> bytes:
        self.send((command(*words), 1))
        while (answer := self.receive()) is None:
            pass
        return answer

    def close(self) -> None:
        self._sock.close()


def complete(got: bytes, lines: int) -> bool:
    if lines != _ENTRIES:
        return got.count(b"\r\n") >= lines and got.endswith(b"\r\n")
    if got.startswith(b"*-1\r\n"):
        return True
    head = _READ(got)
    return head is not None and got.endswith(b"\r\n") and got.count(PAYLOAD + b"\r\n") == int(head[1])


class RedisDialect:
    """Commands and what they bring."""

    def __init__(self, workload: HttpWorkload) -> None:
        self._workload = workload
        self._serials = count(1)
        self._batch = b"".join(
            command(b"XADD", _KEY, b"*", b"t", b"%012d-%03d" % (0, place), b"d", PAYLOAD)
            for place in range(workload.push_batch)
        ).split(b"%012d" % 0)

    def push(self, number: int) -> Command:
        serial = b"%012d" % next(self._serials)
        return serial.join(self._batch), 2 * self._workload.push_batch

    def pushed(self, answer: bytes) -> None:
        if answer.count(b"$") != self._workload.push_batch:
            raise LoadError(f"Redis: {answer[:200]!r}")

    def pop(self, number: int, group: int) -> Command:
        read = (b"XREADGROUP", b"GROUP", b"g%d" % group, b"c%d" % number)
        most = (b"COUNT", b"%d" % self._workload.pop_batch, b"BLOCK", b"1000")
        return command(*read, *most, b"STREAMS", _KEY, b">"), _ENTRIES

    def popped(self, answer: bytes, number: int, group: int) -> list[bytes] | None:
        return _ENTRY.findall(answer) or None

    def size(self, held: list[bytes]) -> int:
        return len(held)

    def ack(self, held: list[bytes], first: int, count: int, group: int) -> Command:
        return command(b"XACK", _KEY, b"g%d" % group, *held[first : first + count]), 1

    def acked(self, answer: bytes, count: int) -> None:
        if answer != b":%d\r\n" % count:
            raise LoadError(f"Redis: an ack of {count} gave {answer[:200]!r}")


class RedisStage:
    """The stream of one round."""

    def __init__(self, port: int, workload: HttpWorkload) -> None:
        self.flow = Flow(workload)
        self._port = port
        self._workload = workload
        self._control = RedisWire(port)
        self._control.call(b"FLUSHALL")
        for group in range(workload.lines):
            self._control.call(b"XGROUP", b"CREATE", _KEY, b"g%d" % group, b"0", b"MKSTREAM")
        self._dialect = RedisDialect(workload)

    def fill(self, messages: int) -> None:
        filler = replace(self._workload, pushers=8, push_batch=500)
        flow, dialect = Flow(filler), RedisDialect(filler)
        engine = LoadEngine([self._pusher(dialect, flow, number) for number in range(filler.pushers)])
        try:
            engine.run(lambda: flow.offered >= messages)
            flow.closed = True
            engine.run(lambda: flow.pushed == flow.offered)
        finally:
            engine.close()
        self.flow.offered = self.flow.pushed = flow.pushed

    def _pusher(self, dialect: RedisDialect, flow: Flow, number: int) -> LoadConnection[Command, bytes]:
        worker = Pusher[Command, bytes, list[bytes]](dialect, flow, number)
        return LoadConnection(RedisWire(self._port), worker)

    def pushers(self) -> list[LoadConnection[Command, bytes]]:
        return [self._pusher(self._dialect, self.flow, number) for number in range(self._workload.pushers)]

    def poppers(self) -> list[LoadConnection[Command, bytes]]:
        return [
            LoadConnection(
                RedisWire(self._port),
                Popper[Command, bytes, list[bytes]](self._dialect, self.flow, number, group),
            )
            for group in range(self._workload.lines)
            for number in range(self._workload.poppers)
        ]

    def close(self) -> None:
        self._control.call(b"FLUSHALL")
        self._control.close()


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """The server under load."""

    label: str
    pid: int | None
    port: int

    def runs(self, workload: HttpWorkload) -> bool:
        return workload.own_ids and not workload.name.startswith("partitions-")

    def stage(self, workload: HttpWorkload) -> RedisStage:
        return RedisStage(self.port, workload)


@contextmanager
def redis() -> Iterator[RedisTarget]:
    """Run a Redis that syncs every write before it answers."""
    if shutil.which("redis-server") is None:
        debian.install("redis-server")
    with debian.folder("redis") as folder:
        port = free_port()
        options = {
            "bind": "127.0.0.1",
            "port": str(port),
            "dir": str(folder),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "auto-aof-rewrite-percentage": "0",
        }
        words = ["redis-server"]
        for name, value in options.items():
            words += [f"--{name}", value]
        with debian.server(words, folder / "log", signal.SIGTERM) as process:
            deadline = time.monotonic() + _START_SECONDS
            while True:
                try:
                    wire = RedisWire(port)
                    break
                except LoadError:
                    debian.ended(process, folder / "log", "Redis")
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
            found = re.search(rb"redis_version:([\d.]+)", _info(wire))
            wire.close()
            version = found[1].decode() if found else ""
            yield RedisTarget(f"Redis Streams {version}".strip(), process.pid, port)


def _info(wire: RedisWire) -> bytes:
    return wire.call(b"INFO", b"server")

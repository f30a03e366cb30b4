"""The nodes under judgement, as processes: starting, freezing, killing, and asking which one is ready.

Owns: the processes and their logs. Must not touch: their insides.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from holtmq.verify.http_client import HttpClient
from holtmq.verify.workload import Gone, Ports

START_SECONDS: Final = 120.0
_ASK_SECONDS: Final = 2.0
_LOG_LINES: Final = 60
_REPLACED: Final = " owns the log since epoch "
_COMMITS: Final = re.compile(rb"^holtmq_journal_(polled_)?commits_total (\S+)$", re.M)


class Commits(NamedTuple):
    """How many commits a node has made, and how many of them its event loop has sent and awaited itself."""

    all: int
    polled: int


class NodeProcess:
    """One node over all its lives: a name, a folder, settings."""

    def __init__(self, name: str, folder: Path, command: Sequence[str], settings: Mapping[str, str]) -> None:
        self.name = name
        self.folder = folder
        self.ports = Ports(0, 0)
        self.log: deque[str] = deque(maxlen=_LOG_LINES)
        self._command = command
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self.ended_at = 0.0  # by the wall clock
        self.knows_successor = False  # it has said that another node owns the log

    async def start(self) -> None:
        """Until it listens, as a standby or as the owner."""
        self.knows_successor = False
        keep = {name: value for name, value in os.environ.items() if not name.startswith("HOLT_")}
        mine = {
            "HOLT_DATA_DIR": str(self.folder),
            "HOLT_AMQP_HOST": "127.0.0.1",
            "HOLT_AMQP_PORT": "0",
            "HOLT_HTTP_HOST": "127.0.0.1",
            "HOLT_HTTP_PORT": "0",
            "HOLT_LOG_FORMAT": "json",
            "HOLT_JOURNAL_REPLICA_NODE": self.name,
        }
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            env=keep | mine | dict(self._settings),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=1 << 20,
        )
        listening: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(
            self._read_log(self._process, listening), name=f"log of {self.name}"
        )
        self.ports = await asyncio.wait_for(listening, START_SECONDS)

    async def _read_log(
        self, process: asyncio.subprocess.Process, listening: "asyncio.Future[Ports]"
    ) -> None:
        assert process.stdout is not None
        while line := (await process.stdout.readline()).decode(errors="replace"):
            self.log.append(line.rstrip())
            self.knows_successor |= _REPLACED in line
            if not listening.done() and '"standby_amqp"' in line:
                entry = json.loads(line)
                listening.set_result(Ports(int(entry["standby_amqp"]), int(entry["standby_http"])))
        self.ended_at = time.time()
        if not listening.done():
            listening.set_exception(RuntimeError(f"{self.name} ended: " + "\n".join(self.log)))

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def was_killed(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process is not None and self._process.returncode == -signal.SIGKILL

    def send(self, number: signal.Signals) -> None:
        """A signal, unless it is gone already."""
        if self._process is not None and self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def ended(self, seconds: float) -> bool:
        """Wait for its end; False when it lives on."""
        if self._process is None or self._reader is None:
            return True
        try:
            await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            return False
        await self._reader
        return True

    async def kill(self) -> None:
        """Without mercy; returns when it is gone."""
        self.send(signal.SIGKILL)
        await self.ended(START_SECONDS)

    def lose_disk(self) -> None:
        """The folder is empty when it starts again."""
        shutil.rmtree(self.folder, ignore_errors=True)

    async def is_ready(self) -> bool:
        """Whether a load balancer would send clients here."""
        if not self.is_alive or not self.ports.http:
            return False
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                client = await HttpClient.connect(self.ports.http)
                try:
                    return (await client.get("/ready"))[0] == 200
                finally:
                    client.close()
        except (Gone, TimeoutError):
            return False

    async def commits(self) -> Commits | None:
        """The node's own counters; None if it does not answer."""
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                client = await HttpClient.connect(self.ports.http)
                try:
                    _, text = await client.get("/metrics", accept="text/plain")
                finally:
                    client.close()
        except (Gone, TimeoutError):
            return None
        found = {kind: int(float(value)) for kind, value in _COMMITS.findall(text)}
        return Commits(found.get(b"", 0), found.get(b"polled_", 0))


async def first_ready(nodes: Sequence[NodeProcess]) -> NodeProcess | None:
    """The first of these nodes that is ready."""
    for node in nodes:
        if await node.is_ready():
            return node
    return None


async def unless_ready(node: NodeProcess) -> NodeProcess | None:
    """This node, if it is not ready."""
    return None if await node.is_ready() else node

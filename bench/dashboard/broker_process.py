"""The measured broker, in a process of its own: neither the load nor the requests share its interpreter or
its open files.

Owns: the process, its queues, and the meter on its loop. Must not touch: connections, requests.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import uvloop
from bench.dashboard.page_meter import PageMeter
from bench.stalls.site import LoopMeter

from holtmq.config import Config, Data, Limits
from holtmq.config.listener_settings import Amqp, Http
from holtmq.heap import collect_in_portions
from holtmq.node import Node
from holtmq.process import SWITCH_SECONDS

_START, _STOP, _FREEZE, _END = "start", "stop", "freeze", "end"
_HOST: Final = ("127.0.0.1",)
_SPARE_FILES: Final = 300  # of a process: journal, libraries, requests, traffic


@dataclass(frozen=True, slots=True)
class Spent:
    """What the loop's thread did between start and stop of the meter."""

    cpu: float  # seconds, messages included
    round: float  # the longest round
    own: float  # of requests alone
    turn: float  # the longest turn of a request
    collecting: float  # of ``own``: the garbage collector
    messages: int  # received from publishers


class BrokerProcess:
    """The ports of the running broker, and its meter."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        ports: tuple[int, int] = pipe.recv()
        self.amqp_url = f"amqp://guest:guest@127.0.0.1:{ports[0]}/%2F"
        self.http_url = f"http://127.0.0.1:{ports[1]}"

    def start_meter(self) -> None:
        """Begin to measure."""
        self._ask(_START)

    def stop_meter(self) -> Spent:
        """End it; what happened since the start."""
        spent: Spent = self._ask(_STOP)  # type: ignore[assignment]
        return spent

    def freeze(self) -> None:
        """Take what exists now out of the garbage collector, as a broker does when it starts."""
        self._ask(_FREEZE)

    def _ask(self, command: str) -> object:
        self._pipe.send(command)
        return self._pipe.recv()


def allow_files(connections: int) -> None:
    """Raise this process's limit of open files to what it needs, or exit and say how to raise it."""
    needed = connections + _SPARE_FILES
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most not in (-1, resource.RLIM_INFINITY) and most < needed:
        raise SystemExit(
            f"{connections:,} connections need {needed:,} open files, and this process may have {most:,}: "
            f"raise the hard limit (ulimit -Hn {needed}) or use --connections {max(most - _SPARE_FILES, 0)}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), most))


@contextmanager
def broker_process(folder: Path, queues: int, connections: int) -> Iterator[BrokerProcess]:
    """Run a broker with that many queues until the block ends."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(
        target=_serve, args=(theirs, folder, queues, connections), name="broker", daemon=True
    )
    process.start()
    theirs.close()
    try:
        yield BrokerProcess(ours)
        ours.send(_END)
        process.join(60)
    finally:
        process.kill()
        process.join()


def _serve(pipe: Connection, folder: Path, queues: int, connections: int) -> None:
    allow_files(connections)
    sys.setswitchinterval(SWITCH_SECONDS)
    collect_in_portions()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(pipe, folder, queues, connections))


async def _run(pipe: Connection, folder: Path, queues: int, connections: int) -> None:
    pages = PageMeter()
    node = Node(
        Config(
            data=Data(dir=folder),
            amqp=Amqp(host=_HOST, port=0, max_connections=connections + _SPARE_FILES),
            http=Http(host=_HOST, port=0),
            limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
        )
    )
    await node.start()
    await _declare(node, queues)
    ended = asyncio.Event()
    meter = LoopMeter()
    before = 0

    def obey() -> None:
        nonlocal before
        answer: Spent | None = None
        match pipe.recv():
            case "start":
                before = node.broker.counts.received
                pages.start()
                meter.start()
            case "stop":
                meter.stop()
                messages = node.broker.counts.received - before
                answer = Spent(
                    meter.total, meter.worst, pages.total, pages.longest, pages.collecting, messages
                )
            case "freeze":
                gc.collect()
                gc.freeze()
            case _:
                ended.set()
                return
        pipe.send(answer)

    asyncio.get_running_loop().add_reader(pipe.fileno(), obey)
    pipe.send((node.amqp_port, node.http_port))
    await ended.wait()
    asyncio.get_running_loop().remove_reader(pipe.fileno())
    await node.stop()


async def _declare(node: Node, queues: int) -> None:
    """Queues and exchanges, from inside: by AMQP they would take minutes."""
    vhost = node.broker.vhost("/")
    exchanges = max(queues // 10, 1)
    for number in range(exchanges):
        node.broker.exchanges.declare(vhost, f"exchange-{number}", "topic")
    for number in range(queues):
        node.broker.declare_queue(vhost, f"queue-{number}", durable=True)
        node.broker.bind(vhost, f"exchange-{number % exchanges}", f"queue-{number}", "key.*")
        if number % 500 == 0:
            await asyncio.sleep(0)

"""The process under test: a broker whose disk reports to the judge, through a pipe, what it syncs.

Owns: the pipe, and dying at a boundary on command. Must not touch: how the broker works; it is the same
``Node`` that ``holt serve`` runs, on a disk that reports its events.

Run as ``python -m holtmq.verify.subject FOLDER NEWS_FD SEGMENT_BYTES SYNC [BOUNDARY COUNT ON]``; commands
come in on standard input: ``die BOUNDARY COUNT ON``, where ON is part of a file's name, or ``*``.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

import uvloop

from holtmq.config import Amqp, Config, Data, Http, Journal, Limits, Queue, SyncMode
from holtmq.journal import JournalError
from holtmq.journal.disk import OsDisk
from holtmq.node import Node
from holtmq.verify.watched_disk import Event, WatchedDisk, What

_CHECKPOINT_SECONDS: Final = 0.05
_RETENTION_MS: Final = 200  # short, because rounds are short
_MOST: Final = 1_000_000  # the judge reads a queue in one pop


class Fuse:
    """Reports disk events to the judge, and kills the process at a chosen event."""

    def __init__(self, news: int) -> None:
        self._news = news
        self._names: dict[int, str] = {}  # names of open files
        self._on = ""
        self._what: What | None = None
        self._left = 0

    def light(self, what: What, count: int, on: str) -> None:
        """Die right after the ``count``-th such event from now, on such a file, was reported."""
        self._left, self._on, self._what = count, on.replace("*", ""), what

    def note(self, event: Event) -> None:
        """Called by the disk, in any thread that writes."""
        os.write(self._news, event.encode())
        if event.what in (What.CREATED, What.OPENED):
            self._names[event.file] = event.name
        if event.what is self._what and self._on in (event.name or self._names.get(event.file, "")):
            self._left -= 1
            if self._left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: list[str]) -> int:
    """Run until killed."""
    folder, news, segment_bytes, sync, *boundary = arguments
    fuse = Fuse(int(news))
    if boundary:
        fuse.light(What(boundary[0]), int(boundary[1]), boundary[2])
    config = Config(
        data=Data(dir=Path(folder)),
        amqp=Amqp(host=("127.0.0.1",), port=0),
        http=Http(host=("127.0.0.1",), port=0, max_batch=_MOST),
        journal=Journal(
            segment_bytes=int(segment_bytes), checkpoint_bytes=4 * int(segment_bytes), sync=SyncMode(sync)
        ),
        queue=Queue(retention_interval_ms=_RETENTION_MS, eviction_interval_ms=_RETENTION_MS),
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
    )
    threading.Thread(target=_obey, args=(fuse,), name="commands", daemon=True).start()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(Node(config, disk=WatchedDisk(OsDisk(folder), fuse.note))))


async def _serve(node: Node) -> int:
    began = time.perf_counter()
    try:
        await node.start()
    except (JournalError, OSError) as error:
        print(f"refused {error}", flush=True)
        return 1
    seconds = time.perf_counter() - began
    print(f"ready {node.amqp_port} {node.http_port} {seconds:.6f} {node.recovered_records}", flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    while not stop.is_set():
        # Rounds are shorter than the broker's own interval, and a crash in a checkpoint must be tested.
        node.checkpoint_if_due()
        try:
            await asyncio.wait_for(stop.wait(), _CHECKPOINT_SECONDS)
        except TimeoutError:
            continue
    await node.stop()
    return 0


def _obey(fuse: Fuse) -> None:
    for line in sys.stdin:
        _, what, count, on = line.split()
        fuse.light(What(what), int(count), on)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""One broker process: event loop, garbage collector, signals.

Owns: what is set for the whole process, and its exit status. Must not touch: the parts of the node.
"""

import asyncio
import logging
import signal
import sys
from typing import Final

import uvloop

from holtmq.config import Config
from holtmq.descriptors import raise_limit
from holtmq.heap import FreedMemory, collect_in_portions
from holtmq.http.operator.system import total_memory
from holtmq.journal import JournalError
from holtmq.journal.replica.view import StoppedWaiting
from holtmq.node import Node
from holtmq.start_checks import CannotStart

log = logging.getLogger(__name__)

# The writer thread needs the GIL after each write and each sync. While the event loop is busy, it waits this
# long for it; during Python's default of 5 ms the disk would be idle.
SWITCH_SECONDS: Final = 0.0001


def serve(config: Config) -> int:
    """Run a node until SIGTERM or SIGINT; return the process's exit status."""
    raise_limit()
    freed = FreedMemory(config.limits.queue_memory_bytes(total_memory()))
    sys.setswitchinterval(SWITCH_SECONDS)
    collect_in_portions()  # messages and leases are not tracked at all (decision 0009)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, freed))


async def _serve(config: Config, freed: FreedMemory) -> int:
    try:
        node = Node(config, freed=freed)
    except CannotStart as error:
        return _cannot_start(error)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, node.reload)
    starting = asyncio.create_task(node.start(), name="start")
    stopped = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # a standby, or a long recovery
        node.stop_waiting()
    try:
        await starting
    except StoppedWaiting:
        log.info("stopped", extra={})
        return 0
    except (JournalError, OSError, CannotStart) as error:  # also a TLS certificate that cannot be read
        stopped.cancel()
        return _cannot_start(error)
    ended = asyncio.create_task(node.ended.wait(), name="ended")
    await asyncio.wait((stopped, ended), return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    stopped.cancel()
    await node.stop()
    return 1 if node.journal.failed else 0


def _cannot_start(error: Exception) -> int:
    log.error("cannot start", extra={"reason": str(error)})
    return 1

"""Management API: figures of the node's process and of its journal, under RabbitMQ's names.

Owns: where each figure comes from. Must not touch: counting. Times are in milliseconds, as in RabbitMQ.
"""

import gc
import os
import platform
import resource
import threading
from contextlib import suppress

from holtmq import __version__
from holtmq.http.engine.context import NODE
from holtmq.http.engine.endpoints import Call
from holtmq.http.management.client_rows import details
from holtmq.http.operator.system import resident_bytes


def levels(call: Call) -> dict[str, object]:
    """What the node uses now, and how fast that changes."""
    figures = {
        "mem_used": resident_bytes(),
        "fd_used": len(os.listdir("/proc/self/fd")),
        "sockets_used": call.context.clients.counts()[0],
        # Checks for monitors divide it by proc_total: the threads of this process and the limit of Linux.
        "proc_used": threading.active_count(),
    }
    data = call.context.config.data
    if not data.memory:
        with suppress(OSError):
            disk = os.statvfs(data.dir)
            figures["disk_free"] = disk.f_bavail * disk.f_frsize
    return _with_rates(call, levels, figures, signed=True)


def totals(call: Call) -> dict[str, object]:
    """What the process and its journal did since the node started."""
    usage, stats = resource.getrusage(resource.RUSAGE_SELF), call.context.journal.stats()
    figures = {
        "context_switches": usage.ru_nvcsw + usage.ru_nivcsw,
        "gc_num": sum(generation["collections"] for generation in gc.get_stats()),
        "io_write_count": stats.commits,
        "io_write_bytes": stats.bytes_written,
        "io_sync_count": stats.syncs,
    }
    commits = stats.commit_seconds
    # A commit's write and its sync are timed as one.
    average = round(commits.total / commits.count * 1000, 3) if commits.count else 0.0
    return {**_with_rates(call, totals, figures), "io_sync_avg_time": average}


def _with_rates(
    call: Call, key: object, figures: dict[str, int], *, signed: bool = False
) -> dict[str, object]:
    names, values = tuple(figures), tuple(figures.values())
    return {**figures, **details(call, key, names, values, signed=signed)}


def web_contexts(call: Call) -> list[dict[str, object]]:
    """The ports that serve this API."""
    return [
        {
            "node": NODE,
            "description": "HoltMQ",
            "path": "/",
            "ip": listener.host,
            "port": str(listener.port),
        }
        for listener in call.context.listeners()
        if listener.protocol.startswith("http")
    ]


def applications() -> list[dict[str, object]]:
    """What runs here, in the place of Erlang's applications."""
    return [
        {"name": "holtmq", "description": "HoltMQ", "version": __version__},
        {
            "name": "python",
            "description": platform.python_implementation(),
            "version": platform.python_version(),
        },
    ]

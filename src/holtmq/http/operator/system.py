"""Health, metrics as JSON, damaged messages, and maintenance.

Owns: what the node says about itself. Must not touch: what the maintenance switches do.
"""

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from holtmq import __version__
from holtmq.auth.rights import PUBLIC
from holtmq.broker.partitioned.groups.group import micros
from holtmq.http.engine.endpoints import ADMINISTER, MONITOR, Call, Endpoint, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.wire import iso_ms

_HOST: Final = socket.gethostname()
# A container's limit of memory: control groups of version 2, then 1.
_MEMORY_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class EnabledIn(msgspec.Struct):
    enabled: bool


async def health(call: Call) -> object:
    usable, reason = call.context.health()
    if usable:
        reason = "; ".join(_limits_of_service(call))
    status = "unhealthy" if not usable else "degraded" if reason else "healthy"
    body: dict[str, object] = {
        "status": status,
        "database": "connected" if usable else "disconnected",
        "server": f"HoltMQ on {_HOST}",
        "worker_id": os.getpid(),
        "version": __version__,
        "uptime": round(call.now - call.context.started_at, 3),
    }
    if reason:
        body["reason"] = reason
    return Reply(200 if usable else 503, body)


def _limits_of_service(call: Call) -> Iterator[str]:
    """What does not work although the node does. The answer stays 200: a restart would not help."""
    alarm = call.context.alarm()
    if alarm:
        yield f"publishers are blocked: the broker is {alarm}"
    damaged = len(call.broker.flow.damage)
    if damaged:
        what = (
            "1 message cannot be read and was"
            if damaged == 1
            else f"{damaged} messages cannot be read and were"
        )
        yield f"{what} set aside: see /api/v1/system/damaged"


async def ready(call: Call) -> object:
    """For load balancers: whether to send clients here. With a replica, only the log's owner is ready."""
    usable, reason = call.context.health()
    return Reply(200, {"ready": True}) if usable else Reply(503, {"ready": False, "reason": reason})


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def total_memory() -> int:
    """Memory of the machine, or of the container if that has less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _MEMORY_LIMITS:
        try:
            limit = int(path.read_text(encoding="ascii"))
        except (OSError, ValueError):  # not this kind of control group, or "max"
            continue
        total = min(total, limit)
    return total


async def metrics(call: Call) -> object:
    total = await call.context.history.read(micros(call.now))
    used = resource.getrusage(resource.RUSAGE_SELF)
    journal = call.context.journal.stats()
    uptime = max(call.now - call.context.started_at, 0.001)
    return {
        "uptime": round(uptime, 3),
        "requests": {
            "total": total.push_requests + total.pop_requests + total.ack_requests,
            "push": total.push_requests,
            "pop": total.pop_requests,
            "ack": total.ack_requests,
        },
        "messages": {
            "pushed": total.push_messages,
            "popped": total.pop_messages,
            "acked": total.ack_success,
            "total": total.push_messages,
            "rate": round(total.push_messages / uptime, 3),
        },
        "database": {
            "poolSize": 1,
            "idleConnections": 1,
            "waitingRequests": 0,
            "bytesOnDisk": journal.bytes_on_disk,
            "syncs": journal.syncs,
        },
        "memory": {"rss": resident_bytes(), "heapTotal": 0, "heapUsed": 0, "external": 0},
        "cpu": {"user": int(used.ru_utime * 1e6), "system": int(used.ru_stime * 1e6)},
    }


async def damaged(call: Call) -> object:
    """Messages that cannot be read and were set aside, so that their queues continue."""
    found = call.broker.flow.damage
    return {
        "count": len(found),
        "found": found.found,
        "messages": [
            {
                "where": row.where,
                "vhost": row.vhost,
                "queue": row.name,
                "offset": row.offset,
                "position": row.position,
                "size": row.size,
                "reason": row.reason,
                "foundAt": None if row.found_ms is None else iso_ms(row.found_ms * 1000),
                "messages": 1,
            }
            for row in found.rows
        ]
        + [
            {
                "where": "spilled",
                "vhost": lost.vhost,
                "queue": lost.name,
                "offset": None,
                "position": None,
                "size": lost.size,
                "reason": lost.reason,
                "foundAt": None if lost.found_ms is None else iso_ms(lost.found_ms * 1000),
                "messages": lost.messages,
            }
            for lost in found.lost
        ],
    }


async def show_maintenance(call: Call) -> object:
    spool = call.service.spool
    return {
        "maintenanceMode": spool.pushes_spooled,
        "popMaintenanceMode": spool.pops_paused,
        "bufferedMessages": len(spool),
        "bufferHealthy": True,
        "bufferStats": buffer_stats(call),
    }


def buffer_stats(call: Call) -> dict[str, object]:
    return {
        "pendingCount": len(call.service.spool),
        "failedCount": 0,
        "dbHealthy": call.context.health()[0],
        "failedFiles": {"count": 0, "totalBytes": 0, "totalMB": 0, "failoverCount": 0, "qos0Count": 0},
    }


def _wanted(call: Call) -> bool:
    try:
        return call.json(EnabledIn).enabled
    except Refusal:
        raise Refusal(400, "enabled (boolean) is required") from None


async def switch_maintenance(call: Call) -> object:
    """Turning it off pushes the spooled messages, in steps, so that other requests run in between."""
    enabled = _wanted(call)
    service = call.service
    service.spool.switch(pushes_spooled=enabled)
    if not enabled:
        while service.drain_spool(call.now):
            await asyncio.sleep(0)
    await call.durable()
    return {
        "maintenanceMode": service.spool.pushes_spooled,
        "bufferedMessages": len(service.spool),
        "bufferHealthy": True,
        "message": "Maintenance mode enabled. Pushes are kept in the spool."
        if enabled
        else "Maintenance mode disabled. Resumed normal operations.",
    }


async def show_pop_maintenance(call: Call) -> object:
    paused = call.service.spool.pops_paused
    return {"popMaintenanceMode": paused, "message": _pop_message(paused)}


async def switch_pop_maintenance(call: Call) -> object:
    enabled = _wanted(call)
    call.service.spool.switch(pops_paused=enabled)
    if not enabled:
        call.service.line.wake_all()
    await call.durable()
    return {"popMaintenanceMode": enabled, "message": _pop_message(enabled)}


def _pop_message(paused: bool) -> str:
    return "Pops are paused: they answer empty." if paused else "Pops are served."


async def buffers(call: Call) -> object:
    return {
        "pending": len(call.service.spool),
        "failed": 0,
        "dbHealthy": call.context.health()[0],
        "worker": os.getpid(),
    }


_MAINTENANCE: Final = "/api/v1/system/maintenance"
ENDPOINTS: Final = (
    Endpoint("GET", "/health", PUBLIC, "system", "Whether the node is usable", health, statuses=(200, 503)),
    Endpoint(
        "GET", "/ready", PUBLIC, "system", "Whether the node accepts clients", ready, statuses=(200, 503)
    ),
    Endpoint("GET", _MAINTENANCE, ADMINISTER, "system", "Maintenance mode and the spool", show_maintenance),
    Endpoint(
        "POST",
        _MAINTENANCE,
        ADMINISTER,
        "system",
        "Spool pushes instead of storing them",
        switch_maintenance,
        body=EnabledIn,
        statuses=(200, 400),
    ),
    Endpoint(
        "GET", f"{_MAINTENANCE}/pop", ADMINISTER, "system", "Whether pops are paused", show_pop_maintenance
    ),
    Endpoint(
        "POST",
        f"{_MAINTENANCE}/pop",
        ADMINISTER,
        "system",
        "Pause pops",
        switch_pop_maintenance,
        body=EnabledIn,
        statuses=(200, 400),
    ),
    Endpoint("GET", "/api/v1/system/damaged", MONITOR, "system", "Messages that cannot be read", damaged),
    Endpoint("GET", "/api/v1/status/buffers", MONITOR, "status", "The spool", buffers),
)

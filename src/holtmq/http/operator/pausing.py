"""Pause and resume a queue of either kind.

Owns: the wire form, and finding the queue. Must not touch: what a paused queue does.
"""

from typing import Final

import msgspec

from holtmq.auth.users import DEFAULT_VHOST
from holtmq.broker.errors import NotFound
from holtmq.broker.partitioned.commands import admin
from holtmq.broker.pausing import Pause
from holtmq.broker.topology.destinations import Queue
from holtmq.http.engine.endpoints import CONFIGURE_QUEUE, Call, Endpoint

_PATH: Final = "/api/v1/operator/queues/{vhost}/{queue}/pause"


class PauseIn(msgspec.Struct, forbid_unknown_fields=True):
    """Why the queue is paused."""

    reason: str = ""


def queue_in_path(call: Call) -> Queue | None:
    """The queue that the path names; None for a partitioned queue that has no AMQP name. Raises NotFound."""
    vhost, name = call.path["vhost"], call.path["queue"]
    home = call.broker.vhosts.get(vhost)
    if home is None:
        raise NotFound(f"no vhost '{vhost}'")
    queue = home.queues.get(name)
    if queue is None and not (vhost == DEFAULT_VHOST and name in call.service.store.queues):
        raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
    call.broker.flow.now_ms = int(call.now * 1000)
    return queue


async def pause(call: Call) -> object:
    given, queue = call.json_or(PauseIn, PauseIn()), queue_in_path(call)
    by = call.identity.name
    if queue is not None:
        known = call.broker.pauses.pause(queue, by, given.reason)
    else:
        name = call.path["queue"]
        stream = admin.queue_named(call.service, name)
        known = stream.paused or Pause(int(call.now * 1000), by, given.reason)
        if stream.paused is None:
            admin.pause(call.service, name, known)
    await call.durable()
    return {**_names(call), "paused": True, "since": known.since_ms, "by": known.by, "reason": known.reason}


async def resume(call: Call) -> object:
    queue = queue_in_path(call)
    if queue is not None:
        call.broker.pauses.resume(queue)
    else:
        admin.resume(call.service, call.path["queue"])
    await call.durable()
    return {**_names(call), "paused": False}


def _names(call: Call) -> dict[str, object]:
    return {"vhost": call.path["vhost"], "queue": call.path["queue"]}


ENDPOINTS: Final = (
    Endpoint(
        "PUT",
        _PATH,
        CONFIGURE_QUEUE,
        "operator",
        "Pause a queue: it takes messages and hands out none",
        pause,
        body=PauseIn,
        statuses=(200, 400, 404),
    ),
    Endpoint("DELETE", _PATH, CONFIGURE_QUEUE, "operator", "Resume a queue", resume, statuses=(200, 404)),
)

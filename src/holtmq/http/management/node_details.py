"""Management API: what RabbitMQ tells about one node beyond ``/api/nodes``, and requests about its replicas.

Owns: memory, settings, the status of a quorum queue, hashes of passwords, and answers that need a cluster.
Must not touch: state.
"""

import asyncio
import logging
from typing import Final

from holtmq.auth import passwords
from holtmq.broker.topology.queue_options import QueueType
from holtmq.config.render import settings_of
from holtmq.http.engine.context import NODE
from holtmq.http.engine.endpoints import CHANGED, Call, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.management.access import MANAGE, MONITOR
from holtmq.http.management.conventions import check_node, endpoint
from holtmq.http.management.listing import collected
from holtmq.http.management.topology import asked_queue
from holtmq.http.operator.system import resident_bytes

log = logging.getLogger(__name__)

_ONE_NODE: Final = "a queue has one member, on this node: a replicated journal protects every queue"


async def memory(call: Call) -> object:
    """Resident memory, and what of it are bodies of waiting messages at most: some may be on disk alone."""
    check_node(call)
    used, messages = resident_bytes(), await _message_bytes(call)
    parts: dict[str, object] = {"msg_index": messages, "other_system": used - messages}
    total = {"rss": used, "allocated": used, "erlang": 0}
    return {"memory": {**parts, "strategy": "rss", "total": total}}


async def relative_memory(call: Call) -> object:
    """The same in percent."""
    check_node(call)
    used, messages = resident_bytes(), await _message_bytes(call)
    share = round(100 * messages / used)
    return {"memory": {"total": 100, "msg_index": share, "other_system": 100 - share}}


async def _message_bytes(call: Call) -> int:
    queues = list(call.broker.queues_by_id.values())
    waiting = sum(await collected(queue.bytes for queue in queues))
    return min(waiting, resident_bytes())


async def settings(call: Call) -> object:
    """Every setting with its value; secrets are masked."""
    return settings_of(call.context.config)


async def reset(call: Call) -> Reply:
    """RabbitMQ deletes its database of statistics; the rings here have a fixed size."""
    if "node" in call.path:
        check_node(call)
    log.info("reset of statistics asked for: there is no database", extra={"user": call.identity.name})
    return CHANGED


async def hash_password(call: Call) -> object:
    """The hash that definitions for RabbitMQ and for this broker may contain."""
    encoded = await asyncio.to_thread(passwords.hash_for_rabbitmq, call.path["password"])
    return {"ok": encoded}


async def quorum_status(call: Call) -> object:
    """The members of a quorum queue: this node."""
    queue = asked_queue(call)
    if queue.options.queue_type is not QueueType.QUORUM:
        kind = queue.options.queue_type.value
        raise Refusal(400, f"queue '{queue.name}' is of type {kind}: only quorum queues have this status")
    end, durable = call.context.journal.end, call.context.journal.durable
    replica = call.context.replica()
    row = {
        "Node Name": NODE,
        "Raft State": "leader",
        "Membership": "voter",
        "Last Log Index": end,
        "Last Written": durable,
        "Last Applied": end,
        "Commit Index": durable,
        "Snapshot Index": 0,
        "Term": 1 if replica is None else replica.epoch,
        "Machine Version": 0,
    }
    return [row]


async def change_replicas(call: Call) -> Reply:
    raise Refusal(400, _ONE_NODE)


_QUORUM: Final = "/api/queues/quorum"
ENDPOINTS: Final = (
    endpoint("GET", "/api/nodes/{node}/memory", memory, MONITOR),
    endpoint("GET", "/api/nodes/{node}/memory/relative", relative_memory, MONITOR),
    endpoint("GET", "/api/environment", settings),
    endpoint("GET", "/api/config/effective", settings),
    endpoint("DELETE", "/api/reset", reset),
    endpoint("DELETE", "/api/reset/{node}", reset),
    endpoint("GET", "/api/auth/hash_password/{password}", hash_password),
    endpoint("GET", _QUORUM + "/{vhost}/{queue}/status", quorum_status, MANAGE),
    endpoint("POST", _QUORUM + "/{vhost}/{queue}/replicas/add", change_replicas),
    endpoint("DELETE", _QUORUM + "/{vhost}/{queue}/replicas/delete", change_replicas),
    endpoint("POST", _QUORUM + "/replicas/on/{node}/grow", change_replicas),
    endpoint("DELETE", _QUORUM + "/replicas/on/{node}/shrink", change_replicas),
)

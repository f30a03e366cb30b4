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
from holtmq.http.engine.errors import Refusal
from holtmq.http.management.access import MANAGE, MONITOR
from holtmq.http.management.call import CHANGED, NODE, Answer, ManagementCall, Row
from holtmq.http.management.listing import collected
from holtmq.http.management.topology import asked_queue
from holtmq.http.operator.system import resident_bytes

log = logging.getLogger(__name__)

_ONE_NODE: Final = "a queue has one member, on this node: a replicated journal protects every queue"


async def memory(call: ManagementCall) -> object:
    """Resident memory, and what of it are bodies of waiting messages at most: some may be on disk alone."""
    call.check_node()
    used, messages = resident_bytes(), await _message_bytes(call)
    parts: dict[str, object] = {"msg_index": messages, "other_system": used - messages}
    total = {"rss": used, "allocated": used, "erlang": 0}
    return {"memory": {**parts, "strategy": "rss", "total": total}}


async def relative_memory(call: ManagementCall) -> object:
    """The same in percent."""
    call.check_node()
    used, messages = resident_bytes(), await _message_bytes(call)
    share = round(100 * messages / used)
    return {"memory": {"total": 100, "msg_index": share, "other_system": 100 - share}}


async def _message_bytes(call: ManagementCall) -> int:
    queues = list(call.broker.queues_by_id.values())
    waiting = sum(await collected(queue.bytes for queue in queues))
    return min(waiting, resident_bytes())


async def settings(call: ManagementCall) -> object:
    """Every setting with its value; secrets are masked."""
    return settings_of(call.context.config)


async def reset(call: ManagementCall) -> Answer:
    """RabbitMQ deletes its database of statistics; the rings here have a fixed size."""
    if "node" in call.path:
        call.check_node()
    log.info("reset of statistics asked for: there is no database", extra={"user": call.identity.name})
    return CHANGED


async def hash_password(call: ManagementCall) -> object:
    """The hash that definitions for RabbitMQ and for this broker may contain."""
    encoded = await asyncio.to_thread(passwords.hash_for_rabbitmq, call.path["password"])
    return {"ok": encoded}


async def quorum_status(call: ManagementCall) -> object:
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


async def change_replicas(call: ManagementCall) -> Answer:
    raise Refusal(400, _ONE_NODE)


_QUORUM: Final = "/api/queues/quorum"
ROWS: Final = (
    Row("GET", "/api/nodes/{node}/memory", memory, MONITOR),
    Row("GET", "/api/nodes/{node}/memory/relative", relative_memory, MONITOR),
    Row("GET", "/api/environment", settings),
    Row("GET", "/api/config/effective", settings),
    Row("DELETE", "/api/reset", reset),
    Row("DELETE", "/api/reset/{node}", reset),
    Row("GET", "/api/auth/hash_password/{password}", hash_password),
    Row("GET", _QUORUM + "/{vhost}/{queue}/status", quorum_status, MANAGE),
    Row("POST", _QUORUM + "/{vhost}/{queue}/replicas/add", change_replicas),
    Row("DELETE", _QUORUM + "/{vhost}/{queue}/replicas/delete", change_replicas),
    Row("POST", _QUORUM + "/replicas/on/{node}/grow", change_replicas),
    Row("DELETE", _QUORUM + "/replicas/on/{node}/shrink", change_replicas),
)

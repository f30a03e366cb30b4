"""The journal: its segments and why each is kept, checkpoints, and the nodes that share it.

Owns: the wire form, and the reasons as texts. Must not touch: files.
"""

from bisect import bisect_right
from time import monotonic
from typing import Final

import msgspec

from holtmq.broker.errors import Conflict
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.dashboard.api import milliseconds
from holtmq.http.engine.context import Context
from holtmq.http.engine.endpoints import ADMINISTER, MONITOR, Call, Endpoint, Reply
from holtmq.http.engine.stepwise import Stepwise
from holtmq.journal.interface import SegmentState

_SHOWN_MOST: Final = 500
_NAMED_MOST: Final = 3  # queues named for each segment


async def show_journal(call: Call) -> object:
    context = call.context
    journal, segments = context.journal, context.journal.segments()
    stats = journal.stats()
    pinned = await _oldest_messages(context, [segment.base for segment in segments])
    node = context.replica()
    return {
        "commits": stats.commits,
        "records": stats.records,
        "bytesWritten": stats.bytes_written,
        "group": round(stats.records / stats.commits, 1) if stats.commits else None,
        "lastSyncMs": milliseconds(stats.last_sync_seconds) if stats.syncs else None,
        "syncP50Ms": milliseconds(stats.commit_seconds.quantile(0.5)),
        "syncP99Ms": milliseconds(stats.commit_seconds.quantile(0.99)),
        "backlogBytes": journal.backlog,
        "bytesOnDisk": stats.bytes_on_disk,
        "bytesSinceCheckpoint": journal.bytes_since_checkpoint,
        "checkpointAtBytes": context.config.journal.checkpoint_bytes,
        "checkpoints": stats.checkpoints,
        "checkpointAgeSeconds": None
        if stats.checkpointed_at is None
        else round(monotonic() - stats.checkpointed_at, 1),
        "checkpointFailures": stats.checkpoint_failures,
        "checkpointing": context.checkpoints.is_making,
        "compactions": stats.compactions,
        "deletedSegments": stats.deleted_segments,
        "reclaimedBytes": stats.reclaimed_bytes,
        "failed": None if journal.failed is None else journal.failed.reason,
        "stalled": journal.stalled or None,
        "total": len(segments),
        "segments": [
            {
                "base": segment.base,
                "bytes": segment.size,
                "live": segment.live,
                "why": _why(segment),
                "queues": pinned.get(segment.base, []),
            }
            for segment in segments[-_SHOWN_MOST:]
        ],
        "node": node,
    }


def _why(segment: SegmentState) -> str:
    if segment.is_open:
        return "it is being written"
    if segment.is_replayed:
        return "a restart reads it: it has records after the newest checkpoint"
    if segment.live is None:
        return "it was needed by a checkpoint of an earlier run; the next checkpoint decides"
    if segment.live:
        return "it has messages that are still stored"
    return "the checkpoint before the newest one needs it; the next checkpoint frees it"


async def _oldest_messages(context: Context, bases: list[int]) -> dict[int, list[str]]:
    """Names of queues whose oldest message in the journal is in a segment, by the segment's base."""
    found: dict[int, list[str]] = {}
    if not bases:
        return found
    stepwise = Stepwise()

    def note(position: int, name: str) -> None:
        at = bisect_right(bases, position) - 1
        names = found.setdefault(bases[max(at, 0)], [])
        if len(names) < _NAMED_MOST:
            names.append(name)

    for vhost in list(context.broker.vhosts.values()):
        for queue in list(vhost.queues.values()):
            if isinstance(queue, WorkQueue) and queue.persisted and len(queue) and queue.store.in_memory:
                head = queue.store.peek(context.broker.flow.pager)
                if head is not None and head.position:
                    note(head.position, queue.name)
            await stepwise.between()
    for stream in list(context.service.store.queues.values()):
        log = stream.log
        if log.live and log.first_offset < log.durable_end:
            note(log.position(log.first_offset), stream.name)
        await stepwise.between()
    return found


async def make_checkpoint(call: Call) -> object:
    """Write a checkpoint now; it completes in the background."""
    context = call.context
    if context.journal.failed is not None:
        raise context.journal.failed
    if not context.checkpoints.make():
        raise Conflict("a checkpoint is being made already")
    return {"checkpointing": True}


class SwitchIn(msgspec.Struct, forbid_unknown_fields=True):
    """Which node is to own the log."""

    node: str


async def switch_over(call: Call) -> object:
    """Hand the log over to a standby: consumers finish, publishes are confirmed, then this node stops."""
    asked, hand_over = call.json(SwitchIn), call.context.hand_over
    if hand_over is None:
        raise Conflict("this node alone has the journal: with journal.replica another node can take over")
    hand_over(asked.node)
    return Reply(202, {"node": asked.node})


_BASE: Final = "/api/v1/dashboard/journal"
ENDPOINTS: Final = (
    Endpoint("GET", _BASE, MONITOR, "dashboard", "The journal and its segments", show_journal),
    Endpoint(
        "POST",
        f"{_BASE}/checkpoint",
        ADMINISTER,
        "dashboard",
        "Write a checkpoint now",
        make_checkpoint,
        statuses=(200, 409, 503),
    ),
    Endpoint(
        "POST",
        f"{_BASE}/switchover",
        ADMINISTER,
        "dashboard",
        "Hand the log over to a standby",
        switch_over,
        body=SwitchIn,
        statuses=(202, 400, 404, 409),
    ),
)

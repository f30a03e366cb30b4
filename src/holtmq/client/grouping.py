"""Consumer groups as such: how far they are, where they start, forgetting them.

Owns: the calls of ``client.group(name)`` on the async face. Must not touch: messages.
"""

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from holtmq.client.api import iso, query_string, segment
from holtmq.client.records import GroupOnPartition

if TYPE_CHECKING:
    from holtmq.client.client import Client


class _OnQueue(msgspec.Struct):
    partitions: list[GroupOnPartition] = []


class _Deleted(msgspec.Struct, rename="camel"):
    deleted_partitions: int = 0


class _Moved(msgspec.Struct, rename="camel"):
    rows_updated: int = 0


class _Sought(msgspec.Struct, rename="camel"):
    partitions_updated: int = 1


class Group:
    """One consumer group."""

    def __init__(self, client: "Client", name: str) -> None:
        self._client = client
        self._path = f"/api/v1/consumer-groups/{segment(name)}"

    async def partitions(self) -> dict[str, list[GroupOnPartition]]:
        """How far it is, by queue."""
        queues = await self._client.api.get(self._path, dict[str, _OnQueue])
        return {name: queue.partitions for name, queue in queues.items()}

    async def delete(self, queue: str = "", *, metadata: bool = True) -> int:
        """Forget its cursors (on one queue, or on all); on how many partitions it had some.

        With ``metadata`` its start is forgotten too: its next pop decides it anew.
        """
        path = f"{self._path}/queues/{segment(queue)}" if queue else self._path
        path += query_string({"deleteMetadata": metadata})
        answer = await self._client.api.send("DELETE", path, None, _Deleted)
        return answer.deleted_partitions

    async def start_from(self, moment: datetime | str) -> int:
        """Move the start that partitions found later will have; cursors stay. How many records moved."""
        body = {"subscriptionTimestamp": iso(moment)}
        answer = await self._client.api.send("POST", f"{self._path}/subscription", body, _Moved)
        return answer.rows_updated

    async def seek(self, queue: str, moment: datetime | str | None = None, *, partition: str = "") -> int:
        """Read again from a time on, or, without one, go to the end; how many partitions moved."""
        path = f"{self._path}/queues/{segment(queue)}"
        if partition:
            path += f"/partitions/{segment(partition)}"
        body: dict[str, object] = {"toEnd": True} if moment is None else {"timestamp": iso(moment)}
        answer = await self._client.api.send("POST", f"{path}/seek", body, _Sought)
        return answer.partitions_updated

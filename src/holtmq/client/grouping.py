"""Consumer groups: their progress, their start, deleting them.

Owns: the async methods of ``client.group(name)``. Must not touch: messages.
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
        """Its progress, by queue."""
        queues = await self._client.api.get(self._path, dict[str, _OnQueue])
        return {name: queue.partitions for name, queue in queues.items()}

    async def delete(self, queue: str = "", *, metadata: bool = True) -> int:
        """Delete its cursors, on one queue or on all; return on how many partitions it had one.

        With ``metadata`` its start is deleted too: its next pop sets a new one.
        """
        path = f"{self._path}/queues/{segment(queue)}" if queue else self._path
        path += query_string({"deleteMetadata": metadata})
        answer = await self._client.api.send("DELETE", path, None, _Deleted)
        return answer.deleted_partitions

    async def start_from(self, moment: datetime | str) -> int:
        """Set the start for partitions found later; cursors stay. Returns how many records changed."""
        body = {"subscriptionTimestamp": iso(moment)}
        answer = await self._client.api.send("POST", f"{self._path}/subscription", body, _Moved)
        return answer.rows_updated

    async def seek(self, queue: str, moment: datetime | str | None = None, *, partition: str = "") -> int:
        """Move the cursors to a time, or without one to the end; return how many partitions moved."""
        path = f"{self._path}/queues/{segment(queue)}"
        if partition:
            path += f"/partitions/{segment(partition)}"
        body: dict[str, object] = {"toEnd": True} if moment is None else {"timestamp": iso(moment)}
        answer = await self._client.api.send("POST", f"{path}/seek", body, _Sought)
        return answer.partitions_updated

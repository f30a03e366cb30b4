"""Listing, replaying and purging dead letters.

Owns: the filters of a query and its async methods. Must not touch: acknowledgments.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, Self

import msgspec

from holtmq.client.api import Parameters, iso, query_string, segment
from holtmq.client.records import DeadLetter, DeadLetterPage, Replayed

if TYPE_CHECKING:
    from holtmq.client.client import Client

_PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    queue: str = ""
    group: str = ""
    partition: str = ""
    since: str = ""
    until: str = ""
    limit: int = _PAGE
    offset: int = 0

    def parameters(self) -> Parameters:
        return {
            "queue": self.queue or None,
            "consumerGroup": self.group or None,
            "partition": self.partition or None,
            "from": self.since or None,
            "to": self.until or None,
            "limit": self.limit,
            "offset": self.offset,
        }


class DeadLetterWords:
    """The filters; each method returns a new query."""

    def __init__(self, chosen: DeadLetterFilter) -> None:
        self._chosen = chosen

    def _with(self, chosen: DeadLetterFilter) -> Self:
        raise NotImplementedError

    def group(self, name: str) -> Self:
        """Only dead letters of this group."""
        return self._with(replace(self._chosen, group=name))

    def partition(self, name: str) -> Self:
        return self._with(replace(self._chosen, partition=name))

    def since(self, moment: datetime | str) -> Self:
        """Failed at or after this time."""
        return self._with(replace(self._chosen, since=iso(moment)))

    def until(self, moment: datetime | str) -> Self:
        return self._with(replace(self._chosen, until=iso(moment)))

    def limit(self, count: int) -> Self:
        return self._with(replace(self._chosen, limit=count))

    def offset(self, count: int) -> Self:
        return self._with(replace(self._chosen, offset=count))


class _Purged(msgspec.Struct):
    deleted: int = 0


class DeadLetters(DeadLetterWords):
    """A query for dead letters; ``async for`` iterates over all that match."""

    def __init__(self, client: "Client", chosen: DeadLetterFilter) -> None:
        super().__init__(chosen)
        self._client = client

    def _with(self, chosen: DeadLetterFilter) -> Self:
        return type(self)(self._client, chosen)

    async def get(self) -> DeadLetterPage:
        """One page, newest failure first."""
        return await self._client.api.get("/api/v1/dlq", DeadLetterPage, self._chosen.parameters())

    async def __aiter__(self) -> AsyncIterator[DeadLetter]:
        offset = self._chosen.offset
        while True:
            page = await self.offset(offset).get()
            for letter in page.messages:
                yield letter
            offset += len(page.messages)
            if not page.messages or offset >= page.total:
                return

    async def all(self) -> list[DeadLetter]:
        """All that match."""
        return [letter async for letter in self]

    async def replay(self, letter: DeadLetter | str, *, queue: str = "", partition: str = "") -> Replayed:
        """Push it again, to its own queue and partition or to others, and delete it here, atomically."""
        letter_id = letter if isinstance(letter, str) else letter.id
        body = {name: value for name, value in (("queue", queue), ("partition", partition)) if value}
        path = f"/api/v1/dlq/{segment(letter_id)}/replay"
        return await self._client.api.send("POST", path, body or None, Replayed)

    async def replay_all(self) -> int:
        """Replay all that match, oldest failure first; return how many."""
        letters = await self.offset(0).all()
        for letter in reversed(letters):
            await self.replay(letter)
        return len(letters)

    async def purge(self) -> int:
        """Delete all of this queue (and group); return how many. Other filters do not apply."""
        chosen = self._chosen
        if chosen.partition or chosen.since or chosen.until:
            raise ValueError("a purge goes by queue and group alone")
        parameters: Parameters = {"queue": chosen.queue, "consumerGroup": chosen.group or None}
        answer = await self._client.api.send(
            "DELETE", f"/api/v1/dlq{query_string(parameters)}", None, _Purged
        )
        return answer.deleted

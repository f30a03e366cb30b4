"""Where the streams of a broker begin and end, found by reading their first and last messages.

Owns: the consumers for that. Must not touch: anything else there; reading removes nothing from a stream.
RabbitMQ tells a stream's offsets only to its readers: a passive declaration answers with 0 messages.
"""

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple

from holtmq.amqp.methods import (
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicQos,
    BasicQosOk,
    QueueDeclare,
    QueueDeclareOk,
)
from holtmq.shovel.link import Content, Event, Link
from holtmq.shovel.stream_source import OFFSET, offset_of
from holtmq.wire.properties import raw_headers

# A stream that delivers nothing for so long is empty. Others answer within milliseconds.
_EMPTY_SECONDS: Final = 3.0
# RabbitMQ begins at "last" with the chunk that contains the last message: more than any chunk has.
_WHOLE_CHUNK: Final = 65_535


class StreamEnds(NamedTuple):
    """The offsets of the first and the last message; None: the stream is empty."""

    first: int | None
    last: int | None

    @property
    def messages(self) -> int:
        """How many there are, if no offset in between is missing."""
        return 0 if self.first is None or self.last is None else self.last - self.first + 1


async def find_ends(link: Link, names: Iterable[str]) -> dict[str, StreamEnds | None]:
    """Read both ends of each stream; None: there is no such queue. Raises LinkLost."""
    found: dict[str, StreamEnds | None] = {}
    for name in names:
        there = await link.ask(QueueDeclare(name, passive=True), QueueDeclareOk)
        found[name] = None if there is None else StreamEnds(None, None)
    existing = [name for name, there in found.items() if there is not None]
    if existing:
        ends = _Ends(link, existing)
        await ends.read()
        found |= ends.found()
    return found


class _Ends:
    def __init__(self, link: Link, names: list[str]) -> None:
        self._link = link
        self._names = names
        self._highest: dict[str, int] = {}  # by consumer tag

    async def read(self) -> None:
        """Read until each consumer has received a message, then all that the broker sends at once."""
        for at, prefetch in (("first", 1), ("last", _WHOLE_CHUNK)):
            await self._link.call(BasicQos(prefetch_count=prefetch), BasicQosOk)
            for number, name in enumerate(self._names):
                consume = BasicConsume(name, f"{at} {number}", arguments={OFFSET: at})
                await self._link.call(consume, BasicConsumeOk)
        quiet_at = asyncio.get_running_loop().time() + _EMPTY_SECONDS
        while len(self._highest) < 2 * len(self._names):
            try:
                async with asyncio.timeout_at(quiet_at):
                    events = await self._link.read()
            except TimeoutError:
                break
            self._take(events)
        # The answer to a question comes behind the rest of the chunks that have begun to arrive.
        self._link.send(QueueDeclare(self._names[0], passive=True))
        answered = False
        while not answered:
            events = await self._link.read()
            self._take(events)
            answered = any(isinstance(event, QueueDeclareOk) for event in events)

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Content) and isinstance(event.method, BasicDeliver):
                offset = offset_of(raw_headers(event.properties))
                if offset is not None:
                    self._highest[event.method.consumer_tag] = offset

    def found(self) -> dict[str, StreamEnds]:
        highest = self._highest
        return {
            name: StreamEnds(highest.get(f"first {number}"), highest.get(f"last {number}"))
            for number, name in enumerate(self._names)
        }

"""The network between a node and PostgreSQL, which can be cut, slowed, and made to work one way only.

Owns: the sockets between the two, and the faults. Must not touch: what is said over them.
"""

import asyncio
import contextlib
from enum import Enum, auto
from typing import Final
from urllib.parse import urlsplit, urlunsplit

_READ: Final = 1 << 16


class Weather(Enum):
    """What happens to bytes on their way."""

    FAIR = auto()
    CUT = auto()  # connections are reset, new ones refused
    NO_ANSWERS = auto()  # PostgreSQL hears the node, the node hears nothing
    NO_QUESTIONS = auto()  # the other way round
    SLOW = auto()


class Proxy:
    """One node's way to PostgreSQL. Bytes that were held back are never delivered late: the link is reset."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._cut_at_answer = False
        self._delay = 0.0
        self.weather = Weather.FAIR
        self.port = 0

    async def start(self) -> None:
        """Listen on a port of its own."""
        self._server = await asyncio.start_server(self._link, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        """PostgreSQL's address as the node shall see it."""
        user, at, _ = self._target.netloc.rpartition("@")
        return urlunsplit(self._target._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    def aim(self, url: str) -> None:
        """PostgreSQL is somewhere else from now on; present connections are reset."""
        self._target = urlsplit(url)
        self._reset()

    def change(self, weather: Weather, delay: float = 0.0) -> None:
        """From now on. When it clears up, what was held back is lost with its connection."""
        if weather is Weather.CUT or self.weather in (Weather.NO_ANSWERS, Weather.NO_QUESTIONS):
            self._reset()
        self.weather, self._delay = weather, delay

    def cut_at_answer(self) -> None:
        """Reset the next connection that PostgreSQL answers on, in place of the answer."""
        self._cut_at_answer = True

    async def stop(self) -> None:
        """Close everything."""
        self._reset()
        if self._server is not None:
            self._server.close()
        for task in list(self._links):
            task.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    def _reset(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        self._writers.add(writer)
        try:
            if self.weather is Weather.CUT:
                return
            host, port = self._target.hostname or "127.0.0.1", self._target.port or 5432
            far_reader, far_writer = await asyncio.open_connection(host, port)
            self._writers.add(far_writer)
            try:
                await asyncio.gather(
                    self._carry(reader, far_writer, Weather.NO_QUESTIONS),
                    self._carry(far_reader, writer, Weather.NO_ANSWERS),
                )
            finally:
                far_writer.transport.abort()
                self._writers.discard(far_writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._links.discard(task)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, blocked: Weather
    ) -> None:
        answers = blocked is Weather.NO_ANSWERS
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_READ):
                if answers and self._cut_at_answer:
                    self._cut_at_answer = False
                    break
                if self.weather is blocked:
                    continue
                if self.weather is Weather.SLOW:
                    await asyncio.sleep(self._delay)
                writer.write(data)
                await writer.drain()
        for end in list(self._writers):
            if end is writer:
                end.transport.abort()
        raise ConnectionError

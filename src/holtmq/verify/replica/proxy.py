"""The network between a node and PostgreSQL, which can be cut, slowed, and made to work one way only.

Owns: the sockets between the two, and the faults. Must not touch: what is said over them.
"""

import asyncio
import contextlib
from enum import Enum, auto
from typing import Any, Final

from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

_READ: Final = 1 << 16
_HERE: Final = "127.0.0.1"


class Weather(Enum):
    """What happens to bytes on their way."""

    FAIR = auto()
    CUT = auto()  # connections are reset, new ones refused
    NO_ANSWERS = auto()  # PostgreSQL hears the node, the node hears nothing
    NO_QUESTIONS = auto()  # the other way round
    SLOW = auto()


def address_of(connection: Connection[Any], url: str) -> str:
    """The address of the one server that this connection has found: a URL may name several, or none."""
    info = connection.info
    # libpq takes the name from ``host`` and the address from ``hostaddr``; a Unix socket has none.
    hostaddr = "" if info.host.startswith("/") else info.hostaddr
    exact = make_conninfo(url, host=info.host, hostaddr=hostaddr, port=info.port)
    return make_conninfo(exact, password=info.password) if info.password else exact


class Proxy:
    """One node's way to PostgreSQL. Bytes that were held back are never delivered late: the link is reset.

    ``url`` names one server, by its address or by the folder of its Unix socket.
    """

    def __init__(self, url: str) -> None:
        self._target = _Target(url)
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
        target = self._target
        if target.is_socket:  # on which nothing is encrypted, whatever the address asks for
            plain = {"sslmode": "disable", "gssencmode": "disable"}
            return make_conninfo(target.url, host=_HERE, port=self.port, **plain)
        # The name stays: certificates are for it.
        return make_conninfo(target.url, host=target.host, hostaddr=_HERE, port=self.port)

    def aim(self, url: str) -> None:
        """PostgreSQL is somewhere else from now on; present connections are reset."""
        self._target = _Target(url)
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
            far_reader, far_writer = await self._target.connect()
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


class _Target:
    """The server behind a proxy."""

    def __init__(self, url: str) -> None:
        given = conninfo_to_dict(url)
        self.url = url
        self.host = str(given.get("host") or _HERE)
        self._address = str(given.get("hostaddr") or self.host)
        self._port = int(given.get("port") or 5432)
        self.is_socket = self._address.startswith("/")

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.is_socket:
            return await asyncio.open_unix_connection(f"{self._address}/.s.PGSQL.{self._port}")
        return await asyncio.open_connection(self._address, self._port)

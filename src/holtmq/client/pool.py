"""A pool of keep-alive connections to one broker.

Owns: opening, lending and closing them. Must not touch: requests, retries.
"""

import asyncio
import ssl
from collections import deque
from typing import Final

from holtmq.client.http1 import Address, Connection

_IDLE_SECONDS: Final = 60.0
_IDLE_MOST: Final = 64


class Pool:
    """Hands out the most recently used connection first, so that the extra ones of a burst stay idle."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, connect_seconds: float) -> None:
        self.address = address
        self._tls = tls
        self._connect_seconds = connect_seconds
        self._idle: deque[Connection] = deque()
        self._lent: set[Connection] = set()
        self._closed = False

    async def take(self) -> tuple[Connection, bool]:
        """A connection, and whether it was used before."""
        self._drop_old()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                self._lent.add(connection)
                return connection, True
            connection.close()
        connection = await Connection.open(self.address, self._tls, self._connect_seconds)
        self._lent.add(connection)
        return connection, False

    def give_back(self, connection: Connection) -> None:
        """Keep it if it can carry another request."""
        self._lent.discard(connection)
        if self._closed or not connection.usable or len(self._idle) >= _IDLE_MOST:
            connection.close()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    async def close(self) -> None:
        """Close all connections, including those in use."""
        self._closed = True
        connections = [*self._idle, *self._lent]
        self._idle.clear()
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.wait_closed() for connection in connections))

    def _drop_old(self) -> None:
        too_old = asyncio.get_running_loop().time() - _IDLE_SECONDS
        while self._idle and self._idle[0].idle_since < too_old:
            self._idle.popleft().close()

"""Which waiting login is checked next.

Owns: the order and the bounds. Must not touch: passwords, sockets. Addresses take turns, and so do the user
names tried from one address: a flood of bad logins delays only its own address, and another user at that
address by one turn. Within a name the newest is first: the clients of the oldest have probably given up.
"""

import asyncio
import ipaddress
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

# Each argon2 run takes 19 MiB and a core: more at a time would slow the rest of the node.
_AT_A_TIME: Final = 2
_MOST_OF_ADDRESS: Final = 256
_MOST: Final = 4096

_Names = OrderedDict[str, list["asyncio.Future[None]"]]


class TooManyLogins(Exception):
    """Too many logins are waiting; this one was dropped for a newer one."""


class LoginQueue:
    """The queue of logins that wait for argon2."""

    def __init__(self, at_a_time: int = _AT_A_TIME, most_of_address: int = _MOST_OF_ADDRESS) -> None:
        self._free = at_a_time
        self._most_of_address = most_of_address
        self._lines: OrderedDict[str, _Names] = OrderedDict()
        self._arrivals: OrderedDict[asyncio.Future[None], tuple[str, str]] = OrderedDict()
        self._waiting_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._arrivals)

    @asynccontextmanager
    async def turn(self, address: str, name: str) -> AsyncIterator[None]:
        """Wait for a turn and hold it for the ``async with`` block; raises TooManyLogins."""
        await self._wait(_network(address), name)
        try:
            yield
        finally:
            self._free += 1
            self._call_next()

    async def _wait(self, address: str, name: str) -> None:
        if self._free:
            self._free -= 1
            return
        self._make_room(address)
        turn = asyncio.get_running_loop().create_future()
        names = self._lines.setdefault(address, OrderedDict())
        if name not in names:
            names[name] = []
            names.move_to_end(name, last=False)  # a new name does not wait for all the others
        names[name].append(turn)
        self._arrivals[turn] = (address, name)
        self._waiting_of[address] = self._waiting_of.get(address, 0) + 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._free += 1  # the turn was granted at the same moment: pass it on
                self._call_next()
            else:
                self._leave(turn)
            raise

    def _make_room(self, address: str) -> None:
        """Drop the oldest login: of this address if it is at its limit, of all if the queue is full."""
        if self._waiting_of.get(address, 0) >= self._most_of_address:
            oldest = next(turn for turn, (where, _) in self._arrivals.items() if where == address)
        elif len(self._arrivals) >= _MOST:
            oldest = next(iter(self._arrivals))
        else:
            return
        self._leave(oldest)
        if not oldest.done():
            oldest.set_exception(TooManyLogins("too many logins are waiting"))

    def _call_next(self) -> None:
        while self._free and self._lines:
            address, names = next(iter(self._lines.items()))
            self._lines.move_to_end(address)
            name = next(iter(names))
            names.move_to_end(name)
            turn = names[name][-1]
            self._leave(turn)
            if not turn.done():
                self._free -= 1
                turn.set_result(None)

    def _leave(self, turn: "asyncio.Future[None]") -> None:
        where = self._arrivals.pop(turn, None)
        if where is None:
            return
        address, name = where
        names = self._lines[address]
        names[name].remove(turn)
        if not names[name]:
            del names[name]
            if not names:
                del self._lines[address]
        self._waiting_of[address] -= 1
        if not self._waiting_of[address]:
            del self._waiting_of[address]


def _network(address: str) -> str:
    """The address, or its /64 network for IPv6: a client usually controls the whole /64."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        if not found.is_loopback:
            return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)

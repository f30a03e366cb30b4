"""Whose password is checked next, when more wait than can be checked at a time.

Owns: the order and the bounds. Must not touch: passwords, sockets. Addresses take turns, and so do the user
names that one address tries: a flood of bad logins delays its own address, and another user at the same
address by one turn. Newest first within a name: the oldest are those whose clients have given up.
"""

import asyncio
import ipaddress
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

# Each argon2 run takes 19 MiB and a core: more at a time would only push the rest of the node aside.
_AT_A_TIME: Final = 2
_MOST_OF_ADDRESS: Final = 256
_MOST: Final = 4096

_Names = OrderedDict[str, list["asyncio.Future[None]"]]


class TooManyLogins(Exception):
    """More logins wait than are kept waiting; this one gave way to a newer one."""


class LoginTurns:
    """The line in front of argon2."""

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
        """Wait for a turn and hold it; raises TooManyLogins."""
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
            names.move_to_end(name, last=False)  # a name that is new here does not wait for all the others
        names[name].append(turn)
        self._arrivals[turn] = (address, name)
        self._waiting_of[address] = self._waiting_of.get(address, 0) + 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._free += 1  # the turn came at the same moment: it is somebody else's
                self._call_next()
            else:
                self._leave(turn)
            raise

    def _make_room(self, address: str) -> None:
        """Send the oldest away: of this address when it has its share, of all when the line is full."""
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
    """Whoever has one IPv6 address has its whole /64."""
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

"""A workload as the judge uses it: what its clients do, and how its queues are read.

Owns: the interface of a workload, and what its clients measure and notice. Must not touch: verdicts.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, TypeVar

from holtmq.verify.record import Record, name_of


class Gone(Exception):
    """The connection is lost: the broker is dead, or has refused the client."""


@asynccontextmanager
async def in_time(seconds: float, what: str = "it") -> AsyncIterator[None]:
    """Raise Gone after so long: the broker does not answer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Gone(f"{what} took more than {seconds:.0f} s") from None


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one run of the broker."""

    amqp: int
    http: int


@dataclass(slots=True)
class Watch:
    """What the clients of one workload measured."""

    on_promise: Callable[[], None] = lambda: None  # called right after each confirm or response
    confirm_seconds: list[float] = field(default_factory=list)
    duplicates: int = 0  # repeated deliveries of a message to the consumer
    refusals: list[str] = field(default_factory=list)  # of requests that a healthy broker accepts
    disordered: list[str] = field(default_factory=list)  # first delivered after a later message
    _given: set[str] = field(default_factory=set)
    _last: dict[tuple[str, str], int] = field(default_factory=dict)  # place, publisher -> newest number

    def receive(self, place: str, body: bytes) -> str:
        """Record a delivery; return the message's name."""
        name = name_of(body)
        if name is None:
            raise Gone("a damaged body was delivered")  # the comparison will find it
        if name in self._given:
            self.duplicates += 1
            return name
        self._given.add(name)
        publisher, _, number = name.partition(">")[0].rpartition(".")
        if int(number) < self._last.get((place, publisher), 0):
            self.disordered.append(name)
        self._last[place, publisher] = int(number)
        return name

    def refuse(self, why: str) -> Gone:
        """Record a refusal; return the exception to raise, since the client cannot continue."""
        self.refusals.append(why)
        return Gone(why)


class Closable(Protocol):
    """A client's connection."""

    def close(self) -> None:
        """Close the socket without a protocol-level close."""


C = TypeVar("C", bound=Closable)


async def connect_all(connect: Callable[[int], Awaitable[C]], port: int, count: int) -> list[C]:
    """Connect this many clients, or none and raise Gone: the broker may die before the last one connects."""
    clients: list[C] = []
    try:
        for _ in range(count):
            clients.append(await connect(port))
    except Gone:
        for client in clients:
            client.close()
        raise
    return clients


def raise_unless_gone(outcomes: Iterable[BaseException | None]) -> None:
    """Raise the first error of these clients that is not the loss of a connection."""
    for outcome in outcomes:
        if outcome is not None and not isinstance(outcome, Gone):
            raise outcome


class Workload(Protocol):
    """Clients of one interface, the queues they use, and the record of what they were promised."""

    record: Record
    watch: Watch

    async def prepare(self, ports: Ports) -> None:
        """Create the queues."""

    async def read(self, ports: Ports) -> dict[str, list[bytes]]:
        """Read everything unsettled, in order, by place, and leave it there."""

    async def finish_reading(self, ports: Ports, most: int) -> None:
        """After the comparison: empty every place that holds more than ``most``."""

    async def work(self, ports: Ports, random: Random) -> None:
        """Run all clients until each has lost its connection."""

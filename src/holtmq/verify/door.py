"""One way into the broker, seen from the judge: what its clients do, and how everything behind it is read.

Owns: the shape of a door, and what clients measure and notice on the way. Must not touch: verdicts.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, TypeVar

from holtmq.verify.record import Record, name_of


class Gone(Exception):
    """The connection is lost: the broker is dead, or has refused us."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where one life of the broker listens."""

    amqp: int
    http: int


@dataclass(slots=True)
class Watch:
    """What the clients of one door measured."""

    on_promise: Callable[[], None] = lambda: None  # called right after each confirm or answer
    confirm_seconds: list[float] = field(default_factory=list)
    duplicates: int = 0  # deliveries of something the consumer had been given before
    refusals: list[str] = field(default_factory=list)  # of requests that a healthy broker would have granted
    disordered: list[str] = field(default_factory=list)  # given for the first time after a later one
    _given: set[str] = field(default_factory=set)
    _last: dict[tuple[str, str], int] = field(default_factory=dict)  # place, publisher -> newest number

    def receive(self, place: str, body: bytes) -> str:
        """Note a delivery; the name of what was delivered."""
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
        """Note a refusal; to be raised, as the client has no way to go on."""
        self.refusals.append(why)
        return Gone(why)


class Closable(Protocol):
    """A client's connection."""

    def close(self) -> None:
        """Hang up without a word."""


C = TypeVar("C", bound=Closable)


async def connect_all(connect: Callable[[int], Awaitable[C]], port: int, count: int) -> list[C]:
    """So many clients, or none and Gone: the broker may die before the last of them is in."""
    clients: list[C] = []
    try:
        for _ in range(count):
            clients.append(await connect(port))
    except Gone:
        for client in clients:
            client.close()
        raise
    return clients


class Door(Protocol):
    """Clients that come through AMQP, or through HTTP."""

    record: Record
    watch: Watch

    async def prepare(self, ports: Ports) -> None:
        """Make the queues."""

    async def read(self, ports: Ports) -> dict[str, list[bytes]]:
        """Everything that waits, in order, by place; it is left there."""

    async def finish_reading(self, ports: Ports, most: int) -> None:
        """After the comparison: empty whatever holds more than ``most``."""

    async def work(self, ports: Ports, random: Random) -> None:
        """All clients at once, until each of them has lost its connection."""

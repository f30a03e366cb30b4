"""A node whose connections can be delayed or stop reading.

Owns: what a test does to sockets. Must not touch: protocol and rules; the broker under test runs the same
code as in production.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from holtmq.amqp.protocol import AmqpProtocol
from holtmq.auth.users import DEFAULT_USER
from holtmq.config import Config
from holtmq.first_start import GUEST_HASH
from holtmq.journal.disk import Disk
from holtmq.node import Node
from holtmq.testing.clock import ABOVE, VirtualClock
from holtmq.turn_scheduler import TurnScheduler

_CALM_ROUNDS: Final = 3
_FUZZ: Final = 0.00001  # seconds: rounding error of adding up readings
_CALM_DEADLINE: Final = 0.5


class FaultyNode(Node):
    """A node that a test can inspect and disturb, always on the loop's thread."""

    def __init__(self, config: Config, *, clock: Callable[[], float], disk: Disk) -> None:
        super().__init__(config, clock=clock, disk=disk)
        self._delay = 0.0
        self._deaf: set[AmqpProtocol] = set()

    async def start(self) -> None:
        """Start, with the guest's password already verified: argon2 takes longer than a test."""
        await super().start()
        guest = self.broker.users.user(DEFAULT_USER)
        if guest is not None and guest.password_hash == GUEST_HASH:  # the default password is unchanged
            self.amqp.authenticator.remember(DEFAULT_USER, "guest", guest.password_hash)

    def _make_scheduler(self, loop: asyncio.AbstractEventLoop) -> TurnScheduler:
        return FaultyTurnScheduler(loop, self.clock, self._begin_turn)

    async def take_in(self) -> None:
        """Wait until everything that clients have sent so far is read and processed.

        Waits at most half a second for a client that never stops sending.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _CALM_DEADLINE
        calm, seen = 0, (-1, -1)
        while calm < _CALM_ROUNDS and loop.time() < deadline:
            await asyncio.sleep(0)
            await self.settle()
            now = len(self.amqp.connections), sum(p.received_bytes for p in self.amqp.connections)
            calm = calm + 1 if now == seen else 0
            seen = now

    def delay(self, seconds: float) -> None:
        """Delay everything the broker sends, on existing and new connections."""
        self._delay = seconds
        self._slow_down()

    def drop_http_connections(self) -> int:
        """Drop every HTTP connection; return how many."""
        return self.http.drop_connections()

    def stop_reading(self, protocol: AmqpProtocol) -> None:
        """Stop reading from this client; its socket fills up."""
        self._deaf.add(protocol)
        protocol.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from all clients again."""
        deaf, self._deaf = self._deaf, set()
        for protocol in deaf & self.amqp.connections:
            protocol.transport.resume_reading()

    def _begin_turn(self) -> None:
        if self._delay:
            self._slow_down()

    def _slow_down(self) -> None:
        for protocol in self.amqp.connections:
            transport = protocol.transport
            if isinstance(transport, SlowTransport):
                transport.seconds = self._delay
            elif self._delay:
                protocol.transport = SlowTransport(transport, self._delay)


class FaultyTurnScheduler(TurnScheduler):
    """Turns at times that a test sets; what they send may be delayed."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], on_begin: Callable[[], None]
    ) -> None:
        super().__init__(loop, clock)
        self._early = ABOVE + _FUZZ if isinstance(clock, VirtualClock) else 0.0
        self._on_begin = on_begin

    def at(self, at: float, action: Callable[[], None]) -> None:
        """Run an action at this time of the clock."""
        # A virtual clock reads slightly above its millisecond, and so does everything computed from it:
        # rounded up unchanged, a lease of a minute would wake its waiters one millisecond late.
        super().at(at - self._early, action)

    def _run(self) -> None:
        self._on_begin()
        super()._run()


class SlowTransport(asyncio.Transport):
    """Writes are delayed and keep their order."""

    def __init__(self, inner: asyncio.Transport, seconds: float) -> None:
        super().__init__()
        self._inner = inner
        self._due = 0.0  # when the last write is sent: a shorter delay must not overtake it
        self._closing = False
        self.seconds = seconds

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send after the delay."""
        self._later(lambda: self._inner.write(data))

    def close(self) -> None:
        """Close after everything written was sent."""
        self._closing = True
        self._later(self._inner.close)

    def abort(self) -> None:
        """Close at once."""
        self._inner.abort()

    def is_closing(self) -> bool:
        """Whether it is closed or closing."""
        return self._closing or self._inner.is_closing()

    def pause_reading(self) -> None:
        """Reading is not delayed."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """Reading is not delayed."""
        self._inner.resume_reading()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Ask the socket."""
        return self._inner.get_extra_info(name, default)

    def _later(self, action: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._due = max(self._due, loop.time() + self.seconds)
        loop.call_at(self._due, action)

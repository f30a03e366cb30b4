"""What all AMQP connections of a node share: listeners, logins, alarms, closing.

Owns: the set of connections, and work for all of them. Must not touch: one client's socket (``protocol.py``),
the protocol's rules (``connection.py``).
"""

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.connection import Connection
from holtmq.amqp.errors import ConnectionFault
from holtmq.amqp.handshake import Settings
from holtmq.amqp.phase import Phase
from holtmq.amqp.protocol import AmqpProtocol
from holtmq.auth.attempts import Protocol
from holtmq.auth.bearers import identity_of, looks_like_token
from holtmq.auth.login import Authenticator, LoginRefused
from holtmq.auth.login_queue import TooManyLogins
from holtmq.auth.passwords import VerifiedCredentials
from holtmq.auth.rights import Identity, RightMissing
from holtmq.auth.roles import TokenRefused
from holtmq.auth.users import DEFAULT_VHOST
from holtmq.broker.broker import Broker
from holtmq.journal.interface import JournalFailed
from holtmq.ports import open_port

if TYPE_CHECKING:  # loads the libraries that verify tokens
    from holtmq.auth.tokens import TokenVerifier

log = logging.getLogger(__name__)

_BACKLOG_LOW: Final = 8 * 1_048_576  # bytes the journal may lag when publishers are resumed
_SWEEP_SECONDS: Final = 0.5
_SWEPT_AT_ONCE: Final = 500  # connections
_ROUND: Final = 0.020  # seconds for what all clients have sent, before the loop looks at its sockets again
_FLUSHED_AT_ONCE: Final = 1_000  # connections: about 13 ms
_EXPELLED_AT_ONCE: Final = 500  # connections: about 5 ms


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the listener."""

    max_connections: int = 10_000
    handshake_timeout: float = 10.0


class AmqpServer:
    """Every AMQP connection of the node. ``wake`` schedules a turn of the node."""

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        limits: Limits,
        wake: Callable[[], None],
        refresh_clock: Callable[[], None],
        connect: Callable[..., Connection] = Connection,
        verifier: "TokenVerifier | None" = None,
    ) -> None:
        self._verifier = verifier  # of tokens as passwords
        self.broker = broker
        self.connect = connect
        self.settings = settings
        self.limits = limits
        self.wake = wake
        self.refresh_clock = refresh_clock
        self.verified = VerifiedCredentials()
        self.authenticator = Authenticator(broker.users, self.verified)
        self.connections: set[AmqpProtocol] = set()
        self.with_output: list[AmqpProtocol] = []
        self._round_began = 0.0  # 0: no client was served in this round
        self._stalled: deque[AmqpProtocol] = deque()  # they go on in this order
        self._serves_soon = False
        self.alarm = ""  # why publishers are paused; empty: they are not
        self._waiting_for_journal: set[AmqpProtocol] = set()
        self.refusal = ""  # why clients are sent away; empty: they are not
        self._servers: list[asyncio.Server] = []
        self.addresses: list[tuple[str, int, bool]] = []  # host, port, whether with TLS
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._swept_at = 0.0

    async def listen(self, hosts: tuple[str, ...], port: int, tls: ssl.SSLContext | None = None) -> int:
        """Accept connections; return the port, which the system chooses if ``port`` is 0."""
        opened = await open_port(
            lambda: AmqpProtocol(self),
            hosts,
            port,
            tls,
            backlog=1024,
            handshake_seconds=self.limits.handshake_timeout,
        )
        self._servers += opened.servers
        self.addresses += [(host, opened.port, tls is not None) for host in opened.hosts]
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="amqp-sweeper")
        return opened.port

    def connect_inside(self) -> socket.socket:
        """The client's end of a new connection from this process, which may do everything."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        accepting = asyncio.get_running_loop().connect_accepted_socket(
            lambda: AmqpProtocol(self, is_trusted=True), ours
        )
        task = asyncio.create_task(_until_done(accepting), name="amqp-inside")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return theirs

    def is_round_over(self, now: float) -> bool:
        """Whether clients have held the event loop for long enough since it last looked at its sockets.

        The first one in a round is always served.
        """
        if not self._round_began:
            self._round_began = now
            asyncio.get_running_loop().call_soon(self._end_round)
        return now - self._round_began > _ROUND

    def _end_round(self) -> None:
        self._round_began = 0.0

    def serve_soon(self, protocol: AmqpProtocol) -> None:
        """Let this client go on with what was read from it, after those who wait already.

        One with much to do waits behind them again, also behind those for whom this round had no time.
        """
        self._stalled.append(protocol)
        if not self._serves_soon:
            self._serves_soon = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        stalled = self._stalled
        try:
            for _ in range(len(stalled)):
                if self.is_round_over(monotonic()):
                    break
                stalled.popleft().go_on()
        finally:
            self._serves_soon = bool(stalled)
            if stalled:
                asyncio.get_running_loop().call_soon(self._serve)

    def flush(self) -> None:
        """One write per connection that has output; of very many connections some, the others in the next
        turn."""
        with_output = self.with_output
        self.with_output = with_output[_FLUSHED_AT_ONCE:]
        for protocol in with_output[:_FLUSHED_AT_ONCE]:
            protocol.flush()
        if self.with_output:
            self.wake()

    def expel(self, reason: str, is_meant: Callable[[str, str], bool]) -> None:
        """Close the connections for whose vhost and user ``is_meant`` returns true; many of them in steps."""
        found = [protocol.connection for protocol in self.connections]
        self._expel(
            reason, [each for each in found if each.is_running and is_meant(each.vhost.name, each.user_name)]
        )

    def _expel(self, reason: str, connections: list[Connection]) -> None:
        self.refresh_clock()
        for connection in connections[:_EXPELLED_AT_ONCE]:
            connection.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, reason))  # nothing if it has ended
        if rest := connections[_EXPELLED_AT_ONCE:]:
            asyncio.get_running_loop().call_soon(self._expel, reason, rest)
        self.wake()

    def refuse(self, reason: str) -> None:
        """Close open connections and refuse new ones; an empty ``reason`` admits clients again."""
        self.refusal = reason
        if reason:
            self.expel(reason, lambda vhost, user: True)

    def raise_alarm(self, reason: str) -> None:
        """Pause publishers."""
        self.alarm = reason
        for protocol in self.connections:
            protocol.consider_pausing()

    def lift_alarm(self) -> None:
        """Resume publishers."""
        self.alarm = ""
        for protocol in list(self.connections):
            protocol.connection.unblock()
            protocol.resume_reading()

    def wait_for_journal(self, protocol: AmqpProtocol) -> None:
        """Resume this publisher when the journal has caught up."""
        first = not self._waiting_for_journal
        self._waiting_for_journal.add(protocol)
        if first:
            self.broker.journal.on_durable(self._journal_caught_up)

    def _journal_caught_up(self, failure: JournalFailed | None) -> None:
        if failure is None and self.broker.journal.backlog > _BACKLOG_LOW:
            self.broker.journal.on_durable(self._journal_caught_up)
            return
        waiting, self._waiting_for_journal = self._waiting_for_journal, set()
        for protocol in waiting:
            protocol.resume_reading()

    def check_password(self, protocol: AmqpProtocol, name: str, password: str) -> None:
        """Check a login in a task; argon2 runs in a thread unless these credentials were verified before."""
        task = asyncio.create_task(self._login(protocol, name, password), name="amqp-login")
        self._tasks.add(task)
        task.add_done_callback(partial(self._checked, protocol))

    async def _login(self, protocol: AmqpProtocol, name: str, password: str) -> None:
        connection = protocol.connection
        if self._verifier is not None and looks_like_token(password):
            identity = await self._of_token(self._verifier, protocol, password)
            self._count(protocol, name if identity is None else identity.name, identity is not None)
            if connection.phase is Phase.HANDSHAKE and identity is not None and not self.refusal:
                connection.handshake.checked(identity.name, identity)
                protocol.resume_reading()
                self.wake()
                return
            self._logged_in(protocol, None)
            return
        user: str | None = None
        try:
            found = await self.authenticator.authenticate(
                name,
                password,
                from_loopback=connection.handshake.from_loopback,
                address=protocol.peer.rpartition(":")[0],
            )
            user = found.name
        except (LoginRefused, TooManyLogins) as refusal:
            log.warning("login refused", extra={"reason": str(refusal), "peer": protocol.peer})
        self._count(protocol, name, user is not None)
        self._logged_in(protocol, user)

    def _count(self, protocol: AmqpProtocol, name: str, succeeded: bool) -> None:
        address = protocol.peer.rpartition(":")[0]
        self.authenticator.attempts.count(Protocol.AMQP, address, name, succeeded=succeeded)

    def _logged_in(self, protocol: AmqpProtocol, user: str | None) -> None:
        connection = protocol.connection
        if connection.phase is Phase.HANDSHAKE:
            if self.refusal:
                connection.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, self.refusal))
            else:
                connection.handshake.checked(user)
            protocol.resume_reading()  # a client that sent much meanwhile was not read from
            self.wake()

    async def _of_token(
        self, verifier: "TokenVerifier", protocol: AmqpProtocol, token: str
    ) -> Identity | None:
        """The identity that a token stands for; None if it is refused, and the log says why."""
        try:
            bearer = await verifier.authenticate(token, self.broker.flow.now_ms / 1000)
            return identity_of(
                bearer,
                self.broker.users,
                lambda name: (DEFAULT_VHOST, name),
                from_loopback=protocol.connection.handshake.from_loopback,
                expires_at=bearer.expires_at,
            )
        except (TokenRefused, RightMissing, LoginRefused) as refusal:
            log.warning("login refused", extra={"reason": str(refusal), "peer": protocol.peer})
            return None

    def check_secret(self, protocol: AmqpProtocol, secret: str) -> None:
        """Check a token that replaces the one of an open connection."""
        task = asyncio.create_task(self._renew(protocol, secret), name="amqp-update-secret")
        self._tasks.add(task)
        task.add_done_callback(partial(self._checked, protocol))

    async def _renew(self, protocol: AmqpProtocol, secret: str) -> None:
        identity = None
        if self._verifier is not None:
            identity = await self._of_token(self._verifier, protocol, secret)
        self.refresh_clock()
        protocol.connection.renewed(identity)
        self.wake()

    def _checked(self, protocol: AmqpProtocol, task: "asyncio.Task[None]") -> None:
        """Credentials were checked. If that failed, the client would wait for its answer for ever."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("credentials could not be checked", exc_info=error, extra={"peer": protocol.peer})
            protocol.abort()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._swept_at = loop.time()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            for _ in self._sweeping(loop.time()):
                await asyncio.sleep(0)

    def sweep(self, now: float) -> None:
        """Heartbeats and time-outs of all connections."""
        for _ in self._sweeping(now):
            pass

    def _sweeping(self, now: float) -> Iterator[None]:
        """``sweep``, a part of the connections at a time: 5,000 at once take 8 ms."""
        # A late sweep means that this process was stopped or blocked. What clients sent meanwhile is unread
        # in their sockets, so that time does not count against them.
        lost = now - self._swept_at - _SWEEP_SECONDS
        self._swept_at = now
        if lost > _SWEEP_SECONDS:
            for protocol in self.connections:
                protocol.forgive(lost)
        for place, protocol in enumerate(list(self.connections)):
            if protocol in self.connections:  # it may have ended in the meantime
                protocol.check_time(now)
            if place % _SWEPT_AT_ONCE == _SWEPT_AT_ONCE - 1:
                yield

    def stop_listening(self) -> None:
        """Accept no new connections."""
        for server in self._servers:
            server.close()

    async def drain(self, timeout: float) -> None:
        """Stop deliveries, wait until consumers have settled what they hold, then stop reading."""
        self.stop_listening()
        channels = [channel for each in self.connections for channel in each.connection.channels.values()]
        for channel in channels:
            channel.flowing = False
        deadline = asyncio.get_running_loop().time() + timeout
        while any(channel.consumer_leases() for channel in channels):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.01)
        for protocol in self.connections:
            protocol.stop_reading()

    async def stop(self, timeout: float = 3.0) -> None:
        """Close all connections; abort those that do not answer in time."""
        self.stop_listening()
        for protocol in list(self.connections):
            protocol.connection.fail(
                ConnectionFault(
                    ReplyCode.CONNECTION_FORCED, "broker forced connection closure with reason 'shutdown'"
                )
            )
            protocol.flush()
            protocol.read_goodbye()
        deadline = asyncio.get_running_loop().time() + timeout
        while self.connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        for protocol in list(self.connections):
            protocol.abort()
        for task in [*self._tasks, *([self._sweeper] if self._sweeper else [])]:
            task.cancel()
        await asyncio.gather(
            *self._tasks, *([self._sweeper] if self._sweeper else []), return_exceptions=True
        )
        for server in self._servers:
            await server.wait_closed()


async def _until_done(accepting: Awaitable[object]) -> None:
    await accepting

"""The asyncio server: passes bytes between sockets and connections.

Owns: listeners, transports, heartbeats, timeouts, and when to pause reading from a client.
Must not touch: the protocol's rules, which are in ``connection.py``.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, cast

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.connection import Connection, Phase
from holtmq.amqp.errors import AmqpError, ConnectionFault
from holtmq.amqp.handshake import INSIDE_USER, Settings
from holtmq.auth.bearers import identity_of, looks_like_token
from holtmq.auth.login import Authenticator, LoginRefused, is_loopback
from holtmq.auth.passwords import VerifiedCredentials
from holtmq.auth.rights import Identity, RightMissing
from holtmq.auth.tokens import TokenRefused, TokenVerifier
from holtmq.auth.turns import TooManyLogins
from holtmq.auth.users import DEFAULT_VHOST
from holtmq.broker.broker import Broker
from holtmq.journal.interface import JournalFailed

log = logging.getLogger(__name__)

_WRITE_HIGH: Final = 1_048_576
_STALLED_MAX: Final = 1_048_576
_BACKLOG_HIGH: Final = 32 * 1_048_576  # bytes the journal may lag before publishers are paused
_BACKLOG_LOW: Final = 8 * 1_048_576
_CLOSE_TIMEOUT: Final = 5.0
_SWEEP_SECONDS: Final = 0.5
_SWEPT_AT_ONCE: Final = 500  # connections


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
        verifier: TokenVerifier | None = None,
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
        broker.on_expelled = self.expel
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
        loop = asyncio.get_running_loop()
        for host in hosts:
            try:
                server = await loop.create_server(
                    lambda: AmqpProtocol(self),
                    host,
                    port,
                    ssl=tls,
                    backlog=1024,
                    ssl_handshake_timeout=None if tls is None else self.limits.handshake_timeout,
                )
            except OSError as error:
                if host == "::1" and len(hosts) > 1:  # a machine without IPv6
                    log.info("not listening", extra={"host": host, "reason": str(error)})
                    continue
                raise
            self._servers.append(server)
            port = port or server.sockets[0].getsockname()[1]
            self.addresses.append((host, port, tls is not None))
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="amqp-sweeper")
        return port

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

    def flush(self) -> None:
        """One write per connection that has output."""
        with_output, self.with_output = self.with_output, []
        for protocol in with_output:
            protocol.flush()

    def expel(self, reason: str, is_meant: Callable[[str, str], bool]) -> None:
        """Close the connections for whose vhost and user ``is_meant`` returns true."""
        for protocol in list(self.connections):
            connection = protocol.connection
            if connection.is_running and is_meant(connection.vhost.name, connection.user_name):
                connection.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, reason))

    def refuse(self, reason: str) -> None:
        """Close open connections and refuse new ones; an empty ``reason`` admits clients again."""
        self.refusal = reason
        if reason:
            self.expel(reason, lambda vhost, user: True)
            self.wake()

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

    def wait_for_journal(self, protocol: "AmqpProtocol") -> None:
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

    def check_password(self, protocol: "AmqpProtocol", name: str, password: str) -> None:
        """Check a login in a task; argon2 runs in a thread unless these credentials were verified before."""
        task = asyncio.create_task(self._login(protocol, name, password), name="amqp-login")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _login(self, protocol: "AmqpProtocol", name: str, password: str) -> None:
        connection = protocol.connection
        if self._verifier is not None and looks_like_token(password):
            identity = await self._of_token(self._verifier, protocol, password)
            if connection.phase is Phase.HANDSHAKE and identity is not None and not self.refusal:
                connection.handshake.checked(identity.name, identity)
                self.wake()
                return
            self._logged_in(connection, None)
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
        self._logged_in(connection, user)

    def _logged_in(self, connection: Connection, user: str | None) -> None:
        self.authenticator.attempts.amqp.count(user is not None)
        if connection.phase is Phase.HANDSHAKE:
            if self.refusal:
                connection.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, self.refusal))
            else:
                connection.handshake.checked(user)
            self.wake()

    async def _of_token(
        self, verifier: TokenVerifier, protocol: "AmqpProtocol", token: str
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

    def check_secret(self, protocol: "AmqpProtocol", secret: str) -> None:
        """Check a token that replaces the one of an open connection."""
        task = asyncio.create_task(self._renew(protocol, secret), name="amqp-update-secret")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _renew(self, protocol: "AmqpProtocol", secret: str) -> None:
        identity = None
        if self._verifier is not None:
            identity = await self._of_token(self._verifier, protocol, secret)
        self.refresh_clock()
        protocol.connection.renewed(identity)
        self.wake()

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


class AmqpProtocol(asyncio.Protocol):
    """One client's socket. Implements the connection's ``Hooks``."""

    transport: asyncio.Transport
    connection: Connection

    def __init__(self, server: AmqpServer, *, is_trusted: bool = False) -> None:
        self._server = server
        self._is_trusted = is_trusted  # the client is a part of this process
        self._reading = True
        self._ended = False
        self._parting = False  # all output is sent; the client closes the socket
        self._closed_to_input = False
        self._received_at = self._sent_at = asyncio.get_running_loop().time()
        self._deadline = self._received_at + server.limits.handshake_timeout
        self.peer = ""
        self.addresses: dict[str, tuple[str, int]] = {}  # for lists of clients, as is the name
        self.name = ""
        self.connected_at = 0.0
        self.received_bytes = 0
        self.sent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from it
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH)
        address = transport.get_extra_info("peername")
        host = str(address[0]) if isinstance(address, tuple) else ""
        self.peer = f"{host}:{address[1]}" if isinstance(address, tuple) else "unknown"
        server = self._server
        server.refresh_clock()
        self.connected_at = server.broker.flow.now_ms / 1000
        self.connection = server.connect(
            server.broker,
            server.settings,
            self,
            from_loopback=is_loopback(host),
            is_trusted=self._is_trusted,
        )
        server.connections.add(self)
        if len(server.connections) > server.limits.max_connections:
            log.warning("connection refused: too many", extra={"peer": self.peer})
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Process bytes from the client."""
        if self._parting:
            return
        server = self._server
        server.refresh_clock()
        self.received_bytes += len(data)
        self._received_at = asyncio.get_running_loop().time()
        connection = self.connection
        try:
            connection.receive(data)
        except Exception:
            # A bug of ours: close this connection, keep the broker running.
            log.exception("internal error", extra={"peer": self.peer})
            connection.fail(ConnectionFault(ReplyCode.INTERNAL_ERROR, "internal error; see the broker's log"))
        if connection.has_published:
            self.consider_pausing()
        elif connection.is_stalled and connection.waiting_bytes > _STALLED_MAX:
            self._pause_reading()

    def eof_received(self) -> bool:
        """The client has closed its side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket was closed."""
        server = self._server
        server.refresh_clock()
        server.connections.discard(self)
        server._waiting_for_journal.discard(self)
        self._ended = True
        self.connection.end(f"socket closed: {exc}" if exc else "socket closed")
        server.wake()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self.connection.outbox.block(True)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.connection.outbox.block(False)
        self.connection.wake_consumers()

    def flush(self) -> None:
        """Write the outbox; wake consumers that were paused because it was full."""
        outbox = self.connection.outbox
        was_full = outbox.is_full
        parts = outbox.take_parts()
        if parts and not self.transport.is_closing():
            if len(parts) == 1:
                self.transport.write(parts[0])
            else:
                self.transport.writelines(parts)
            self.sent_bytes += sum(map(len, parts))
            self._sent_at = self._received_at
        if self._ended:
            self._part()
        elif was_full and not outbox.is_full:
            self.connection.wake_consumers()

    def _part(self) -> None:
        """Close the socket, or let the client do so if it sent connection.close, as RabbitMQ does.

        If we closed it with unread bytes in it, the client would get a reset. An end of stream would be an
        error in a client whose threads close at the same time. Both can arrive before the close-ok is read.
        """
        if self._parting or self.transport.is_closing():
            return
        if not self.connection.client_left:
            self.transport.close()
            return
        self._parting = True
        self._deadline = asyncio.get_running_loop().time() + _CLOSE_TIMEOUT
        self._reading = True
        self.transport.resume_reading()

    def abort(self) -> None:
        """Drop the connection without flushing."""
        self.transport.abort()

    def consider_pausing(self) -> None:
        """Stop reading from a publisher while the journal lags or an alarm is raised."""
        connection = self.connection
        server = self._server
        if not connection.has_published:
            return
        if server.alarm:
            connection.block(server.alarm)
            self._pause_reading()
        elif server.broker.journal.backlog > _BACKLOG_HIGH:
            self._pause_reading()
            server.wait_for_journal(self)

    def _pause_reading(self) -> None:
        if self._reading and not self.transport.is_closing():
            self._reading = False
            self.transport.pause_reading()

    def stop_reading(self) -> None:
        """Stop reading: what the client sends from now on is neither stored nor confirmed."""
        self._closed_to_input = True
        self._pause_reading()

    def read_goodbye(self) -> None:
        """Read again after our close was sent, for the client's close-ok."""
        self._closed_to_input = False
        self.resume_reading()

    def resume_reading(self) -> None:
        """Read again, unless draining or an alarm prevents it."""
        held = self._closed_to_input or (self._server.alarm and self.connection.has_published)
        if not self._reading and not held and not self.transport.is_closing():
            self._reading = True
            self.transport.resume_reading()

    def forgive(self, seconds: float) -> None:
        """Extend the deadlines by the time in which this process was stopped or blocked."""
        self._received_at += seconds
        self._deadline += seconds

    def check_time(self, now: float) -> None:
        """Send and check heartbeats; abort peers that are too slow to open or to close."""
        connection = self.connection
        if connection.phase is not Phase.RUNNING:
            if now > self._deadline:
                log.info("connection timed out", extra={"peer": self.peer, "phase": connection.phase.name})
                self.transport.abort()
            return
        if not self._reading and not connection.is_stalled:
            self.resume_reading_if_unstalled()
        interval = connection.heartbeat
        if not interval:
            return
        if now - self._sent_at >= interval / 2:
            self._sent_at = now
            connection.send_heartbeat()
        # While reading is paused we do not see the peer's heartbeats.
        if self._reading and now - self._received_at > interval * 2:
            log.warning("missed heartbeats", extra={"peer": self.peer, "seconds": interval})
            self.transport.abort()

    def resume_reading_if_unstalled(self) -> None:
        """Resume after a stall has ended: a stall has no callback, so the sweep checks."""
        if self._server.broker.journal.backlog <= _BACKLOG_HIGH:
            self.resume_reading()

    def has_output(self) -> None:
        """Flush the outbox in this turn."""
        self._server.with_output.append(self)
        self._server.wake()

    def check_password(self, name: str, password: str) -> None:
        """Check a login."""
        self._server.check_password(self, name, password)

    def check_secret(self, secret: str) -> None:
        """Check a new token of an open connection."""
        self._server.check_secret(self, secret)

    def certified_name(self) -> str | None:
        """The common name of the client's certificate."""
        certificate = self.transport.get_extra_info("peercert")
        if not isinstance(certificate, dict):
            return None
        for part in certificate.get("subject", ()):
            for key, value in part:
                if key == "commonName":
                    return str(value)
        return None

    def certified_user(self) -> str | None:
        """The user named by the client's certificate, if it may log in."""
        if self._is_trusted:
            return INSIDE_USER
        name = self.certified_name()
        if name is None:
            return None
        try:
            return self._server.authenticator.certified(
                name, from_loopback=self.connection.handshake.from_loopback
            ).name
        except LoginRefused as refusal:
            log.warning("login refused", extra={"reason": str(refusal), "peer": self.peer})
            return None

    def opened(self) -> None:
        """The handshake is done."""
        loop = asyncio.get_running_loop()
        self._received_at = self._sent_at = loop.time()
        if self._server.refusal:  # it began before the refusal, or logged in by certificate
            loop.call_soon(self._server.refuse, self._server.refusal)
        log.debug("connection open", extra={"peer": self.peer, "user": self.connection.user_name})

    def channel_failed(self, number: int, error: AmqpError) -> None:
        """Log a channel that was closed with an error."""
        log.info("channel closed", extra={"peer": self.peer, "channel": number, "reason": error.reply_text})

    def failed(self, error: AmqpError) -> None:
        """The connection is being closed with an error: give the client time for its close-ok."""
        self._deadline = asyncio.get_running_loop().time() + _CLOSE_TIMEOUT
        if error.code is not ReplyCode.CONNECTION_FORCED:
            log.warning("connection closed", extra={"peer": self.peer, "reason": error.reply_text})

    def ended(self) -> None:
        """Flush and close in this turn."""
        self._ended = True
        self._server.with_output.append(self)
        self._server.wake()

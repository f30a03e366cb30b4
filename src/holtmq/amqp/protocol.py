"""One AMQP socket: bytes from the client to its connection, and back.

Owns: the transport, heartbeats, timeouts, and when to pause reading from this client. Must not touch: the
protocol's rules (``connection.py``), what connections share (``server.py``).
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.connection import Connection
from holtmq.amqp.errors import AmqpError, ConnectionFault
from holtmq.amqp.frames import FIRST_PAYLOAD_MAX
from holtmq.amqp.handshake import INSIDE_USER
from holtmq.amqp.phase import Phase
from holtmq.auth.login import LoginRefused, is_loopback

if TYPE_CHECKING:
    from holtmq.amqp.server import AmqpServer

log = logging.getLogger(__name__)

_WRITE_HIGH: Final = 1_048_576
_STALLED_MAX: Final = 1_048_576
_BACKLOG_HIGH: Final = 32 * 1_048_576  # bytes the journal may lag before publishers are paused
_CLOSE_TIMEOUT: Final = 5.0
_TIME_SLICE: Final = 0.010  # seconds for frames of one client that were read together


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
        self._at_end = False  # the client has closed its side; what it sent is not processed yet
        self._waits_for_turn = False  # what was read is processed in a later round
        self._lost = ""  # why the socket was closed
        self._began = 0.0  # when the processing of what was read began
        self._received_at = self._sent_at = asyncio.get_running_loop().time()
        self._deadline = self._received_at + server.limits.handshake_timeout
        self.peer = ""
        self.addresses: dict[str, tuple[str, int]] = {}  # for lists of clients, as is the name
        self.name = ""
        self.connected_at = 0.0
        self.received_bytes = 0
        self.reads = self.writes = 0
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
        self.reads += 1
        self._received_at = asyncio.get_running_loop().time()
        self._began = began = monotonic()
        connection = self.connection
        if server.is_round_over(began) and connection.is_running and not connection.is_stalled:
            connection.stall()
            self.unstall_soon()
        try:
            connection.receive(data)
        except Exception:
            self._break_down()
        self._after_reading()

    def _after_reading(self) -> None:
        connection = self.connection
        if connection.has_published:
            self.consider_pausing()
        if connection.is_stalled:
            most = _STALLED_MAX if connection.is_running else FIRST_PAYLOAD_MAX
            if connection.waiting_bytes > most:
                self._pause_reading()
        elif self._at_end:
            self._close_at_end()

    def _break_down(self) -> None:
        """Handle a bug of ours: close this connection, keep the broker running."""
        log.exception("internal error", extra={"peer": self.peer})
        self.connection.fail(
            ConnectionFault(ReplyCode.INTERNAL_ERROR, "internal error; see the broker's log")
        )

    def is_time_up(self) -> bool:
        """Whether what was read last has held the event loop for long enough."""
        return monotonic() - self._began > _TIME_SLICE

    def unstall_soon(self) -> None:
        """Go on with what was read, after the other sockets."""
        self._waits_for_turn = True
        self._server.serve_soon(self)

    def go_on(self) -> None:
        """Process what was read before."""
        self._waits_for_turn = False
        self._began = monotonic()
        self._server.refresh_clock()
        try:
            self.connection.unstall()
        except Exception:
            self._break_down()
        if self._lost:
            self._end_unless_it_waits()
            return
        self._after_reading()
        if not self._reading and not self.connection.is_stalled:
            self.resume_reading_if_unstalled()

    def eof_received(self) -> bool:
        """The client has closed its side. Returns whether the socket stays open, until what it sent before is
        processed: it may wait for its turn. TLS closes it at once."""
        connection = self.connection
        self._at_end = (
            connection.is_running
            and connection.is_stalled
            and bool(connection.waiting_bytes)
            and self.transport.get_extra_info("sslcontext") is None
        )
        if not self._at_end:
            self._drop_unread()
        return self._at_end

    def _close_at_end(self) -> None:
        self.flush()  # a closed transport takes no more answers
        self.transport.close()
        self._drop_unread()

    def _drop_unread(self) -> None:
        """A socket closes when the client has read all: do not wait for that for ever."""
        if self.transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket was closed. What was read and waits for its turn is processed, as by RabbitMQ."""
        self._lost = f"socket closed: {exc}" if exc else "socket closed"
        self._server.refresh_clock()
        self._server._waiting_for_journal.discard(self)
        self.connection.outbox.block(True)  # no more deliveries
        self._end_unless_it_waits()

    def _end_unless_it_waits(self) -> None:
        """End a connection whose socket is closed, unless a later round goes on with it.

        A commit, a disk and whatever else may stop it takes longer: then the rest is dropped.
        """
        connection = self.connection
        if self._waits_for_turn and connection.is_running:
            return
        self._server.connections.discard(self)
        self._ended = True
        connection.end(self._lost)
        connection.released()
        self._server.wake()

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
                self.sent_bytes += len(parts[0])
            else:
                self.transport.writelines(parts)
                self.sent_bytes += sum(map(len, parts))
            self.writes += 1
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
        if self._lost:
            return
        connection = self.connection
        if connection.phase is not Phase.RUNNING:
            if now > self._deadline:
                log.info("connection timed out", extra={"peer": self.peer, "phase": connection.phase.name})
                self.transport.abort()
            return
        if not connection.is_stalled:
            if self._at_end:  # the stall had no callback
                self._close_at_end()
            elif not self._reading:
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

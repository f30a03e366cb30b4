"""From the protocol header to an open connection.

Owns: the order of the handshake, SASL, tuning, the server properties. Must not touch: sockets and argon2;
the server checks passwords and calls ``checked`` with the result.
"""

import platform
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol
from weakref import proxy

from holtmq.amqp.codec import encode_method
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.errors import AmqpError, ConnectionFault
from holtmq.amqp.frames import FIRST_PAYLOAD_MAX, FRAME_METHOD, FRAME_MIN_SIZE, FRAME_OVERHEAD, encode_frame
from holtmq.amqp.interceptors import NO_INTERCEPTORS, Interceptors
from holtmq.amqp.methods import (
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
)
from holtmq.auth.permissions import FULL_ACCESS, Access
from holtmq.auth.rights import Identity
from holtmq.wire.primitives import CodecError
from holtmq.wire.tables import FieldTable, decode_pairs

if TYPE_CHECKING:
    from holtmq.amqp.connection import Connection

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
# 0-9, which older clients (Perl's Net::AMQP) send although they speak 0-9-1; RabbitMQ accepts it, too.
OLD_PROTOCOL_HEADER: Final = b"AMQP\x01\x01\x00\x09"
INSIDE_USER: Final = "none"  # RabbitMQ's name for the user of a connection from the broker itself
_OPEN_ID: Final = 10 << 16 | 40
_CAPABILITIES: Final[FieldTable] = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration of a connection."""

    product: str
    version: str
    channel_max: int = 2047
    frame_max: int = 131_072
    heartbeat: int = 60
    max_message_bytes: int = 16 * 1024 * 1024
    channel_flow: bool = True
    consumer_timeout_ms: int = 1_800_000  # 0: no timeout
    interceptors: Interceptors = NO_INTERCEPTORS


class Hooks(Protocol):
    """What a connection needs from the owner of its socket. By itself each does nothing: there is none."""

    def has_output(self) -> None:
        """The outbox is no longer empty: flush it before this turn ends."""
        return

    def check_password(self, name: str, password: str) -> None:
        """Start checking this login; pass the result to ``Handshake.checked``."""
        return

    def check_secret(self, secret: str) -> None:
        """Start checking a token that replaces the current one; pass the result to ``Connection.renewed``."""
        return

    def certified_name(self) -> str | None:
        """The name in the client's verified TLS certificate."""
        return None

    def certified_user(self) -> str | None:
        """The user with that name, if it may log in."""
        return None

    def opened(self) -> None:
        """The handshake is done."""
        return

    def channel_failed(self, number: int, error: AmqpError) -> None:
        """A channel was closed with an error."""
        return

    def failed(self, error: AmqpError) -> None:
        """The connection is being closed with an error."""
        return

    def ended(self) -> None:
        """Flush and close the socket."""
        return

    def is_time_up(self) -> bool:
        """Whether what is being processed has held the event loop for long enough."""
        return False

    def unstall_soon(self) -> None:
        """Call ``Connection.unstall`` after other clients had their turn."""
        return


class _NoSocket(Hooks):
    """Of a connection whose socket is closed."""


NO_SOCKET: Final = _NoSocket()


class _Step(Enum):
    START = auto()
    LOGIN = auto()
    TUNE = auto()
    OPEN = auto()


class Handshake:
    """start, start-ok, tune, tune-ok, open, open-ok."""

    def __init__(self, connection: "Connection", from_loopback: bool) -> None:
        self._connection: Connection = proxy(connection)  # it refers to this
        self._step = _Step.START
        self.from_loopback = from_loopback
        self._mechanism = ""
        self._user = ""
        self._identity: Identity | None = None
        self._closes_politely = False

    @property
    def is_tuned(self) -> bool:
        """Whether only connection.open is missing."""
        return self._step is _Step.OPEN

    def start(self) -> None:
        """Send connection.start: the protocol header has arrived."""
        settings = self._connection.settings
        self._connection.max_payload = min(
            settings.frame_max - FRAME_OVERHEAD, FIRST_PAYLOAD_MAX
        )  # until it is tuned
        mechanisms = b"PLAIN AMQPLAIN"
        if self._connection.hooks.certified_name() is not None:
            mechanisms = b"EXTERNAL " + mechanisms
        properties: FieldTable = {
            "capabilities": _CAPABILITIES,
            "cluster_name": f"holt@{platform.node()}",
            "copyright": "The HoltMQ authors",
            "information": "Licensed under the Apache License 2.0",
            "platform": f"Python {platform.python_version()}",
            "product": settings.product,
            "version": settings.version,
        }
        self._send(ConnectionStart(0, 9, properties, mechanisms, b"en_US"))

    def receive(self, method: Method) -> None:
        """Handle one method of the handshake."""
        match self._step, method:
            case _Step.START, ConnectionStartOk():
                self._start_ok(method)
            case _Step.TUNE, ConnectionTuneOk():
                self._tune_ok(method)
            case _Step.OPEN, ConnectionOpen(vhost):
                self._open(vhost)
            case _:
                raise ConnectionFault(
                    ReplyCode.COMMAND_INVALID, f"unexpected method {method.name} in the handshake"
                )

    def _start_ok(self, method: ConnectionStartOk) -> None:
        connection = self._connection
        capabilities = method.client_properties.get("capabilities")
        wanted = capabilities if isinstance(capabilities, dict) else {}
        connection.client_properties = dict(method.client_properties)
        connection.wants_cancel_notify = wanted.get("consumer_cancel_notify") is True
        connection.wants_blocked = wanted.get("connection.blocked") is True
        self._closes_politely = wanted.get("authentication_failure_close") is True
        name = method.client_properties.get("connection_name")
        connection.name = name if isinstance(name, str) else ""
        self._mechanism = connection.auth_mechanism = method.mechanism
        self._step = _Step.LOGIN
        match method.mechanism:
            case "PLAIN":
                user, password = _plain(method.response)
            case "AMQPLAIN":
                user, password = _amqplain(method.response)
            case "EXTERNAL":
                certified = connection.hooks.certified_user()
                if certified is None:
                    self.refused()
                else:
                    self.logged_in(certified)
                return
            case other:
                raise ConnectionFault(
                    ReplyCode.COMMAND_INVALID,
                    f"unknown authentication mechanism '{other}'; there are PLAIN and AMQPLAIN",
                )
        connection.stall()
        connection.hooks.check_password(user, password)

    def checked(self, user: str | None, identity: Identity | None = None) -> None:
        """The server has checked the password. ``user`` is None if it was wrong.

        ``identity``: the password was a token, which says what the client may do.
        """
        self._identity = identity
        if user is None:
            self.refused()
        else:
            self.logged_in(user)
        self._connection.unstall()

    def logged_in(self, user: str) -> None:
        """The client is authenticated: go on with tuning."""
        self._user = user
        settings = self._connection.settings
        self._send(ConnectionTune(settings.channel_max, settings.frame_max, settings.heartbeat))
        self._step = _Step.TUNE

    def refused(self) -> None:
        """The login failed. Only the log says why."""
        text = (
            f"Login was refused using authentication mechanism {self._mechanism}. "
            "For details see the broker logfile."
        )
        if self._closes_politely:
            self._connection.fail(ConnectionFault(ReplyCode.ACCESS_REFUSED, text))
        else:
            self._connection.end(text)

    def _tune_ok(self, method: ConnectionTuneOk) -> None:
        connection = self._connection
        settings = connection.settings
        frame_max = method.frame_max or settings.frame_max
        if frame_max > settings.frame_max:
            raise ConnectionFault(
                ReplyCode.NOT_ALLOWED,
                f"negotiated frame_max = {frame_max} is higher than the maximum allowed value "
                f"({settings.frame_max})",
            )
        if frame_max < FRAME_MIN_SIZE:
            raise ConnectionFault(
                ReplyCode.NOT_ALLOWED,
                f"negotiated frame_max = {frame_max} is lower than the minimum allowed value "
                f"({FRAME_MIN_SIZE})",
            )
        channel_max = method.channel_max or settings.channel_max
        if channel_max > settings.channel_max:
            raise ConnectionFault(
                ReplyCode.NOT_ALLOWED,
                f"negotiated channel_max = {channel_max} is higher than the maximum allowed value "
                f"({settings.channel_max})",
            )
        connection.max_payload = frame_max - 8
        connection.channel_max = channel_max
        connection.heartbeat = method.heartbeat
        self._step = _Step.OPEN

    def _open(self, name: str) -> None:
        broker = self._connection.broker
        vhost = broker.vhosts.get(name)
        if vhost is None:
            raise ConnectionFault(ReplyCode.NOT_ALLOWED, f"vhost {name} not found", _OPEN_ID)
        trusted = self._connection.is_trusted
        identity = self._identity
        if trusted:
            access = Access(FULL_ACCESS)
        else:
            access = broker.users.access(self._user, name) if identity is None else identity.access(name)
        if not access.is_granted:
            raise ConnectionFault(
                ReplyCode.NOT_ALLOWED, f"access to vhost '{name}' refused for user '{self._user}'", _OPEN_ID
            )
        full = None if trusted else broker.limits.check_connection(name, self._user)
        if full is not None:
            raise ConnectionFault(ReplyCode.NOT_ALLOWED, full, _OPEN_ID)
        self._connection.opened(vhost, self._user, access, identity)
        self._send(ConnectionOpenOk())

    def _send(self, method: Method) -> None:
        self._connection.outbox.append(encode_frame(FRAME_METHOD, 0, encode_method(method)))


def _plain(response: bytes) -> tuple[str, str]:
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise ConnectionFault(ReplyCode.SYNTAX_ERROR, "PLAIN response must be NUL, user name, NUL, password")
    return parts[1].decode("utf-8", "replace"), parts[2].decode("utf-8", "replace")


def _amqplain(response: bytes) -> tuple[str, str]:
    try:
        table = decode_pairs(response)
    except CodecError as error:
        raise ConnectionFault(ReplyCode.SYNTAX_ERROR, f"AMQPLAIN response: {error}") from None
    name, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(name, str) or not isinstance(password, str):
        raise ConnectionFault(ReplyCode.SYNTAX_ERROR, "AMQPLAIN response must hold LOGIN and PASSWORD")
    return name, password

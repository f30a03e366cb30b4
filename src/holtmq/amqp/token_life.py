"""The OAuth 2 token of one connection: its end, and its renewal by connection.update-secret.

Owns: when the connection closes because its token has expired, and what a new token changes. Must not touch:
how tokens are verified; the server does that and calls ``renewed``.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from weakref import proxy, ref

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.errors import ConnectionFault
from holtmq.amqp.methods import ConnectionUpdateSecretOk
from holtmq.auth.permissions import Action
from holtmq.auth.rights import Identity
from holtmq.broker.timer_wheel import Timer

if TYPE_CHECKING:
    from holtmq.amqp.connection import Connection

_UPDATE_SECRET_ID: Final = 10 << 16 | 70


class TokenLife:
    """Follows the token of one connection; a connection with a password has no identity here."""

    __slots__ = ("__weakref__", "_connection", "_timer", "identity")

    def __init__(self, connection: "Connection") -> None:
        self._connection: Connection = proxy(connection)  # it refers to this
        self.identity: Identity | None = None
        self._timer: Timer[Callable[[], object]] | None = None

    def begin(self, identity: Identity) -> None:
        """Use this token from now on, and close the connection when it expires."""
        self.identity = identity
        self.end()
        if identity.expires_at is not None:
            myself = ref(self)  # the timer may outlive the connection and must not keep it alive

            def expired() -> None:
                life = myself()
                if life is not None:
                    life._expired()

            self._timer = self._connection.flow.timers.schedule(identity.expires_at, expired)

    def end(self) -> None:
        """Stop the timer: the connection has ended, or has a new token."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self) -> None:
        self._timer = None
        self._connection.fail(
            ConnectionFault(
                ReplyCode.CONNECTION_FORCED,
                "broker forced connection closure with reason 'credential expired'",
            )
        )

    def update(self, secret: str) -> None:
        """connection.update-secret. Passwords do not expire, so a client with a password changes nothing."""
        connection = self._connection
        if self.identity is None:
            connection.send(ConnectionUpdateSecretOk())
            return
        connection.stall()
        connection.hooks.check_secret(secret)

    def renewed(self, identity: Identity | None) -> None:
        """The server has checked the new token; None: it is refused."""
        connection = self._connection
        if connection.is_running:
            self._renew(identity)
        connection.unstall()

    def _renew(self, identity: Identity | None) -> None:
        connection = self._connection
        known = self.identity
        if identity is None or known is None or identity.name != known.name:
            connection.fail(
                ConnectionFault(ReplyCode.NOT_ALLOWED, "New secret was refused by one of the backends"),
                _UPDATE_SECRET_ID,
            )
            return
        access = identity.access(connection.vhost.name)
        if not access.is_granted:
            text = f"access to vhost '{connection.vhost.name}' refused for user '{identity.name}'"
            connection.fail(ConnectionFault(ReplyCode.NOT_ALLOWED, text), _UPDATE_SECRET_ID)
            return
        self.begin(identity)
        connection.use_access(access)
        for channel in connection.channels.values():
            for consumer in list(channel.consumers.values()):
                if consumer.queue is not channel.consuming.reply_queue and not access.may(
                    Action.READ, consumer.queue.name
                ):
                    channel.consuming.dismiss(consumer.tag)
        connection.send(ConnectionUpdateSecretOk())

"""What the user of one connection may do in its vhost.

Owns: the checks, and the texts of their refusals. Must not touch: where permissions come from.
"""

from holtmq.amqp.token_life import TokenLife
from holtmq.auth.permissions import DEFAULT_EXCHANGE, Access, Action
from holtmq.broker.broker import Broker
from holtmq.broker.errors import AccessRefused
from holtmq.broker.topology.exchange_kinds import ExchangeKind
from holtmq.broker.topology.vhost import QueueExchange, VHost


class ClientRights:
    """The rights of one connection's user, once its handshake is done."""

    __slots__ = ("_access", "_broker", "_token", "_user_name", "_vhost")

    def __init__(
        self, broker: Broker, vhost: VHost, user_name: str, access: Access, token: TokenLife
    ) -> None:
        self._broker = broker
        self._vhost = vhost
        self._user_name = user_name
        self._access = access
        self._token = token

    def use(self, access: Access) -> None:
        """Use these permissions from now on."""
        self._access = access

    def check(self, action: Action, name: str) -> None:
        """Raise AccessRefused if this user may not do this."""
        if not self._access.may(action, name or DEFAULT_EXCHANGE):
            raise AccessRefused(
                f"{action.value} access to '{name or DEFAULT_EXCHANGE}' in vhost '{self._vhost.name}' "
                f"refused for user '{self._user_name}'"
            )

    def restricts_topics(self, exchange: QueueExchange) -> bool:
        """Whether this user has topic permissions on this topic exchange."""
        scopes = self._token.identity.scopes if self._token.identity is not None else None
        if scopes is not None:
            return exchange.inner_kind is ExchangeKind.TOPIC and scopes.restricts_topics
        permissions = self._broker.topic_permissions
        return exchange.inner_kind is ExchangeKind.TOPIC and permissions.restricts(
            self._user_name, self._vhost.name, exchange.name
        )

    def check_topic(self, exchange: str, topic: str, *, write: bool) -> None:
        """Raise AccessRefused if this user may not use the topic. Checks topic exchanges only."""
        vhost = self._vhost
        found = vhost.exchanges.get(exchange)
        if found is None or not self.restricts_topics(found):
            return
        scopes = self._token.identity.scopes if self._token.identity is not None else None
        if scopes is not None:
            allowed = scopes.may_topic(vhost.name, exchange, topic, write=write)
        else:
            permissions = self._broker.topic_permissions
            allowed = permissions.may(self._user_name, vhost.name, exchange, topic, write=write)
        if not allowed:
            raise AccessRefused(
                f"access to topic '{topic}' in exchange '{exchange}' in vhost '{vhost.name}' "
                f"refused for user '{self._user_name}'"
            )

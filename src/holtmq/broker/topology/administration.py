"""The part of a broker that holds no messages: vhosts, users and permissions, exchanges and bindings.

Owns: those, each change paired with its journal record. Must not touch: queues beyond their bindings,
messages, sockets, clocks.
"""

from collections.abc import Callable, Iterable

from holtmq.auth.permissions import Permissions
from holtmq.auth.users import Grant, User, UserStore, Vhost
from holtmq.broker.errors import NotFound
from holtmq.broker.records.changes import (
    AnyChange,
    BindingDeleted,
    BindingPut,
    ExchangeDeleted,
    ExchangePut,
    Kind,
    PermissionDeleted,
    PermissionPut,
    UserDeleted,
    UserPut,
    VhostPut,
    encode_change,
    pack_table,
)
from holtmq.broker.topology.long_changes import LongChanges
from holtmq.broker.topology.policies import PolicyBook, alternate_exchange
from holtmq.broker.topology.vhost import QueueExchange, VHost, refuse_default
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal.interface import Journal
from holtmq.wire.tables import FieldTable


class Administration:
    """Where messages can go, and who may do what."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.vhosts: dict[str, VHost] = {}
        self.users = UserStore()
        self.policies = PolicyBook()
        self.long_changes = LongChanges()
        # Told when clients must go: why, and whether one of this vhost and user is among them.
        self.on_expelled: Callable[[str, Callable[[str, str], bool]], None] = _nobody

    def record(self, change: AnyChange) -> None:
        """Write one change down."""
        self.journal.append(Kind.CHANGE, encode_change(change))

    # -- vhosts and users --------------------------------------------------------------------------

    def put_vhost(self, name: str) -> None:
        """Create a vhost with its predeclared exchanges."""
        if name not in self.vhosts:
            self.add_vhost(name)
            self.record(VhostPut(name))

    def add_vhost(self, name: str) -> VHost:
        """State only."""
        vhost = self.vhosts[name] = VHost(name)
        vhost.alternate_by_policy = lambda exchange: alternate_exchange(
            None, self.policies.for_exchange(name, exchange.name)
        )
        self.users.put_vhost(Vhost(name))
        return vhost

    def vhost(self, name: str) -> VHost:
        """The vhost of this name."""
        found = self.vhosts.get(name)
        if found is None:
            raise NotFound(f"vhost {name} not found")
        return found

    def put_user(self, user: User) -> None:
        """Add or replace a user."""
        self.users.put_user(user)
        self.record(UserPut(user.name, user.password_hash, list(user.tags)))

    def delete_user(self, name: str) -> None:
        """Remove a user with all permissions."""
        if not self.users.delete_user(name):
            raise NotFound(f"no user '{name}'")
        self.on_expelled(f"user '{name}' is deleted", lambda _, user: user == name)
        self.record(UserDeleted(name))

    def set_permissions(self, user: str, vhost: str, permissions: Permissions) -> None:
        """Give a user permissions in a vhost."""
        permissions.check()
        if self.users.user(user) is None:
            raise NotFound(f"no user '{user}'")
        self.vhost(vhost).version += 1  # cached routes hold the answer to "may this user write here"
        self.users.set_permissions(Grant(user, vhost, permissions))
        self.record(PermissionPut(user, vhost, permissions.configure, permissions.write, permissions.read))

    def clear_permissions(self, user: str, vhost: str) -> None:
        """Take a user's permissions in a vhost away."""
        self.vhost(vhost).version += 1
        if self.users.clear_permissions(user, vhost):
            self.record(PermissionDeleted(user, vhost))

    # -- exchanges ---------------------------------------------------------------------------------

    def declare_exchange(
        self,
        vhost: VHost,
        name: str,
        kind: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: FieldTable | None = None,
    ) -> bool:
        """Create an exchange, or check that the one there is equivalent. True if something was journalled."""
        refuse_default(name)
        arguments = arguments or {}
        if not vhost.declare_exchange(name, kind, durable, auto_delete, internal, arguments) or not durable:
            return False
        self.record(ExchangePut(vhost.name, name, kind, auto_delete, internal, pack_table(arguments)))
        return True

    def delete_exchange(self, vhost: VHost, name: str, if_unused: bool = False) -> bool:
        """Delete an exchange and the bindings around it. True if something was journalled."""
        exchange = vhost.exchanges.get(name)
        removal = vhost.delete_exchange(name, if_unused)
        durable = exchange is not None and exchange.durable
        if durable:
            self.record(ExchangeDeleted(vhost.name, name))
        self.long_changes.add(removal.steps)
        self._delete_unused_sources(vhost, removal.sources)
        return durable

    def bind(
        self,
        vhost: VHost,
        source: str,
        destination: str,
        routing_key: str,
        arguments: FieldTable | None = None,
        *,
        to_exchange: bool = False,
        owner: object | None = None,
    ) -> bool:
        """Bind a queue or exchange. True if something was journalled."""
        refuse_default(source)
        if to_exchange:
            refuse_default(destination)
        where = vhost.destination(destination, to_exchange, owner)
        exchange = vhost.exchange(source)
        arguments = arguments or {}
        if not vhost.bind(exchange, where, routing_key, arguments) or not _lasts(exchange, where):
            return False
        self.record(
            BindingPut(vhost.name, source, destination, to_exchange, routing_key, pack_table(arguments))
        )
        return True

    def unbind(
        self,
        vhost: VHost,
        source: str,
        destination: str,
        routing_key: str,
        arguments: FieldTable | None = None,
        *,
        to_exchange: bool = False,
        owner: object | None = None,
    ) -> bool:
        """Remove a binding; no error when there is none. True if something was journalled."""
        refuse_default(source)
        arguments = arguments or {}
        if not vhost.is_bound(source, destination, routing_key, arguments, to_exchange):
            return False
        where = vhost.destination(destination, to_exchange, owner)
        exchange = vhost.exchange(source)
        vhost.unbind(exchange, where, routing_key, arguments)
        lasting = _lasts(exchange, where)
        if lasting:
            self.record(
                BindingDeleted(
                    vhost.name, source, destination, to_exchange, routing_key, pack_table(arguments)
                )
            )
        if exchange.auto_delete and exchange.is_unused:
            self.delete_exchange(vhost, source)
        return lasting

    def _delete_unused_sources(self, vhost: VHost, names: Iterable[str]) -> None:
        for name in names:
            exchange = vhost.exchanges.get(name)
            if exchange is not None and exchange.auto_delete and exchange.is_unused:
                self.delete_exchange(vhost, name)


def _nobody(reason: str, is_meant: Callable[[str, str], bool]) -> None:
    return None


def _lasts(source: QueueExchange, destination: WorkQueue | QueueExchange) -> bool:
    return source.durable and (
        destination.persisted if isinstance(destination, WorkQueue) else destination.durable
    )

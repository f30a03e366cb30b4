"""The part of a broker that holds no messages: vhosts, users and permissions, exchanges and bindings.

Owns: these, and the pairing of each change with its journal record. Must not touch: queues beyond their
bindings, messages, sockets, clocks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from holtmq.auth.permissions import Permissions
from holtmq.auth.topic_permissions import TopicPermission, TopicPermissions
from holtmq.auth.users import Grant, User, UserStore, Vhost
from holtmq.broker.errors import NotFound
from holtmq.broker.records.changes import (
    AnyChange,
    BindingDeleted,
    BindingPut,
    ExchangeDeleted,
    ExchangePut,
    GlobalParameterDeleted,
    GlobalParameterPut,
    Kind,
    ParameterDeleted,
    ParameterPut,
    PermissionDeleted,
    PermissionPut,
    TopicPermissionDeleted,
    TopicPermissionPut,
    UserDeleted,
    UserLimitsPut,
    UserPut,
    VhostLimitsPut,
    VhostPut,
    encode_change,
    pack_table,
)
from holtmq.broker.topology.limits import USER_LIMITS, VHOST_LIMITS, Limits, read_limit
from holtmq.broker.topology.long_changes import LongChanges
from holtmq.broker.topology.parameters import Parameter, Parameters
from holtmq.broker.topology.pending_bindings import PendingBindings
from holtmq.broker.topology.policies import PolicyBook, alternate_exchange
from holtmq.broker.topology.vhost import QueueExchange, VHost, refuse_default
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal.encoded_batch import EncodedBatch
from holtmq.journal.interface import Journal
from holtmq.wire.tables import FieldTable


class Administration:
    """Vhosts, exchanges and bindings, and the permissions of users."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.vhosts: dict[str, VHost] = {}
        self.users = UserStore()
        self.policies = PolicyBook()
        self.long_changes = LongChanges()
        self.pending_bindings = PendingBindings()
        self.topic_permissions = TopicPermissions()
        self.limits = Limits()
        self.parameters = Parameters()
        self._together: list[tuple[int, bytes]] | None = None  # records of an open ``one_record``
        # Called when clients must be disconnected: the reason, and a predicate of vhost and user.
        self.on_expelled: Callable[[str, Callable[[str, str], bool]], None] = _no_clients
        self.on_parameters: Callable[[], None] = _nothing  # called when parameters of vhosts have changed

    def record(self, change: AnyChange) -> None:
        """Journal one change."""
        record = (int(Kind.CHANGE), encode_change(change))
        if self._together is not None:
            self._together.append(record)
        else:
            self.journal.append(*record)

    @contextmanager
    def one_record(self, behind: EncodedBatch | None = None) -> Iterator[None]:
        """Journal all changes made meanwhile as one record: a crash keeps all of them or none.

        The same record gets ``behind``: changes that are encoded already, and are made afterwards.
        """
        assert self._together is None
        self._together = []
        try:
            yield
        except BaseException:
            behind = None
            raise
        finally:
            records, self._together = self._together, None
            batch = EncodedBatch()
            for kind, payload in records:
                batch.add(kind, payload)
            if behind is not None:
                batch.extend(behind)
            if not batch.is_empty:
                self.journal.append_encoded(batch)

    def put_vhost(self, name: str, description: str = "", tags: Iterable[str] = ()) -> None:
        """Create a vhost with its predeclared exchanges, or change its description and tags."""
        known = self.users.vhost(name)
        wanted = Vhost(name, description, tuple(tags))
        if known == wanted or (known is not None and not description and not wanted.tags):
            return
        self.add_vhost(name, description, wanted.tags)
        self.record(VhostPut(name, description, list(wanted.tags)))

    def add_vhost(self, name: str, description: str = "", tags: Iterable[str] = ()) -> VHost:
        """Add a vhost to the state, without a journal record."""
        self.users.put_vhost(Vhost(name, description, tuple(tags)))
        if name in self.vhosts:
            return self.vhosts[name]
        vhost = self.vhosts[name] = VHost(name)
        vhost.alternate_by_policy = lambda exchange: alternate_exchange(
            None, self.policies.for_exchange(name, exchange.name)
        )
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
        """Delete a user with all permissions."""
        if not self.users.delete_user(name):
            raise NotFound(f"no user '{name}'")
        self.topic_permissions.forget(user=name)
        self.limits.of_users.pop(name, None)
        self.on_expelled(f"user '{name}' is deleted", lambda _, user: user == name)
        self.record(UserDeleted(name))

    def set_permissions(self, user: str, vhost: str, permissions: Permissions) -> None:
        """Give a user permissions in a vhost."""
        permissions.check()
        if self.users.user(user) is None:
            raise NotFound(f"no user '{user}'")
        self.vhost(vhost).rules_changed()  # publishers cache whether the user may write here
        self.users.set_permissions(Grant(user, vhost, permissions))
        self.record(PermissionPut(user, vhost, permissions.configure, permissions.write, permissions.read))

    def clear_permissions(self, user: str, vhost: str) -> None:
        """Remove a user's permissions in a vhost."""
        self.vhost(vhost).rules_changed()
        if self.users.clear_permissions(user, vhost):
            self.record(PermissionDeleted(user, vhost))

    def put_topic_permission(self, permission: TopicPermission) -> None:
        """Set which topics of an exchange a user may write to and read from."""
        permission.check()
        if self.users.user(permission.user) is None:
            raise NotFound(f"no user '{permission.user}'")
        self.vhost(permission.vhost).rules_changed()  # publishers cache the answer
        self.topic_permissions.put(permission)
        self.record(
            TopicPermissionPut(
                permission.user, permission.vhost, permission.exchange, permission.write, permission.read
            )
        )

    def delete_topic_permissions(self, user: str, vhost: str, exchange: str | None = None) -> bool:
        """Remove a user's topic permissions for one exchange, or all; False when there were none."""
        self.vhost(vhost).rules_changed()
        if not self.topic_permissions.remove(user, vhost, exchange):
            return False
        self.record(TopicPermissionDeleted(user, vhost, exchange))
        return True

    def set_vhost_limits(self, vhost: str, limits: Mapping[str, object]) -> None:
        """Replace all limits of a vhost."""
        name = self.vhost(vhost).name
        read = {key: read_limit(key, limits[key], VHOST_LIMITS, f"vhost '{vhost}'") for key in limits}
        self.limits.replace(self.limits.of_vhosts, name, read)
        self.record(VhostLimitsPut(name, read))

    def set_user_limits(self, user: str, limits: Mapping[str, object]) -> None:
        """Replace all limits of a user."""
        if self.users.user(user) is None:
            raise NotFound(f"no user '{user}'")
        read = {key: read_limit(key, limits[key], USER_LIMITS, f"user '{user}'") for key in limits}
        self.limits.replace(self.limits.of_users, user, read)
        self.record(UserLimitsPut(user, read))

    def put_parameter(self, parameter: Parameter) -> None:
        """Add or replace a parameter of a component."""
        self.vhost(parameter.vhost)
        self.parameters.put(parameter)
        self.record(ParameterPut(parameter.vhost, parameter.component, parameter.name, parameter.value))
        self.on_parameters()

    def delete_parameter(self, vhost: str, component: str, name: str) -> None:
        """Delete a parameter."""
        if not self.parameters.remove(vhost, component, name):
            raise NotFound(f"no parameter '{name}' of component '{component}' in vhost '{vhost}'")
        self.record(ParameterDeleted(vhost, component, name))
        self.on_parameters()

    def put_global_parameter(self, name: str, value: bytes) -> None:
        """Add or replace a parameter of the node."""
        self.parameters.put_global(name, value)
        self.record(GlobalParameterPut(name, value))

    def delete_global_parameter(self, name: str) -> None:
        """Delete a parameter of the node."""
        if not self.parameters.remove_global(name):
            raise NotFound(f"no global parameter '{name}'")
        self.record(GlobalParameterDeleted(name))

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
        """Create an exchange, or check that the existing one is equivalent. True if journalled."""
        refuse_default(name)
        arguments = arguments or {}
        if not vhost.declare_exchange(name, kind, durable, auto_delete, internal, arguments) or not durable:
            return False
        self.record(ExchangePut(vhost.name, name, kind, auto_delete, internal, pack_table(arguments)))
        return True

    def delete_exchange(self, vhost: VHost, name: str, if_unused: bool = False) -> bool:
        """Delete an exchange and all bindings from and to it. True if journalled."""
        self.pending_bindings.settle(vhost.name, True, name)
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
        in_journal: bool = False,
    ) -> bool:
        """Bind a queue or exchange. True if journalled. ``in_journal``: its record is there already."""
        refuse_default(source)
        if to_exchange:
            refuse_default(destination)
        where = vhost.destination(destination, to_exchange, owner)
        exchange = vhost.exchange(source)
        arguments = arguments or {}
        if not vhost.bind(exchange, where, routing_key, arguments) or not _lasts(exchange, where):
            return False
        if in_journal:
            return True
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
        """Remove a binding; no error when there is none. True if journalled."""
        refuse_default(source)
        self.pending_bindings.settle(vhost.name, True, source)
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


def _no_clients(reason: str, is_meant: Callable[[str, str], bool]) -> None:
    return None


def _nothing() -> None:
    return None


def _lasts(source: QueueExchange, destination: WorkQueue | QueueExchange) -> bool:
    return source.durable and (
        destination.persisted if isinstance(destination, WorkQueue) else destination.durable
    )

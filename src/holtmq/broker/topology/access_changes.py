"""Users, their permissions, and the limits of users and vhosts: each change with its journal record.

Owns: these. Must not touch: how logins are checked, queues, sockets.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from holtmq.auth.permissions import Permissions
from holtmq.auth.topic_permissions import TopicPermission, TopicPermissions
from holtmq.auth.users import Grant, User, UserStore, Vhost
from holtmq.broker.errors import Conflict, NotFound
from holtmq.broker.records.change_log import ChangeLog
from holtmq.broker.records.changes import (
    PermissionDeleted,
    PermissionPut,
    TopicPermissionDeleted,
    TopicPermissionPut,
    UserDeleted,
    UserLimitsPut,
    UserPut,
    VhostLimitsPut,
    VhostSettingsPut,
)
from holtmq.broker.topology.limits import USER_LIMITS, VHOST_LIMITS, Limits, read_limit
from holtmq.broker.topology.long_changes import STEP, LongChanges
from holtmq.broker.topology.queue_options import QueueType
from holtmq.broker.topology.vhosts import VHosts


class AccessChanges:
    """Users, permissions and limits of a broker."""

    def __init__(self, log: ChangeLog, vhosts: VHosts, long_changes: LongChanges) -> None:
        self._log = log
        self._vhosts = vhosts
        self._free = long_changes.free
        self.users = UserStore()
        self.topic_permissions = TopicPermissions()
        self.limits = Limits()
        # Called when clients must be disconnected: the reason, and a predicate of vhost and user.
        self.on_expelled: Callable[[str, Callable[[str, str], bool]], None] = _no_clients

    def forget_vhost(self, name: str) -> None:
        """Drop everything about a vhost that is being deleted; its record says so."""
        self.users.delete_vhost(name)
        self.topic_permissions.forget(vhost=name)
        self.limits.of_vhosts.pop(name, None)

    def forget_rights(self, name: str) -> Iterator[None]:
        """Drop the permissions in a vhost that is being deleted; it yields after very many.

        Those on topics are last: without them, every topic is allowed.
        """
        for forget in (self.users.clear_vhost, lambda vhost: self.topic_permissions.forget(vhost=vhost)):
            gone: list[Any] = forget(name)
            is_long = len(gone) > STEP
            self._free(gone)
            if is_long:
                yield

    def set_vhost_settings(
        self, name: str, default_queue_type: str | None = None, protected_from_deletion: bool | None = None
    ) -> None:
        """Set the type of queues that are declared without one, and whether the vhost can be deleted.

        None leaves a setting as it is.
        """
        self._vhosts.find(name)
        known = self.users.vhost(name)
        assert known is not None
        kind = known.default_queue_type if default_queue_type is None else default_queue_type
        protected = (
            known.protected_from_deletion if protected_from_deletion is None else protected_from_deletion
        )
        types = [queue_type.value for queue_type in QueueType]
        if kind and kind not in types:
            raise Conflict(
                f"{kind} is not a valid queue type: default_queue_type is one of {', '.join(types)}"
            )
        if (kind, protected) != (known.default_queue_type, known.protected_from_deletion):
            self._log.refuse_if_failed()
            self.apply_vhost_settings(name, kind, protected)
            self._log.record(VhostSettingsPut(name, kind, protected))

    def apply_vhost_settings(self, name: str, default_queue_type: str, protected_from_deletion: bool) -> None:
        """Change the settings in the state, without a journal record."""
        known = self.users.vhost(name) or Vhost(name)
        self.users.put_vhost(
            replace(
                known,
                default_queue_type=default_queue_type,
                protected_from_deletion=protected_from_deletion,
            )
        )

    def put_user(self, user: User) -> None:
        """Add or replace a user."""
        self._log.refuse_if_failed()
        self.users.put_user(user)
        self._log.record(UserPut(user.name, user.password_hash, list(user.tags)))

    def delete_user(self, name: str) -> None:
        """Delete a user with all permissions."""
        self._log.refuse_if_failed()
        if not self.users.delete_user(name):
            raise NotFound(f"no user '{name}'")
        self._free(self.topic_permissions.forget(user=name))
        self.limits.of_users.pop(name, None)
        self.on_expelled(f"user '{name}' is deleted", lambda _, user: user == name)
        self._log.record(UserDeleted(name))

    def set_permissions(self, user: str, vhost: str, permissions: Permissions) -> None:
        """Give a user permissions in a vhost."""
        permissions.check()
        if self.users.user(user) is None:
            raise NotFound(f"no user '{user}'")
        self._log.refuse_if_failed()
        self._vhosts.find(vhost).rules_changed()  # publishers cache whether the user may write here
        self.users.set_permissions(Grant(user, vhost, permissions))
        self._log.record(
            PermissionPut(user, vhost, permissions.configure, permissions.write, permissions.read)
        )

    def clear_permissions(self, user: str, vhost: str) -> None:
        """Remove a user's permissions in a vhost."""
        self._log.refuse_if_failed()
        self._vhosts.find(vhost).rules_changed()
        if self.users.clear_permissions(user, vhost):
            self._log.record(PermissionDeleted(user, vhost))

    def put_topic_permission(self, permission: TopicPermission) -> None:
        """Set which topics of an exchange a user may write to and read from."""
        permission.check()
        if self.users.user(permission.user) is None:
            raise NotFound(f"no user '{permission.user}'")
        self._log.refuse_if_failed()
        self._vhosts.find(permission.vhost).rules_changed()  # publishers cache the answer
        self.topic_permissions.put(permission)
        self._log.record(
            TopicPermissionPut(
                permission.user, permission.vhost, permission.exchange, permission.write, permission.read
            )
        )

    def delete_topic_permissions(self, user: str, vhost: str, exchange: str | None = None) -> bool:
        """Remove a user's topic permissions for one exchange, or all; False when there were none."""
        self._log.refuse_if_failed()
        self._vhosts.find(vhost).rules_changed()
        gone = self.topic_permissions.remove(user, vhost, exchange)
        if not gone:
            return False
        self._free(gone)
        self._log.record(TopicPermissionDeleted(user, vhost, exchange))
        return True

    def set_vhost_limits(self, vhost: str, limits: Mapping[str, object]) -> None:
        """Replace all limits of a vhost."""
        name = self._vhosts.find(vhost).name
        read = {key: read_limit(key, limits[key], VHOST_LIMITS, f"vhost '{vhost}'") for key in limits}
        self._log.refuse_if_failed()
        self.limits.replace(self.limits.of_vhosts, name, read)
        self._log.record(VhostLimitsPut(name, read))

    def set_user_limits(self, user: str, limits: Mapping[str, object]) -> None:
        """Replace all limits of a user."""
        if self.users.user(user) is None:
            raise NotFound(f"no user '{user}'")
        read = {key: read_limit(key, limits[key], USER_LIMITS, f"user '{user}'") for key in limits}
        self._log.refuse_if_failed()
        self.limits.replace(self.limits.of_users, user, read)
        self._log.record(UserLimitsPut(user, read))


def _no_clients(reason: str, is_meant: Callable[[str, str], bool]) -> None:
    return None

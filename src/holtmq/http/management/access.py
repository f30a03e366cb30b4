"""The rights that RabbitMQ's management API requires: tags, and permissions in the vhost of the path.

Owns: RabbitMQ's tags as rights. Must not touch: credentials, routes. As in RabbitMQ a tag opens a part of the
API, and permissions open queues and exchanges in it; a tag alone opens no queue.
"""

from typing import Final

from holtmq.auth.permissions import Action
from holtmq.auth.rights import MANAGEMENT, MONITORING, POLICYMAKER, Right
from holtmq.auth.roles import Role
from holtmq.auth.users import ADMINISTRATOR

# Each tag includes what management may do.
_ANY_TAG: Final = (MANAGEMENT, POLICYMAKER, MONITORING)

LOGIN: Final = Right(Role.READ_ONLY)
MANAGE: Final = Right(Role.READ_ONLY, tags=_ANY_TAG)  # in the vhosts that the user may access
CONFIGURE_QUEUE: Final = Right(Role.READ_WRITE, (Action.CONFIGURE,), tags=_ANY_TAG, path_name="queue")
CONFIGURE_EXCHANGE: Final = Right(Role.READ_WRITE, (Action.CONFIGURE,), tags=_ANY_TAG, path_name="exchange")
WRITE_EXCHANGE: Final = Right(Role.READ_WRITE, (Action.WRITE,), tags=_ANY_TAG, path_name="exchange")
READ_QUEUE: Final = Right(Role.READ_WRITE, (Action.READ,), tags=_ANY_TAG, path_name="queue")
BIND: Final = Right(Role.READ_WRITE, (Action.WRITE, Action.READ), tags=_ANY_TAG)
ALL_ACTIONS: Final = Right(Role.READ_WRITE, tuple(Action))
MONITOR: Final = Right(Role.READ_ONLY, tags=(MONITORING,))
MAKE_POLICY: Final = Right(Role.ADMIN, tags=(POLICYMAKER,))
ADMINISTER: Final = Right(Role.ADMIN, tags=(ADMINISTRATOR,))

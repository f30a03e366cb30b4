"""Who sees which part of the dashboard, and which actions a page offers.

Owns: the rights of the dashboard's routes that are not in the common set. Must not touch: how rights are
checked. A page offers only what the viewer may do; the routes check again.
"""

from typing import Final

from holtmq.auth.permissions import Action
from holtmq.auth.rights import MANAGEMENT, MONITORING, POLICYMAKER, Identity, Right
from holtmq.auth.roles import Role

# As in RabbitMQ: each of these tags opens the user's own vhosts, ``monitoring`` all of them.
SEE_QUEUES: Final = Right(Role.READ_ONLY, tags=(MANAGEMENT, POLICYMAKER, MONITORING))


def offered(identity: Identity, vhost: str, name: str) -> list[str]:
    """The actions that the viewer may do to a queue or an exchange: configure, write, read."""
    return [action.value for action in Action if identity.may_in(vhost, action, name)]

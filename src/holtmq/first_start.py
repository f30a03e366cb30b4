"""What a new node starts with: a vhost and a user.

Owns: the defaults of an empty journal. Must not touch: anything else.
"""

from typing import Final

from holtmq.auth.permissions import FULL_ACCESS
from holtmq.auth.users import ADMINISTRATOR, DEFAULT_USER, DEFAULT_VHOST, User
from holtmq.broker.broker import Broker

# argon2 of "guest", precomputed: the password is public, and hashing it would only slow the first start.
GUEST_HASH: Final = (
    "$argon2id$v=19$m=19456,t=2,p=1$bdbnZKvwT/Zr7Nxwo9xflg$lpcXFLNyvAgs8eXRYDlhylMwWtAaiKo/a63BfxlsmPs"
)


def put_defaults(broker: Broker) -> None:
    """Create what a new node starts with: vhost ``/``, and user ``guest`` with full access to it."""
    broker.put_vhost(DEFAULT_VHOST)
    broker.access.put_user(User(DEFAULT_USER, GUEST_HASH, (ADMINISTRATOR,)))
    broker.access.set_permissions(DEFAULT_USER, DEFAULT_VHOST, FULL_ACCESS)

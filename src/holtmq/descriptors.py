"""How many client sockets the process may have open.

Owns: the limit of open files, and the share of it that clients may use. Must not touch: sockets. Each socket
counts as an open file; if clients used them all, the journal could not open its next segment and would stop.
"""

import resource
import sys
from contextlib import suppress
from typing import Final

_RESERVED: Final = 64  # listeners, the journal's segments and checkpoints, libraries, name lookups


def raise_limit() -> None:
    """Raise the soft limit to the hard limit; shells usually start programs with less."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def affordable_sockets() -> int:
    """How many clients may be connected, over all listeners."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(limit - _RESERVED, 4)

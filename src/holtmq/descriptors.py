"""How many sockets the process can afford.

Owns: the limit of open files, and what of it is left for clients. Must not touch: sockets. Each is a file to
the system; a journal that cannot open its next segment because clients hold them all would have to stop.
"""

import resource
import sys
from contextlib import suppress
from typing import Final

_RESERVED: Final = 64  # listeners, the journal's segments and checkpoints, libraries, a look-up now and then


def raise_limit() -> None:
    """Take all that the system grants; shells usually start programs with less."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def affordable_sockets() -> int:
    """How many clients may be connected, over all listeners."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(limit - _RESERVED, 4)

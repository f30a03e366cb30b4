"""Ports for servers that cannot choose one themselves."""

import os
import secrets
import socket
from collections.abc import Sequence
from typing import Final

# Below the range from which the kernel takes ports of outgoing connections.
_FIRST: Final = 20_000
_EACH: Final = 1_500
_SHARES: Final = 8
_given: set[int] = set()


def free_port() -> int:
    """A port that is not in use, and that this function gives to no other server.

    A server binds its port later, and a killed one leaves it for a while: until then nothing but this promise
    keeps two servers apart. So no port is given twice, and each worker of pytest has a range of its own.
    """
    candidates = _range_of(os.environ.get("PYTEST_XDIST_WORKER", ""))
    while True:
        port = secrets.choice(candidates)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port


def _range_of(worker: str) -> Sequence[int]:
    share = int(worker.removeprefix("gw") or 0) % _SHARES
    return range(_FIRST + share * _EACH, _FIRST + (share + 1) * _EACH)

"""Ports for servers that cannot choose one themselves."""

import secrets
import socket

_FIRST, _BEHIND = 20_000, 32_000  # below the range from which the kernel takes ports of outgoing connections


def free_port() -> int:
    """A port that is not in use; between this call and the server's start no connection can take it."""
    while True:
        port = _FIRST + secrets.randbelow(_BEHIND - _FIRST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port

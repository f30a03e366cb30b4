"""A port that stays a test broker's own while it restarts.

Owns: the reservation. Must not touch: the broker's listeners. A socket that is bound and never listens keeps
the port from everyone who takes any free one, while a listener that asks for this very port gets it. Linux
alone lets the two share an address; elsewhere a port is free between two lives of a broker.
"""

import socket
import sys
from typing import Final

_CAN_SHARE: Final = sys.platform == "linux"


class HeldPort:
    """Any free port of a host, or this one again; held until ``release``."""

    def __init__(self, host: str, number: int = 0) -> None:
        self.number = number
        self._socket: socket.socket | None = None
        if _CAN_SHARE:
            self._socket = socket.socket()
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._socket.bind((host, number))
            except OSError:
                self._socket.close()
                raise
            self.number = self._socket.getsockname()[1]

    def release(self) -> None:
        """Let others have it."""
        if self._socket is not None:
            self._socket.close()

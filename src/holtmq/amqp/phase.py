"""The state of an AMQP connection.

Owns: its names. Must not touch: what changes it (``connection.py``).
"""

from enum import Enum, auto


class Phase(Enum):
    """The state of a connection."""

    PROTOCOL = auto()  # waiting for the protocol header
    HANDSHAKE = auto()
    RUNNING = auto()
    CLOSING = auto()  # we sent connection.close
    CLOSED = auto()

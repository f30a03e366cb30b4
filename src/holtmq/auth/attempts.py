"""How many logins were tried, by protocol.

Owns: the counters. Must not touch: credentials, and names: an attacker could make up any number of them.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Attempts:
    """Logins over one protocol."""

    succeeded: int = 0
    failed: int = 0

    def count(self, succeeded: bool) -> None:
        """Count one."""
        if succeeded:
            self.succeeded += 1
        else:
            self.failed += 1


@dataclass(slots=True)
class AuthAttempts:
    """Logins since the node's start, or since ``reset``. HTTP counts connections, not requests."""

    amqp: Attempts = field(default_factory=Attempts)
    http: Attempts = field(default_factory=Attempts)

    def reset(self) -> None:
        """Begin at zero."""
        self.amqp, self.http = Attempts(), Attempts()

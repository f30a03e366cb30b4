"""What every endpoint works with: the service, the journal, the clock, the settings.

Owns: nothing; it is handed down once, at start. Must not touch: sockets.
"""

from collections.abc import Callable
from dataclasses import dataclass

from holtmq.auth.login import Authenticator
from holtmq.auth.tokens import TokenVerifier
from holtmq.broker.broker import Broker
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.config import Config
from holtmq.http.clients import Clients
from holtmq.http.history import History
from holtmq.journal.interface import Journal


@dataclass(frozen=True, slots=True)
class Context:
    """One node, as the HTTP side sees it."""

    config: Config
    service: PartitionedService
    broker: Broker
    journal: Journal
    clock: Callable[[], float]
    health: Callable[[], tuple[bool, str]]
    wake: Callable[[], None]
    verifier: TokenVerifier | None  # None: everybody may do everything
    started_at: float
    history: History
    authenticator: Authenticator  # for the management API: names and passwords
    clients: Clients  # who is connected over AMQP

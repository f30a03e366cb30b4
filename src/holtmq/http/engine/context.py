"""What every endpoint works with: the service, the journal, the clock, the settings.

Owns: nothing; it is built once, at start, and passed down. Must not touch: sockets.
"""

import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from holtmq.auth.users import DEFAULT_VHOST
from holtmq.broker.broker import Broker
from holtmq.broker.figures.sampling import Sampler
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.config import Config
from holtmq.durations import Durations
from holtmq.http.engine.authentication import RequestAuthenticator
from holtmq.http.engine.client_rates import ClientRates
from holtmq.http.engine.clients import Clients
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.history import History
from holtmq.http.engine.open_streams import OpenStreams
from holtmq.http.engine.pipeline_reports import PipelineReports
from holtmq.http.engine.shovel_listing import Shovels
from holtmq.journal.interface import Journal
from holtmq.journal.replica.view import Peer

NODE: Final = f"holt@{socket.gethostname()}"  # this node's name, in RabbitMQ's form


class RangeWatch(Protocol):
    """Sees one read of a range."""

    def saw(self, trace_ids: Iterable[str]) -> None:
        """The trace ids of some of its messages."""
        ...

    def ended(self) -> None:
        """All of it was read, or the reader left."""
        ...


WatchRange = Callable[[str, int, int, str | None], RangeWatch]  # queue, first, end, the request's traceparent


class Listener(NamedTuple):
    """A port that accepts clients."""

    protocol: str  # as RabbitMQ names them: amqp, amqp/ssl, http, https
    host: str
    port: int


class ServedCertificate(NamedTuple):
    """What a TLS listener presents to its clients."""

    listener: str  # amqps or https
    path: str
    ends: tuple[float, ...]  # the server's, then those of the chain; empty: they could not be parsed


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A node that shares its journal with others."""

    name: str
    owner: str
    epoch: int
    trouble: str  # why nothing can be confirmed; empty: it can
    peers: tuple[Peer, ...] = ()
    handing_over_to: str = ""


class Checkpoints(Protocol):
    """Writes checkpoints of the journal, one at a time."""

    @property
    def is_making(self) -> bool:
        """Whether one is being made."""

    def make(self) -> bool:
        """Begin one; False if one is being made."""


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
    authenticator: RequestAuthenticator  # identifies the sender of a request
    started_at: float
    history: History
    clients: Clients  # those connected over AMQP
    alarm: Callable[[], str]  # why publishers are blocked; empty: they are not
    listeners: Callable[[], list[Listener]]
    sampler: Sampler
    shovels: Shovels
    loop_delay: Durations  # how late the event loop ran its timers
    checkpoints: Checkpoints
    replica: Callable[[], ReplicaState | None] = lambda: None  # None: this node alone has the journal
    hand_over: Callable[[str], None] | None = None  # to another node; None: this node alone has the journal
    alarm_since: Callable[[], float | None] = lambda: None  # when the alarm began
    certificates: Callable[[], list[ServedCertificate]] = list  # of the TLS listeners
    client_rates: ClientRates = field(default_factory=ClientRates)
    kept: dict[type, object] = field(default_factory=dict)  # what endpoints share between requests
    pipelines: PipelineReports = field(default_factory=PipelineReports)
    range_streams: OpenStreams = field(default_factory=OpenStreams)
    watch_range: WatchRange | None = None  # with tracing: sees the traces of what a range read returns

    def check_alarm(self) -> None:
        """Refuse to store more while memory or disk is short; AMQP publishers are blocked meanwhile."""
        reason = self.alarm()
        if reason:
            raise Refusal(503, f"publishers are blocked: the broker is {reason}", "publishers_blocked")

    def check_partitioned(self, name: str) -> None:
        """Refuse to create a partitioned queue with a work queue's name: HTTP could not reach the latter."""
        vhost = self.broker.vhosts.get(DEFAULT_VHOST)
        queue = vhost.queues.get(name) if vhost is not None else None
        if queue is not None and not queue.is_stream and name not in self.service.store.queues:
            raise Refusal(409, f"{name} is a work queue", "work_queue")

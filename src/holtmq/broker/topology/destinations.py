"""What an exchange may be bound to: a queue of either kind, as exchanges, consumers and leases see it.

Owns: the interface that work queues and streams have in common. Must not touch: how either kind keeps its
messages. Code that needs a store, a purge or a get asks for a ``WorkQueue``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from holtmq.broker.figures.queue_figures import QueueFigures
    from holtmq.broker.message import Message
    from holtmq.broker.pausing import Pause
    from holtmq.broker.timer_wheel import ActionTimer
    from holtmq.broker.topology.queue_options import QueueOptions
    from holtmq.broker.work.leases import Lease
    from holtmq.broker.work.paging import Pager

Table: TypeAlias = Mapping[str, object]


class Named(Protocol):
    """All that an exchange needs from a queue."""

    @property
    def name(self) -> str: ...


Q = TypeVar("Q", bound=Named)
# Of a binding: whether it leads to an exchange, the name of its destination, its key, its arguments.
Identity: TypeAlias = tuple[bool, str, str, object]


class Consumer(Protocol):
    """Takes messages from a queue."""

    priority: int

    @property
    def arguments(self) -> Table:
        """The arguments of ``basic.consume``; a stream finds the start in them."""
        ...

    def room(self) -> int:
        """How many messages it can take now."""
        ...

    def deliver(self, queue: Queue, messages: list[Message]) -> None:
        """Accept these messages, at most ``room()``."""
        ...

    def cancelled(self, queue: Queue) -> None:
        """The queue was deleted, and with it this consumer."""
        ...


class Queue(Protocol):
    """A queue of a vhost. There are two kinds: ``WorkQueue`` and ``StreamQueue``."""

    name: str
    vhost: str
    id: int  # its name in the journal; a redeclared queue gets a new one
    arguments: dict[str, object]
    declared: QueueOptions  # from its own arguments
    options: QueueOptions  # after policies
    policy: str | None
    consumers: list[Consumer]
    exclusive_consumer: bool
    unacked: int
    figures: QueueFigures
    has_ack_timeout: bool  # whether deliveries may have to be acked in time
    dirty: bool  # it has work in this turn
    deleted: bool
    used_ms: int
    expiry_timer: ActionTimer | None

    @property
    def is_stream(self) -> bool:
        """Whether it is a partitioned queue under an AMQP name, which journals its messages itself."""
        ...

    @property
    def durable(self) -> bool: ...

    @property
    def persisted(self) -> bool:
        """Whether a restart brings it back: it is durable and not exclusive."""
        ...

    @property
    def always_persists(self) -> bool:
        """Whether it journals transient messages, too, as a quorum queue does."""
        ...

    @property
    def forgets_transient(self) -> bool:
        """Whether a restart loses a transient message here even if a quorum queue keeps it."""
        ...

    @property
    def auto_delete(self) -> bool: ...

    @property
    def owner(self) -> object | None:
        """The connection that owns an exclusive queue."""
        ...

    @property
    def bytes(self) -> int:
        """Bytes of the ready messages that the queue itself keeps."""
        ...

    @property
    def limited(self) -> bool:
        """Whether it has a length limit that a publish may exceed."""
        ...

    @property
    def counts_deliveries(self) -> bool:
        """Whether a redelivered message shows ``x-delivery-count``."""
        ...

    @property
    def paused(self) -> Pause | None:
        """The pause, if the queue hands out nothing at the moment."""
        ...

    @property
    def refuses_when_full(self) -> bool:
        """Whether a full queue refuses publishers."""
        ...

    def __len__(self) -> int:
        """How many messages are ready."""
        ...

    def reconfigure(self, options: QueueOptions) -> None:
        """Apply changed options, after a policy change."""
        ...

    def is_full(self, size: int, on_the_way: int = 0, bytes_on_the_way: int = 0) -> bool:
        """Whether a message of this size, behind others already accepted, would exceed a limit."""
        ...

    def add_consumer(self, consumer: Consumer) -> None: ...

    def remove_consumer(self, consumer: Consumer) -> None: ...

    def remove_consumers(self, gone: Collection[Consumer]) -> None:
        """``remove_consumer`` for many at once."""
        ...

    def dispatch(self, now_ms: int, pager: Pager) -> None:
        """Deliver to consumers with room."""
        ...

    def is_first_delivery(self, messages: list[Message]) -> bool:
        """Whether none of these was delivered before. May be False without need."""
        ...

    def is_redelivered(self, message: Message) -> bool:
        """Whether it may have been delivered before."""
        ...

    def times_returned(self, message: Message) -> int:
        """How often it was delivered and returned; at least 1 for a redelivered message."""
        ...

    def settle(self, message: Message) -> None:
        """Forget an acknowledged message."""
        ...

    def settle_all(self, messages: list[Message]) -> None:
        """``settle`` for many at once."""
        ...

    def reject_all(self, messages: list[Message]) -> None:
        """Dead-letter rejected messages."""
        ...

    @property
    def has_to_journal(self) -> bool:
        """Whether records of this queue belong before the next confirm."""
        ...

    def release(
        self, leases: Iterable[Lease], pager: Pager, failed: bool = False
    ) -> dict[int, list[Message]]:
        """Take back unacknowledged messages. Returns those that must wait first, by their wait in ms."""
        ...

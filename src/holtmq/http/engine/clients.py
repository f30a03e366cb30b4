"""The clients connected over AMQP, in the shape the management API lists.

Owns: the rows and the ``Clients`` interface. Must not touch: AMQP; ``http`` and ``amqp`` do not import each
other, so the node passes in the implementation.
"""

from collections.abc import Generator, Iterable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from holtmq.broker.work.leases import Holder


class PeerRow(msgspec.Struct, frozen=True):
    """The connection of a channel."""

    name: str
    peer_host: str
    peer_port: int


class ConnectionRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One client connection."""

    name: str
    user_provided_name: str
    vhost: str
    user: str
    peer_host: str
    peer_port: int
    host: str
    port: int
    ssl: bool
    state: str
    channels: int
    channel_max: int
    frame_max: int
    timeout: int  # the heartbeat, in seconds
    connected_at: int  # milliseconds
    recv_oct: int
    recv_cnt: int  # reads from its socket
    send_oct: int
    send_cnt: int  # writes to its socket
    send_pend: int  # bytes that its socket has not taken yet
    published: int  # messages
    delivered: int
    settled: int  # acknowledged, rejected, returned, or delivered without acks
    client_properties: dict[str, object]
    auth_mechanism: str
    protocol: str = "AMQP 0-9-1"
    type: str = "network"


class ClientRow(msgspec.Struct, kw_only=True, gc=False):
    """One connection at a glance. ``held_since``: when its oldest unacked delivery was made, in milliseconds.
    The rates are set by a reader that has seen the connection before."""

    name: str
    client: str  # the name it gave itself
    product: str
    user: str
    vhost: str
    channels: int
    consumers: int
    state: str
    unacked: int
    held_since: int | None
    connected_at: int
    received: int
    sent: int
    receiving: float | None = None  # bytes per second
    sending: float | None = None
    published: int = 0  # messages
    delivered: int = 0
    settled: int = 0
    publishing: float | None = None  # messages per second
    delivering: float | None = None
    settling: float | None = None


class ChannelStats(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a channel, by RabbitMQ's names."""

    publish: int
    confirm: int
    return_unroutable: int
    drop_unroutable: int
    deliver: int  # to consumers that acknowledge
    deliver_no_ack: int
    get: int
    get_no_ack: int
    get_empty: int
    deliver_get: int  # all deliveries
    redeliver: int
    ack: int


class ChannelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One channel of a client."""

    name: str
    number: int
    vhost: str
    user: str
    connection_details: PeerRow
    consumer_count: int
    messages_unacknowledged: int
    prefetch_count: int
    global_prefetch_count: int
    confirm: bool
    transactional: bool
    messages_unconfirmed: int
    messages_uncommitted: int
    acks_uncommitted: int
    messages: ChannelStats
    used_ms: int  # when a method arrived or a message was delivered last
    state: str = "running"


class QueueName(msgspec.Struct, frozen=True, gc=False):
    """Which queue a consumer reads."""

    name: str
    vhost: str


class ChannelDetails(msgspec.Struct, frozen=True, gc=False):
    """Which channel a consumer is on."""

    name: str
    number: int
    user: str
    connection_name: str
    peer_host: str
    peer_port: int


class ConsumerRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One consumer."""

    consumer_tag: str
    queue: QueueName
    channel_details: ChannelDetails
    ack_required: bool
    exclusive: bool
    active: bool
    prefetch_count: int
    arguments: dict[str, object]
    activity_status: str = "up"  # with a single active consumer: single_active or waiting
    messages_unacknowledged: int = 0
    held_since: int | None = None  # milliseconds: time of the oldest unacknowledged delivery
    client_name: str = ""  # the name that its connection gave itself


class HolderRow(msgspec.Struct, frozen=True, kw_only=True):
    """One that holds unacknowledged messages of a queue."""

    kind: str  # consumer; get: took them by basic.get; cancelled: a consumer that kept them; lease: over HTTP
    consumer: str  # its tag, or the lease's id; empty for basic.get
    connection: str  # empty for a lease
    channel: int | None
    client: str  # the name it gave itself, if any
    user: str
    host: str
    unacked: int
    since: int  # milliseconds
    expires: int | None = None  # of a lease, in milliseconds


class Traffic(NamedTuple):
    """Bytes of one connection, and the answers that publishers got on its open channels."""

    received: int
    sent: int
    confirmed: int
    returned: int
    dropped: int


class Clients(Protocol):
    """All connected clients; only those of ``vhost`` if it is given.

    Rows are made one by one, for the clients that were connected when the first row was requested.
    """

    def connections(self, vhost: str | None = None) -> Iterator[ConnectionRow]:
        """Connections that have completed the handshake."""
        ...

    def at_a_glance(self) -> Iterator[ClientRow]:
        """Connections that have completed the handshake, in no order, without rates."""
        ...

    def traffic(self, vhost: str) -> Iterator[Traffic]:
        """What each of them sent and received, in no order."""
        ...

    def channels(self, vhost: str | None = None) -> Iterator[ChannelRow]:
        """Their channels."""
        ...

    def consumers(self, vhost: str | None = None) -> Iterator[ConsumerRow]:
        """Their consumers."""
        ...

    def consumers_on(self, connection: str, most: int) -> tuple[list[ConsumerRow], int] | None:
        """The first consumers of the connection of this name, and how many it has; None: there is none."""
        ...

    def consumers_of(self, vhost: str, queue: str) -> Iterator[ConsumerRow]:
        """The consumers of one queue."""
        ...

    def holders(self, holders: Iterable[Holder]) -> list[HolderRow]:
        """Rows of those that hold messages."""
        ...

    def other_holders_of(self, vhost: str, queue: str) -> list[HolderRow]:
        """Those that hold messages of one queue and are none of its consumers, over HTTP too."""
        ...

    def counts(self) -> tuple[int, int]:
        """How many connections and channels there are."""
        ...

    def cancel(self, connection: str, channel: int, tag: str) -> bool | None:
        """Cancel a consumer; None: there is none. False: its client does not understand that it was."""
        ...

    def close(self, name: str, reason: str) -> bool:
        """Close the connection of this name; False when there is none."""
        ...

    def close_user(self, user: str, reason: str) -> Generator[None, None, None]:
        """Close the connections of this user, one per step."""
        ...

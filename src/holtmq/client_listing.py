"""The AMQP listener's connections, as rows for the HTTP side.

Owns: converting live connections to rows. Must not touch: what either listener does with them. It is not in
``amqp`` or ``http``, which do not import each other; the node connects them.
"""

from collections.abc import Generator, Iterable, Iterator
from itertools import chain, islice
from operator import attrgetter

from holtmq.amqp.channel import Channel
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.connection import Connection
from holtmq.amqp.consumer import Consumer
from holtmq.amqp.consuming import Getting
from holtmq.amqp.errors import ConnectionFault
from holtmq.amqp.protocol import AmqpProtocol
from holtmq.amqp.server import AmqpServer
from holtmq.broker.work.leases import Holder
from holtmq.broker.work.timed_leases import Loan
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.engine.clients import (
    ChannelDetails,
    ChannelRow,
    ChannelStats,
    ClientRow,
    ConnectionRow,
    ConsumerRow,
    HolderRow,
    PeerRow,
    QueueName,
    Traffic,
)


class AmqpClients:
    """Implements ``holtmq.http.engine.clients.Clients``."""

    def __init__(self, server: AmqpServer) -> None:
        self._server = server

    def connections(self, vhost: str | None = None) -> Iterator[ConnectionRow]:
        """Clients that have completed the handshake."""
        return map(_connection_row, self._running(vhost))

    def at_a_glance(self) -> Iterator[ClientRow]:
        """The same in short, in no order."""
        for protocol in list(self._server.connections):
            if protocol.connection.is_running:
                yield _client_row(protocol)

    def traffic(self, vhost: str) -> Iterator[Traffic]:
        """What each connection sent and received, in no order."""
        for protocol in list(self._server.connections):
            connection = protocol.connection
            if connection.is_running and connection.vhost.name == vhost:
                confirmed = returned = dropped = 0
                for channel in connection.channels.values():
                    counted = channel.messages
                    confirmed += counted.confirmed
                    returned += counted.returned
                    dropped += counted.dropped
                yield Traffic(protocol.received_bytes, protocol.sent_bytes, confirmed, returned, dropped)

    def channels(self, vhost: str | None = None) -> Iterator[ChannelRow]:
        """Their channels."""
        for protocol, channel in self._channels(vhost):
            yield _channel_row(protocol, channel)

    def consumers(self, vhost: str | None = None) -> Iterator[ConsumerRow]:
        """Their consumers."""
        for protocol, channel in self._channels(vhost):
            for consumer in list(channel.consumers.values()):
                yield _consumer_row(protocol, consumer)

    def consumers_on(self, connection: str, most: int) -> tuple[list[ConsumerRow], int] | None:
        """The first consumers of the connection of this name, and how many it has; None: there is none."""
        protocol = self._find(connection)
        if protocol is None:
            return None
        channels = [channel for _, channel in sorted(protocol.connection.channels.items())]
        first = islice(chain.from_iterable(channel.consumers.values() for channel in channels), most)
        total = sum(len(channel.consumers) for channel in channels)
        return [_consumer_row(protocol, one) for one in first], total

    def consumers_of(self, vhost: str, queue: str) -> Iterator[ConsumerRow]:
        """The consumers of one queue."""
        home = self._server.broker.vhosts.get(vhost)
        found = home.queues.get(queue) if home is not None else None
        for one in list(found.consumers) if found is not None else ():
            if isinstance(one, Consumer) and isinstance(one.channel.connection.hooks, AmqpProtocol):
                yield _consumer_row(one.channel.connection.hooks, one)

    def other_holders_of(self, vhost: str, queue: str) -> list[HolderRow]:
        """Those that hold messages of one queue and are none of its consumers."""
        broker = self._server.broker
        home = broker.vhosts.get(vhost)
        found = home.queues.get(queue) if home is not None else None
        return [] if found is None else self.holders(broker.other_holders.of(found.id))

    def holders(self, holders: Iterable[Holder]) -> list[HolderRow]:
        """Rows of those that hold messages."""
        return [row for row in map(_holder_row, holders) if row is not None]

    def counts(self) -> tuple[int, int]:
        """How many connections and channels there are."""
        channels = [
            len(protocol.connection.channels)
            for protocol in self._server.connections
            if protocol.connection.is_running
        ]
        return len(channels), sum(channels)

    def cancel(self, connection: str, channel: int, tag: str) -> bool | None:
        """Cancel a consumer. None: there is no such consumer; False: its client does not support it."""
        protocol = self._find(connection)
        found = None if protocol is None else protocol.connection.channels.get(channel)
        return None if found is None or found.closing else found.consuming.dismiss(tag)

    def close(self, name: str, reason: str) -> bool:
        """Close the connection of this name; False when there is none."""
        protocol = self._find(name)
        if protocol is not None:
            protocol.connection.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, reason))
        return protocol is not None

    def close_user(self, user: str, reason: str) -> Generator[None, None, None]:
        """Close the connections of this user, one per step."""
        found = [protocol.connection for protocol in self._running()]
        for connection in [one for one in found if one.user_name == user]:
            connection.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, reason))  # nothing if it has ended
            yield

    def _find(self, name: str) -> AmqpProtocol | None:
        return next((protocol for protocol in self._running() if _name(protocol) == name), None)

    def _running(self, vhost: str | None = None) -> list[AmqpProtocol]:
        found = [
            protocol
            for protocol in self._server.connections
            if protocol.connection.is_running and vhost in (None, protocol.connection.vhost.name)
        ]
        return sorted(found, key=_AGE)

    def _channels(self, vhost: str | None) -> Iterator[tuple[AmqpProtocol, Channel]]:
        for protocol in self._running(vhost):
            for _, channel in sorted(protocol.connection.channels.items()):
                yield protocol, channel


_AGE = attrgetter("connected_at", "peer")


def _connection_row(protocol: AmqpProtocol) -> ConnectionRow:
    connection = protocol.connection
    peer, own = _address(protocol, "peername"), _address(protocol, "sockname")
    messages = connection.closed_channel_messages.copy()
    for channel in connection.channels.values():
        if not channel.closing:  # else it is counted there already
            messages.add(channel.received, channel.ledger.last, len(channel.ledger))
    return ConnectionRow(
        name=_name(protocol),
        user_provided_name=_given_name(connection),
        vhost=connection.vhost.name,
        user=connection.user_name,
        peer_host=peer[0],
        peer_port=peer[1],
        host=own[0],
        port=own[1],
        ssl=protocol.transport.get_extra_info("ssl_object") is not None,
        state="blocked" if connection.blocked else "running",
        channels=len(connection.channels),
        channel_max=connection.channel_max,
        frame_max=connection.max_payload + 8,
        timeout=connection.heartbeat,
        connected_at=round(protocol.connected_at * 1000),
        recv_oct=protocol.received_bytes,
        recv_cnt=protocol.reads,
        send_oct=protocol.sent_bytes,
        send_cnt=protocol.writes,
        send_pend=protocol.transport.get_write_buffer_size(),
        published=messages.published,
        delivered=messages.delivered,
        settled=messages.settled,
        client_properties=dict(connection.client_properties),
        auth_mechanism=connection.auth_mechanism,
    )


def _client_row(protocol: AmqpProtocol) -> ClientRow:
    connection = protocol.connection
    before, properties = connection.closed_channel_messages, connection.client_properties
    published, delivered, settled = before.published, before.delivered, before.settled
    consumers = unacked = 0
    held_since: int | None = None
    for channel in connection.channels.values():
        held, last = len(channel.ledger), channel.ledger.last
        if not channel.closing:  # else it is counted there already
            published += channel.received
            delivered += last
            settled += last - held
        unacked += held
        consumers += len(channel.consumers)
        holders = (*channel.consumers.values(), *channel.consuming.other_holders()) if held else ()
        for holder in holders:
            since = holder.held_since_ms()
            if since is not None and (held_since is None or since < held_since):
                held_since = since
    return ClientRow(
        name=_name(protocol),
        client=_given_name(connection),
        product=f"{properties.get('product', '')} {properties.get('version', '')}".strip(),
        user=connection.user_name,
        vhost=connection.vhost.name,
        channels=len(connection.channels),
        consumers=consumers,
        state="blocked" if connection.blocked else "running",
        unacked=unacked,
        held_since=held_since,
        connected_at=round(protocol.connected_at * 1000),
        received=protocol.received_bytes,
        sent=protocol.sent_bytes,
        published=published,
        delivered=delivered,
        settled=settled,
    )


def _channel_row(protocol: AmqpProtocol, channel: Channel) -> ChannelRow:
    connection = protocol.connection
    name, peer = _name(protocol), _address(protocol, "peername")
    transaction, confirms = channel.transaction, channel.confirms
    return ChannelRow(
        name=f"{name} ({channel.number})",
        number=channel.number,
        vhost=connection.vhost.name,
        user=connection.user_name,
        connection_details=PeerRow(name, *peer),
        consumer_count=len(channel.consumers),
        messages_unacknowledged=len(channel.ledger),
        prefetch_count=channel.prefetch,
        global_prefetch_count=channel.global_prefetch,
        confirm=channel.confirms is not None,
        transactional=transaction is not None,
        messages_unconfirmed=0 if confirms is None else confirms.outstanding,
        messages_uncommitted=0 if transaction is None else transaction.publish_count,
        acks_uncommitted=0 if transaction is None else transaction.settlement_count,
        messages=_channel_stats(channel),
        used_ms=channel.messages.used_ms,
        state="closing" if channel.closing else "running",
    )


def _channel_stats(channel: Channel) -> ChannelStats:
    counted, everything = channel.messages, channel.ledger.last
    return ChannelStats(
        publish=channel.received,
        confirm=counted.confirmed,
        return_unroutable=counted.returned,
        drop_unroutable=counted.dropped,
        deliver=everything - counted.delivered_no_ack - counted.got - counted.got_no_ack,
        deliver_no_ack=counted.delivered_no_ack,
        get=counted.got,
        get_no_ack=counted.got_no_ack,
        get_empty=counted.get_empty,
        deliver_get=everything,
        redeliver=counted.redelivered,
        ack=counted.acked,
    )


def _consumer_row(protocol: AmqpProtocol, consumer: Consumer) -> ConsumerRow:
    name, peer, channel = _name(protocol), _address(protocol, "peername"), consumer.channel
    user, queue = protocol.connection.user_name, consumer.queue
    single = isinstance(queue, WorkQueue) and queue.options.single_active_consumer
    active = not isinstance(queue, WorkQueue) or not single or queue.active is consumer
    return ConsumerRow(
        consumer_tag=consumer.tag,
        queue=QueueName(queue.name, queue.vhost),
        channel_details=ChannelDetails(f"{name} ({channel.number})", channel.number, user, name, *peer),
        ack_required=not consumer.no_ack,
        exclusive=consumer.exclusive,
        active=active,
        activity_status="up" if not single else "single_active" if active else "waiting",
        prefetch_count=consumer.prefetch,
        arguments=dict(consumer.arguments),
        messages_unacknowledged=len(consumer.held),
        held_since=consumer.held_since_ms(),
        client_name=_given_name(protocol.connection),
    )


def _holder_row(holder: Holder) -> HolderRow | None:
    since = holder.held_since_ms()
    if since is None:
        return None
    if isinstance(holder, Loan):
        return HolderRow(
            kind="lease",
            consumer=holder.name,
            connection="",
            channel=None,
            client="",
            user=holder.worker.user,
            host=holder.worker.host,
            unacked=len(holder.held),
            since=since,
            expires=holder.expires_ms,
        )
    if not isinstance(holder, Getting | Consumer):
        return None
    channel = holder.channel
    protocol = channel.connection.hooks
    if not isinstance(protocol, AmqpProtocol):
        return None
    host, port = _address(protocol, "peername")
    kind = "get"
    if isinstance(holder, Consumer):
        kind = "consumer" if channel.consumers.get(holder.tag) is holder else "cancelled"
    return HolderRow(
        kind=kind,
        consumer=holder.tag if isinstance(holder, Consumer) else "",
        connection=_name(protocol),
        channel=channel.number,
        client=_given_name(channel.connection),
        user=channel.connection.user_name,
        host=f"{host}:{port}",
        unacked=len(holder.held),
        since=since,
    )


def _name(protocol: AmqpProtocol) -> str:
    if not protocol.name:
        protocol.name = _made_name(protocol)
    return protocol.name


def _made_name(protocol: AmqpProtocol) -> str:
    peer, own = _address(protocol, "peername"), _address(protocol, "sockname")
    if not peer[0]:  # a part of this process
        return _given_name(protocol.connection)
    return f"{peer[0]}:{peer[1]} -> {own[0]}:{own[1]}"


def _given_name(connection: Connection) -> str:
    given = connection.client_properties.get("connection_name", connection.name)
    return given if isinstance(given, str) else ""


def _address(protocol: AmqpProtocol, which: str) -> tuple[str, int]:
    known = protocol.addresses.get(which)
    if known is None:  # asking the transport costs a system call
        address: object = protocol.transport.get_extra_info(which)
        known = (str(address[0]), int(address[1])) if isinstance(address, tuple) else ("", 0)
        protocol.addresses[which] = known
    return known

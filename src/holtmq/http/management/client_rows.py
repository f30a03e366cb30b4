"""Management API: connections, channels and consumers, with the fields of RabbitMQ.

Owns: which fields a row has beside those of ``engine/clients.py``, and their rates. Must not touch: AMQP.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from holtmq.http.engine.clients import ChannelRow, ConnectionRow, ConsumerRow
from holtmq.http.engine.context import NODE
from holtmq.http.engine.endpoints import Call
from holtmq.http.management import message_stats

# Known only to Erlang's sockets, or only for clients with a certificate: clients expect the fields.
_NO_TLS: Final = {
    "ssl_protocol": None,
    "ssl_key_exchange": None,
    "ssl_cipher": None,
    "ssl_hash": None,
    "peer_cert_subject": None,
    "peer_cert_issuer": None,
    "peer_cert_validity": None,
}
_OCTETS: Final = ("recv_oct", "send_oct")
_MESSAGES: Final = ("publish", "deliver_get", "ack")


def connection_rows(call: Call, vhost: str | None) -> Iterator[dict[str, object]]:
    """The connections, with rates of bytes."""
    return (connection_row(call, row) for row in call.context.clients.connections(vhost))


def connection_row(call: Call, row: ConnectionRow) -> dict[str, object]:
    """One connection."""
    octets = row.recv_oct, row.send_oct
    return {
        **msgspec.structs.asdict(row),
        "node": NODE,
        "user_who_performed_action": row.user,
        **_NO_TLS,
        **details(call, row.name, _OCTETS, octets),
    }


def channel_rows(call: Call, vhost: str | None) -> Iterator[dict[str, object]]:
    """The channels, with ``message_stats``."""
    return (channel_row(call, row) for row in call.context.clients.channels(vhost))


def channel_row(call: Call, row: ChannelRow) -> dict[str, object]:
    """One channel."""
    totals = row.published, row.delivered, row.settled
    fields = msgspec.structs.asdict(row)
    for name in ("published", "delivered", "settled"):
        del fields[name]
    return {
        **fields,
        "node": NODE,
        "user_who_performed_action": row.user,
        "pending_raft_commands": 0,
        "message_stats": {
            **dict(zip(_MESSAGES, totals, strict=True)),
            **details(call, row.name, _MESSAGES, totals),
        },
    }


def consumer_row(row: ConsumerRow) -> dict[str, object]:
    """One consumer."""
    place = {**msgspec.structs.asdict(row.channel_details), "node": NODE}
    return {**msgspec.structs.asdict(row), "channel_details": place}


def details(call: Call, client: object, names: tuple[str, ...], totals: tuple[int, ...]) -> dict[str, object]:
    """``_details`` of totals, with the rate since the last request."""
    rates = call.context.client_rates.rates(client, totals, call.context.clock())
    return {f"{name}_details": message_stats.rate_only(rate) for name, rate in zip(names, rates, strict=True)}

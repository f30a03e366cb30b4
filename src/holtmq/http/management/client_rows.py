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
from holtmq.http.management.idleness import idle

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
_MESSAGES: Final = (
    "publish",
    "confirm",
    "return_unroutable",
    "drop_unroutable",
    "deliver",
    "deliver_no_ack",
    "get",
    "get_no_ack",
    "get_empty",
    "deliver_get",
    "redeliver",
    "ack",
)


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
    fields, counted = msgspec.structs.asdict(row), row.messages
    del fields["messages"], fields["used_ms"]
    totals = tuple(getattr(counted, name) for name in _MESSAGES)
    return {
        **fields,
        "node": NODE,
        "user_who_performed_action": row.user,
        "pending_raft_commands": 0,
        **idle(row.used_ms / 1000, call.context.clock()),
        "message_stats": {
            **dict(zip(_MESSAGES, totals, strict=True)),
            **details(call, row.name, _MESSAGES, totals),
        },
    }


def consumer_row(row: ConsumerRow) -> dict[str, object]:
    """One consumer."""
    place = {**msgspec.structs.asdict(row.channel_details), "node": NODE}
    return {**msgspec.structs.asdict(row), "channel_details": place}


def details(
    call: Call, client: object, names: tuple[str, ...], totals: tuple[int, ...], *, signed: bool = False
) -> dict[str, object]:
    """``_details`` of totals, with the rate since the last request; ``signed``: they may fall."""
    rates = call.context.client_rates.rates(client, totals, call.context.clock(), signed=signed)
    return {f"{name}_details": message_stats.rate_only(rate) for name, rate in zip(names, rates, strict=True)}

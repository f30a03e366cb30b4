"""Every record kind with name, version and byte layout, for docs/journal-format.md.

Owns: the table, derived from the structures that encode the records where there are any. Must not touch:
encoding. A changed layout gets a new version here, and older versions must still be readable.
"""

from __future__ import annotations

from typing import Final, NamedTuple, get_args

import msgspec

from holtmq.broker import message
from holtmq.broker.damage import Damaged
from holtmq.broker.partitioned import events
from holtmq.broker.partitioned import store as partitioned
from holtmq.broker.partitioned.commands import spool, staging_records
from holtmq.broker.partitioned.extras import stream_state, timers
from holtmq.broker.partitioned.log import (
    bodies,
    delivery_log,
    delivery_records,
    message_log,
    snapshot,
)
from holtmq.broker.records import changes, checkpoint, message_records, queue_contents
from holtmq.broker.records.changes import Kind


class Layout(NamedTuple):
    """The payload layout of one record kind."""

    version: int
    text: str


def _fields(kind: type) -> str:
    """The fields of a structure, in encoding order."""
    return ", ".join(field.encode_name for field in msgspec.inspect.type_info(kind).fields)  # type: ignore[attr-defined]


def _array(kind: type) -> str:
    return f"msgpack array: {_fields(kind)}"


_MESSAGE: Final = (
    f"`{message._HEAD.format}` **big-endian**: seq, arrived ms, expires ms, priority, flags (1 persistent, 2 "
    "the number of queues follows as `>I`), queues, header size; then queue ids (`>I` each), exchange and "
    "routing key (length byte before each), content header, body"
)
_SETTLED: Final = (
    f"`{message_records._SETTLED.format}`: queue id, bytes of bodies; then positions (`<Q` each)"
)

LAYOUTS: Final[dict[Kind, Layout]] = {
    Kind.MESSAGE: Layout(1, _MESSAGE),
    Kind.SETTLED: Layout(1, _SETTLED),
    Kind.PAGED: Layout(
        1, "as DELAYED, for a transient message; 0.1 wrote overflow as MESSAGE without queues"
    ),
    Kind.CHANGE: Layout(1, "msgpack array: the name of a change, then its fields (below)"),
    Kind.DELIVERED: Layout(1, f"`{message_records._MARK.format}`: queue id, seq"),
    Kind.RETURNED: Layout(1, f"`{message_records._RETURNED.format}` each: queue id, seq, times"),
    Kind.DELAYED: Layout(
        1,
        f"`{message_records._DELAYED.format}`: due ms, lengths of vhost and exchange; both names; "
        "then as MESSAGE; without queues it is routed by the exchange, else it goes to these; a due time "
        "from 2^62 on is a number, odd for a dead letter: it is placed at once, in this order",
    ),
    Kind.DELAY_ENDED: Layout(1, "`<Q`: position of the DELAYED record"),
    Kind.QUEUE_STATE: Layout(
        1, f"{_array(queue_contents.QueueState)} (`levels`: positions as `<Q` each, by priority)"
    ),
    Kind.COUNTERS: Layout(1, _array(checkpoint.Counters)),
    Kind.PURGED: Layout(1, "as SETTLED; the positions are those that stay"),
    Kind.DELAY_STATE: Layout(1, f"{_array(checkpoint.DelayState)} (position to due ms)"),
    Kind.DAMAGED: Layout(2, f"msgpack array of arrays: {_fields(Damaged)}"),
    Kind.PARTITIONED: Layout(
        1,
        f"events one behind the other, each `{events._HEAD.format}`: size, event, queue; "
        "then the event (below)",
    ),
    Kind.PARTITIONED_BODY: Layout(
        1,
        f"`{bodies._HEAD.format}`: flags (1 sealed, 2 from AMQP), lengths of transaction id, trace id, "
        f"producer; the three; if from AMQP `{bodies._METADATA.format}`: lengths of exchange, routing key, "
        "properties, then priority, and the three; then the payload (sealed: nonce of 12 bytes, AES-256-GCM)",
    ),
    Kind.PARTITIONED_QUEUE: Layout(
        snapshot.VERSION,
        f"msgpack map: {_fields(snapshot._QueueState)}; `version` is this number (in version 1 no chunk of "
        "`log` has a record of its own)",
    ),
    Kind.PARTITIONED_COUNTERS: Layout(1, _array(partitioned.Counters)),
    Kind.SWITCHED: Layout(1, _array(spool.Switches)),
    Kind.SPOOLED: Layout(1, "msgpack array of (queue, partition), one for each body before it in the batch"),
    Kind.UNSPOOLED: Layout(1, "msgpack number: how many"),
    Kind.SPOOL_STATE: Layout(1, _array(spool._SpoolState)),
    Kind.STREAM: Layout(
        1,
        f'msgpack array: "query", {_fields(stream_state.QueryPut)}; '
        f'or "state", {_fields(stream_state.StatePut)}',
    ),
    Kind.KEYED: Layout(1, "msgpack array of (namespace, key, value or nil, version, expires us, updated us)"),
    Kind.TIMED: Layout(1, f"{_array(timers.TimedChange)}; each of `put`: {_fields(timers.Timed)}"),
    Kind.STAGED: Layout(1, _array(staging_records.Header)),
    Kind.STAGE_COMMITTED: Layout(
        2, f"{_array(staging_records.PieceOfBatch)} (a batch in one record: version 1, without `hides`)"
    ),
    Kind.STAGING_STATE: Layout(
        2, f"{_array(staging_records.HidingState)} (if nothing is hidden: version 1, without `hidden`)"
    ),
    Kind.DELIVERY_STATE: Layout(
        delivery_records.VERSION,
        f"{_array(delivery_records.QueueDeliveries)} (`log`: {_fields(delivery_log.LogState)}; "
        "version 1: queue, log, with a row for each run)",
    ),
    Kind.PARTITIONED_ROWS: Layout(
        1,
        f"{_array(snapshot.Rows)}; the columns of up to {message_log.CHUNK_ROWS:,} messages: positions, "
        "created us, partitions (`<I` each), fingerprints (the others `<Q` each)",
    ),
}


def markdown() -> str:
    """The tables of the format page."""
    lines = ["| kind | name | version | payload |", "|---:|---|---:|---|"]
    lines += [
        f"| {kind.value} | {kind.name} | {found.version} | {found.text} |" for kind, found in LAYOUTS.items()
    ]
    lines += ["", "Changes (19):", "", "| name | fields |", "|---|---|"]
    for change in get_args(changes.AnyChange):
        lines.append(f"| `{change.__struct_config__.tag}` | {_fields(change)} |")
    lines += ["", "Events (32):", "", "| event | name | layout |", "|---:|---|---|"]
    lines += [
        f"| {events._PUSHED} | Pushed | `{events._PUSH.format}`: first offset, created us, count; partitions "
        "(`<I` each), fingerprints (`<Q` each), msgpack array of new partitions' names, if any |",
        f"| {events._ACKED} | Acked | `{events._ACK.format}`: group, partition, cursor, retries, at us, "
        "hold until us, released; msgpack array of dead letters, if any |",
        f"| {events._TRIMMED} | Trimmed | partitions (`<I` each), then their first positions (`<Q` each) |",
    ]
    for number, event in events._RARE.items():
        lines.append(f"| {number} | {event.__name__} | msgpack map: {_fields(event) or 'empty'} |")
    return "\n".join(lines)

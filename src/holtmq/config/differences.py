"""Where HoltMQ differs from RabbitMQ on purpose, and what ``profile = "rabbitmq"`` sets.

Owns: the one list of differences; the table in docs/amqp.md is generated from it. Must not touch: how a
behaviour is implemented.
"""

from dataclasses import dataclass
from typing import Final

EMULATED: Final = "3.13.7"  # the version that the profile follows and announces


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference: the setting that decides it and its value under the profile, or why there is none."""

    what: str
    rabbitmq: str
    here: str
    why: str
    setting: str = ""  # dotted name
    value: object = True
    stays: str = ""  # without a setting: why the profile does not change it


DIFFERENCES: Final = (
    Difference(
        "`basic.cancel` with unacked messages",
        "they stay with the channel",
        "they return to their queue, marked redelivered; a late ack removes a message that no other consumer "
        "has taken, and is otherwise ignored",
        "a cancelled consumer does not keep messages from others; the queue argument `x-cancel-requeue` and "
        "the policy key `cancel-requeue` decide for one queue",
        "amqp.cancel_requeue",
        False,
    ),
    Difference(
        "product name in the server properties and the management API",
        "`RabbitMQ`",
        "`HoltMQ`",
        "it is the truth; some clients and tools check the name",
        "amqp.product",
        "RabbitMQ",
    ),
    Difference(
        "version in the server properties and the management API",
        f"`{EMULATED}`",
        "the version of HoltMQ",
        "some clients and tools compare it with a least version",
        "amqp.product_version",
        EMULATED,
    ),
    Difference(
        "priority levels kept",
        "up to 255",
        "up to 10: a higher `x-max-priority` is accepted, and higher priorities count as 10",
        "each level costs memory and a look at each delivery",
        "amqp.max_priority",
        255,
    ),
    Difference(
        "length limit on a priority queue",
        "drops the head: the highest priority",
        "drops the oldest of the lowest priority",
        "the most important messages are dropped last",
        "compatibility.drop_highest_priority",
    ),
    Difference(
        "`channel.flow` `active=false`",
        "540",
        "obeyed",
        "it costs little, and the specification defines it",
        "amqp.channel_flow",
        False,
    ),
    Difference(
        "a delivery that is not acked in time (`consumer_timeout`)",
        "up to 4.2: its channel is closed with 406, whatever the type of the queue",
        "as in 4.3: the message returns to its queue, and the channel stays open; a classic queue has no "
        "timeout unless it asks for one",
        "one slow message does not cost the other consumers of the channel their work",
        "compatibility.consumer_timeout_closes_channel",
    ),
    Difference(
        "`x-max-priority: 0`",
        "accepted",
        "406",
        "it would be a priority queue without priorities",
        "compatibility.accept_zero_priority",
    ),
    Difference(
        "`x-delivery-limit` on a classic queue",
        "406",
        "honoured",
        "poison messages occur in every queue type",
        "compatibility.refuse_classic_delivery_limit",
    ),
    Difference(
        "`x-max-priority` on a quorum queue",
        "406; 4.3 has priorities without it",
        "honoured, up to 31",
        "priorities do not depend on the type of a queue",
        "compatibility.refuse_quorum_priorities",
    ),
    Difference(
        "global prefetch on a quorum queue or a stream",
        "connection error 540",
        "honoured",
        "there is no reason here to refuse it",
        "compatibility.refuse_global_prefetch",
    ),
    Difference(
        "`x-queue-mode` on a quorum queue or a stream",
        "406",
        "kept, as on a classic queue",
        "changing a queue's type then takes one changed argument, not two; the argument never has an effect",
        "compatibility.refuse_queue_mode",
    ),
    Difference(
        "exclusive consumer of a quorum queue",
        "3.10 ignores the flag: others may consume, too",
        "no other consumer, as on a classic queue; refused with 403 beside `x-single-active-consumer`",
        "a client that asks to be alone is alone",
        "compatibility.ignore_quorum_exclusive_consumers",
    ),
    Difference(
        "`queue.delete` of a quorum queue with `if_unused` or `if_empty`",
        "connection error 540",
        "honoured, as on a classic queue",
        "the condition protects messages",
        "compatibility.refuse_conditional_quorum_delete",
    ),
    Difference(
        "`basic.get` on a quorum queue with `x-single-active-consumer`",
        "405",
        "served, as on a classic queue",
        "an operator can look at such a queue",
        "compatibility.refuse_single_active_get",
    ),
    Difference(
        "quorum queue or stream with a name made by the broker",
        "406",
        "created",
        "such names are never reused; the queue stays until it is deleted",
        "compatibility.refuse_server_names",
    ),
    Difference(
        "`basic.get` and `queue.purge` on a stream",
        "connection error 540",
        "channel error 406",
        "one wrong call should not cost the connection",
        "compatibility.stream_misuse_closes_connection",
    ),
    Difference(
        "`basic.nack` and `basic.reject` on a stream",
        "connection error 540",
        "the same for a plain reader; from a member of a consumer group (`x-consumer-group`) they cause a "
        "retry or a dead letter",
        "a group counts failures",
        "compatibility.refuse_group_nack",
    ),
    Difference(
        "consumer of a stream with `no_ack`, or without a prefetch",
        "connection error 540; 406",
        "served",
        "the broker reads from the stream only what the socket accepts; a group's cursor moves with what was "
        "sent",
        "compatibility.refuse_unbounded_stream_consumers",
    ),
    Difference(
        "transient message to a quorum queue and to a durable classic queue",
        "the classic queue loses it at a restart",
        "both keep it",
        "both queues share one record",
        "compatibility.transient_stays_transient",
    ),
    Difference(
        "errors in the handshake before `connection.open`",
        "the socket closes, often after seconds",
        "`connection.close` with a reason, at once",
        "the reason helps people find the error; the profile closes the socket at once, too",
        "compatibility.silent_handshake_errors",
    ),
    Difference(
        "names and binding keys that are not UTF-8",
        "connection error 501",
        "channel error 406",
        "one bad name should not cost the connection; messages may carry any key",
        "compatibility.unreadable_names_close_connection",
    ),
    Difference(
        "refusals of the management API",
        "404 with the reason `Not Found`; 401 for missing tags and permissions",
        "404 with the name of what is missing; 403",
        "the reason helps people find the error; a browser asks for the password again after 401",
        "compatibility.brief_http_refusals",
    ),
    Difference(
        "limits of a stream",
        "whole segments are dropped (`x-stream-max-segment-size-bytes`)",
        "single messages are dropped, within `queue.retention_interval_ms`; only payload bytes count; the "
        "newest message stays",
        "a stream has no segments of its own here",
        stays="there are no segments; the limit is kept more exactly",
    ),
    Difference(
        "`x-stream-offset` that is not `first`, `last`, `next`, an offset or a time",
        "a text or a boolean closes the connection with 541, a negative number is accepted",
        "406 on the channel, which says what is accepted",
        "the client is told its mistake",
        stays="no program relies on an internal error",
    ),
    Difference(
        "`queue.delete` of a stream with `if_unused` or `if_empty`",
        "the flags are ignored: the stream is deleted",
        "the flags are obeyed (406)",
        "a stream in use would be lost although the client asked to keep it",
        stays="data that a client wants to keep is not deleted",
    ),
    Difference(
        "message counts in `queue.declare-ok` and `queue.delete-ok` of a stream",
        "up to five seconds old, and 0 after a deletion",
        "those of this moment",
        "the figure is known",
        stays="an old figure helps no program",
    ),
    Difference(
        "a message that returns to a quorum queue without `x-delivery-limit`",
        "3.10 appends it",
        "it returns to its place",
        "order is kept, as in a classic queue",
        stays="programs that expect the order of a queue keep working",
    ),
    Difference(
        "message count in `basic.get-ok` of a quorum queue",
        "with or without expired messages behind it, depending on its timers",
        "with them, until the queue's next event",
        "a look behind the head for each get would cost more than the figure is worth",
        stays="the count is only a hint: it is old when it arrives",
    ),
    Difference(
        "headers of a message that is read from a stream",
        "`x-stream-offset`",
        "also `x-partition`, the message's partition",
        "a reader that keeps order by partition needs it",
        stays="clients ignore headers that they do not know",
    ),
    Difference(
        "an expired message at the head of a priority queue, where another one was before it",
        "may still be delivered, until a timer removes it",
        "is never delivered",
        "that is what expiry means",
        stays="programs do not depend on it",
    ),
    Difference(
        "a binding in definitions whose queue or exchange is missing",
        "dropped without a word",
        "the import is refused with 400, and nothing is applied",
        "nothing is dropped in silence",
        stays="an export of RabbitMQ has no such bindings",
    ),
    Difference(
        "messages for a no-ack consumer that does not read",
        "are still sent to it",
        "stay in the queue for others",
        "memory is bounded",
        stays="the broker's memory would have no bound",
    ),
    Difference(
        "closing a channel with outstanding confirms",
        "confirms may be missing",
        "confirms that are already decided are sent before close-ok",
        "the client learns everything the broker knows",
        stays="RabbitMQ may send them, too",
    ),
    Difference(
        "publish to a missing or internal exchange, `immediate`",
        "refused after the content has arrived",
        "refused at the method",
        "the content is discarded either way",
        stays="a client that sends the content sees the same",
    ),
    Difference(
        "a body longer than its header announced",
        "accepted",
        "501",
        "the intended body is unknown",
        stays="a message could arrive damaged",
    ),
    Difference(
        "`x-dead-letter-routing-key` beyond 255 bytes",
        "accepted",
        "406",
        "no message could carry it",
        stays="the dead letters would be lost",
    ),
)


def rabbitmq_settings() -> dict[str, object]:
    """The settings that the profile changes, by dotted name."""
    return {row.setting: row.value for row in DIFFERENCES if row.setting}


def markdown() -> str:
    """The table in docs/amqp.md."""
    out = ["| what | RabbitMQ | here | why | setting |", "|---|---|---|---|---|"]
    for row in DIFFERENCES:
        setting = f"`{row.setting} = {_toml(row.value)}`" if row.setting else f"none: {row.stays}"
        out.append(f"| {' | '.join((row.what, row.rabbitmq, row.here, row.why, setting))} |")
    return "\n".join(out) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)

"""The settings that choose RabbitMQ's behaviour where HoltMQ's differs.

Owns: the section compatibility. Must not touch: why they differ (``differences.py``), and the behaviour: each
has a flag of the same name in ``broker/dialect.py``, which is read where the behaviour is.
"""

from typing import Annotated

import msgspec

from holtmq.config import values
from holtmq.config.about import About


def _as_rabbitmq(help_text: str) -> About:
    return About(help_text, values.BOOL)


class Compatibility(msgspec.Struct, frozen=True, kw_only=True):
    """Where HoltMQ behaves unlike RabbitMQ, and true selects RabbitMQ's behaviour: see docs/amqp.md."""

    drop_highest_priority: Annotated[
        bool, _as_rabbitmq("A full priority queue drops its highest priority first, not its lowest.")
    ] = False
    accept_zero_priority: Annotated[bool, _as_rabbitmq("Accept x-max-priority 0; it has no effect.")] = False
    refuse_classic_delivery_limit: Annotated[
        bool, _as_rabbitmq("Refuse x-delivery-limit on a classic queue with 406.")
    ] = False
    refuse_quorum_priorities: Annotated[
        bool, _as_rabbitmq("Refuse x-max-priority on a quorum queue with 406.")
    ] = False
    refuse_global_prefetch: Annotated[
        bool, _as_rabbitmq("Refuse a channel-wide prefetch on quorum queues and streams with 540.")
    ] = False
    refuse_queue_mode: Annotated[
        bool, _as_rabbitmq("Refuse x-queue-mode on a quorum queue or a stream with 406.")
    ] = False
    ignore_quorum_exclusive_consumers: Annotated[
        bool, _as_rabbitmq("An exclusive consumer of a quorum queue is one like any other.")
    ] = False
    refuse_conditional_quorum_delete: Annotated[
        bool, _as_rabbitmq("Refuse queue.delete with if-unused or if-empty on a quorum queue with 540.")
    ] = False
    refuse_single_active_get: Annotated[
        bool, _as_rabbitmq("Refuse basic.get on a quorum queue with a single active consumer with 405.")
    ] = False
    refuse_server_names: Annotated[
        bool, _as_rabbitmq("Refuse a quorum queue or a stream without a name with 406.")
    ] = False
    stream_misuse_closes_connection: Annotated[
        bool, _as_rabbitmq("basic.get and queue.purge on a stream close the connection with 540.")
    ] = False
    refuse_group_nack: Annotated[
        bool, _as_rabbitmq("Refuse basic.nack and basic.reject on a stream also from a consumer group.")
    ] = False
    refuse_unbounded_stream_consumers: Annotated[
        bool, _as_rabbitmq("Refuse consumers of a stream that have no_ack or no prefetch.")
    ] = False
    transient_stays_transient: Annotated[
        bool,
        _as_rabbitmq("A transient message to a quorum queue is still lost by other queues at a restart."),
    ] = False
    silent_handshake_errors: Annotated[
        bool, _as_rabbitmq("Errors before connection.open close the socket without connection.close.")
    ] = False
    unreadable_names_close_connection: Annotated[
        bool, _as_rabbitmq("Names and binding keys that are not UTF-8 close the connection with 501.")
    ] = False
    consumer_timeout_closes_channel: Annotated[
        bool, _as_rabbitmq("A delivery not acked in time closes its channel, on every type of queue.")
    ] = False
    brief_http_refusals: Annotated[
        bool, _as_rabbitmq("The management API answers 404 without a name, and 401 to missing rights.")
    ] = False

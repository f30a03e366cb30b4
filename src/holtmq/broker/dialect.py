"""The choices between HoltMQ's behaviour and RabbitMQ's that are made for the whole node.

Owns: their names and HoltMQ's defaults. Must not touch: what they mean; each is explained in
``config/differences.py`` and read where the behaviour is. The settings in ``[compatibility]`` have the same
names.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """Each flag, if true, selects RabbitMQ's behaviour."""

    drop_highest_priority: bool = False
    accept_zero_priority: bool = False
    refuse_classic_delivery_limit: bool = False
    refuse_quorum_priorities: bool = False
    refuse_global_prefetch: bool = False
    refuse_queue_mode: bool = False
    ignore_quorum_exclusive_consumers: bool = False
    refuse_conditional_quorum_delete: bool = False
    refuse_single_active_get: bool = False
    refuse_server_names: bool = False
    stream_misuse_closes_connection: bool = False
    refuse_group_nack: bool = False
    refuse_unbounded_stream_consumers: bool = False
    transient_stays_transient: bool = False
    silent_handshake_errors: bool = False
    unreadable_names_close_connection: bool = False
    consumer_timeout_closes_channel: bool = False
    brief_http_refusals: bool = False


HOLT = Dialect()

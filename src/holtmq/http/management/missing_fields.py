"""Management API: the fields of RabbitMQ that this broker does not have, each with the reason.

Owns: the one list; the documentation has it as a table, and a test compares it with RabbitMQ's answers. Must
not touch: answers.
"""

from fnmatch import fnmatchcase
from typing import Final

_ERLANG: Final = "a figure of Erlang's processes"
_STORES: Final = (
    "a figure of RabbitMQ's stores; here all queues share one journal (`io_write_…`, `io_sync_…`)"
)
_SOCKETS: Final = "options of Erlang's sockets and web server"

# A pattern over the resource and the path of its field, as ``fnmatch`` reads it.
MISSING_FIELDS: Final = {
    "*.garbage_collection*": _ERLANG,
    "*.reductions*": _ERLANG,
    "queues.memory": _ERLANG,
    "queue.memory": _ERLANG,
    "nodes.gc_bytes_reclaimed*": "Python's collector does not count bytes",
    "nodes.metrics_gc_queue_length*": _ERLANG,
    "nodes.net_ticktime": "between the nodes of a cluster of Erlang",
    "nodes.mnesia_*": "transactions of RabbitMQ's database",
    "nodes.ra_open_file_metrics*": "files of RabbitMQ's Raft logs",
    "nodes.io_read_*": _STORES,
    "nodes.io_seek_*": _STORES,
    "nodes.io_reopen_*": _STORES,
    "nodes.io_write_avg_time*": "a write is timed with its sync: `io_sync_avg_time`",
    "nodes.io_sync_avg_time_details*": "an average has no rate",
    "nodes.msg_store_*": _STORES,
    "nodes.queue_index_*": _STORES,
    "*.message_stats.disk_reads*": _STORES,
    "*.message_stats.disk_writes*": _STORES,
    "*.contexts.cowboy_opts": _SOCKETS,
    "overview.contexts.ssl_opts": _SOCKETS,
    "overview.listeners.socket_opts*": _SOCKETS,
    "overview.release_series_support_status": "RabbitMQ's vendor decides it",
    "queue*.backing_queue_status*": "the parts of RabbitMQ's implementation of a queue",
    "queue*.open_files*": "a queue has no files of its own",
    "queue*.recoverable_slaves": "one node has no mirrors",
    "queue*.messages_dlx": "no queue keeps dead letters until another one has taken them",
    "queue*.message_bytes_dlx": "no queue keeps dead letters until another one has taken them",
    "queue*.messages_persistent": "persistent messages of a queue are not counted apart",
    "queue*.message_bytes_persistent": "persistent messages of a queue are not counted apart",
    "queue*.single_active_consumer_ctag": "another name of `single_active_consumer_tag`",
    "exchange*.user_who_performed_action": "who declared an exchange is not kept",
}


def reason_for(resource: str, field: str) -> str | None:
    """Why a resource of this broker lacks a field; None: it should have it."""
    path = f"{resource}.{field}"
    return next((why for pattern, why in MISSING_FIELDS.items() if fnmatchcase(path, pattern)), None)

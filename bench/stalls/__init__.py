"""How long one request holds the broker's loop: the worst of what a client can ask for, in CPU time.

Owns: the list of requests and how one is measured. Must not touch: the broker's insides beyond its loop. A
loop that is always busy with the meter notes how much CPU each of its rounds took; the worst round is the
stall, since every other client waits for its end. CPU time, because a busy machine must not look like a slow
broker.

    python -m bench.stalls [--scale 1.0] [--only NAME]
"""

from __future__ import annotations

import gc
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import httpx
import pika
from bench.stalls import (
    bulk,
    clients,
    crowds,
    endings,
    ephemeral,
    extras,
    fan_out,
    found,
    held,
    large,
    letters,
    many_logs,
    many_matches,
    messages,
    partitioned,
    rows,
    topology,
    transactions,
    wide,
)
from bench.stalls.checkpoints import CHECKPOINTS
from bench.stalls.reading import READING
from bench.stalls.site import Meter, Prepare, Site
from bench.stalls.sources import SOURCES
from bench.stalls.stream_deliveries import STREAM_DELIVERIES

from holtmq.config import Config, Limits
from holtmq.heap import collect_in_portions
from holtmq.testing import TestBroker

GOAL_MS: Final = 50.0
_PATIENCE: Final = 600.0

REQUESTS: Final[dict[str, tuple[int, Prepare]]] = {
    "tx.commit": (100_000, messages.commit),
    "tx.commit to a headers exchange": (100_000, messages.commit_special("headers")),
    "tx.commit of delayed messages": (100_000, messages.commit_special("delay")),
    "tx.commit of delayed messages, each with its own delay": (100_000, messages.commit_special("delays")),
    "tx.commit to a queue that may refuse": (100_000, messages.commit_special("reject-publish")),
    "tx.commit to a queue that is full": (100_000, messages.commit_special("full")),
    "tx.commit to a queue that is full, dead letters": (100_000, messages.commit_special("full-dlx")),
    "tx.commit to a stream": (100_000, messages.commit_special("stream")),
    **transactions.COMMITS,
    **STREAM_DELIVERIES,
    **READING,
    "tx.commit to a stream with partitions": (100_000, messages.commit_special("partitions")),
    "tx.commit to 20 streams": (100_000, messages.commit_special("streams")),
    "tx.commit to a fanout of three queues": (100_000, messages.commit_special("fanout")),
    "tx.commit of acks, and messages of all kinds": (100_000, messages.commit_mixed),
    "tx.commit of 20 messages, compared with patterns": (20_000, messages.commit_patterns),
    "delayed messages due at once": (100_000, messages.delayed),
    "load definitions with bindings": (100_000, topology.load_definitions),
    "list bindings": (100_000, topology.list_bindings),
    "list bindings, sorted, two columns": (100_000, topology.sort_bindings),
    "export definitions with bindings": (100_000, topology.export),
    "list queues": (20_000, topology.list_queues),
    "overview of queues": (20_000, topology.overview),
    "policy over queues": (20_000, topology.put_policy),
    "delete an exchange with bindings": (100_000, topology.delete_exchange),
    "delete a queue with bindings": (100_000, topology.delete_queue),
    "bind and unbind among bindings": (100_000, topology.bind_and_unbind),
    "delete one of many bindings over HTTP": (100_000, topology.delete_binding),
    "bindings of a queue": (100_000, topology.list_bindings_of_queue),
    "publish to a changed random exchange": (10_000, topology.choose("x-random")),
    "publish to a changed consistent-hash exchange": (10_000, topology.choose("x-consistent-hash")),
    **SOURCES,
    **CHECKPOINTS,
    "delete a vhost with queues": (20_000, topology.delete_vhost),
    "rates of queues that are all used": (20_000, topology.sample_used),
    "connection lost with exclusive queues": (20_000, topology.drop_exclusive),
    "cancel one of many consumers": (10_000, messages.cancel_consumer),
    "delete a queue with consumers": (10_000, messages.delete_consumed),
    "publish to many consumers": (10_000, messages.publish_to_consumers),
    "list delayed messages": (100_000, messages.list_delayed),
    "pop of any partition": (10_000, partitioned.partitioned("/api/v1/pop/queue/log?batch=10&partitions=10")),
    "show a queue with partitions": (10_000, partitioned.partitioned("/api/v1/resources/queues/log")),
    "status of a queue with partitions": (10_000, partitioned.partitioned("/api/v1/status/queues/log")),
    "delete a queue with partitions": (
        10_000,
        partitioned.partitioned("/api/v1/resources/queues/log", "DELETE"),
    ),
    "list groups": (10_000, partitioned.grouped("/api/v1/consumer-groups")),
    "depth of a queue with partitions": (
        100_000,
        partitioned.partitioned("/api/v1/resources/queues/log/depth"),
    ),
    "depth of a queue with partitions for a group": (
        100_000,
        partitioned.partitions_of_group("/api/v1/resources/queues/log/depth?group=g"),
    ),
    "list partitions": (100_000, partitioned.partitioned("/api/v1/resources/partitions?limit=10000")),
    "show a group of a queue with partitions": (
        100_000,
        partitioned.partitions_of_group("/api/v1/consumer-groups/g"),
    ),
    "list messages of a queue with groups": (
        10_000,
        partitioned.messages_with_groups("/api/v1/messages?queue=log&limit=1000"),
    ),
    "list messages of one queue with groups": (
        10_000,
        partitioned.messages_with_groups("/api/v1/status/queues/log/messages?limit=1000"),
    ),
    "push to a queue with groups": (
        10_000,
        partitioned.grouped(
            "/api/v1/push", "POST", {"items": [{"queue": "log", "partition": "p0", "payload": 1}]}
        ),
    ),
    "delete a queue with groups": (10_000, partitioned.grouped("/api/v1/resources/queues/log", "DELETE")),
    "list consumers": (10_000, messages.list_consumers),
    "connection lost with consumers": (10_000, messages.close_consumers),
    "purge": (100_000, messages.purge),
    "close a channel with unacked": (100_000, messages.requeue),
    "publish to a headers exchange, all match": (100_000, many_matches.headers("all")),
    "publish to a headers exchange, one matches": (100_000, many_matches.headers("one")),
    "publish to a topic exchange with #": (100_000, many_matches.topic),
    "publish to a topic exchange with a word for each binding": (100_000, many_matches.topic_of_users),
    "publish to a headers exchange, 200 headers in each binding": (4_000, many_matches.long_patterns),
    "delete a headers exchange, 200 headers in each binding": (4_000, many_matches.delete_long_patterns),
    "publish through very many exchanges": (100_000, many_matches.through_exchanges),
    "publish to a fanout of queues": (20_000, many_matches.fanout()),
    "publish to a fanout of queues again": (20_000, many_matches.fanout(again=True)),
    "publish to a fanout with bindings to 100 queues": (100_000, many_matches.fanout(100)),
    "random exchange with bindings": (100_000, many_matches.chosen("x-random")),
    "modulus exchange with bindings": (100_000, many_matches.chosen("x-modulus-hash")),
    "consistent-hash exchange with bindings": (49_999, many_matches.chosen("x-consistent-hash")),
    "delete a queue bound to a random exchange": (100_000, many_matches.delete_chosen("x-random")),
    "delete a queue bound to a hash exchange": (50_000, many_matches.delete_chosen("x-consistent-hash")),
    "delete a random exchange with bindings to one queue": (
        100_000,
        many_matches.delete_choosing("x-random"),
    ),
    "delete a hash exchange with bindings to one queue": (
        50_000,
        many_matches.delete_choosing("x-consistent-hash"),
    ),
    "unbind the last of a full hash ring": (50_000, many_matches.unbind_last),
    "bind with a weight to a full hash ring": (1_000, many_matches.heavy),
    "bind to an exchange with recent history": (10_000, many_matches.history),
    "declare queues in one write": (2_000, many_matches.together(many_matches.declare)),
    "bind with weight 1,000 in one write": (100, many_matches.together(many_matches.bind_heavy)),
    "publish to a fanout of 1,000 in one write": (1_000, many_matches.together(many_matches.publish_wide)),
    "cancel with unacked, priorities": (100_000, bulk.unacked(bulk.cancel, {"x-max-priority": 9})),
    "close a channel with unacked, priorities": (
        100_000,
        bulk.unacked(bulk.close_channel, {"x-max-priority": 9}),
    ),
    "connection lost with unacked, priorities": (
        100_000,
        bulk.unacked(bulk.close_connection, {"x-max-priority": 9}),
    ),
    "close a channel with unacked, quorum": (
        100_000,
        bulk.unacked(bulk.close_channel, {"x-queue-type": "quorum"}),
    ),
    "nack all with requeue": (100_000, bulk.unacked(bulk.nack(True), {})),
    "nack all with requeue, priorities": (100_000, bulk.unacked(bulk.nack(True), {"x-max-priority": 9})),
    "nack each with requeue": (100_000, bulk.return_each),
    "nack all, dead letters": (100_000, bulk.unacked(bulk.nack(False), messages.LETTERS, then="dead")),
    "nack all, dropped": (100_000, bulk.unacked(bulk.nack(False), {})),
    "purge with priorities": (100_000, bulk.purge),
    "messages expire at once": (100_000, bulk.expire(False)),
    "messages expire at once, dead letters": (100_000, bulk.expire(True)),
    "a policy drops messages": (100_000, bulk.shrink(False)),
    "a policy drops messages, dead letters": (100_000, bulk.shrink(True)),
    "delete a full queue": (100_000, bulk.delete_full),
    "list connections": (5_000, clients.list_connections),
    "delete a user with connections": (5_000, clients.delete_user),
    "change rights of a user with connections": (5_000, clients.change_rights),
    "connections lost at once": (5_000, clients.reconnect),
    "declare queues among policies": (5_000, clients.declare_among_policies),
    "put a policy among policies, 1,000 queues": (2_000, clients.put_among_policies),
    "ack all, late": (100_000, bulk.unacked(bulk.ack_late, {})),
    "recover all unacked": (100_000, bulk.unacked(endings.recover, {})),
    "connection lost with channels": (2_000, endings.close_channels),
    "delete a vhost with connections and queues": (2_000, endings.delete_used_vhost),
    "purge a deep queue": (1_000_000, endings.purge_deep),
    "delete a deep queue": (1_000_000, endings.delete_deep),
    "import policies for as many queues": (2_000, endings.import_policies),
    "publish to readers of a stream": (10_000, endings.publish_to_readers),
    "delete a queue with very many partitions": (
        100_000,
        partitioned.partitioned("/api/v1/resources/queues/log", "DELETE"),
    ),
    "push to new queues in one request": (400, partitioned.push(new=True)),
    "push to queues in one request": (1_000, partitioned.push(new=False)),
    "push to a work queue in one request": (3_000, partitioned.push_to_work_queue),
    "transaction over HTTP": (2_500, partitioned.transact),
    "seek a group in all partitions": (100_000, partitioned.seek),
    "delete a group of all partitions": (100_000, partitioned.delete_group),
    "ack in one batch, each in its partition": (10_000, partitioned.ack),
    "dead-letter in one batch, one partition": (5_000, partitioned.dead_letter(1)),
    "dead-letter in one batch, some partitions": (10_000, partitioned.dead_letter(500)),
    "ack in one batch, two groups by turns": (10_000, partitioned.ack_by_turns),
    "ack unknown messages in one batch": (5_000, partitioned.ack_unknown),
    "ack unknown messages in a transaction": (2_500, partitioned.transact_unknown),
    "push to a queue with partitions and a limit": (100_000, partitioned.limited),
    "ack in one batch, work queue": (10_000, partitioned.ack_work_queue("completed")),
    "dead-letter in one batch, work queue": (10_000, partitioned.ack_work_queue("dlq")),
    "dead-letter in one batch, one partition without a lease": (
        5_000,
        partitioned.dead_letter_without_lease,
    ),
    "leases expire at once": (100_000, partitioned.expire),
    "list keyed rows, the first time": (100_000, extras.list_rows),
    "list keyed rows 256 times in one request": (100_000, extras.list_rows_often),
    "get keyed rows in one request": (100_000, extras.get_rows),
    "keyed rows expire at once": (100_000, extras.expire_rows),
    "put keyed rows again": (100_000, extras.put_rows_again),
    "list timers": (100_000, extras.list_timers),
    "move timers": (100_000, extras.move_timers),
    "timers due at once": (100_000, extras.fire_timers),
    "list names of traces": (100_000, extras.list_trace_names),
    "list traces of a name": (100_000, extras.list_traces),
    "figures of a day": (100, extras.show_day("/api/v1/analytics/worker-metrics")),
    "status of a day": (100, extras.show_day("/api/v1/status")),
    "operations by queue of a day": (100, extras.show_day("/api/v1/analytics/queue-ops")),
    "read state of a stream processor": (100_000, extras.read_state),
    "list dead letters of a group": (100_000, letters.letters("GET", "/api/v1/dlq?queue=log")),
    "list dead letters, one of many partitions": (
        100_000,
        letters.letters("GET", "/api/v1/dlq?queue=log&partition=p7&limit=10000"),
    ),
    "delete dead letters of a group": (100_000, letters.letters("DELETE", "/api/v1/dlq?queue=log")),
    "dead letters of both kinds by reason": (
        100_000,
        letters.letters("GET", "/api/v1/operator/dead-letters"),
    ),
    "redrive dead letters": (20_000, letters.redrive),
    "commit staged rows": (1_000_000, letters.commit_rows(16)),
    "commit staged rows, one partition": (1_000_000, letters.commit_rows(1)),
    "commit staged rows, very many partitions": (1_000_000, letters.commit_rows(100_000)),
    "abort staged rows": (1_000_000, letters.abort_rows),
    "read a range of rows": (1_000_000, letters.read_rows),
    "clear a partitioned queue": (1_000_000, letters.clear_rows),
    "delete a partitioned queue": (1_000_000, letters.delete_rows),
    "publish to a durable fanout, confirmed": (100_000, wide.publish("fanout", ("", {}))),
    "publish to a durable fanout again, confirmed": (100_000, wide.publish("fanout", ("", {}), again=True)),
    "publish to a topic exchange of queues, confirmed": (100_000, wide.publish("topic", ("a.#", {}))),
    "publish to a headers exchange of queues, confirmed": (
        100_000,
        wide.publish("headers", ("", {"kind": "k"})),
    ),
    "consume very often from one queue": (100_000, wide.declare_consumers(1)),
    "publish to very many consumers": (100_000, wide.consumed(wide.publish_some, 1)),
    "publish to very many busy consumers": (100_000, wide.publish_to_busy),
    "dashboard of a queue with very many busy consumers": (100_000, wide.show_stuck),
    "connection lost with very many consumers": (100_000, wide.consumed(wide.lose_connection, 1)),
    "connection lost with consumers on 2,000 channels": (100_000, wide.on_channels),
    "connection lost with consumers of 1,000 queues": (100_000, wide.consumed(wide.lose_connection, 1_000)),
    "close a channel with very many consumers": (100_000, wide.consumed(wide.close_channel, 1)),
    "list very many consumers": (100_000, wide.consumed(wide.list_consumers, 1_000)),
    "show a queue with very many consumers": (100_000, wide.consumed(wide.show_queue, 1)),
    "delete a queue with very many consumers": (100_000, wide.consumed(wide.delete_queue, 1)),
    "list channels": (20_000, wide.list_channels),
    "purge a deep queue with priorities": (1_000_000, wide.purge({"x-max-priority": 9})),
    "purge a deep queue with expirations": (1_000_000, wide.purge({}, "3600000")),
    "delete a deep queue with priorities": (1_000_000, wide.delete({"x-max-priority": 9})),
    "a policy drops messages of a deep queue": (1_000_000, wide.shrink({})),
    "delete a queue with outcasts": (100_000, wide.delete_with_outcasts),
    "tx.rollback": (100_000, wide.rollback),
    "tx.rollback of acks": (100_000, wide.rollback_acks),
    "import queues and bindings": (20_000, wide.import_queues),
    "import queues and bindings again": (20_000, wide.import_again),
    "export queues and bindings": (20_000, wide.export_queues),
    "import exchanges": (20_000, rows.load("exchanges")),
    "import exchanges again": (20_000, rows.load("exchanges", again=True)),
    "import users and permissions": (20_000, rows.load("users")),
    "import policies": (20_000, rows.load("policies")),
    "import vhosts": (2_000, rows.load("vhosts")),
    "list vhosts": (10_000, topology.list_vhosts),
    "list very many queues": (100_000, rows.listed("/api/queues")),
    "a page of very many queues": (100_000, rows.listed("/api/queues?page=5&page_size=100")),
    "a page of queues by a pattern": (100_000, rows.listed("/api/queues?page=1&name=9%249&use_regex=true")),
    "a page of queues, sorted": (100_000, rows.listed("/api/queues?page=1&sort=messages&sort_reverse=true")),
    "overview of very many queues": (100_000, rows.listed("/api/overview")),
    "list vhosts with very many queues": (100_000, rows.listed("/api/vhosts")),
    "export very many queues": (100_000, rows.listed("/api/definitions")),
    "bindings of very many queues": (100_000, rows.listed("/api/bindings")),
    "metrics of each of very many queues": (100_000, rows.listed("/metrics/per-object")),
    "metrics for scrapers with very many queues": (100_000, rows.listed("/metrics/prometheus")),
    "health with very many queues": (100_000, rows.listed("/health")),
    "policy over very many queues": (100_000, topology.put_policy),
    "delete a vhost with very many queues": (100_000, rows.listed("DELETE /api/vhosts/%2F")),
    "list very many exchanges": (100_000, rows.listed("/api/exchanges", "exchanges")),
    "export very many exchanges": (100_000, rows.listed("/api/definitions", "exchanges")),
    **fan_out.WAYS,
    **held.REQUESTS,
    **crowds.REQUESTS,
    **ephemeral.REQUESTS,
    **large.REQUESTS,
    **many_logs.REQUESTS,
    **many_logs.CHECKPOINTS,
    **found.REQUESTS,
}


def measure(name: str, scale: float) -> tuple[int, float, float]:
    """How many things it was about, the worst stall and all of the CPU, in milliseconds."""
    size, prepare = REQUESTS[name]
    count = max(1, int(size * scale))
    gc.unfreeze()  # the brokers of earlier requests
    collect_in_portions()  # as ``holt serve`` does
    config = Config(limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0))
    with (
        tempfile.TemporaryDirectory(prefix="holt-stalls-") as folder,
        TestBroker(Path(folder), clock="real", config=config) as broker,
        httpx.Client(base_url=broker.http_url, auth=("guest", "guest"), timeout=_PATIENCE) as http,
    ):
        parameters = pika.URLParameters(broker.amqp_url + "?heartbeat=0")
        connection = pika.BlockingConnection(parameters)
        request = prepare(Site(broker, connection.channel(), http), count)
        # The loop also waits for a checkpoint's thread while that holds the interpreter.
        meter = Meter(broker, time.process_time if name.startswith("checkpoint of ") else time.thread_time)
        gc.collect()  # the client's objects are in the same process
        with meter.running():
            request()
            for _ in range(2):
                broker.call(lambda _: None)  # the turns that follow are the broker's own
            while broker.call(lambda node: len(node.broker.long_changes)):  # what goes on after the answer
                time.sleep(0.01)
        with suppress(pika.exceptions.AMQPError):  # it may be gone
            connection.close()
    return count, meter.worst * 1000, meter.total * 1000

"""The parts of a broker, made as the configuration says.

Owns: which setting becomes which argument. Must not touch: starting and stopping, listeners.
"""

import logging
import os
import platform
from typing import TYPE_CHECKING

import msgspec

from holtmq.amqp.handshake import Settings
from holtmq.amqp.interceptors import Intercept, Interceptors
from holtmq.broker.broker import Broker
from holtmq.broker.damage import Damaged, LostSpill
from holtmq.broker.dialect import Dialect
from holtmq.broker.partitioned.log.bodies import Cipher
from holtmq.broker.partitioned.log.dedup_budget import ID_BYTES
from holtmq.broker.partitioned.queue_config import QueueConfig
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.partitioned.service import Settings as PartitionedSettings
from holtmq.broker.work.paging import Spill
from holtmq.config import Config, SyncMode
from holtmq.http.operator.system import total_memory
from holtmq.journal import Journal, JournalOptions
from holtmq.start_checks import CannotStart

if TYPE_CHECKING:
    from holtmq.auth.tokens import TokenVerifier

log = logging.getLogger(__name__)


def journal_options(config: Config) -> JournalOptions:
    """How the journal is written."""
    journal = config.journal
    return JournalOptions(segment_bytes=journal.segment_bytes, sync=journal.sync is SyncMode.ALWAYS)


def make_broker(journal: Journal, config: Config, spill: Spill | None) -> Broker:
    """A broker without state. ``spill`` takes the messages that do not fit into memory."""
    broker = Broker(
        journal,
        max_priority=config.amqp.max_priority,
        cancel_requeue=config.amqp.cancel_requeue,
        dialect=Dialect(**msgspec.structs.asdict(config.compatibility)),
        spill=spill,
    )
    broker.flow.memory.limit = config.limits.queue_memory_bytes(total_memory())
    return broker


def make_partitioned(journal: Journal, config: Config) -> PartitionedService:
    """Partitioned queues without state."""
    default = config.queue.default_subscription_mode.value
    service = PartitionedService(journal, PartitionedSettings(config.subscriptions.lookback, default))
    service.store.default_config = QueueConfig(dedup_window_seconds=config.queue.dedup_window_seconds)
    service.store.dedup_budget.max_ids = config.limits.dedup_memory_bytes(total_memory()) // ID_BYTES
    if config.queue.encryption_key:
        service.store.cipher = Cipher(bytes.fromhex(str(config.queue.encryption_key)), os.urandom)
    return service


def token_verifier(config: Config) -> "TokenVerifier | None":
    """Checks bearer tokens; None if they are not enabled: its libraries are slow to load.

    Raises CannotStart for a key that cannot be used.
    """
    if not config.auth.jwt_enabled:
        return None
    from holtmq.auth.token_keys import BadKey
    from holtmq.auth.tokens import TokenVerifier

    try:
        return TokenVerifier(config.auth)
    except BadKey as error:
        raise CannotStart(str(error)) from None


def amqp_settings(config: Config) -> Settings:
    """What AMQP connections need to know."""
    amqp, asked = config.amqp, config.interceptors
    return Settings(
        amqp.product,
        amqp.product_version,
        amqp.channel_max,
        amqp.frame_max,
        amqp.heartbeat,
        amqp.max_message_bytes,
        amqp.channel_flow,
        int(amqp.consumer_timeout * 1000),
        Interceptors(
            Intercept(asked.timestamp.value),
            Intercept(asked.routing_node.value),
            Intercept(asked.client_id.value),
            f"holt@{platform.node()}",
        ),
    )


def log_damage(row: Damaged) -> None:
    """Log a message that cannot be read."""
    log.error(
        "a message cannot be read and was set aside",
        extra={
            "where": row.where,
            "vhost": row.vhost,
            "queue": row.name,
            "position": row.position,
            "size": row.size,
            "reason": row.reason,
        },
    )


def log_lost(run: LostSpill) -> None:
    """Log transient messages that cannot be read back from the spill."""
    log.error(
        "spilled transient messages cannot be read and were given up",
        extra={
            "vhost": run.vhost,
            "queue": run.name,
            "messages": run.messages,
            "size": run.size,
            "reason": run.reason,
        },
    )

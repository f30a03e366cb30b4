"""Creating, configuring and deleting partitioned queues.

Owns: the wire names of options and how effective values are echoed. Must not touch: what options do.
"""

import logging
from typing import Final

import msgspec

from holtmq.auth.permissions import Action
from holtmq.broker.errors import Conflict
from holtmq.broker.partitioned.commands.admin import configure, delete_queue
from holtmq.broker.partitioned.queue_config import OptionValue, QueueConfig, merge
from holtmq.http.engine.endpoints import CONFIGURE, DESTROY_QUEUE, Call, Endpoint
from holtmq.http.engine.errors import EMPTY_BODY, Refusal, invalid_json
from holtmq.http.queues.push import NAME_MAX

log = logging.getLogger(__name__)

_OPTIONS: Final = {
    "leaseTime": "lease_seconds",
    "retryLimit": "retry_limit",
    "delayedProcessing": "delayed_processing",
    "windowBuffer": "window_buffer",
    "maxWaitTimeSeconds": "max_wait_seconds",
    "retentionEnabled": "retention_enabled",
    "retentionSeconds": "retention_seconds",
    "completedRetentionSeconds": "completed_retention_seconds",
    "encryptionEnabled": "encryption_enabled",
    "deadLetterQueue": "dead_letter_queue",
    "dlqAfterMaxRetries": "dlq_after_max_retries",
    "priority": "priority",
    "retryDelay": "retry_delay_ms",
    "maxQueueSize": "max_size",
    "maxSize": "max_size",
    "ttl": "ttl_seconds",
    "dedupWindowSeconds": "dedup_window_seconds",
}
_RETRY_DELAY_MS: Final = 1000  # shown while unset; it then has no effect
_TTL_SECONDS: Final = 3600
_UNSET: Final = QueueConfig()
_NOT_ENCRYPTED: Final = (
    "messages of this queue are stored unencrypted: the broker has no queue.encryption_key"
)


class ConfigureIn(msgspec.Struct):
    queue: str
    namespace: str | None = None
    task: str | None = None
    options: dict[str, object] | None = None
    mode: str | None = None


def options_out(config: QueueConfig) -> dict[str, object]:
    """Effective values under their wire names."""
    return {
        "leaseTime": config.lease_seconds,
        "maxSize": config.max_size,
        "maxQueueSize": config.max_size,
        "ttl": _TTL_SECONDS if config.ttl_seconds is None else config.ttl_seconds,
        "retryLimit": config.retry_limit,
        "retryDelay": _RETRY_DELAY_MS if config.retry_delay_ms is None else config.retry_delay_ms,
        "deadLetterQueue": bool(config.dead_letter_queue),
        "dlqAfterMaxRetries": bool(config.dlq_after_max_retries),
        "priority": config.priority,
        "delayedProcessing": config.delayed_processing,
        "windowBuffer": config.window_buffer,
        "retentionSeconds": config.retention_seconds,
        "completedRetentionSeconds": config.completed_retention_seconds,
        "retentionEnabled": config.retention_enabled,
        "encryptionEnabled": config.encryption_enabled,
        "maxWaitTimeSeconds": config.max_wait_seconds,
        "dedupWindowSeconds": config.dedup_window_seconds,
    }


def _options_in(options: dict[str, object]) -> dict[str, OptionValue]:
    changes: dict[str, OptionValue] = {}
    for name, value in options.items():
        known = _OPTIONS.get(name)
        if known is None:
            continue  # newer clients send options that only Queen's server has
        if value is not None and not isinstance(value, bool | int | float | str):
            raise Refusal(400, f"option {name} must be a plain value")
        try:
            merge(_UNSET, {known: value})
        except Conflict as error:
            raise Refusal(400, str(error).replace(known, name, 1)) from None
        changes[known] = value
    return changes


def _document(body: bytes) -> dict[str, object]:
    return msgspec.json.decode(body, type=dict[str, object])


async def configure_queue(call: Call) -> object:
    if not call.body.strip():
        raise Refusal(400, EMPTY_BODY)
    try:
        asked = msgspec.json.decode(call.body, type=ConfigureIn)
    except msgspec.ValidationError as error:
        if "`queue`" in str(error) or "$.queue" in str(error):
            raise Refusal(400, "queue is required") from None
        raise invalid_json(error) from None
    except msgspec.MsgspecError as error:
        raise invalid_json(error) from None
    if len(asked.queue) > NAME_MAX:
        raise Refusal(400, f"a name is longer than {NAME_MAX} characters")
    if asked.mode not in (None, "merge", "replace"):
        raise Refusal(400, f"mode must be 'merge' or 'replace', not {asked.mode[:32]!r}")
    call.require(Action.CONFIGURE, asked.queue)
    call.context.check_partitioned(asked.queue)
    given = asked.options
    if given is None:  # curl users write the options beside the queue's name
        given = {name: value for name, value in _document(call.body).items() if name in _OPTIONS}
    options = _options_in(given)
    try:
        if not asked.queue:
            # No call can name such a queue, so none is created; but Queen's own load test configures one.
            return _configured("", asked.namespace, asked.task, None, merge(QueueConfig(), options))
        queue = configure(
            call.service,
            asked.queue,
            asked.namespace,
            asked.task,
            options,
            call.now,
            replace=asked.mode == "replace",
        )
    except Conflict as error:
        raise Refusal(400, str(error)) from None
    told = encryption_out(queue.config, call.service.store.cipher is not None)
    if "warning" in told:
        log.warning("no queue.encryption_key: messages are stored as they are", extra={"queue": queue.name})
    await call.durable()
    return {**_configured(queue.name, queue.namespace, queue.task, str(queue.number), queue.config), **told}


def encryption_out(config: QueueConfig, has_key: bool) -> dict[str, object]:
    """Whether encryption takes effect. Without a key only warn: Queen's clients need the option accepted."""
    if not config.encryption_enabled:
        return {}
    return {"encrypted": True} if has_key else {"encrypted": False, "warning": _NOT_ENCRYPTED}


def _configured(
    name: str, namespace: str | None, task: str | None, number: str | None, config: QueueConfig
) -> dict[str, object]:
    return {
        "configured": True,
        "queue": name,
        "namespace": namespace or None,
        "task": task or None,
        "queueId": number,
        "partitionId": None,
        "options": options_out(config),
    }


async def remove_queue(call: Call) -> object:
    """Answers 200 even if there is no such queue: the clients' delete raises on 4xx."""
    name = call.path["queue"]
    existed = delete_queue(call.service, name)
    await call.durable()
    return {"deleted": True, "queue": name, "existed": existed}


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/api/v1/configure",
        CONFIGURE,
        "queues",
        "Create or change a queue",
        configure_queue,
        body=ConfigureIn,
        statuses=(200, 400, 409),
    ),
    Endpoint(
        "DELETE", "/api/v1/resources/queues/{queue}", DESTROY_QUEUE, "queues", "Delete a queue", remove_queue
    ),
)

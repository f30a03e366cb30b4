"""Cancel a consumer from the broker's side.

Owns: the wire form, and finding the one consumer that is meant. Must not touch: AMQP.
"""

from typing import Final

import msgspec

from holtmq.http.engine.endpoints import ADMINISTER, Call, Endpoint
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise


class CancelIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which consumer."""

    consumer_tag: str
    vhost: str = "/"
    queue: str | None = None
    connection: str | None = None


async def cancel(call: Call) -> object:
    asked, clients, stepwise = call.json(CancelIn), call.context.clients, Stepwise()
    call.broker.vhost(asked.vhost)
    found: list[tuple[str, int]] = []
    for row in clients.consumers(asked.vhost):
        channel = row.channel_details
        if (
            row.consumer_tag == asked.consumer_tag
            and asked.queue in (None, row.queue.name)
            and asked.connection in (None, channel.connection_name)
        ):
            found.append((channel.connection_name, channel.number))
        await stepwise.between()
    if not found:
        raise Refusal(404, f"no consumer '{asked.consumer_tag}' in vhost '{asked.vhost}'{_where(asked)}")
    names = sorted({name for name, _ in found})
    if len(names) > 1:
        raise Refusal(409, f"consumer '{asked.consumer_tag}' is in use by several: name one of {names}")
    call.broker.flow.now_ms = int(call.now * 1000)
    outcomes = [clients.cancel(name, channel, asked.consumer_tag) for name, channel in found]
    call.context.wake()
    await call.durable()
    told = [outcome for outcome in outcomes if outcome is not None]
    return {"cancelled": len(told), "told": bool(told) and all(told)}


def _where(asked: CancelIn) -> str:
    queue = "" if asked.queue is None else f" on queue '{asked.queue}'"
    return queue + ("" if asked.connection is None else f" of connection '{asked.connection}'")


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/api/v1/operator/consumers/cancel",
        ADMINISTER,
        "operator",
        "Cancel a consumer; its client is told by basic.cancel",
        cancel,
        body=CancelIn,
        statuses=(200, 400, 404, 409),
    ),
)

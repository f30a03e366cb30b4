"""Rows published through an exchange: ``POST /api/v1/exchanges/{exchange}/rows``, an Arrow IPC body.

Owns: the wire form. Must not touch: routing, queues. A request is validated as far as possible before its
first message is published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holtmq.auth.permissions import Action
from holtmq.auth.rights import Right
from holtmq.auth.users import DEFAULT_VHOST
from holtmq.broker.errors import Conflict
from holtmq.broker.flow import PublishOutcome
from holtmq.broker.message import make_address
from holtmq.broker.publish.routes import Route
from holtmq.http.arrow.ranges import arrow
from holtmq.http.engine.endpoints import READ_WRITE, Call, Endpoint
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise
from holtmq.wire.properties import Properties, encode_header, encode_properties

if TYPE_CHECKING:
    from holtmq.http.arrow.stream import ExchangeRow

DEFAULT_EXCHANGE: Final = "amq.default"  # its real name is empty, which a path cannot express
_KEY_MAX: Final = 255


async def publish(call: Call) -> object:
    """Publish every row as a persistent message; answer when all are durable."""
    call.context.check_alarm()
    broker = call.broker
    vhost = broker.vhost(DEFAULT_VHOST)
    name = call.path["exchange"]
    exchange = "" if name == DEFAULT_EXCHANGE else name
    vhost.exchange(exchange)  # raises 404 when there is none
    speaks = await arrow()
    steps = Stepwise()
    rows: list[ExchangeRow] = []
    try:
        for some in speaks.exchange_rows(call.body, call.query.text("routingKey"), call.query.text("ids")):
            rows += some
            await steps.between()
    except Conflict as error:
        raise Refusal(400, str(error)) from None
    most = call.context.config.amqp.max_message_bytes
    routes: dict[str, Route] = {}
    is_restricted = call.restricts_topics(vhost, exchange)
    for row in rows:
        if steps.is_due:
            await steps.between()
        if len(row.key.encode()) > _KEY_MAX:
            raise Refusal(400, f"a routing key has at most {_KEY_MAX} bytes")
        if len(row.payload) > most:
            raise Refusal(413, f"message size {len(row.payload)} is larger than configured max size {most}")
        if is_restricted:
            call.require_topics(vhost, exchange, (row.key,), write=True)
        if row.key not in routes:
            routes[row.key] = broker.resolve(vhost, exchange, row.key, make_address(exchange, row.key))
    flow = broker.flow
    flow.now_ms = int(call.context.clock() * 1000)
    lost: list[str] = []
    placed = refused = 0
    for row in rows:
        if steps.is_due:
            await steps.between()
            flow.now_ms = int(call.context.clock() * 1000)
        header = encode_header(
            len(row.payload),
            encode_properties(
                Properties(
                    headers=None if row.headers is None else dict(row.headers),
                    delivery_mode=2,
                    priority=row.priority,
                    message_id=row.name,
                )
            ),
        )
        properties = flow.publish_properties.of(header)
        route = routes[row.key]
        if route.version != vhost.version:  # it has changed during the steps of an earlier row
            route = routes[row.key] = broker.resolve(vhost, exchange, row.key, route.address)
        outcome = flow.publishing.publish(route, properties, header, row.payload)
        if outcome is PublishOutcome.IN_STEPS:
            outcome = await steps.run(flow.publishing.take_steps())
            flow.now_ms = int(call.context.clock() * 1000)
        if outcome is PublishOutcome.UNROUTED:
            lost.append(row.key)
        elif outcome is PublishOutcome.REFUSED:
            refused += 1
        else:
            placed += 1
    flow.turn()
    call.context.wake()
    await call.durable()
    if refused:
        raise Refusal(429, f"a queue is full and refused {refused} of {len(rows)} messages", "queue_full")
    return {"published": placed, "unrouted": len(lost), "keys": sorted(set(lost))[:10]}


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/api/v1/exchanges/{exchange}/rows",
        Right(READ_WRITE, (Action.WRITE,), path_name="exchange"),
        "exchanges",
        "Publish rows (Arrow IPC) through an exchange of the default vhost",
        publish,
        query=("routingKey", "ids"),
        in_steps=True,
        statuses=(200, 400, 404, 413, 429, 501, 503),
    ),
)

"""Management API: import of definitions from this broker or RabbitMQ.

Owns: when the parts of a document are made, and what is said when that ends early. Must not touch: their
order (``definitions_plan.py``), how a part is made and checked. An import adds and replaces, it deletes
nothing. It first runs on an in-memory copy of the objects that it names, so that a refusal changes nothing.
Then it is made in steps, each part with its own record. Others may work between two steps: if they change
what the import depends on, it ends with 409, what is made stays, and the same import can be repeated.
"""

import logging
from asyncio import sleep
from collections.abc import Iterator
from typing import Final

from holtmq.auth.users import User
from holtmq.broker.broker import Broker
from holtmq.broker.errors import BrokerError
from holtmq.http.engine.endpoints import CHANGED, Call, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.management.conventions import endpoint, missing_is_bad_request
from holtmq.http.management.definitions_document import Definitions, read_definitions
from holtmq.http.management.definitions_plan import Plan
from holtmq.http.management.definitions_rehearsal import copy_named, dismantle, empty_stage
from holtmq.http.management.definitions_upload import uploaded
from holtmq.http.management.users import user_from
from holtmq.http.management.without_meaning import without_meaning

log = logging.getLogger(__name__)


async def load_vhost(call: Call) -> Reply:
    return await _load(call, await read_definitions(await uploaded(call), call.vhost.name))


async def load(call: Call) -> Reply:
    return await _load(call, await read_definitions(await uploaded(call)))


async def _load(call: Call, given: Definitions) -> Reply:
    broker = call.broker
    plan = Plan(given, await _users(given))
    stage = empty_stage(broker)
    try:
        with missing_is_bad_request():
            await _rehearse(broker, plan, stage)
        if call.query.flag("dry_run"):
            return Reply(200, {"without_meaning": await without_meaning(stage)})
    finally:
        await _in_steps(dismantle(stage))
    await _make(call, plan)
    report, stepwise = await without_meaning(broker), Stepwise()
    for row in report:
        log.info("kept without meaning", extra={key: row[key] for key in ("vhost", "what", "key", "reason")})
        await stepwise.between()
    return Reply(200, {"without_meaning": report}) if call.query.flag("report") else CHANGED


async def _users(given: Definitions) -> list[User]:
    stepwise = Stepwise()
    users = []
    for user in given.users:
        users.append(await user_from(user.name, user))
        await stepwise.between()
    return users


async def _rehearse(broker: Broker, plan: Plan, stage: Broker) -> None:
    """Raise what the import would be refused with."""
    await _in_steps(copy_named(broker, plan.given, stage))
    await _in_steps(plan.make(stage))


async def _in_steps(parts: Iterator[None]) -> None:
    stepwise = Stepwise()
    for _ in parts:
        await stepwise.between()


async def _make(call: Call, plan: Plan) -> None:
    broker, stepwise, made = call.broker, Stepwise(), 0
    for vhost in plan.given.vhosts:
        while broker.removals.is_leaving(vhost.name):
            await sleep(0)
    try:
        call.refuse_if_failed()
        for _ in plan.make(broker):
            made += 1
            if stepwise.is_due:
                call.context.wake()  # the journal writes what there is
                await stepwise.rest()
                call.refuse_if_failed()
    except (BrokerError, Refusal) as error:
        log.warning("import of definitions ended early", extra={"made": made, "of": len(plan)})
        await call.durable()  # the answer says what is there
        raise Refusal(409, _ENDED_EARLY.format(error, made, len(plan))) from None


_ENDED_EARLY: Final = (
    "another client changed what these definitions need while they were imported: {}. {} of {} parts are in "
    "place; import the document again to add the rest"
)

ENDPOINTS: Final = (
    endpoint("POST", "/api/definitions", load, in_steps=True),
    endpoint("POST", "/api/all-configuration", load, in_steps=True),
    endpoint("POST", "/api/definitions/{vhost}", load_vhost, in_steps=True),
)

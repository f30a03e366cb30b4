"""Management API: the state of shovels, as RabbitMQ's plugin for shovel management shows it.

Owns: their resources. Must not touch: their definitions, which are parameters (``runtime.py``).
"""

from typing import Final

from holtmq.broker.errors import NotFound
from holtmq.broker.topology.shovels import COMPONENT
from holtmq.http.engine.endpoints import CHANGED, Call, Reply
from holtmq.http.engine.shovel_listing import ShovelRow
from holtmq.http.management.access import MONITOR
from holtmq.http.management.conventions import endpoint


async def list_shovels(call: Call) -> object:
    vhost = call.vhost.name if "vhost" in call.path else None
    return [row for row in call.context.shovels.rows(vhost) if call.identity.sees(row.vhost)]


def _missing(call: Call) -> NotFound:
    return NotFound(f"no shovel '{call.path['name']}' in vhost '{call.path['vhost']}'")


async def show_shovel(call: Call) -> ShovelRow:
    for row in call.context.shovels.rows(call.vhost.name):
        if row.name == call.path["name"]:
            return row
    raise _missing(call)


async def delete_shovel(call: Call) -> Reply:
    call.broker.parameter_changes.delete(call.vhost.name, COMPONENT, call.path["name"])
    return CHANGED


async def restart_shovel(call: Call) -> Reply:
    if not call.context.shovels.restart(call.vhost.name, call.path["name"]):
        raise _missing(call)
    return CHANGED


_SHOVEL: Final = "/api/shovels/vhost/{vhost}/{name}"
ENDPOINTS: Final = (
    endpoint("GET", "/api/shovels", list_shovels, MONITOR),
    endpoint("GET", "/api/shovels/{vhost}", list_shovels, MONITOR),
    endpoint("GET", _SHOVEL, show_shovel, MONITOR),
    endpoint("DELETE", _SHOVEL, delete_shovel),
    endpoint("DELETE", _SHOVEL + "/restart", restart_shovel),
)

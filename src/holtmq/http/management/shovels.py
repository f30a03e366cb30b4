"""Management API: the state of shovels, as RabbitMQ's plugin for shovel management shows it.

Owns: their resources. Must not touch: their definitions, which are parameters (``runtime.py``).
"""

from typing import Final

from holtmq.broker.errors import NotFound
from holtmq.broker.topology.shovels import COMPONENT
from holtmq.http.engine.shovel_listing import ShovelRow
from holtmq.http.management.access import MONITOR
from holtmq.http.management.call import CHANGED, Answer, ManagementCall, Row


async def list_shovels(call: ManagementCall) -> object:
    vhost = call.vhost.name if "vhost" in call.path else None
    return [row for row in call.context.shovels.rows(vhost) if call.sees(row.vhost)]


def _missing(call: ManagementCall) -> NotFound:
    return NotFound(f"no shovel '{call.path['name']}' in vhost '{call.path['vhost']}'")


async def show_shovel(call: ManagementCall) -> ShovelRow:
    for row in call.context.shovels.rows(call.vhost.name):
        if row.name == call.path["name"]:
            return row
    raise _missing(call)


async def delete_shovel(call: ManagementCall) -> Answer:
    call.broker.parameter_changes.delete(call.vhost.name, COMPONENT, call.path["name"])
    return CHANGED


async def restart_shovel(call: ManagementCall) -> Answer:
    if not call.context.shovels.restart(call.vhost.name, call.path["name"]):
        raise _missing(call)
    return CHANGED


_SHOVEL: Final = "/api/shovels/vhost/{vhost}/{name}"
ROWS: Final = (
    Row("GET", "/api/shovels", list_shovels, MONITOR),
    Row("GET", "/api/shovels/{vhost}", list_shovels, MONITOR),
    Row("GET", _SHOVEL, show_shovel, MONITOR),
    Row("DELETE", _SHOVEL, delete_shovel),
    Row("DELETE", _SHOVEL + "/restart", restart_shovel),
)

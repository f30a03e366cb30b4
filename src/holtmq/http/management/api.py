"""RabbitMQ's management HTTP API, the part that operators script against: its route table.

Owns: which endpoints there are under ``/api/`` (not ``/api/v1/``). Must not touch: what they do.
"""

from typing import Final

from holtmq.http.engine.endpoints import Endpoint
from holtmq.http.management import (
    bindings,
    definitions,
    definitions_import,
    health,
    messages,
    node_details,
    runtime,
    shovels,
    single_node,
    status,
    topology,
    users,
)

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *status.ENDPOINTS,
    *users.ENDPOINTS,
    *topology.ENDPOINTS,
    *bindings.ENDPOINTS,
    *messages.ENDPOINTS,
    *definitions.ENDPOINTS,
    *definitions_import.ENDPOINTS,
    *runtime.ENDPOINTS,
    *shovels.ENDPOINTS,
    *single_node.ENDPOINTS,
    *node_details.ENDPOINTS,
    *health.ENDPOINTS,
)
_PREFIX: Final = b"/api/"
_NOT_OURS: Final = b"/api/v1/"


def is_management(path: bytes) -> bool:
    """Whether a path belongs to this API."""
    return path.startswith(_PREFIX) and not path.startswith(_NOT_OURS)

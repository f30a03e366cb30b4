"""The route table: every endpoint of the node, in the order in which they are tried.

Owns: the order. Must not touch: what endpoints do.
"""

from typing import Final

from holtmq.http import hot, queues_api, range_api, staging_api
from holtmq.http.endpoints import Endpoint

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *hot.ENDPOINTS,
    *queues_api.ENDPOINTS,
    *range_api.ENDPOINTS,
    *staging_api.ENDPOINTS,
)

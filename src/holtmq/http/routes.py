"""The route table: every endpoint of the node, in the order in which they are tried.

Owns: the order. Must not touch: what endpoints do.
"""

from typing import Final

from holtmq.http import (
    analytics_api,
    dlq_api,
    docs_api,
    ephemeral_api,
    groups_api,
    hot,
    keyed_api,
    locks_api,
    messages_api,
    metrics_api,
    queues_api,
    range_api,
    reads_api,
    resources_api,
    staging_api,
    status_api,
    streams_api,
    system_api,
    timers_api,
    traces_api,
)
from holtmq.http.endpoints import Endpoint

_DESCRIBED: Final[tuple[Endpoint, ...]] = (
    *hot.ENDPOINTS,
    *queues_api.ENDPOINTS,
    *dlq_api.ENDPOINTS,
    *groups_api.ENDPOINTS,
    *traces_api.ENDPOINTS,
    *streams_api.ENDPOINTS,
    *system_api.ENDPOINTS,
    *metrics_api.ENDPOINTS,
    *resources_api.ENDPOINTS,
    *messages_api.ENDPOINTS,
    *status_api.ENDPOINTS,
    *analytics_api.ENDPOINTS,
    *range_api.ENDPOINTS,
    *staging_api.ENDPOINTS,
    *reads_api.ENDPOINTS,
    *keyed_api.ENDPOINTS,
    *locks_api.ENDPOINTS,
    *timers_api.ENDPOINTS,
    *ephemeral_api.ENDPOINTS,
)

ENDPOINTS: Final[tuple[Endpoint, ...]] = (*_DESCRIBED, *docs_api.endpoints_for(_DESCRIBED))

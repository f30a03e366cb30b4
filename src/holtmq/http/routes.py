"""The route table: every endpoint of the node outside the management API.

Owns: which endpoints there are, and their order in the API's documentation. Must not touch: what they do.
"""

from typing import Final

from holtmq.http import hot_routes
from holtmq.http.arrow import exchange_rows, ranges, staging
from holtmq.http.dashboard import api, changes, clients, events, exchanges, journal, pages, partitions, search
from holtmq.http.dashboard import groups as dashboard_groups
from holtmq.http.dashboard import queues as dashboard_queues
from holtmq.http.engine.endpoints import Endpoint
from holtmq.http.extras import ephemeral, keyed, locks, stream_processing, timers, traces
from holtmq.http.operator import (
    all_dead_letters,
    analytics,
    api_docs,
    backups,
    consumers,
    dead_letters,
    delayed,
    groups,
    jobs,
    messages,
    node_metrics,
    pausing,
    pipelines,
    queen_metrics,
    resources,
    session,
    status,
    system,
    transfers,
)
from holtmq.http.queues import configure, reads

_DESCRIBED: Final[tuple[Endpoint, ...]] = (
    *hot_routes.ENDPOINTS,
    *configure.ENDPOINTS,
    *dead_letters.ENDPOINTS,
    *delayed.ENDPOINTS,
    *all_dead_letters.ENDPOINTS,
    *groups.ENDPOINTS,
    *pausing.ENDPOINTS,
    *transfers.ENDPOINTS,
    *jobs.ENDPOINTS,
    *consumers.ENDPOINTS,
    *backups.ENDPOINTS,
    *traces.ENDPOINTS,
    *stream_processing.ENDPOINTS,
    *session.ENDPOINTS,
    *system.ENDPOINTS,
    *queen_metrics.ENDPOINTS,
    *node_metrics.ENDPOINTS,
    *resources.ENDPOINTS,
    *messages.ENDPOINTS,
    *status.ENDPOINTS,
    *analytics.ENDPOINTS,
    *pipelines.ENDPOINTS,
    *ranges.ENDPOINTS,
    *staging.ENDPOINTS,
    *exchange_rows.ENDPOINTS,
    *reads.ENDPOINTS,
    *keyed.ENDPOINTS,
    *locks.ENDPOINTS,
    *timers.ENDPOINTS,
    *ephemeral.ENDPOINTS,
    *api.ENDPOINTS,
    *dashboard_queues.ENDPOINTS,
    *partitions.ENDPOINTS,
    *dashboard_groups.ENDPOINTS,
    *exchanges.ENDPOINTS,
    *changes.ENDPOINTS,
    *journal.ENDPOINTS,
    *search.ENDPOINTS,
    *clients.ENDPOINTS,
    *events.ENDPOINTS,
    *pages.ENDPOINTS,
)

ENDPOINTS: Final[tuple[Endpoint, ...]] = (*_DESCRIBED, *api_docs.endpoints_for(_DESCRIBED))

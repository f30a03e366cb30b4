"""Every route that RabbitMQ's description of its HTTP API lists is served, or named as missing with why.

The list was written down from the description that the package rabbitmq-server 3.10.8 installs, and from
the routes of RabbitMQ 4's dispatcher that were added since.
"""

from pathlib import Path

import pytest

from holtmq.http.engine.router import Router
from holtmq.http.management.api import ENDPOINTS

ROUTES = """
GET /api/overview
GET PUT /api/cluster-name
GET /api/nodes
GET /api/nodes/N
GET /api/extensions
GET POST /api/definitions
GET POST /api/all-configuration
GET POST /api/definitions/V
GET /api/connections
GET /api/vhosts/V/connections
GET DELETE /api/connections/C
GET DELETE /api/connections/username/U
GET /api/connections/C/channels
GET /api/channels
GET /api/vhosts/V/channels
GET /api/channels/C
GET /api/consumers
GET /api/consumers/V
GET /api/exchanges
GET /api/exchanges/V
GET PUT DELETE /api/exchanges/V/X
GET /api/exchanges/V/X/bindings/source
GET /api/exchanges/V/X/bindings/destination
POST /api/exchanges/V/X/publish
GET /api/queues
GET /api/queues/detailed
GET /api/queues/V
GET PUT DELETE /api/queues/V/Q
GET /api/queues/V/Q/bindings
DELETE /api/queues/V/Q/contents
POST /api/queues/V/Q/actions
POST /api/queues/V/Q/get
GET /api/bindings
GET /api/bindings/V
GET POST /api/bindings/V/e/X/q/Q
GET DELETE /api/bindings/V/e/X/q/Q/P
GET POST /api/bindings/V/e/X/e/Y
GET DELETE /api/bindings/V/e/X/e/Y/P
GET /api/vhosts
GET PUT DELETE /api/vhosts/V
GET /api/vhosts/V/permissions
GET /api/vhosts/V/topic-permissions
POST /api/vhosts/V/start/N
GET /api/users/
GET /api/users/without-permissions
POST /api/users/bulk-delete
GET PUT DELETE /api/users/U
GET /api/users/U/permissions
GET /api/users/U/topic-permissions
GET /api/user-limits
GET /api/user-limits/U
PUT DELETE /api/user-limits/U/L
GET /api/whoami
GET /api/permissions
GET PUT DELETE /api/permissions/V/U
GET /api/topic-permissions
GET PUT DELETE /api/topic-permissions/V/U
DELETE /api/topic-permissions/V/U/X
GET /api/parameters
GET /api/parameters/C
GET /api/parameters/C/V
GET PUT DELETE /api/parameters/C/V/P
GET /api/global-parameters
GET PUT DELETE /api/global-parameters/P
GET /api/policies
GET /api/policies/V
GET PUT DELETE /api/policies/V/P
GET /api/operator-policies
GET /api/operator-policies/V
GET PUT DELETE /api/operator-policies/V/P
GET /api/aliveness-test/V
GET /api/health/checks/alarms
GET /api/health/checks/local-alarms
GET /api/health/checks/certificate-expiration/1/weeks
GET /api/health/checks/port-listener/5672
GET /api/health/checks/protocol-listener/amqp091
GET /api/health/checks/virtual-hosts
GET /api/health/checks/node-is-mirror-sync-critical
GET /api/health/checks/node-is-quorum-critical
GET /api/health/checks/is-in-service
GET /api/health/checks/below-node-connection-limit
GET /api/health/checks/ready-to-serve-clients
GET /api/vhost-limits
GET /api/vhost-limits/V
PUT DELETE /api/vhost-limits/V/L
GET /api/auth
POST /api/rebalance/queues
GET /api/federation-links
GET /api/federation-links/V
GET DELETE /api/auth/attempts/N
GET DELETE /api/auth/attempts/N/source
GET /api/feature-flags
PUT /api/feature-flags/F/enable
GET /api/deprecated-features
GET /api/deprecated-features/used
GET /api/version
GET /api/shovels
GET /api/shovels/V
GET DELETE /api/shovels/vhost/V/S
DELETE /api/shovels/vhost/V/S/restart
POST DELETE /api/vhosts/V/deletion/protection
GET /api/nodes/N/memory
GET /api/nodes/N/memory/relative
GET /api/environment
GET /api/config/effective
GET /api/queues/quorum/V/Q/status
POST /api/queues/quorum/V/Q/replicas/add
DELETE /api/queues/quorum/V/Q/replicas/delete
POST /api/queues/quorum/replicas/on/N/grow
DELETE /api/queues/quorum/replicas/on/N/shrink
DELETE /api/reset
DELETE /api/reset/N
GET /api/auth/hash_password/P
GET /api/connections/C/sessions
GET /api/healthchecks/node
GET /api/healthchecks/node/N
GET /api/health/checks/metadata-store/initialized
GET /api/health/checks/metadata-store/initialized/with-data
GET /api/health/checks/reached-target-cluster-size
GET /api/health/checks/quorum-queues-without-elected-leaders/all-vhosts/
GET /api/health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/P
GET /api/health/checks/quorum-queues-without-elected-leaders/vhost/V/
GET /api/health/checks/quorum-queues-without-elected-leaders/vhost/V/pattern/P
"""
MISSING = {
    "/api/nodes/N/memory/ets": "Erlang's tables",
    "/api/top/N": "Erlang's processes",
    "/api/login": "gives the management page the password back as a token; the dashboard has sessions",
    "/api/users/U/queues": "who declared a queue is not kept",
}


def route_table() -> Router[str]:
    router: Router[str] = Router()
    for row in ENDPOINTS:
        router.add(row.method, row.path, row.path)
    return router


@pytest.mark.parametrize("line", ROUTES.split("\n")[1:-1])
def test_a_route_of_rabbitmq_is_served(line: str) -> None:
    *methods, path = line.split()

    found = route_table().methods(path.removesuffix("/"))

    assert set(methods) <= set(found)


def test_the_documentation_says_what_is_missing_and_why() -> None:
    page = (Path(__file__).parents[3] / "docs" / "management-api.md").read_text(encoding="utf-8")

    for path, reason in MISSING.items():
        assert route_table().methods(path) == []
        assert f"| `{path}` | {reason} |" in page

"""Management API: health checks, for load balancers and monitors.

Owns: the checks and RabbitMQ's form of the answers: 200 ``ok``, or 503 with the reason. Must not touch: how
the node's state is determined.
"""

from datetime import UTC, datetime
from typing import Final

from holtmq.auth.permissions import Action
from holtmq.broker.message import make_address
from holtmq.broker.work.leases import Holder, Ledger
from holtmq.broker.work.work_queue import require_work_queue
from holtmq.http.engine.context import NODE
from holtmq.http.engine.endpoints import Call, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.management.access import ALL_ACTIONS, LOGIN
from holtmq.http.management.conventions import check_node, endpoint
from holtmq.wire.properties import Properties, encode_header, encode_properties

_ALIVENESS: Final = "aliveness-test"
_PROTOCOLS: Final = {
    "amqp091": "amqp",
    "amqp0.9.1": "amqp",
    "amqp0-9-1": "amqp",
    "amqps": "amqp/ssl",
    "amqp091s": "amqp/ssl",
    "amqp0.9.1s": "amqp/ssl",
    "amqp0-9-1s": "amqp/ssl",
}


def _ok(**more: object) -> dict[str, object]:
    return {"status": "ok", **more}


def _failed(reason: str, **more: object) -> Reply:
    return Reply(503, {"status": "failed", "reason": reason, **more})


async def alarms(call: Call) -> object:
    return _alarms(call, "There are alarms in effect in the cluster")


async def local_alarms(call: Call) -> object:
    return _alarms(call, "There are alarms in effect on the node")


def _alarms(call: Call, reason: str) -> object:
    alarm = call.context.alarm()
    if not alarm:
        return _ok()
    resource = "memory" if "memory" in alarm else "disk"
    return _failed(reason, alarms=[{"node": NODE, "resource": resource}])


async def node_check(call: Call) -> object:
    """The older check that RabbitMQ still answers: whether the node is usable, without alarms."""
    if "node" in call.path:
        check_node(call)
    usable, reason = call.context.health()
    return await local_alarms(call) if usable else _failed(reason)


async def ready(call: Call) -> object:
    usable, reason = call.context.health()
    return _ok() if usable else _failed(reason)


async def virtual_hosts(call: Call) -> object:
    """All vhosts are up or down together, depending on the journal."""
    usable, _ = call.context.health()
    if usable:
        return _ok()
    return _failed("Some virtual hosts are down", **{"virtual-hosts": sorted(call.broker.vhosts)})


async def port_listener(call: Call) -> object:
    text = call.path["port"]
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise Refusal(400, "Invalid port")
    port = int(text)
    ports = sorted({listener.port for listener in call.context.listeners()})
    return _ok(port=port) if port in ports else _failed("No active listener", missing=port, ports=ports)


async def protocol_listener(call: Call) -> object:
    asked = call.path["protocol"].lower()
    protocol = _PROTOCOLS.get(asked, asked)
    protocols = sorted({listener.protocol for listener in call.context.listeners()})
    if protocol in protocols:
        return _ok(protocol=protocol)
    return _failed("No active listener", missing=protocol, protocols=protocols)


async def single_node(call: Call) -> object:
    """Always ok: there are no queues with members on other nodes."""
    return _ok(reason="single node cluster")


async def certificate_expiration(call: Call) -> object:
    """Fails when a certificate of a listener, or of its chain, ends within so many days, weeks, months or
    years."""
    unit = _UNITS.get(call.path["unit"])
    text = call.path["within"]
    if unit is None or not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise Refusal(400, f"expected a number and one of {', '.join(_UNITS)}")
    limit = call.context.clock() + int(text) * unit
    ending: dict[str, dict[str, object]] = {}
    for one in call.context.certificates():
        soon = [str(datetime.fromtimestamp(end, UTC)) for end in one.ends if end <= limit]
        if soon:
            ending[one.path] = {"node": NODE, "certfile": one.path, "certfile_expires_on": soon}
    return _failed("Certificates expiring", expired=list(ending.values())) if ending else _ok()


async def below_connection_limit(call: Call) -> object:
    used, limit = call.context.clients.counts()[0], call.context.config.amqp.max_connections
    if used < limit:
        return _ok(current=used, limit=limit)
    return _failed("Node connection limit is reached", current=used, limit=limit)


async def aliveness(call: Call) -> object:
    """Publish a message to a test queue in the vhost and get it back."""
    broker, vhost = call.broker, call.vhost
    call.require_in_vhost(Action.CONFIGURE, _ALIVENESS)
    call.require_in_vhost(Action.WRITE, "")
    call.require_in_vhost(Action.READ, _ALIVENESS)
    call.refuse_if_failed()
    broker.declare_queue(vhost, _ALIVENESS)
    body = b"test_message"
    flow = broker.flow
    header = encode_header(len(body), encode_properties(Properties()))
    properties = flow.publish_properties.of(header)
    route = broker.resolve(vhost, "", _ALIVENESS, make_address("", _ALIVENESS))
    flow.publishing.publish(route, properties, header, body)
    queue = require_work_queue(
        vhost.queue(_ALIVENESS), "delete it, so that the test can declare a work queue"
    )
    message = broker.get(queue)
    if message is not None:
        ledger = Ledger()
        ledger.grant(queue, message, Holder())
        flow.ack(ledger.end_all())
    flow.turn()
    call.context.wake()
    return _ok() if message is not None else _failed(f"the message did not come back from '{_ALIVENESS}'")


_DAY: Final = 86_400
_UNITS: Final = {"days": _DAY, "weeks": 7 * _DAY, "months": 30 * _DAY, "years": 365 * _DAY}
_CHECKS: Final = "/api/health/checks"
_LEADERS: Final = f"{_CHECKS}/quorum-queues-without-elected-leaders"
ENDPOINTS: Final = (
    endpoint("GET", f"{_CHECKS}/alarms", alarms, LOGIN),
    endpoint("GET", f"{_CHECKS}/local-alarms", local_alarms, LOGIN),
    endpoint("GET", f"{_CHECKS}/ready-to-serve-clients", ready, LOGIN),
    endpoint("GET", f"{_CHECKS}/is-in-service", ready, LOGIN),
    endpoint("GET", f"{_CHECKS}/below-node-connection-limit", below_connection_limit, LOGIN),
    endpoint("GET", _CHECKS + "/certificate-expiration/{within}/{unit}", certificate_expiration, LOGIN),
    endpoint("GET", f"{_CHECKS}/virtual-hosts", virtual_hosts, LOGIN),
    endpoint("GET", _CHECKS + "/port-listener/{port}", port_listener, LOGIN),
    endpoint("GET", _CHECKS + "/protocol-listener/{protocol}", protocol_listener, LOGIN),
    endpoint("GET", f"{_CHECKS}/node-is-quorum-critical", single_node, LOGIN),
    endpoint("GET", f"{_CHECKS}/node-is-mirror-sync-critical", single_node, LOGIN),
    endpoint("GET", f"{_CHECKS}/reached-target-cluster-size", single_node, LOGIN),
    endpoint("GET", f"{_LEADERS}/all-vhosts", single_node, LOGIN),
    endpoint("GET", _LEADERS + "/all-vhosts/pattern/{pattern}", single_node, LOGIN),
    endpoint("GET", _LEADERS + "/vhost/{vhost}", single_node, LOGIN),
    endpoint("GET", _LEADERS + "/vhost/{vhost}/pattern/{pattern}", single_node, LOGIN),
    endpoint("GET", f"{_CHECKS}/metadata-store/initialized", ready, LOGIN),
    endpoint("GET", f"{_CHECKS}/metadata-store/initialized/with-data", ready, LOGIN),
    endpoint("GET", "/api/healthchecks/node", node_check, LOGIN),
    endpoint("GET", "/api/healthchecks/node/{node}", node_check, LOGIN),
    endpoint("GET", "/api/aliveness-test/{vhost}", aliveness, ALL_ACTIONS),
)

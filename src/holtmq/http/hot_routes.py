"""The hot routes: requests that skip the router.

Owns: the look-up by method and path. Must not touch: what handlers do, rights.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from holtmq.http.engine.context import Context
from holtmq.http.engine.endpoints import READ, READ_OR_WRITE, WRITE, Endpoint
from holtmq.http.engine.request import FindRoute, Found, HttpRoute
from holtmq.http.management.api import is_management
from holtmq.http.queues.ack import LEASE_PREFIX, LEASE_SUFFIX, AckApi, AckIn, BatchIn, ExtendIn
from holtmq.http.queues.pop import PopApi, is_pop
from holtmq.http.queues.push import PushApi, PushIn
from holtmq.http.queues.transaction import TransactionApi, TransactionIn
from holtmq.http.queues.work import WorkApi

T = TypeVar("T")
_POP_QUERY: Final = (
    "batch",
    "wait",
    "timeout",
    "consumerGroup",
    "autoAck",
    "partitions",
    "subscriptionMode",
    "subscriptionFrom",
    "leaseSeconds",
    "autopilot",
    "conflation",
)
ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/api/v1/push",
        WRITE,
        "queues",
        "Push messages",
        body=PushIn,
        statuses=(201, 400, 413, 429, 503),
    ),
    Endpoint(
        "GET",
        "/api/v1/pop/queue/{queue}/partition/{partition}",
        READ,
        "queues",
        "Pop from one partition",
        query=_POP_QUERY,
        statuses=(200, 204, 400),
    ),
    Endpoint(
        "GET",
        "/api/v1/pop/queue/{queue}",
        READ,
        "queues",
        "Pop from any partition of a queue",
        query=_POP_QUERY,
        statuses=(200, 204, 400),
    ),
    Endpoint(
        "GET",
        "/api/v1/pop",
        READ,
        "queues",
        "Pop from any queue of a namespace and/or task",
        query=("namespace", "task", *_POP_QUERY),
        statuses=(200, 204, 400),
    ),
    Endpoint(
        "POST", "/api/v1/ack", READ, "queues", "Acknowledge one message", body=AckIn, statuses=(200, 400)
    ),
    Endpoint(
        "POST",
        "/api/v1/ack/batch",
        READ,
        "queues",
        "Acknowledge messages",
        body=BatchIn,
        statuses=(200, 400),
    ),
    Endpoint(
        "POST",
        "/api/v1/transaction",
        READ_OR_WRITE,
        "queues",
        "Push and acknowledge in one step",
        body=TransactionIn,
        statuses=(200, 400),
    ),
    Endpoint(
        "POST",
        "/api/v1/lease/{leaseId}/extend",
        READ,
        "queues",
        "Renew a lease",
        body=ExtendIn,
        statuses=(200, 400),
    ),
)


Make = Callable[[Context, WorkApi], T]


class HotApis(NamedTuple):
    """What makes the handlers of the hot routes. (A traced node has others.)"""

    push: Make[PushApi] = PushApi
    pop: Make[PopApi] = PopApi
    ack: Make[AckApi] = AckApi
    work: Callable[[Context], WorkApi] = WorkApi


class HotRoutes:
    """The look-up and the handlers behind it."""

    def __init__(self, context: Context, apis: HotApis) -> None:
        work = apis.work(context)
        self.pops = apis.pop(context, work)
        acks = apis.ack(context, work)
        self._posts: dict[bytes, Found] = {
            b"/api/v1/push": (HttpRoute(apis.push(context, work).push, WRITE), {}),
            b"/api/v1/ack": (HttpRoute(acks.ack, READ), {}),
            b"/api/v1/ack/batch": (HttpRoute(acks.ack_batch, READ), {}),
            b"/api/v1/transaction": (HttpRoute(TransactionApi(context, work).transaction, READ_OR_WRITE), {}),
        }
        self._pop: Found = (HttpRoute(self.pops.pop, READ), {})
        self._extend: Found = (HttpRoute(acks.extend, READ), {})

    def find_before(self, application: FindRoute, management: FindRoute) -> FindRoute:
        """A look-up over all routes: hot ones first, then the two tables."""
        posts, pop, extend = self._posts, self._pop, self._extend

        def find_route(method: bytes, path: bytes) -> Found:
            if method == b"POST":
                found = posts.get(path)
                if found is not None:
                    return found
                if path.startswith(LEASE_PREFIX) and path.endswith(LEASE_SUFFIX) and path.count(b"/") == 5:
                    return extend
            elif method == b"GET" and is_pop(path):
                return pop
            if is_management(path) and method != b"OPTIONS":
                return management(method, path)
            return application(method, path)

        return find_route

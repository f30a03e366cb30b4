"""The hot routes: which request skips the router, and who may make it.

Owns: the look-up by method and path, and the token check before a hot handler. Must not touch: the handlers'
work.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from holtmq.auth.tokens import Identity, Role, TokenVerifier
from holtmq.http.engine.context import Context
from holtmq.http.engine.endpoints import WRITE, Endpoint
from holtmq.http.engine.protocol import Exchange, FindRoute, Route
from holtmq.http.queues.ack import LEASE_PREFIX, LEASE_SUFFIX, AckApi, AckIn, BatchIn, ExtendIn
from holtmq.http.queues.pop import PopApi, is_pop
from holtmq.http.queues.push import PushApi, PushIn
from holtmq.http.queues.transaction import TransactionApi, TransactionIn
from holtmq.http.queues.work import WorkApi

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
        WRITE,
        "queues",
        "Pop from one partition",
        query=_POP_QUERY,
        statuses=(200, 204, 400),
    ),
    Endpoint(
        "GET",
        "/api/v1/pop/queue/{queue}",
        WRITE,
        "queues",
        "Pop from any partition of a queue",
        query=_POP_QUERY,
        statuses=(200, 204, 400),
    ),
    Endpoint(
        "GET",
        "/api/v1/pop",
        WRITE,
        "queues",
        "Pop from any queue of a namespace and/or task",
        query=("namespace", "task", *_POP_QUERY),
        statuses=(200, 204, 400),
    ),
    Endpoint(
        "POST", "/api/v1/ack", WRITE, "queues", "Acknowledge one message", body=AckIn, statuses=(200, 400)
    ),
    Endpoint(
        "POST",
        "/api/v1/ack/batch",
        WRITE,
        "queues",
        "Acknowledge messages",
        body=BatchIn,
        statuses=(200, 400),
    ),
    Endpoint(
        "POST",
        "/api/v1/transaction",
        WRITE,
        "queues",
        "Push and acknowledge in one step",
        body=TransactionIn,
        statuses=(200, 400),
    ),
    Endpoint(
        "POST",
        "/api/v1/lease/{leaseId}/extend",
        WRITE,
        "queues",
        "Renew a lease",
        body=ExtendIn,
        statuses=(200, 400),
    ),
)


class HotRoutes:
    """See the module."""

    def __init__(self, context: Context) -> None:
        self._context = context
        work = WorkApi(context)
        self.pops = PopApi(context, work)
        acks = AckApi(context, work)
        self._exact = {
            b"/api/v1/push": self._guard(PushApi(context, work).push),
            b"/api/v1/ack": self._guard(acks.ack),
            b"/api/v1/ack/batch": self._guard(acks.ack_batch),
            b"/api/v1/transaction": self._guard(TransactionApi(context, work).transaction),
        }
        self._pop = self._guard(self.pops.pop)
        self._extend = self._guard(acks.extend)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def find(self) -> FindRoute:
        exact, pop, extend = self._exact, self._pop, self._extend

        def find_route(method: bytes, path: bytes) -> Route | None:
            if method == b"POST":
                found = exact.get(path)
                if found is not None:
                    return found
                if path.startswith(LEASE_PREFIX) and path.endswith(LEASE_SUFFIX) and path.count(b"/") == 5:
                    return extend
            elif method == b"GET" and is_pop(path):
                return pop
            return None

        return find_route

    def _guard(self, handle: Callable[[Exchange], None]) -> Route:
        verifier = self._context.verifier
        if verifier is None:
            return Route(handle)
        clock = self._context.clock
        if self._context.config.auth.jwt_jwks_url:
            return Route(lambda exchange: self._authenticate(verifier, exchange, handle))

        def guarded(exchange: Exchange) -> None:
            _admit(verifier.verify(exchange.header(b"authorization"), clock()), exchange)
            handle(exchange)

        return Route(guarded)

    def _authenticate(
        self, verifier: TokenVerifier, exchange: Exchange, handle: Callable[[Exchange], None]
    ) -> None:
        """With a fetched key set: the first request of a new key waits for the fetch."""

        async def check() -> None:
            try:
                header = exchange.header(b"authorization")
                _admit(await verifier.authenticate(header, self._context.clock()), exchange)
                if not exchange.disconnected:
                    handle(exchange)
            except Exception as error:
                exchange.fail(error)

        task = asyncio.get_running_loop().create_task(check(), name="http-authenticate")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _admit(identity: Identity, exchange: Exchange) -> None:
    identity.require(Role.READ_WRITE)
    exchange.subject = identity.subject

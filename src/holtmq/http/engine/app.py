"""Every route that is not hot: looks up the endpoint and runs its handler as a task.

Owns: turning calls, replies and errors into answers, and the answers for unknown paths and methods.
Must not touch: what endpoints do, who may call them (the connection has checked that).
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holtmq.auth.rights import PUBLIC
from holtmq.http.engine.context import Context
from holtmq.http.engine.endpoints import Call, Endpoint, Reply, Stream
from holtmq.http.engine.exchange import Exchange, Found, Route
from holtmq.http.engine.router import Router
from holtmq.http.engine.wire import Query

_PREFLIGHT: Final = {"access-control-max-age": "86400"}
_encode: Final = msgspec.json.Encoder().encode


class Application:
    """The routes of a table that have a handler."""

    def __init__(self, context: Context, endpoints: Sequence[Endpoint]) -> None:
        self._context = context
        self._router: Router[Route] = Router()
        for endpoint in endpoints:
            if endpoint.handler is None:
                # A hot route: its requests are served elsewhere. The row is here so that a request with
                # another method gets a 405.
                route = Route(_not_found, PUBLIC, 0)
            else:
                route = Route(self._bound(endpoint), endpoint.right, endpoint.max_body)
            self._router.add(endpoint.method, endpoint.path, route)

    def find(self, method: bytes, path: bytes) -> Found:
        """The route of a request, or a route that answers 404 or 405."""
        word, where = method.decode("latin-1"), path.decode("latin-1")
        if word == "OPTIONS":
            return _PREFLIGHT_FOUND
        found = self._router.find("GET" if word == "HEAD" else word, where)
        if found is not None:
            return found
        allowed = self._router.methods(where)
        return (Route(_wrong_method(word, allowed), PUBLIC, 0), {}) if allowed else _NOT_FOUND

    def _bound(self, endpoint: Endpoint) -> Callable[[Exchange], None]:
        context, handler = self._context, endpoint.handler
        assert handler is not None
        name = f"http {endpoint.method} {endpoint.path}"

        async def run(exchange: Exchange) -> None:
            try:
                body = exchange.unpacked_body
                exchange.chunks = []
                identity = None if endpoint.right.is_public else exchange.identity
                call = Call(context, exchange.names, Query(exchange.query), body, identity, exchange)
                await _answer(exchange, await handler(call))
            except Exception as error:
                exchange.fail(error)

        def handle(exchange: Exchange) -> None:
            exchange.connection.engine.run(run(exchange), name)

        return handle


async def _answer(exchange: Exchange, result: object) -> None:
    if isinstance(result, Stream):
        await exchange.connection.stream(exchange, result.content_type, result.headers, result.chunks)
    elif not isinstance(result, Reply):
        exchange.answer(200, _encode(result))
    elif result.status == 204:
        exchange.answer_empty()
    elif result.content_type != "application/json":
        assert isinstance(result.body, bytes)
        exchange.answer_with(result.status, result.body, result.content_type, result.headers)
    else:
        exchange.answer_with(result.status, _encode(result.body), headers=result.headers)


def _preflight(exchange: Exchange) -> None:
    exchange.answer_with(204, b"", "", _PREFLIGHT if exchange.origin is not None else {})


def _not_found(exchange: Exchange) -> None:
    path = exchange.path.decode("latin-1")
    exchange.answer(404, _encode({"error": "not found", "code": "no_such_route", "path": path}))


def _wrong_method(method: str, allowed: list[str]) -> Callable[[Exchange], None]:
    names = ", ".join(allowed)

    def handle(exchange: Exchange) -> None:
        text = f"{method} is not a method of this path; {names} would be"
        path = exchange.path.decode("latin-1")
        body = {"error": text, "code": "method_not_allowed", "path": path}
        exchange.answer_with(405, _encode(body), headers={"allow": names})

    return handle


_PREFLIGHT_FOUND: Final[Found] = (Route(_preflight, PUBLIC, 0), {})
_NOT_FOUND: Final[Found] = (Route(_not_found, PUBLIC, 0), {})

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
from holtmq.http.engine.request import Found, HttpRequest, HttpRoute
from holtmq.http.engine.router import Router
from holtmq.http.engine.waiting_requests import as_task
from holtmq.http.engine.wire import Query

_PREFLIGHT: Final = {"access-control-max-age": "86400"}
_encode: Final = msgspec.json.Encoder().encode


class Application:
    """The routes of a table that have a handler."""

    def __init__(self, context: Context, endpoints: Sequence[Endpoint]) -> None:
        self._context = context
        self._router: Router[HttpRoute] = Router()
        for endpoint in endpoints:
            if endpoint.handler is None:
                # A hot route: its requests are served elsewhere. The row is here so that a request with
                # another method gets a 405.
                route = HttpRoute(_not_found, PUBLIC, 0)
            else:
                route = HttpRoute(self._bound(endpoint), endpoint.right, endpoint.max_body)
            self._router.add(endpoint.method, endpoint.path, route)
            if endpoint.method == "GET" and endpoint.handler is not None:
                self._router.add("HEAD", endpoint.path, route)

    def find(self, method: bytes, path: bytes) -> Found:
        """The route of a request, or a route that answers 404 or 405."""
        word, where = method.decode("latin-1"), path.decode("latin-1")
        if word == "OPTIONS":
            return _PREFLIGHT_FOUND
        found = self._router.find(word, where)
        if found is not None:
            return found
        allowed = self._router.methods(where)
        return (HttpRoute(_wrong_method(word, allowed), PUBLIC, 0), {}) if allowed else _NOT_FOUND

    def _bound(self, endpoint: Endpoint) -> Callable[[HttpRequest], None]:
        context, handler = self._context, endpoint.handler
        assert handler is not None

        async def run(request: HttpRequest) -> None:
            body = request.unpacked_body
            request.chunks = []
            identity = None if endpoint.right.is_public else request.identity
            call = Call(context, request.names, Query(request.query), body, identity, request)
            await _answer(request, await handler(call))

        return as_task(f"http {endpoint.method} {endpoint.path}", run)


async def _answer(request: HttpRequest, result: object) -> None:
    if isinstance(result, Stream):
        await request.connection.stream(request, result.content_type, result.headers, result.chunks)
    elif not isinstance(result, Reply):
        request.answer(200, _encode(result))
    elif result.status == 204:
        request.answer_empty()
    elif result.content_type != "application/json":
        assert isinstance(result.body, bytes)
        request.answer_with(result.status, result.body, result.content_type, result.headers)
    else:
        request.answer_with(result.status, _encode(result.body), headers=result.headers)


def _preflight(request: HttpRequest) -> None:
    request.answer_with(204, b"", "", _PREFLIGHT if request.origin is not None else {})


def _not_found(request: HttpRequest) -> None:
    path = request.path.decode("latin-1")
    request.answer(404, _encode({"error": "not found", "code": "no_such_route", "path": path}))


def _wrong_method(method: str, allowed: list[str]) -> Callable[[HttpRequest], None]:
    names = ", ".join(allowed)

    def handle(request: HttpRequest) -> None:
        text = f"{method} is not a method of this path; {names} would be"
        path = request.path.decode("latin-1")
        body = {"error": text, "code": "method_not_allowed", "path": path}
        request.answer_with(405, _encode(body), headers={"allow": names})

    return handle


_PREFLIGHT_FOUND: Final[Found] = (HttpRoute(_preflight, PUBLIC, 0), {})
_NOT_FOUND: Final[Found] = (HttpRoute(_not_found, PUBLIC, 0), {})

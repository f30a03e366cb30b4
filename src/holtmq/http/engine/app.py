"""Every route that is not hot: looks up the endpoint and runs its handler as a task.

Owns: turning calls, replies and errors into answers, and the answers for unknown paths and methods.
Must not touch: what endpoints do, who may call them (the connection has checked that).
"""

from collections.abc import Callable, Sequence
from typing import Final

from holtmq.auth.rights import PUBLIC
from holtmq.http.engine.context import Context
from holtmq.http.engine.encoded_rows import pieces_of
from holtmq.http.engine.endpoints import Call, Conventions, Endpoint, Handler, Reply, Stream
from holtmq.http.engine.errors import NoRoute
from holtmq.http.engine.pieces import PORTION, Pieces
from holtmq.http.engine.request import JSON, Found, HttpRequest, HttpRoute
from holtmq.http.engine.router import Router
from holtmq.http.engine.waiting_requests import as_task
from holtmq.http.engine.wire import Query, encode

_PREFLIGHT: Final = {"access-control-max-age": "86400"}


class Application:
    """One API: the routes of its table that have a handler."""

    def __init__(self, context: Context, endpoints: Sequence[Endpoint], conventions: Conventions) -> None:
        self._context = context
        self._conventions = conventions
        self._router: Router[HttpRoute | None] = Router()
        for endpoint in endpoints:
            if endpoint.handler is None:
                # A hot route: its requests are served elsewhere. The row is here so that a request with
                # another method gets a 405.
                self._router.add(endpoint.method, endpoint.path, None)
                continue
            run = self._bound(endpoint, endpoint.handler)
            route = HttpRoute(
                run, endpoint.right, endpoint.max_body, conventions.error_form, in_steps=endpoint.in_steps
            )
            self._router.add(endpoint.method, endpoint.path, route)
            if endpoint.method == "GET":
                self._router.add("HEAD", endpoint.path, route)

    def find(self, method: bytes, path: bytes) -> Found:
        """The route of a request, or a route that answers 404 or 405."""
        word, where = method.decode("latin-1"), self._conventions.path(path.decode("latin-1"))
        if word == "OPTIONS":
            return _PREFLIGHT_FOUND
        found = self._router.find(word, where)
        if found is not None and found[0] is not None:
            return found[0], found[1]
        return self._missing(word, path, self._router.methods(where)), {}

    def _missing(self, method: str, path: bytes, allowed: list[str]) -> HttpRoute:
        missing = NoRoute(method, path.decode("latin-1"), allowed)
        error_form = self._conventions.error_form

        def refuse(request: HttpRequest) -> None:
            status, body, headers = error_form(missing)
            request.answer_with(
                status, body, headers={**headers, "allow": missing.allow} if allowed else headers
            )

        return HttpRoute(refuse, PUBLIC, 0, error_form)

    def _bound(self, endpoint: Endpoint, handler: Handler) -> Callable[[HttpRequest], None]:
        context, run_handler, is_lenient = self._context, self._conventions.run, self._conventions.is_lenient

        async def run(request: HttpRequest) -> None:
            identity = None if endpoint.right.is_public else request.identity
            query = Query(request.query)
            call = Call(context, request.names, query, request.unpacked_body, identity, request, is_lenient)
            request.chunks = []
            await _answer(request, await run_handler(endpoint, handler, call))

        return as_task(f"http {endpoint.method} {endpoint.path}", run)


async def _answer(request: HttpRequest, result: object) -> None:
    if isinstance(result, Stream):
        await request.connection.stream(request, result.content_type, result.headers, result.chunks)
    elif isinstance(result, Pieces):
        await _answer_long(request, result)
    elif (pieces := pieces_of(result)) is not None:
        await _answer_long(request, pieces)
    elif not isinstance(result, Reply):
        body = result if isinstance(result, bytes) else encode(result)
        if len(body) <= PORTION:
            request.answer(200, body)
        else:
            await _answer_long(request, Pieces.of(body))
    elif result.body is None:
        request.answer_with(result.status, b"", "", result.headers)
    else:
        content = result.body if result.content_type != JSON else encode(result.body)
        assert isinstance(content, bytes)
        request.answer_with(result.status, content, result.content_type, result.headers)


async def _answer_long(request: HttpRequest, body: Pieces) -> None:
    if body.size <= PORTION:
        request.answer(200, body.joined())
    elif not request.response_complete and not request.disconnected:
        await request.connection.write_in_portions(request, body)


def _preflight(request: HttpRequest) -> None:
    request.answer_with(204, b"", "", _PREFLIGHT if request.origin is not None else {})


_PREFLIGHT_FOUND: Final[Found] = (HttpRoute(_preflight, PUBLIC, 0), {})

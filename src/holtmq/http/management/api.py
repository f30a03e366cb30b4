"""RabbitMQ's management HTTP API, the part that operators script against: the table and the application.

Owns: routing under ``/api/`` (not ``/api/v1/``), the order login, tags, change, durable, answer. Must not
touch: what a handler does. There is no CORS here on purpose: a web page that somebody opens on the broker's
machine must not be able to log in as ``guest``.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from holtmq.http.engine.codings import ACCEPTED, plain_body
from holtmq.http.engine.context import Context
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.wire import Query, segment
from holtmq.http.management import definitions as management_definitions
from holtmq.http.management import definitions_import as management_definitions_import
from holtmq.http.management import health as management_health
from holtmq.http.management import messages as management_messages
from holtmq.http.management import runtime as management_runtime
from holtmq.http.management import status as management_status
from holtmq.http.management import topology as management_topology
from holtmq.http.management import users as management_users
from holtmq.http.management.access import log_in
from holtmq.http.management.call import Answer, ManagementCall, Row
from holtmq.http.management.listing import View, encoded
from holtmq.http.management.paging import read_page
from holtmq.http.management.wire import encode, error_answer
from holtmq.journal.interface import Journal, JournalFailed

ROWS: Final[tuple[Row, ...]] = (
    *management_status.ROWS,
    *management_users.ROWS,
    *management_topology.ROWS,
    *management_messages.ROWS,
    *management_definitions.ROWS,
    *management_definitions_import.ROWS,
    *management_runtime.ROWS,
    *management_health.ROWS,
)
_PREFIX: Final = "/api/"
_NOT_OURS: Final = "/api/v1/"
_CODINGS: Final = {"accept-encoding": ACCEPTED}
_CHALLENGE: Final = {"www-authenticate": 'Basic realm="HoltMQ Management"'}


def with_management(context: Context, other: ASGIApp) -> ASGIApp:
    """The management API in front of the application that answers everything else."""
    by_path: dict[str, dict[str, Row]] = {}
    for row in ROWS:
        by_path.setdefault(row.path, {})[row.method] = row
    routes = [Route(path, _bind(context, methods)) for path, methods in by_path.items()]
    for route in routes:
        route.methods = None  # all of them: a wrong one is refused in this API's own form
    router = Router(routes, redirect_slashes=False, default=_unknown)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["raw_path"].decode("latin-1")
            if path.startswith(_PREFIX) and not path.startswith(_NOT_OURS):
                path = _without_slash(path)
                # Routed undecoded: the default vhost is %2F and must stay one segment.
                await router({**scope, "path": path}, receive, send)
                return
        await other(scope, receive, send)

    return app


def _without_slash(path: str) -> str:
    """A slash at the end means nothing; two are how Celery's Flower writes the vhost ``/``."""
    if path.endswith("//"):
        return path[:-1] + "%2F"
    return path.removesuffix("/")


def _bind(context: Context, methods: dict[str, Row]) -> Callable[[Request], Awaitable[Response]]:
    allowed = {"allow": ", ".join(sorted({*methods, "HEAD"} if "GET" in methods else methods))}

    async def run(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        try:
            row = methods.get(method)
            if row is None:
                raise Refusal(405, f"{request.method} is not possible here")
            host = request.client.host if request.client is not None else ""
            user = await log_in(context.authenticator, request.headers.get("authorization"), host)
            row.need.check(user)
            body = await _read(request, context.config.http.max_body_bytes)
            path = {name: segment(value) for name, value in request.path_params.items()}
            reason = request.headers.get("x-reason", "")
            call = ManagementCall(context, user, path, Query(request.scope["query_string"]), body, reason)
            return await _answer(await _run(row, call), row, call)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:
            status, answer = error_answer(error)
            headers = {401: _CHALLENGE, 405: allowed, 415: _CODINGS}.get(status)
            return Response(answer, status, headers, "application/json")

    return run


async def _run(row: Row, call: ManagementCall) -> object:
    context = call.context
    context.broker.flow.now_ms = int(context.clock() * 1000)
    if row.method == "GET":
        return await row.handler(call)
    call.refuse_if_failed()
    result = await row.handler(call)
    # What the change set off (deliveries, dead letters, settlements) is part of it.
    context.broker.flow.turn()
    context.wake()
    await _durable(context.journal)
    return result


async def _durable(journal: Journal) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def told(failed: JournalFailed | None) -> None:
        if done.done():  # the client went away
            return
        if failed is None:
            done.set_result(None)
        else:
            done.set_exception(failed)

    journal.on_durable(told)
    await done


async def _answer(result: object, row: Row, call: ManagementCall) -> Response:
    if isinstance(result, Answer):
        headers = {"location": result.location} if result.location else None
        if result.body is None:
            return Response(None, result.status, headers)
        return Response(encode(result.body), result.status, headers, "application/json")
    query = call.query
    page = read_page(query, call.user) if row.paged and query.has("page") else None
    view = View(query.text("sort"), query.text("sort_reverse") == "true", query.text("columns"), page)
    return Response(await encoded(result, view), 200, media_type="application/json")


async def _read(request: Request, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise Refusal(413, f"the request body is larger than {limit} bytes")
        chunks.append(chunk)
    return plain_body(b"".join(chunks), request.headers.get("content-encoding"), limit)


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:
    status, answer = error_answer(Refusal(404, "Not Found"))
    await Response(answer, status, media_type="application/json")(scope, receive, send)

"""RabbitMQ's management HTTP API, the part that operators script against: the table and how it is served.

Owns: routing under ``/api/`` (not ``/api/v1/``), and the order: change, wait until durable, answer. Must not
touch: what a handler does, logins and rights (the connection has checked them).
"""

from collections.abc import Callable, Mapping
from typing import Final

from holtmq.auth.rights import PUBLIC
from holtmq.http.engine.context import Context
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.request import Found, HttpRequest, HttpRoute
from holtmq.http.engine.router import Router
from holtmq.http.engine.waiting_requests import as_task, until_durable
from holtmq.http.engine.wire import Query, encode
from holtmq.http.management import bindings as management_bindings
from holtmq.http.management import definitions as management_definitions
from holtmq.http.management import definitions_import as management_definitions_import
from holtmq.http.management import health as management_health
from holtmq.http.management import messages as management_messages
from holtmq.http.management import node_details as management_node_details
from holtmq.http.management import runtime as management_runtime
from holtmq.http.management import shovels as management_shovels
from holtmq.http.management import single_node as management_single_node
from holtmq.http.management import status as management_status
from holtmq.http.management import topology as management_topology
from holtmq.http.management import users as management_users
from holtmq.http.management.call import Answer, ManagementCall, Row
from holtmq.http.management.listing import View, encoded
from holtmq.http.management.paging import read_page
from holtmq.http.management.wire import error_answer

ROWS: Final[tuple[Row, ...]] = (
    *management_status.ROWS,
    *management_users.ROWS,
    *management_topology.ROWS,
    *management_bindings.ROWS,
    *management_messages.ROWS,
    *management_definitions.ROWS,
    *management_definitions_import.ROWS,
    *management_runtime.ROWS,
    *management_shovels.ROWS,
    *management_single_node.ROWS,
    *management_node_details.ROWS,
    *management_health.ROWS,
)
_PREFIX: Final = b"/api/"
_NOT_OURS: Final = b"/api/v1/"
_CHALLENGE: Final = {"www-authenticate": 'Basic realm="HoltMQ Management"'}


def is_management(path: bytes) -> bool:
    """Whether a path belongs to this API."""
    return path.startswith(_PREFIX) and not path.startswith(_NOT_OURS)


class ManagementApi:
    """The routes of the management API."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._router: Router[HttpRoute] = Router()
        error_form = _brief_error_form if context.broker.dialect.brief_http_refusals else _error_form
        for row in ROWS:
            route = HttpRoute(self._bound(row), row.right, error_form=error_form)
            self._router.add(row.method, row.path, route)
            if row.method == "GET":
                self._router.add("HEAD", row.path, route)

    def find(self, method: bytes, path: bytes) -> Found:
        """The route of a request, or a route that answers 404 or 405."""
        word, where = method.decode("latin-1"), _without_slash(path.decode("latin-1"))
        found = self._router.find(word, where)
        if found is not None:
            return found
        methods = self._router.methods(where)
        if not methods:
            return _NOT_FOUND
        allowed = ", ".join(methods)

        def refuse(request: HttpRequest) -> None:
            status, body = error_answer(
                Refusal(405, f"{word} is not a method of this path; {allowed} would be")
            )
            request.answer_with(status, body, headers={"allow": allowed})

        return HttpRoute(refuse, PUBLIC, 0, _error_form), {}

    def _bound(self, row: Row) -> Callable[[HttpRequest], None]:
        async def run(request: HttpRequest) -> None:
            body = request.unpacked_body
            reason = request.header(b"x-reason") or ""
            query = Query(request.query)
            call = ManagementCall(self._context, request.identity, request.names, query, body, reason)
            await _answer(request, await _run(row, call), row, call)

        return as_task(f"http {row.method} {row.path}", run)


def _without_slash(path: str) -> str:
    """Drop a slash at the end; two slashes are how Celery's Flower writes the vhost ``/``."""
    if path.endswith("//"):
        return path[:-1] + "%2F"
    return path.removesuffix("/")


def _error_form(error: Exception) -> tuple[int, bytes, Mapping[str, str]]:
    status, body = error_answer(error)
    return status, body, _CHALLENGE if status == 401 else {}


def _brief_error_form(error: Exception) -> tuple[int, bytes, Mapping[str, str]]:
    """The form of RabbitMQ, which some of its clients compare with."""
    status, body, headers = _error_form(error)
    if status == 404:
        return (*error_answer(Refusal(404, "Not Found")), headers)
    return (401, body, _CHALLENGE) if status == 403 else (status, body, headers)


def _unknown(request: HttpRequest) -> None:
    status, body = error_answer(Refusal(404, "Not Found"))
    request.answer_with(status, body)


_NOT_FOUND: Final[Found] = (HttpRoute(_unknown, PUBLIC, 0, _error_form), {})


async def _run(row: Row, call: ManagementCall) -> object:
    context = call.context
    context.broker.flow.now_ms = int(context.clock() * 1000)
    if row.method == "GET":
        return await row.handler(call)
    call.refuse_if_failed()
    result = await row.handler(call)
    # What the change caused (deliveries, dead letters, settlements) belongs to it.
    context.broker.flow.turn()
    context.wake()
    await until_durable(context.journal)
    return result


async def _answer(request: HttpRequest, result: object, row: Row, call: ManagementCall) -> None:
    if isinstance(result, Answer):
        headers = {"location": result.location} if result.location else {}
        body = b"" if result.body is None else encode(result.body)
        request.answer_with(result.status, body, "application/json" if body else "", headers)
        return
    query = call.query
    page = read_page(query) if row.paged and query.has("page") else None
    view = View(query.text("sort"), query.text("sort_reverse") == "true", query.text("columns"), page)
    request.answer(200, await encoded(result, view))

"""How RabbitMQ's management API differs from the node's own: error bodies, lenient requests, numbered pages.

Owns: these conventions, and the order of a change: run the handler, run the broker's turn, wait until the
journal is durable, answer. Must not touch: what a handler does, logins and rights (the connection has checked
them).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from holtmq.auth.rights import Right
from holtmq.broker.errors import NotFound
from holtmq.http.engine.context import NODE
from holtmq.http.engine.endpoints import Call, Conventions, Endpoint, Handler, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.management.access import ADMINISTER
from holtmq.http.management.listing import View, encoded
from holtmq.http.management.paging import read_page
from holtmq.http.management.wire import error_answer

_CHALLENGE: Final = {"www-authenticate": 'Basic realm="HoltMQ Management"'}


def endpoint(
    method: str,
    path: str,
    handler: Handler,
    right: Right = ADMINISTER,
    *,
    is_paged: bool = False,
    in_steps: bool = False,
) -> Endpoint:
    """A row of this API's table. ``is_paged``: it lists, and supports paging."""
    return Endpoint(method, path, right, handler=handler, is_paged=is_paged, in_steps=in_steps)


@contextmanager
def missing_is_bad_request() -> Iterator[None]:
    """A missing thing that a request only refers to is answered with 400, as in RabbitMQ, not with 404."""
    try:
        yield
    except NotFound as error:
        raise Refusal(400, str(error)) from None


def check_node(call: Call) -> None:
    """Raise 404 if the path names another node."""
    if call.path["node"] != NODE:
        raise Refusal(404, f"no node '{call.path['node']}'; this one is '{NODE}'")


def conventions(*, brief_refusals: bool) -> Conventions:
    """The conventions of this API; ``brief_refusals``: errors exactly as in RabbitMQ."""
    return Conventions(
        _brief_error_form if brief_refusals else _error_form, is_lenient=True, run=_run, path=_path
    )


def _path(path: str) -> str:
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


async def _run(row: Endpoint, handler: Handler, call: Call) -> object:
    context = call.context
    context.broker.flow.now_ms = int(context.clock() * 1000)
    if row.method == "GET":
        return await _shown(row, call, await handler(call))
    call.refuse_if_failed()
    result = await handler(call)
    # What the change caused (deliveries, dead letters, settlements) belongs to it.
    context.broker.flow.turn()
    context.wake()
    await call.durable()
    return await _shown(row, call, result)


async def _shown(row: Endpoint, call: Call, result: object) -> object:
    """The result as JSON, in the order, columns and page that the query asks for."""
    if isinstance(result, Reply):
        return result
    query = call.query
    page = read_page(query) if row.is_paged and query.has("page") else None
    view = View(query.text("sort"), query.text("sort_reverse") == "true", query.text("columns"), page)
    return await encoded(result, view)

"""The ASGI application: every route that is not hot, from one table.

Owns: routing, tokens, body limits, CORS, and the turning of replies and errors into answers. Must not
touch: what endpoints do.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from holtmq.http.engine.codings import ACCEPTED, plain_body
from holtmq.http.engine.context import Context
from holtmq.http.engine.endpoints import Call, Endpoint, Reply
from holtmq.http.engine.errors import Refusal, answer_for
from holtmq.http.engine.protocol import CORS
from holtmq.http.engine.wire import Query, segment

_CORS: Final = {name.decode(): value.decode() for name, value in CORS}
_PREFLIGHT: Final = {**_CORS, "access-control-max-age": "86400"}
_MORE: Final = {415: {"accept-encoding": ACCEPTED}, 429: {"retry-after": "1"}}
_encode: Final = msgspec.json.Encoder().encode


def make_app(context: Context, endpoints: Sequence[Endpoint]) -> ASGIApp:
    """The application over these endpoints; of two that match, the earlier one is taken."""
    routes = [
        Route(endpoint.path, _bind(context, endpoint), methods=[endpoint.method])
        for endpoint in endpoints
        if endpoint.handler is not None
    ]
    # Requests to hot routes do not get here, but requests with another method do.
    hot = [Route(e.path, _unknown, methods=[e.method]) for e in endpoints if e.handler is None]
    no_match = _no_match(routes + hot)
    router = Router(routes, redirect_slashes=False, default=no_match)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "OPTIONS":
            await Response(status_code=204, headers=_PREFLIGHT)(scope, receive, send)
            return
        # Routed undecoded: %2F inside a name is not a separator. Names are decoded piece by piece.
        scope["path"] = scope["raw_path"].decode("latin-1")
        scope["app"] = app  # so that a wrong method raises; starlette's own answer is plain text
        try:
            await router(scope, receive, send)
        except HTTPException:
            await no_match(scope, receive, send)

    return app


def _bind(context: Context, endpoint: Endpoint):  # type: ignore[no-untyped-def]
    handler = endpoint.handler
    assert handler is not None

    async def run(request: Request) -> Response:
        try:
            subject = await _admit(context, endpoint, request)
            body = await _read(request, context.config.http.max_body_bytes)
            path = {name: segment(value) for name, value in request.path_params.items()}
            call = Call(context, path, Query(request.scope["query_string"]), body, subject)
            result = await handler(call)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:
            status, answer = answer_for(error)
            headers = {**_CORS, **_MORE.get(status, {})}
            return Response(answer, status, headers, "application/json")
        if isinstance(result, Response):  # a stream
            return result
        if not isinstance(result, Reply):
            return Response(_encode(result), 200, _CORS, "application/json")
        if result.content_type != "application/json":
            assert isinstance(result.body, bytes)
            headers = {**_CORS, **result.headers, "content-type": result.content_type}
            return Response(result.body, result.status, headers)
        if result.status == 204:
            return Response(None, 204, _CORS)
        return Response(_encode(result.body), result.status, {**_CORS, **result.headers}, "application/json")

    return run


async def _admit(context: Context, endpoint: Endpoint, request: Request) -> str | None:
    verifier = context.verifier
    if verifier is None or endpoint.role is None or verifier.is_open(request.scope["path"]):
        return None
    identity = await verifier.authenticate(request.headers.get("authorization"), context.clock())
    identity.require(endpoint.role)
    return identity.subject


async def _read(request: Request, limit: int) -> bytes:
    if request.method in ("GET", "DELETE") and "content-length" not in request.headers:
        return b""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise Refusal(413, f"The request body is larger than {limit} bytes")
        chunks.append(chunk)
    return plain_body(b"".join(chunks), request.headers.get("content-encoding"), limit)


def _no_match(routes: Sequence[Route]) -> ASGIApp:
    """Answers what no route takes: the path is not there, or not with this method."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        near = [route for route in routes if route.matches(scope)[0] is not Match.NONE]
        allowed = sorted({method for route in near for method in route.methods or ()} - {"HEAD"})
        if allowed:
            text = f"{scope['method']} is not a method of this path; {', '.join(allowed)} would be"
            body = {"error": text, "code": "method_not_allowed", "path": scope["path"]}
            headers = {**_CORS, "allow": ", ".join(allowed)}
            await Response(_encode(body), 405, headers, "application/json")(scope, receive, send)
            return
        await _unknown(scope, receive, send)

    return answer


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:
    body = {"error": "not found", "code": "no_such_route", "path": scope["path"]}
    await Response(_encode(body), 404, _CORS, "application/json")(scope, receive, send)

"""The API's documentation: an OpenAPI document and a page to browse it, both from the route table.

Owns: how a row of the table is described. Must not touch: the routes. The page loads nothing from elsewhere.
The document shows the docstrings of request body structs as descriptions.
"""

import re
from collections.abc import Sequence
from http import HTTPStatus
from importlib.resources import files
from typing import Final

import msgspec

from holtmq import __version__
from holtmq.auth.rights import PUBLIC, role_of
from holtmq.http.engine.endpoints import Call, Endpoint, Reply
from holtmq.http.engine.sessions import COOKIE

_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")


def openapi(endpoints: Sequence[Endpoint]) -> dict[str, object]:
    """The OpenAPI document."""
    bodies = list(dict.fromkeys(e.body for e in endpoints if e.body is not None))
    schemas, components = msgspec.json.schema_components(
        bodies, schema_hook=_any_value, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(bodies, schemas, strict=True))
    paths: dict[str, dict[str, object]] = {}
    for endpoint in endpoints:
        path = _PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, schema_of)
    error = {
        "type": "object",
        "properties": {"error": {"type": "string"}, "code": {"type": "string"}},
        "required": ["error"],
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "HoltMQ",
            "version": __version__,
            "description": "Partitioned queues, consumer groups, dead letters, streams and administration.",
        },
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": error},
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            },
        },
    }


def _any_value(_kind: type) -> dict[str, object]:
    """The schema of ``object`` and similar types."""
    return {"description": "any JSON value"}


def _operation(endpoint: Endpoint, schema_of: dict[type, dict[str, object]]) -> dict[str, object]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(endpoint.path)
    ]
    parameters += [
        {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}
        for name in endpoint.query
    ]
    operation: dict[str, object] = {
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "operationId": _operation_id(endpoint),
        "responses": {str(status): _response(status) for status in endpoint.statuses},
    }
    if parameters:
        operation["parameters"] = parameters
    if not endpoint.right.is_public:
        operation["security"] = [{"basic": []}, {"bearer": []}, {"session": []}]
        operation["description"] = (
            f"Needs: {endpoint.right}; of a token without a user: {role_of(endpoint.right)}."
        )
    if endpoint.body is not None:
        content = {"application/json": {"schema": schema_of[endpoint.body]}}
        operation["requestBody"] = {"content": content}
    return operation


def _operation_id(endpoint: Endpoint) -> str:
    words = re.findall(r"\w+", _PARAMETER.sub(r"by_\1", endpoint.path))
    return "_".join([endpoint.method.lower(), *(word for word in words if word not in ("api", "v1"))])


def _response(status: int) -> dict[str, object]:
    text: dict[str, object] = {"description": HTTPStatus(status).phrase}
    if status >= 400:
        text["content"] = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return text


def endpoints_for(table: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
    """The documentation endpoints for a table; the document includes them too."""
    document: list[bytes] = []
    page = files("holtmq.http.operator").joinpath("docs_page.html").read_bytes()

    async def show_document(_call: Call) -> object:
        if not document:
            document.append(msgspec.json.encode(openapi(everything)))
        return Reply(200, document[0], "application/json; charset=utf-8")

    async def show_page(_call: Call) -> object:
        return Reply(200, page, "text/html; charset=utf-8")

    own = (
        Endpoint("GET", "/openapi.json", PUBLIC, "system", "This API as an OpenAPI document", show_document),
        Endpoint("GET", "/docs", PUBLIC, "system", "This API as a page", show_page),
    )
    everything = (*table, *own)
    return own

"""The dashboard's files: one page, its modules, styles and bundled libraries.

Owns: which files are served and with which headers. Must not touch: data. All files come from the wheel; the
headers forbid a browser to load anything from elsewhere.
"""

from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from holtmq.auth.rights import PUBLIC
from holtmq.http.engine.endpoints import Call, Endpoint, Reply
from holtmq.http.engine.errors import Refusal

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_SAFE: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-cache",
}


def _read(folder: Traversable, prefix: str = "") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found |= _read(entry, f"{prefix}{entry.name}/")
        elif "." + entry.name.rpartition(".")[2] in _TYPES:
            found[prefix + entry.name] = entry.read_bytes()
    return found


_FILES: Final = _read(files("holtmq.http.dashboard").joinpath("ui"))
_TAGS: Final = {name: f'"{sha256(content).hexdigest()[:32]}"' for name, content in _FILES.items()}


def _serve(name: str) -> Reply:
    content = _FILES.get(name)
    if content is None:
        raise Refusal(404, "not found", "no_such_file")
    headers = {**_SAFE, "etag": _TAGS[name]}
    return Reply(200, content, _TYPES["." + name.rpartition(".")[2]], headers)


async def index(call: Call) -> object:
    return _serve("index.html")


async def asset(call: Call) -> object:
    return _serve(call.path["file"])


async def nested_asset(call: Call) -> object:
    return _serve(f"{call.path['folder']}/{call.path['file']}")


ENDPOINTS: Final = (
    Endpoint("GET", "/", PUBLIC, "dashboard", "The dashboard", index),
    Endpoint("GET", "/ui/{file}", PUBLIC, "dashboard", "A file of the dashboard", asset, statuses=(200, 404)),
    Endpoint(
        "GET",
        "/ui/{folder}/{file}",
        PUBLIC,
        "dashboard",
        "A file of the dashboard",
        nested_asset,
        statuses=(200, 404),
    ),
)

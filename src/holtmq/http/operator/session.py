"""Logging in and out with a browser.

Owns: the wire form and the cookie. Must not touch: passwords, the table of sessions. Scripts cannot read the
cookie (HttpOnly), and requests from other sites do not carry it (SameSite); the engine refuses those anyway.
"""

from typing import Final

import msgspec

from holtmq.auth.permissions import Action
from holtmq.auth.rights import PUBLIC, Right
from holtmq.http.engine.authentication import behind_proxy
from holtmq.http.engine.endpoints import READ_ONLY, Call, Endpoint, Reply
from holtmq.http.engine.sessions import COOKIE, IDLE_SECONDS

_BODY_MAX: Final = 16_384


class LoginIn(msgspec.Struct):
    user: str
    password: str


async def log_in(call: Call) -> object:
    """Check name and password; the answer sets the cookie."""
    asked = call.json(LoginIn)
    authenticator, request = call.context.authenticator, call.request
    peer = behind_proxy(request.connection.peer, request.headers)
    user = await authenticator.log_in(asked.user, asked.password, peer)
    token = authenticator.sessions.begin(user, call.now)
    body = {"user": user.name, "tags": list(user.tags)}
    return Reply(200, body, headers={"set-cookie": _cookie(call, token, int(IDLE_SECONDS))})


async def show_session(call: Call) -> object:
    """Who the caller is, by cookie or by any other credentials, and what it may do to some queue at least."""
    identity = call.identity
    return {
        "user": identity.name,
        "tags": list(identity.tags),
        "anonymous": identity.subject is None,
        "may": {action.value: identity.could(action) for action in Action},
    }


async def log_out(call: Call) -> object:
    """End the session and delete the cookie; no error if there is no session."""
    cookies = call.request.headers.get(b"cookie", b"")
    ended = call.context.authenticator.sessions.end(cookies)
    return Reply(200, {"ended": ended}, headers={"set-cookie": _cookie(call, "", 0)})


def _cookie(call: Call, value: str, seconds: int) -> str:
    request = call.request
    is_secure = request.connection.is_tls or request.headers.get(b"x-forwarded-proto") == b"https"
    secure = "; Secure" if is_secure else ""
    return f"{COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


_PATH: Final = "/api/v1/session"
ENDPOINTS: Final = (
    Endpoint(
        "POST",
        _PATH,
        PUBLIC,
        "session",
        "Log in: the answer sets a cookie",
        log_in,
        body=LoginIn,
        statuses=(200, 400, 401, 429),
        body_limit=_BODY_MAX,
    ),
    Endpoint("GET", _PATH, Right(READ_ONLY), "session", "Who the caller is", show_session),
    Endpoint("DELETE", _PATH, PUBLIC, "session", "Log out", log_out),
)

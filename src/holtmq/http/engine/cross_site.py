"""Protection against requests that another site's web page makes without its visitor's knowledge.

Owns: the checks of Origin, Sec-Fetch-Site and Host, and the CORS headers for allowed origins. Must not touch:
authentication. A client that sends neither Origin nor Sec-Fetch-Site is not a browser and passes; a page
cannot make a browser omit them.
"""

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from typing import Final

from holtmq.http.engine.errors import Refusal

# Sent by browsers, or by a proxy in front: a request without any of them needs no check.
MARKS: Final = frozenset({b"origin", b"sec-fetch-site"})
_METHODS: Final = b"GET, POST, PUT, DELETE, OPTIONS"
_HEADERS: Final = b"Content-Type, Authorization"
_OWN_SITE: Final = (b"same-origin", b"none")  # none: the visitor typed the address


class CrossSite:
    """The origins and host names of one node."""

    def __init__(self, origins: Iterable[str], names: Iterable[str]) -> None:
        self._origins = frozenset(origin.rstrip("/").lower().encode() for origin in origins)
        own = (socket.gethostname(), "localhost", *names)
        self._names = frozenset(name.lower().encode() for name in own)

    def check(self, headers: Mapping[bytes, bytes], *, is_public: bool) -> bytes | None:
        """The origin if CORS allows it, None if no CORS headers are needed; raises 403 for other sites."""
        origin = headers.get(b"origin")
        if origin is not None:
            if origin.lower() in self._origins:
                return origin
            # Compare host and port only: behind a proxy that terminates TLS the schemes differ.
            # An opaque origin (null) has none, and is not that of a request without Host.
            place = origin.partition(b"://")[2].lower()
            if not place or place != headers.get(b"host", b"").lower():
                shown = origin[:200].decode("latin-1")
                raise Refusal(
                    403,
                    f"web pages of {shown} may not use this broker: http.cors_origins does not name it",
                    "cross_site",
                )
        site = headers.get(b"sec-fetch-site")
        if site is not None and site not in _OWN_SITE:
            is_link = headers.get(b"sec-fetch-mode") == b"navigate" and is_public
            if not is_link:
                raise Refusal(403, "web pages of other sites may not use this broker", "cross_site")
        return None

    def check_host(self, host: bytes | None) -> None:
        """Raises 403 for a name that is not this broker's. A page can make its own name resolve to this
        machine (DNS rebinding) and then has the same origin; with an IP address that is impossible."""
        if host is None or self._is_ours(host):
            return
        shown = host[:200].decode("latin-1")
        raise Refusal(
            403,
            f"{shown} is not a name of this broker: send credentials, or add it to http.names",
            "unknown_host",
        )

    def _is_ours(self, host: bytes) -> bool:
        name = host.lower()
        name = name[1:].partition(b"]")[0] if name.startswith(b"[") else name.partition(b":")[0]
        if name in self._names or name.endswith(b".localhost"):
            return True
        try:
            ipaddress.ip_address(name.decode("ascii"))
        except ValueError:
            return False
        return True


def cors_lines(origin: bytes) -> bytes:
    """CORS header lines for an answer to an allowed origin."""
    return (
        b"access-control-allow-origin: %b\r\naccess-control-allow-methods: %b\r\n"
        b"access-control-allow-headers: %b\r\nvary: origin\r\n" % (origin, _METHODS, _HEADERS)
    )

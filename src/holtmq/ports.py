"""Opens one port on several addresses, for every listener of a node.

Owns: what happens when an address cannot be opened. Must not touch: what is served.
"""

import asyncio
import errno
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

log = logging.getLogger(__name__)

# Every machine with IPv6 has these addresses: where one cannot be bound, there is no IPv6.
_IPV6: Final = ("::1", "::")
_NO_IPV6: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_MOST_CHOICES: Final = 50  # of a free port


@dataclass(frozen=True, slots=True)
class OpenPort:
    """One port and the addresses it is open on."""

    port: int
    hosts: tuple[str, ...]
    servers: tuple[asyncio.Server, ...]


async def open_port(
    protocol: Callable[[], asyncio.BaseProtocol],
    hosts: Sequence[str],
    port: int,
    tls: ssl.SSLContext | None = None,
    *,
    backlog: int,
    handshake_seconds: float | None = None,
) -> OpenPort:
    """Listen on all these addresses, on one port; the system chooses it if ``port`` is 0.

    On a machine without IPv6, its loopback and its wildcard are left out if another address is open. Every
    other address that cannot be opened is an error, and then none stays open.
    """
    for choice in range(1, _MOST_CHOICES + 1):
        servers: list[tuple[str, asyncio.Server]] = []
        chosen = port
        try:
            for host in hosts:
                server = await _listen(protocol, host, chosen, tls, backlog, handshake_seconds, hosts)
                if server is not None:
                    servers.append((host, server))
                    chosen = chosen or server.sockets[0].getsockname()[1]
            if not servers:
                raise OSError(errno.EADDRNOTAVAIL, f"none of {', '.join(hosts) or 'no hosts'} can be opened")
        except OSError as error:
            for _, server in servers:
                server.close()
            # Free on the first address, where the system chose it, and taken on another.
            if error.errno == errno.EADDRINUSE and servers and not port and choice < _MOST_CHOICES:
                continue
            raise
        return OpenPort(chosen, tuple(host for host, _ in servers), tuple(server for _, server in servers))
    raise AssertionError("the last choice returns or raises")


async def _listen(
    protocol: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    backlog: int,
    handshake_seconds: float | None,
    hosts: Sequence[str],
) -> asyncio.Server | None:
    """None on a machine without IPv6, for an address that it cannot have."""
    try:
        server = await asyncio.get_running_loop().create_server(
            protocol,
            host,
            port,
            ssl=tls,
            backlog=backlog,
            ssl_handshake_timeout=None if tls is None else handshake_seconds,
        )
        if not server.sockets:  # the event loop passes over families of addresses that the kernel lacks
            raise OSError(errno.EAFNOSUPPORT, f"this machine has no addresses like {host}")
    except OSError as error:
        if host in _IPV6 and error.errno in _NO_IPV6 and any(other not in _IPV6 for other in hosts):
            log.info("not listening", extra={"host": host, "reason": str(error)})
            return None
        raise
    return server

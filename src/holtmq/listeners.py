"""The node's listeners: which ports are open, with which certificates.

Owns: TLS contexts, opening ports as configured, reloading certificates. Must not touch: what is sent on a
connection. Certificates are loaded into the context that listeners already use: open connections keep the
old certificate, new connections get the new one.
"""

import logging
import ssl
from typing import Final

from holtmq.amqp.server import AmqpServer
from holtmq.config import Config, Tls, TlsVerify
from holtmq.http.engine.context import Listener
from holtmq.http.server import HttpServer

log = logging.getLogger(__name__)

_SCHEMES: Final = {"amqp": "amqp", "amqp/ssl": "amqps", "http": "http", "https": "https"}


class Listeners:
    """The node's open listeners."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._contexts: dict[str, tuple[Tls, ssl.SSLContext]] = {}
        self._amqp: AmqpServer | None = None
        self._http: HttpServer | None = None
        # By protocol, as in ``Listener``. A port set before the listener opens was chosen by the standby.
        self.ports: dict[str, int] = {}

    async def open_amqp(self, server: AmqpServer) -> None:
        """Start listening for AMQP clients."""
        self._amqp = server
        config = self._config.amqp
        if config.plain:
            self.ports["amqp"] = await server.listen(config.host, self.ports.get("amqp") or config.port)
        if config.tls_cert is not None:
            tls = self._context("amqp", config)
            port = self.ports.get("amqp/ssl") or config.tls_port
            self.ports["amqp/ssl"] = await server.listen(config.host, port, tls)

    async def open_http(self, server: HttpServer) -> None:
        """Start listening for HTTP clients."""
        self._http = server
        config = self._config.http
        if config.plain:
            self.ports["http"] = await server.listen(config.host, self.ports.get("http") or config.port)
        if config.tls_cert is not None:
            tls = self._context("http", config)
            port = self.ports.get("https") or config.tls_port
            self.ports["https"] = await server.listen(config.host, port, tls)

    def _context(self, section: str, config: Tls) -> ssl.SSLContext:
        context = tls_context(config)
        self._contexts[section] = (config, context)
        return context

    def all(self) -> list[Listener]:
        """Every address that accepts clients."""
        found = []
        if self._amqp is not None:
            found += [
                Listener("amqp/ssl" if is_tls else "amqp", host, port)
                for host, port, is_tls in self._amqp.addresses
            ]
        if self._http is not None:
            found += [
                Listener("https" if is_tls else "http", host, port)
                for host, port, is_tls in self._http.addresses
            ]
        return found

    def describe(self) -> dict[str, int | str]:
        """Fields of the log entry that says the node is ready."""
        ports: dict[str, int | str] = {f"{_SCHEMES[name]}_port": port for name, port in self.ports.items()}
        ports["listeners"] = " ".join(url(_SCHEMES[one.protocol], one.host, one.port) for one in self.all())
        return ports

    def reload(self) -> None:
        """Read the certificates again; if one cannot be read, the old one stays in use."""
        if not self._contexts:
            log.info("nothing to reload: no listener has a certificate", extra={})
        for section, (config, context) in self._contexts.items():
            where = {"listener": section, "certificate": str(config.tls_cert)}
            try:
                tls_context(config)  # try it first: a half-written file must not replace a working one
                _load(context, config)
            except (OSError, ssl.SSLError) as error:
                log.error("certificate not reloaded", extra={**where, "reason": str(error)})
            else:
                log.info("certificate reloaded", extra=where)


def tls_context(config: Tls) -> ssl.SSLContext:
    """The configured TLS context of a server; OSError for files that cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(context, config)
    context.verify_mode = {
        TlsVerify.NONE: ssl.CERT_NONE,
        TlsVerify.OPTIONAL: ssl.CERT_OPTIONAL,
        TlsVerify.REQUIRED: ssl.CERT_REQUIRED,
    }[config.tls_verify]
    return context


def _load(context: ssl.SSLContext, config: Tls) -> None:
    assert config.tls_cert is not None
    context.load_cert_chain(config.tls_cert, config.tls_key)
    if config.tls_ca is not None:
        context.load_verify_locations(config.tls_ca)


def url(scheme: str, host: str, port: int) -> str:
    """An address as a URL, IPv6 in brackets."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

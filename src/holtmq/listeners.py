"""The node's listeners: which ports are open, with which certificates.

Owns: TLS contexts, opening ports as configured, reloading certificates, when they end. Must not touch: what
is sent on a connection. Certificates are loaded into the context that listeners already use: open connections
keep the old certificate, new connections get the new one.
"""

import logging
import ssl
from dataclasses import dataclass
from typing import Final

from holtmq.amqp.server import AmqpServer
from holtmq.config import Amqp, Config, Tls, TlsVerify
from holtmq.http.engine.context import Listener, ServedCertificate
from holtmq.http.server import HttpServer

log = logging.getLogger(__name__)

_SCHEMES: Final = {"amqp": "amqp", "amqp/ssl": "amqps", "http": "http", "https": "https"}


@dataclass(slots=True)
class _Tls:
    """A TLS context in use."""

    config: Tls
    context: ssl.SSLContext
    ends: tuple[float, ...]  # as in ``ServedCertificate``


class Listeners:
    """The node's open listeners."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._tls: dict[str, _Tls] = {}  # by scheme
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
            tls = self.context(config)
            port = self.ports.get("amqp/ssl") or config.tls_port
            self.ports["amqp/ssl"] = await server.listen(config.host, port, tls)

    async def open_http(self, server: HttpServer) -> None:
        """Start listening for HTTP clients."""
        self._http = server
        config = self._config.http
        if config.plain:
            self.ports["http"] = await server.listen(config.host, self.ports.get("http") or config.port)
        if config.tls_cert is not None:
            tls = self.context(config)
            port = self.ports.get("https") or config.tls_port
            self.ports["https"] = await server.listen(config.host, port, tls)

    def context(self, config: Tls) -> ssl.SSLContext:
        """The TLS context of a section. A standby's listeners use it, too: a reload reaches both."""
        scheme = "amqps" if isinstance(config, Amqp) else "https"
        if scheme not in self._tls:
            self._tls[scheme] = _Tls(config, *_new_context(config))
        return self._tls[scheme].context

    def certificates(self) -> list[ServedCertificate]:
        """What new connections get, as it was loaded: the files may have changed since."""
        return [
            ServedCertificate(scheme, str(tls.config.tls_cert), tls.ends) for scheme, tls in self._tls.items()
        ]

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
        if not self._tls:
            log.info("nothing to reload: no listener has a certificate", extra={})
        for scheme, tls in self._tls.items():
            where = {"listener": scheme, "certificate": str(tls.config.tls_cert)}
            try:
                _new_context(tls.config)  # try it first: a half-written file must not replace a working one
                tls.ends = _load(tls.context, tls.config)
            except (OSError, ssl.SSLError) as error:
                log.error("certificate not reloaded", extra={**where, "reason": str(error)})
            else:
                log.info("certificate reloaded", extra=where)


def _new_context(config: Tls) -> tuple[ssl.SSLContext, tuple[float, ...]]:
    """The configured TLS context of a server, and when its certificates end; OSError for unusable files."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ends = _load(context, config)
    context.verify_mode = {
        TlsVerify.NONE: ssl.CERT_NONE,
        TlsVerify.OPTIONAL: ssl.CERT_OPTIONAL,
        TlsVerify.REQUIRED: ssl.CERT_REQUIRED,
    }[config.tls_verify]
    return context, ends


def _load(context: ssl.SSLContext, config: Tls) -> tuple[float, ...]:
    """Load the configured files; return when the certificates end."""
    assert config.tls_cert is not None
    while True:
        pem = config.tls_cert.read_bytes()
        context.load_cert_chain(config.tls_cert, config.tls_key)
        if config.tls_cert.read_bytes() == pem:  # else it was replaced between the two
            break
    if config.tls_ca is not None:
        context.load_verify_locations(config.tls_ca)
    from cryptography import x509  # slow to load, and a broker without TLS does not need it

    try:
        return tuple(one.not_valid_after_utc.timestamp() for one in x509.load_pem_x509_certificates(pem))
    except ValueError as error:  # OpenSSL reads some that this library refuses
        log.warning(
            "the end of a certificate is not known",
            extra={"certificate": str(config.tls_cert), "reason": str(error)},
        )
        return ()


def url(scheme: str, host: str, port: int) -> str:
    """An address as a URL, IPv6 in brackets."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

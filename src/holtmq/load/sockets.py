"""Sockets of the load tool, with TLS or without: both are used in the same way.

Owns: connecting, and how TLS shows on a non-blocking socket. Must not touch: what is sent.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Final

from holtmq.load.errors import LoadError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


_RECORD_BYTES: Final = 16 * 1024  # the most that TLS puts into a record


class TlsSocket(ssl.SSLSocket):
    """A TLS socket that raises BlockingIOError as a plain one does when it is not blocking."""

    begun: memoryview | None = None  # a record that OpenSSL has encrypted and the kernel has not taken

    def send(self, data: ReadableBuffer, flags: int = 0) -> int:
        """Send as much as fits into the socket buffer, record by record.

        A record that was begun must be completed, even if the caller now passes less: then more is sent than
        was passed.
        """
        rest, sent = memoryview(data), 0
        while rest:
            record = rest[:_RECORD_BYTES] if self.begun is None else self.begun
            try:
                out = super().send(record, flags)
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                self.begun = record
                if not sent:
                    raise BlockingIOError from None
                return sent
            self.begun = None
            sent += out
            rest = rest[out:]
        return sent

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """One TLS record at most; ``pending`` tells whether more is decrypted already."""
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv_into(self, buffer: WriteableBuffer, nbytes: int | None = None, flags: int = 0) -> int:
        """As ``recv``."""
        try:
            return super().recv_into(buffer, nbytes, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None


def trusting(tls_ca: str) -> ssl.SSLContext:
    """A client's TLS context; without a file it trusts the system's authorities."""
    try:
        context = ssl.create_default_context(cafile=tls_ca or None)
    except OSError as error:  # also ssl.SSLError
        raise LoadError(f"{tls_ca} is not a certificate in PEM form: {error}") from None
    context.sslsocket_class = TlsSocket
    return context


def connect(host: str, port: int, tls: ssl.SSLContext | None, seconds: float) -> socket.socket:
    """A blocking socket with this time limit."""
    where = f"{host}:{port}"
    try:
        sock = socket.create_connection((host, port), timeout=seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock if tls is None else tls.wrap_socket(sock, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise LoadError(
            f"the certificate of {where} is not trusted: {error.verify_message}. "
            "--tls-ca names the authority that signed it"
        ) from None
    except OSError as error:
        raise LoadError(f"cannot connect to {where}: {error}") from None


def has_begun(sock: socket.socket) -> bool:
    """Whether bytes are on their way that ``send`` has not reported: TLS encrypts whole records."""
    return isinstance(sock, TlsSocket) and sock.begun is not None


def has_decrypted(sock: socket.socket) -> bool:
    """Whether more can be read that no selector reports: TLS keeps the rest of a record to itself."""
    return isinstance(sock, TlsSocket) and sock.pending() > 0

"""A client of a running broker's HTTP API, for all verbs.

Owns: one HTTP connection, the login, and error texts. Must not touch: what verbs print.
"""

import base64
import http.client
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import click
import msgspec

from holtmq.cli.registry import PermissionRow, UserRow, VhostRow

T = TypeVar("T")

_TIMEOUT: Final = 30.0
_PIECE: Final = 1 << 20
# X509_V_ERR_CERT_HAS_EXPIRED, ..._HOSTNAME_MISMATCH, ..._IP_ADDRESS_MISMATCH of OpenSSL
_EXPIRED: Final = 10
_OTHER_NAME: Final = (62, 64)
NO_HEADERS: Final[Mapping[str, str]] = {}


class BrokerUnreachable(Exception):
    """There is no broker at this address."""


class NoAnswer(click.ClickException):
    """The broker is down, or went away in the middle of a request."""


class ErrorIn(msgspec.Struct):
    """The body of an error response."""

    reason: str = ""
    error: str = ""  # the same under /api/v1


def _trusting(tls_ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=tls_ca)
    except (OSError, ssl.SSLError) as error:
        raise click.ClickException(f"--tls-ca {tls_ca} is not a certificate in PEM form: {error}") from None


def _tls_trouble(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_NAME:
            why = error.verify_message.rstrip(".")
            return f"its certificate is for another name: {why}. --url must use a name of the certificate"
        if error.verify_code == _EXPIRED:
            return "its certificate has expired: renew it, and send the broker SIGHUP"
        return (
            f"its certificate is not trusted: {error.verify_message}. "
            "--tls-ca names the authority that signed it"
        )
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "not with TLS: its address may begin with http://"
    if error.reason and "CERTIFICATE_REQUIRED" in error.reason:
        return "it asks for a client's certificate, which these verbs do not send"
    return f"TLS failed: {error.reason or error}"


class Address(NamedTuple):
    """The parts of a broker's address."""

    is_secure: bool
    host: str
    port: int | None
    path: str


def address_of(url: str) -> Address:
    """The parts of an address; exits with an error when it is none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # such as a port of six digits
        host, port = None, None
    if not host or port == 0 or parts.scheme not in ("http", "https"):
        raise click.BadParameter(f"{url!r} is not an address such as http://127.0.0.1:6632")
    return Address(parts.scheme == "https", host, port, parts.path.rstrip("/"))


class BrokerApi:
    """Implements ``Registry``; ``get`` and ``send`` are for verbs that need a running broker."""

    def __init__(
        self, url: str, user: str, password: str, tls_ca: Path | None = None, token: str | None = None
    ) -> None:
        """``token``: sent instead of user and password; an empty one sends no login."""
        address = address_of(url)
        # Not urllib: it would send the password through the proxy that the environment names.
        if address.is_secure:
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                address.host, address.port, timeout=_TIMEOUT, context=_trusting(tls_ca)
            )
        else:
            self._connection = http.client.HTTPConnection(address.host, address.port, timeout=_TIMEOUT)
        self._base = address.path + "/api"
        self._url = url
        self._user = user
        self._headers = {"content-type": "application/json"}
        if token is None:
            login = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["authorization"] = f"Basic {login}"
        elif token:
            self._headers["authorization"] = f"Bearer {token}"

    def connect(self) -> None:
        """Connect and check the login; BrokerUnreachable when there is no broker."""
        self.open()
        self.get(UserRow, "whoami")

    def open(self) -> None:
        """Connect without a login; BrokerUnreachable when nothing listens there."""
        try:
            self._connection.connect()
        except ssl.SSLError as error:
            raise click.ClickException(f"{self._url} answers, but {_tls_trouble(error)}") from None
        except OSError as error:
            raise BrokerUnreachable(f"no broker answers at {self._url} ({error.strerror or error})") from None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def get(self, kind: type[T], *path: str, query: str = "") -> T:
        """GET this path; return the decoded answer."""
        return self.decoded(kind, self._request("GET", path, b"", query))

    def decoded(self, kind: type[T], answer: bytes) -> T:
        """The body of an answer; exits with an error when it is not what a broker of this version sends."""
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.MsgspecError as error:
            raise click.ClickException(
                f"{self._url} did not answer like a HoltMQ broker of this version ({error}): "
                "another server, or another version?"
            ) from None

    def send(
        self,
        method: str,
        *path: str,
        body: object = None,
        query: str = "",
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> bytes:
        """Send a request; return the answer's body."""
        encoded = b"" if body is None else msgspec.json.encode(body)
        return self._request(method, path, encoded, query, headers)

    def pieces(self, *path: str, query: str = "") -> Iterator[bytes]:
        """GET this path; the answer piece by piece."""
        try:
            response = self._ask("GET", path, b"", query, NO_HEADERS)
            if response.status >= 300:
                raise click.ClickException(self._refusal(response.status, response.read()))
        except (OSError, http.client.HTTPException) as error:
            raise self._silence(error) from None
        while True:
            try:
                piece = response.read(_PIECE)
            except (OSError, http.client.HTTPException) as error:
                raise self._silence(error) from None
            if not piece:
                break
            yield piece
        if response.length:  # what a read with a size does not report
            raise self._silence(http.client.IncompleteRead(b"", response.length))

    def _ask(
        self, method: str, path: tuple[str, ...], body: bytes, query: str, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        target = "/".join((self._base, *(quote(part, safe="") for part in path)))
        if query:
            target += f"?{query}"
        self._connection.request(method, target, body, {**self._headers, **headers})
        return self._connection.getresponse()

    def _request(
        self,
        method: str,
        path: tuple[str, ...],
        body: bytes,
        query: str = "",
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> bytes:
        try:
            response = self._ask(method, path, body, query, headers)
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._silence(error) from None
        if response.status >= 300:
            raise click.ClickException(self._refusal(response.status, answer))
        return answer

    def _silence(self, error: OSError | http.client.HTTPException) -> NoAnswer:
        self._connection.close()
        match error:
            case TimeoutError():
                return NoAnswer(f"{self._url} did not answer within {_TIMEOUT:g} s")
            case http.client.RemoteDisconnected():
                return NoAnswer(f"{self._url} closed the connection without an answer")
            case http.client.IncompleteRead():
                return NoAnswer(f"{self._url} closed the connection in the middle of an answer")
            case http.client.HTTPException():
                return NoAnswer(
                    f"{self._url} does not speak HTTP: is it another port than the broker's HTTP port?"
                )
        return NoAnswer(f"{self._url} did not answer: {error.strerror or error}")

    def _refusal(self, status: int, answer: bytes) -> str:
        try:
            said = msgspec.json.decode(answer, type=ErrorIn)
            reason = said.reason or said.error
        except msgspec.MsgspecError:
            reason = ""
        if status == 401 and self._user:
            return f"{self._url} refused the login of user '{self._user}' (--user, --password)"
        if status == 401 and "authorization" not in self._headers:
            return f"{self._url} asks for a login: give --user and --password, or --token"
        if status == 401:
            return f"{self._url} refused the token (--token): {reason}"
        if not reason:
            return f"{self._url} answered with status {status}, as another server or a proxy would"
        return f"{self._url} answered with status {status}: {reason}" if status >= 500 else reason

    def users(self) -> list[UserRow]:
        """All users."""
        return self.get(list[UserRow], "users")

    def put_user(self, user: UserRow, password: str | None) -> None:
        """Add or replace; without a password the row's hash is kept."""
        secret = {"password_hash": user.password_hash} if password is None else {"password": password}
        self.send("PUT", "users", user.name, body={"tags": user.tags, **secret})

    def delete_user(self, name: str) -> None:
        """Remove a user."""
        self.send("DELETE", "users", name)

    def vhosts(self) -> list[VhostRow]:
        """All vhosts."""
        return self.get(list[VhostRow], "vhosts")

    def put_vhost(self, name: str) -> None:
        """Add a vhost."""
        self.send("PUT", "vhosts", name)

    def delete_vhost(self, name: str) -> None:
        """Remove a vhost and everything in it."""
        self.send("DELETE", "vhosts", name)

    def permissions(self) -> list[PermissionRow]:
        """All permissions."""
        return self.get(list[PermissionRow], "permissions")

    def set_permissions(self, row: PermissionRow) -> None:
        """Grant or replace permissions."""
        self.send("PUT", "permissions", row.vhost, row.user, body=row)

    def clear_permissions(self, user: str, vhost: str) -> None:
        """Remove permissions."""
        self.send("DELETE", "permissions", vhost, user)

"""``holt health``: whether a broker is alive, for the health check of a container or a script.

Owns: the exit statuses. Must not touch: what healthy means; the broker decides. No login is sent.
"""

import http.client
import ssl
from http import HTTPStatus
from pathlib import Path
from typing import Final

import click
import msgspec

from holtmq.cli.broker_api import address_of
from holtmq.cli.endings import FAILED
from holtmq.cli.finding import local_url
from holtmq.cli.ranges import Finite

_UNHEALTHY: Final = 1


class HealthIn(msgspec.Struct, frozen=True):
    """The answer of either path."""

    status: str = ""
    reason: str = ""


@click.command()
@click.option("--url", envvar="HOLT_ADMIN_URL", show_envvar=True, help="Its HTTP address.  [default: local]")
@click.option(
    "--tls-ca",
    envvar="HOLT_ADMIN_TLS_CA",
    show_envvar=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Authority behind an https address.  [default: the certificate is not verified]",
)
@click.option("--ready", is_flag=True, help="Whether clients should be sent there: no standby is ready.")
@click.option("--timeout", default=5.0, show_default=True, type=Finite(0.1), help="In seconds.")
def health(url: str | None, tls_ca: Path | None, ready: bool, timeout: float) -> None:
    """Tell whether a broker is healthy.

    Exit status 0: it is; 1: it is not, and says why; 2: it does not answer. Nothing secret is sent, so a
    certificate that names another host than this one does not matter.
    """
    address = url or local_url()
    try:
        status, body = _ask(address, "/ready" if ready else "/health", tls_ca, timeout)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        click.echo(f"Error: {address} does not answer: {reason}", err=True)
        raise SystemExit(FAILED) from None
    try:
        found = msgspec.json.decode(body, type=HealthIn)
    except msgspec.MsgspecError:
        click.echo(f"Error: {address} did not answer like a HoltMQ broker (status {status})", err=True)
        raise SystemExit(FAILED) from None
    good = status == HTTPStatus.OK
    name = found.status or ("ready" if good else "not ready")
    click.echo(f"{name}: {found.reason}" if found.reason else name)
    if not good:
        raise SystemExit(_UNHEALTHY)


def _ask(address: str, path: str, tls_ca: Path | None, timeout: float) -> tuple[int, bytes]:
    parts = address_of(address)
    if parts.is_secure:
        context = (
            ssl.create_default_context(cafile=tls_ca) if tls_ca else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        )
        if tls_ca is None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.host, parts.port, timeout=timeout, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.host, parts.port, timeout=timeout)
    try:
        connection.request("GET", parts.path + path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()

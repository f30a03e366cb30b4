"""The broker that a command of ``holt pipeline`` reads and writes: the options of every verb, and a token.

Owns: ``--url``, ``--tls-ca``, ``--user``, ``--password``, ``--token``, and which login counts when several
are given. Must not touch: connections. A login is optional here: a broker that asks for none needs none.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from click.core import ParameterSource

from holtmq.cli.finding import local_url
from holtmq.cli.target import tls_ca_option, url_option

_options = (
    url_option,
    tls_ca_option,
    click.option(
        "--user",
        "login",
        envvar="HOLT_ADMIN_USER",
        show_envvar=True,
        help="Log in as this user.  [default: none]",
    ),
    click.option(
        "--password",
        envvar="HOLT_ADMIN_PASSWORD",
        show_envvar=True,
        help="The password to log in with; other users of this machine can see it.",
    ),
    click.option(
        "--token",
        envvar="HOLT_TOKEN",
        show_envvar=True,
        help="A token, instead of user and password.",
    ),
)


@dataclass(frozen=True, slots=True)
class PipelineBroker:
    """The address and at most one login; what is not used is empty."""

    url: str
    tls_ca: str = ""
    user: str = ""
    password: str = ""
    token: str = ""


def with_pipeline_broker(command: Callable[..., object]) -> Callable[..., object]:
    """Give a command these options, as one argument ``broker``."""

    @functools.wraps(command)
    def run(
        url: str | None,
        tls_ca: Path | None,
        login: str | None,
        password: str | None,
        token: str | None,
        **rest: object,
    ) -> object:
        user, secret, bearer = _login(login or "", password or "", token or "")
        broker = PipelineBroker(url or local_url(), str(tls_ca or ""), user, secret, bearer)
        return command(broker=broker, **rest)

    wrapped: Callable[..., object] = run
    for option in reversed(_options):
        wrapped = option(wrapped)
    return wrapped


def _login(user: str, password: str, token: str) -> tuple[str, str, str]:
    """User, password and token to use. An option counts more than the environment."""
    if user and token:
        user_typed, token_typed = _typed("login"), _typed("token")
        if user_typed == token_typed:
            raise click.UsageError("give --user and --password, or --token, not both")
        if user_typed:
            token = ""
        else:
            user = ""
    if not user:
        if password and _typed("password"):
            raise click.UsageError("--password goes with --user")
        return "", "", token
    if not password:
        raise click.UsageError(f"--user {user} needs --password or HOLT_ADMIN_PASSWORD")
    return user, password, ""


def _typed(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE

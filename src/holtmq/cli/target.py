"""The broker that a verb addresses: the options of every administrative verb, and the tables they print.

Owns: ``--url``, ``--user``, ``--password``, ``--tls-ca``, ``--data-dir``; the choice between broker and
folder. Must not touch: what verbs do.
"""

import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import msgspec

from holtmq.cli.broker_api import BrokerApi, BrokerUnreachable, NoAnswer
from holtmq.cli.finding import local_url
from holtmq.cli.registry import Registry

Verb = Callable[..., None]

_TIMES: Final = frozenset(("created", "held_since"))  # columns of milliseconds

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
url_option = click.option(
    "--url",
    envvar="HOLT_ADMIN_URL",
    show_envvar=True,
    help="The broker's HTTP address.  [default: that of the broker on this machine]",
)
tls_ca_option = click.option(
    "--tls-ca",
    envvar="HOLT_ADMIN_TLS_CA",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    show_envvar=True,
    help="Authority behind an address with TLS.  [default: the system's]",
)
in_vhost = click.option("-p", "--vhost", default="/", show_default=True, help="The vhost.")


@dataclass(frozen=True, slots=True)
class Target:
    """The broker's address, the login, and perhaps a data folder."""

    url: str
    user: str
    password: str
    folder: Path | None = None
    tls_ca: Path | None = None

    def api(self) -> BrokerApi:
        """The running broker; exits with an error when there is none."""
        try:
            api = self._connect()
        except BrokerUnreachable as silence:
            raise NoAnswer(f"{silence}; `holt serve` starts one, --url names another") from None
        return api

    def stopped_folder(self) -> Path | None:
        """The folder of --data-dir if no broker has it open; None: one has, or no folder was named."""
        return self.folder if self.folder is not None and _is_unused(self.folder) else None

    def _connect(self) -> BrokerApi:
        api = BrokerApi(self.url, self.user, self.password, self.tls_ca)
        click.get_current_context().call_on_close(api.close)
        api.connect()
        return api

    @contextmanager
    def registry(self) -> Iterator[Registry]:
        """The running broker or, when none answers, the folder."""
        try:
            api = self._connect()
        except BrokerUnreachable as silence:
            if self.folder is None:
                raise click.ClickException(
                    f"{silence}; `holt serve` starts one, --url names another, "
                    "--data-dir changes the folder of one that is stopped"
                ) from None
        else:
            if self.folder is not None:
                _refuse_if_unused(self.folder, self.url)
            yield api
            return
        from holtmq.cli.offline import open_folder  # imports the whole broker

        with open_folder(self.folder) as registry:
            yield registry


def _is_unused(folder: Path) -> bool:
    """Whether no process holds the folder."""
    from holtmq.journal import JournalLocked
    from holtmq.journal.disk import OsDisk

    disk = OsDisk(folder)
    try:
        disk.lock()
    except JournalLocked:
        return False
    disk.unlock()
    return True


def _refuse_if_unused(folder: Path, url: str) -> None:
    """Exit if no process holds the folder: the broker that answers uses another one. Change neither."""
    if _is_unused(folder):
        raise click.ClickException(
            f"a broker answers at {url}, but it does not use {folder}, which no broker has open: "
            "leave --data-dir out for that broker, or name its --url for another"
        )


def with_broker(verb: Verb) -> Verb:
    """Add the options that name a running broker; the verb's first argument is a ``Target``."""

    @functools.wraps(verb)
    def run(url: str | None, login: str, password: str, tls_ca: Path | None, **options: object) -> None:
        verb(Target(url or local_url(), login, password, None, tls_ca), **options)

    return _options(run)


def with_registry(verb: Verb) -> Verb:
    """The same, with ``--data-dir`` for the folder of a stopped broker."""

    @functools.wraps(verb)
    def run(
        url: str | None,
        login: str,
        password: str,
        tls_ca: Path | None,
        folder: Path | None,
        **options: object,
    ) -> None:
        verb(Target(url or local_url(folder), login, password, folder, tls_ca), **options)

    return _options(
        click.option(
            "--data-dir",
            "folder",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="The folder to change when no broker answers.",
        )(run)
    )


def _options(run: Verb) -> Verb:
    for option in reversed(
        (
            url_option,
            tls_ca_option,
            click.option(
                "--user",
                "login",
                envvar="HOLT_ADMIN_USER",
                default="guest",
                show_default=True,
                show_envvar=True,
                help="Log in as this user.",
            ),
            click.option(
                "--password",
                envvar="HOLT_ADMIN_PASSWORD",
                default="guest",
                show_envvar=True,
                help="The password to log in with; other users of this machine can see it.",
            ),
        )
    ):
        run = option(run)
    return run


def show(rows: Sequence[msgspec.Struct], columns: Sequence[str], as_json: bool) -> None:
    """Print a table for people, or JSON for programs."""
    table = [{column: msgspec.to_builtins(row)[column] for column in columns} for row in rows]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(table)).decode())
        return
    lines = [list(columns), *([_cell(column, row[column]) for column in columns] for row in table)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def moment(at_ms: int) -> str:
    """A time in milliseconds as a person reads it, by the clock of this machine."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))


def _cell(column: str, value: object) -> str:
    match value:
        case int() if column in _TIMES:
            return moment(value)
        case list():
            return printable(",".join(map(str, value))) or "-"
        case dict():
            return msgspec.json.encode(value).decode()
        case None | "":
            return "-"
        case _:
            return printable(str(value))


def printable(text: str, keep: str = "") -> str:
    """Text of others, such as a queue's name or a body, without what a terminal would obey."""
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape", "replace").decode()
        for one in text
    )


def new_password(from_stdin: bool) -> str:
    """Prompt for it twice, or read the first line of standard input. Not an option: other users see those."""
    if from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        password = str(click.prompt("New password", hide_input=True, confirmation_prompt=True))
    if not password:
        raise click.ClickException("an empty password would let anybody in")
    return password

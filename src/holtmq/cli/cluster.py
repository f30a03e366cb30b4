"""``holt cluster status | promote | forget``: the nodes that share a log in PostgreSQL.

Owns: arguments, texts and exit statuses. Must not touch: the tables; ``holtmq.journal.replica`` knows them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from holtmq.cli.settings import load_or_exit
from holtmq.journal import JournalError

if TYPE_CHECKING:
    from holtmq.journal.replica.store import LogStore, NodeRow

_Command = TypeVar("_Command", bound=Callable[..., object])
_ANSWER_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.2


def _with_log(command: _Command) -> _Command:
    for option in (
        click.option("--log", "name", metavar="NAME", help="journal.replica_name, if not in the settings."),
        click.option("--replica", "url", metavar="URL", help="journal.replica, if not in the settings."),
        click.option(
            "--config",
            "config_file",
            type=click.Path(path_type=Path, dir_okay=False),
            help="The nodes' configuration file.  [default: HOLT_CONFIG, else ./holt.toml if there is one]",
        ),
    ):
        command = option(command)
    return command


@contextmanager
def _opened(config_file: Path | None, url: str | None, name: str | None) -> Iterator[LogStore]:
    flags: dict[str, object] = {"journal__replica": url, "journal__replica_name": name}
    journal = load_or_exit(config_file, flags).config.journal
    if not journal.replica:
        raise click.UsageError("journal.replica is not set: give --replica, or the nodes' --config")
    try:
        from holtmq.journal.replica.errors import Unreachable
        from holtmq.journal.replica.session import Session
        from holtmq.journal.replica.store import LogStore
    except ImportError as missing:
        raise click.ClickException(f"{missing}: pip install 'holtmq[postgres]'") from None
    store = LogStore(Session(journal.replica, _ANSWER_SECONDS, "cluster"), journal.replica_name)
    try:
        store.open(create=False)
        yield store
    except Unreachable as exc:
        raise click.ClickException(f"PostgreSQL is out of reach: {exc}") from None
    except JournalError as exc:
        raise click.ClickException(str(exc)) from None
    finally:
        store.session.close()


@click.group()
def cluster() -> None:
    """Nodes that share a log in PostgreSQL: which one owns it, which ones stand by."""


@cluster.command()
@_with_log
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(config_file: Path | None, url: str | None, name: str | None, as_json: bool) -> None:
    """Show the owner, and how far behind each node is.

    Exit status 1 when no node owns the log, or when its owner is silent.
    """
    with _opened(config_file, url, name) as store:
        state, end, nodes = store.state(), store.end(), store.nodes()
    owned = bool(state.owner) and not state.released
    silent = min((node.seen_seconds_ago for node in nodes if node.name == state.owner), default=0.0)
    is_served = owned and silent <= _ANSWER_SECONDS  # an owner reports every second
    if as_json:
        rows = [
            {
                "name": node.name,
                "role": _role(node, state.owner if owned else ""),
                "address": node.address,
                "behind_bytes": max(end - node.position, 0),
                "behind_seconds": round(node.behind_seconds, 3),
                "seen_seconds_ago": round(node.seen_seconds_ago, 3),
            }
            for node in nodes
        ]
        whole = {
            "log": store.name,
            "owner": state.owner if owned else None,
            "owner_silent_seconds": round(silent, 3) if owned else None,
            "epoch": state.epoch,
            "nodes": rows,
        }
        click.echo(json.dumps(whole, indent=2))
    else:
        owner = state.owner if owned else f"none (last: {state.owner or 'never'})"
        owner += f", silent for {silent:,.0f} s" if owned and not is_served else ""
        click.echo(f"log {store.name}: epoch {state.epoch}, {end:,} bytes, owner {owner}")
        for node in nodes:
            role = _role(node, state.owner if owned else "")
            click.echo(
                f"  {node.name:24} {role:8} {'' if role == 'owner' else _behind(node, end):28} "
                f"seen {node.seen_seconds_ago:.1f} s ago  {node.address}"
            )
    raise SystemExit(0 if is_served else 1)


def _behind(node: NodeRow, end: int) -> str:
    """How old the newest state is that the node is known to have: a silent one falls behind."""
    seconds = node.behind_seconds + node.seen_seconds_ago
    return f"{max(end - node.position, 0):,} bytes, {seconds:.1f} s behind"


def _role(node: NodeRow, owner: str) -> str:
    if node.name == owner:
        return "owner"
    return "gone" if node.role == "owner" else node.role


@cluster.command()
@click.argument("node")
@_with_log
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds to wait until NODE owns the log; then the request is withdrawn.",
)
def promote(node: str, config_file: Path | None, url: str | None, name: str | None, timeout: float) -> None:
    """Hand the log over to NODE: the owner lets its clients finish, releases the log, and stops."""
    with _opened(config_file, url, name) as store:
        state = store.state()
        if state.owner == node and not state.released:
            click.echo(f"{node} owns the log already")
            return
        known = {row.name: row for row in store.nodes()}
        if node not in known:
            raise click.ClickException(f"no node is named {node}; there are: {', '.join(known) or 'none'}")
        if known[node].seen_seconds_ago > _ANSWER_SECONDS:
            raise click.ClickException(f"{node} was last seen {known[node].seen_seconds_ago:.0f} s ago")
        store.promote(node)
        deadline = time.monotonic() + timeout
        try:
            while store.state().owner != node:
                if time.monotonic() > deadline:
                    raise click.ClickException(
                        f"{node} does not own the log after {timeout:g} s: the request was withdrawn"
                    )
                time.sleep(_POLL_SECONDS)
        except BaseException:  # also when the user interrupts it
            store.promote("")
            raise
    click.echo(f"{node} owns the log")


@cluster.command()
@click.argument("node")
@_with_log
def forget(node: str, config_file: Path | None, url: str | None, name: str | None) -> None:
    """Remove NODE from the list. A node that still runs adds itself again."""
    with _opened(config_file, url, name) as store:
        state = store.state()
        if state.owner == node and not state.released:
            raise click.ClickException(f"{node} owns the log; promote another node first")
        if not store.forget(node):
            known = ", ".join(row.name for row in store.nodes())
            raise click.ClickException(f"no node is named {node}; there are: {known or 'none'}")
    click.echo(f"{node} is forgotten")

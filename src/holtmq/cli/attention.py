"""``holt stuck``: what needs attention, since when, and which client holds it. ``holt top``: busiest queues.

Owns: how the answers are shown in a terminal. Must not touch: the rules; the broker decides what is stuck.
"""

import time
from typing import Final

import click
import msgspec
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holtmq.cli.broker_api import NoAnswer
from holtmq.cli.endings import FAILED
from holtmq.cli.ranges import Finite
from holtmq.cli.target import Target, as_json, moment, printable, with_broker

_ROWS: Final = 30
_WIDE: Final = 200  # columns of the table when the output is not a terminal
_FRAME: Final = 5  # lines of a window around the rows: title, header, empty lines
_GAP: Final = 3  # columns of a window between two columns of the table
_NARROWEST: Final = 12  # the names of queues
_COLUMNS: Final = (
    *("queue", "vhost", "kind", "ready", "unacked", "oldest"),
    *("in/s", "out/s", "acked/s", "consumers"),
)
_LEFT_OUT_FIRST: Final = ("kind", "vhost", "acked/s", "consumers", "out/s", "unacked", "in/s", "oldest")


class HolderRow(msgspec.Struct, frozen=True):
    """One that holds messages."""

    kind: str
    consumer: str
    connection: str
    client: str
    user: str
    host: str
    unacked: int
    since: int
    channel: int | None = None
    expires: int | None = None


class FindingRow(msgspec.Struct, frozen=True):
    """One thing that needs attention."""

    rule: str
    severity: str
    subject: str
    name: str
    text: str
    vhost: str | None = None
    since: int | None = None
    who: list[HolderRow] = []
    queue: str | None = None
    group: str | None = None


class AttentionAnswer(msgspec.Struct, frozen=True):
    findings: list[FindingRow]


class QueueLine(msgspec.Struct, frozen=True):
    """One queue in ``holt top``."""

    name: str
    vhost: str
    kind: str
    ready: int
    consumers: int
    unacked: int | None = None
    oldest: float | None = None
    incoming: float | None = None
    outgoing: float | None = None
    acked: float | None = None


class QueuesAnswer(msgspec.Struct, frozen=True):
    rows: list[QueueLine]
    total: int


@click.command()
@as_json
@with_broker
def stuck(target: Target, as_json: bool) -> None:
    """List what needs attention, since when, and which client holds it.

    Exit status 0: nothing does; 1: something does; 2: the broker could not be asked.
    """
    try:
        answer = target.api().get(AttentionAnswer, "v1", "dashboard", "attention")
    except click.ClickException as unknown:
        unknown.show()
        raise SystemExit(FAILED) from None
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(answer.findings)).decode())
    elif not answer.findings:
        click.echo("Nothing needs attention.")
    else:
        for one in answer.findings:
            where = one.name if one.vhost in (None, "/") else f"{one.name} (vhost {one.vhost})"
            click.echo(printable(f"{one.severity:<4}  {where}: {one.text}; since {_moment(one.since)}"))
            for who in one.who:
                click.echo(printable(f"      {_holder(who)}"))
    if answer.findings:
        raise SystemExit(1)


@click.command()
@click.option(
    "--every",
    default=2.0,
    show_default=True,
    type=Finite(min=0.1),
    help="Seconds between two refreshes.",
)
@click.option("--once", is_flag=True, help="Show the list once and exit.")
@click.option(
    "--sort",
    default="incoming",
    show_default=True,
    type=click.Choice(["name", "ready", "unacked", "oldest", "incoming", "outgoing", "acked", "consumers"]),
    help="Order by this column.",
)
@as_json
@with_broker
def top(target: Target, every: float, once: bool, sort: str, as_json: bool) -> None:
    """Show the busiest queues, refreshed until Ctrl-C."""
    api = target.api()

    def look() -> QueuesAnswer:
        descending = "false" if sort == "name" else "true"
        query = f"sort={sort}&descending={descending}&limit={_ROWS}"
        return api.get(QueuesAnswer, "v1", "dashboard", "queues", query=query)

    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(look().rows)).decode())
        return
    console = Console()
    if once or not console.is_terminal:
        wide = console if console.is_terminal else Console(width=_WIDE)
        wide.print(_table(look(), wide.width))
        return
    answer, trouble = look(), ""

    def shown() -> Table:
        """As much as the window holds now."""
        return _table(answer, console.width, max(1, console.height - _FRAME), trouble)

    with Live(shown(), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(every)
                try:
                    answer, trouble = look(), ""
                except NoAnswer as silence:  # it may be restarting: go on, and say so
                    trouble = f"; {silence.message}"
                live.update(shown(), refresh=True)
        except KeyboardInterrupt:
            return


def _holder(who: HolderRow) -> str:
    name = who.client or "a client without a name"
    how = {
        "get": f"basic.get on channel {who.channel}",
        "cancelled": f"cancelled consumer {who.consumer} on channel {who.channel}",
        "lease": f"lease {who.consumer} over HTTP until {_moment(who.expires)}",
    }.get(who.kind, f"consumer {who.consumer}")
    text = f"{name}: user {who.user}, {who.host}, {how}, {who.unacked} unacked since {_moment(who.since)}"
    return text if who.kind == "lease" else f"{text}; connection {who.connection}"


def _table(answer: QueuesAnswer, width: int, rows: int = _ROWS, trouble: str = "") -> Table:
    """A table that is not wider than ``width``: the columns that are needed least are left out."""
    shown = answer.rows[:rows]
    lines = [_line(row) for row in shown]
    left_out = set[str]()
    for name in ("", *_LEFT_OUT_FIRST):
        left_out.add(name)
        names = [column for column in _COLUMNS if column not in left_out]
        cells = [[line[column] for line in lines] for column in names if column != "queue"]
        widths = [max(map(len, [name, *column])) for name, column in zip(names[1:], cells, strict=True)]
        if _NARROWEST + sum(widths) + _GAP * len(names) + 1 <= width:
            break
    title = f"{len(shown)} of {answer.total} queues{trouble}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in names:
        if name == "queue":
            table.add_column(name, overflow="fold", min_width=_NARROWEST)
        else:
            table.add_column(name, justify="left" if name in ("vhost", "kind") else "right", no_wrap=True)
    for line in lines:
        table.add_row(*(Text(line[name]) for name in names))  # a string would be read as markup: [bold]
    return table


def _line(row: QueueLine) -> dict[str, str]:
    return {
        "queue": printable(row.name),
        "vhost": printable(row.vhost),
        "kind": row.kind,
        "ready": f"{row.ready:,}",
        "unacked": _known(row.unacked),
        "oldest": "-" if row.oldest is None else f"{row.oldest:,.0f} s",
        "in/s": _known(row.incoming),
        "out/s": _known(row.outgoing),
        "acked/s": _known(row.acked),
        "consumers": str(row.consumers),
    }


def _known(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"


def _moment(at_ms: int | None) -> str:
    return "unknown" if at_ms is None else moment(at_ms)

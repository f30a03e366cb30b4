"""``holt delayed``: messages that wait for their delay to end, on a running broker.

Owns: arguments and texts. Must not touch: rules.
"""

from urllib.parse import urlencode

import click
import msgspec

from holtmq.cli.target import Target, as_json, show, with_broker

_COLUMNS = ("id", "vhost", "exchange", "routing_key", "queues", "due_at", "bytes", "properties")


class DelayedRow(msgspec.Struct, frozen=True, rename="camel"):
    """One delayed message."""

    id: str
    due_at: str
    vhost: str = ""
    exchange: str = ""
    routing_key: str = ""
    queues: list[str] = []
    published_at: str = ""
    bytes: int = 0
    persistent: bool = True
    properties: dict[str, object] = {}
    unreadable: str = ""


class DelayedPage(msgspec.Struct, frozen=True):
    messages: list[DelayedRow]
    next: str | None = None


class Delivered(msgspec.Struct, frozen=True):
    queues: list[str]


@click.group()
def delayed() -> None:
    """List, deliver and cancel delayed messages."""


@delayed.command("list")
@click.option("-p", "--vhost", help="Only in this vhost.")
@click.option("--exchange", help="Only those that wait at this exchange; the default one is amq.default.")
@click.option("--queue", help="Only those that would enter this queue now.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="How many messages.")
@as_json
@with_broker
def list_delayed(
    target: Target, vhost: str | None, exchange: str | None, queue: str | None, limit: int, as_json: bool
) -> None:
    """List delayed messages, the next one due first."""
    wanted = {"vhost": vhost, "exchange": exchange, "queue": queue}
    given = {name: value for name, value in wanted.items() if value is not None}
    api, rows, after = target.api(), list[DelayedRow](), ""
    while len(rows) < limit:
        query = urlencode(
            {**given, "limit": min(limit - len(rows), 500), **({"after": after} if after else {})}
        )
        page = api.get(DelayedPage, "v1", "delayed", query=query)
        rows += page.messages
        after = page.next or ""
        if not after:
            break
    show([_Shown.of(row) for row in rows], _Shown.__struct_fields__ if not as_json else _COLUMNS, as_json)


class _Shown(msgspec.Struct, frozen=True):
    id: str
    vhost: str
    exchange: str
    routing_key: str
    queues: list[str]
    due_at: str
    bytes: int
    properties: dict[str, object]

    @classmethod
    def of(cls, row: DelayedRow) -> "_Shown":
        exchange = f"(unreadable: {row.unreadable})" if row.unreadable else row.exchange or "(default)"
        return cls(
            row.id, row.vhost, exchange, row.routing_key, row.queues, row.due_at, row.bytes, row.properties
        )


@delayed.command("deliver")
@click.argument("ids", nargs=-1, required=True)
@with_broker
def deliver(target: Target, ids: tuple[str, ...]) -> None:
    """Deliver the messages with these IDS now."""
    api = target.api()
    for one in ids:
        answer = api.decoded(Delivered, api.send("POST", "v1", "delayed", one, "deliver"))
        where = ", ".join(answer.queues) or "no queue: nothing is bound for it"
        click.echo(f"Delayed message {one} delivered to {where}.")


@delayed.command("cancel")
@click.argument("ids", nargs=-1, required=True)
@with_broker
def cancel(target: Target, ids: tuple[str, ...]) -> None:
    """Drop the messages with these IDS."""
    api = target.api()
    for one in ids:
        api.send("DELETE", "v1", "delayed", one)
        click.echo(f"Delayed message {one} cancelled.")

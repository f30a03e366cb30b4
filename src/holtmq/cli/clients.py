"""``holt connection``, ``holt consumer``, ``holt exchange``: who is connected, and where messages go.

Owns: arguments and texts. Must not touch: the API paths of other verbs; rules.
"""

from urllib.parse import quote

import click
import msgspec

from holtmq.cli.broker_api import BrokerApi
from holtmq.cli.target import Target, as_json, in_vhost, printable, show, with_broker


class ConnectionRow(msgspec.Struct, frozen=True):
    """One client."""

    name: str
    client: str
    user: str
    vhost: str
    product: str
    channels: int
    state: str
    unacked: int
    held_since: int | None


class ConnectionsAnswer(msgspec.Struct, frozen=True):
    rows: list[ConnectionRow]
    total: int


class QueueNameIn(msgspec.Struct, frozen=True):
    name: str
    vhost: str


class ChannelIn(msgspec.Struct, frozen=True):
    connection_name: str
    user: str


class ConsumerIn(msgspec.Struct, frozen=True):
    consumer_tag: str
    queue: QueueNameIn
    channel_details: ChannelIn
    prefetch_count: int
    messages_unacknowledged: int = 0
    held_since: int | None = None


class ConsumerRow(msgspec.Struct, frozen=True):
    """One consumer."""

    consumer: str
    queue: str
    vhost: str
    user: str
    connection: str
    prefetch: int
    unacked: int
    held_since: int | None


class CancelAnswer(msgspec.Struct, frozen=True):
    told: bool


class RouteAnswer(msgspec.Struct, frozen=True):
    queues: list[str]
    delayed_by: list[str]


@click.group()
def connection() -> None:
    """List client connections, and close them."""


@connection.command("list")
@click.option("--text", default="", help="Only where client, user, library or address contain this.")
@as_json
@with_broker
def list_connections(target: Target, text: str, as_json: bool) -> None:
    """List AMQP connections, those that have held a message longest first."""
    show(_connections(target.api(), text), ConnectionRow.__struct_fields__, as_json)


def _connections(api: BrokerApi, text: str) -> list[ConnectionRow]:
    rows = list[ConnectionRow]()
    while True:
        query = f"limit=500&offset={len(rows)}&text={quote(text)}"
        page = api.get(ConnectionsAnswer, "v1", "dashboard", "connections", query=query)
        rows += page.rows
        if not page.rows or len(rows) >= page.total:
            return rows


@connection.command("close")
@click.argument("name")
@click.option(
    "--reason", default="closed by an operator", show_default=True, help="Reason sent to the client."
)
@with_broker
def close_connection(target: Target, name: str, reason: str) -> None:
    """Close the connection NAME; its unacknowledged messages go back to their queues.

    NAME is the name or the client of `holt connection list`, if only one connection has this client.
    """
    api = target.api()
    if " -> " not in name:
        name = _name_of_client(api, name)
    api.send("DELETE", "connections", name, headers={"x-reason": reason})
    click.echo(f"Connection '{name}' closed.")


def _name_of_client(api: BrokerApi, client: str) -> str:
    """The name of the only connection with this client name."""
    found = [row.name for row in _connections(api, client) if row.client == client]
    if not found:
        raise click.ClickException(
            f"no connection '{client}': `holt connection list` shows names and clients"
        )
    if len(found) > 1:
        shown = ", ".join(f"'{name}'" for name in found[:5]) + (", ..." if len(found) > 5 else "")
        raise click.ClickException(
            f"{len(found)} connections have the client name '{client}': name one of {shown}"
        )
    return found[0]


@click.group()
def consumer() -> None:
    """List the consumers of queues, and cancel them."""


@consumer.command("list")
@as_json
@with_broker
def list_consumers(target: Target, as_json: bool) -> None:
    """List consumers, how many messages each holds, and since when."""
    rows = [
        ConsumerRow(
            one.consumer_tag,
            one.queue.name,
            one.queue.vhost,
            one.channel_details.user,
            one.channel_details.connection_name,
            one.prefetch_count,
            one.messages_unacknowledged,
            one.held_since,
        )
        for one in target.api().get(list[ConsumerIn], "consumers")
    ]
    show(rows, ConsumerRow.__struct_fields__, as_json)


@consumer.command("cancel")
@click.argument("tag")
@click.option("--queue", help="Of this queue.")
@click.option("--connection", "connection_name", help="Of this connection, if several use the tag.")
@in_vhost
@with_broker
def cancel_consumer(
    target: Target, tag: str, queue: str | None, connection_name: str | None, vhost: str
) -> None:
    """Cancel the consumer TAG, as listed; its client is told, and what it holds goes back to the queue."""
    body = {"consumer_tag": tag, "vhost": vhost, "queue": queue, "connection": connection_name}
    api = target.api()
    raw = api.send("POST", "v1", "operator", "consumers", "cancel", body=body)
    answer = api.decoded(CancelAnswer, raw)
    click.echo(f"Consumer '{tag}' cancelled.")
    if not answer.told:
        click.echo("Its client does not understand basic.cancel, and still believes that it consumes.")


@click.group()
def exchange() -> None:
    """Show where an exchange routes messages."""


@exchange.command("route-test")
@click.argument("name")
@click.argument("routing_key", default="")
@click.option("--headers", default="{}", help="Headers of the message, as a JSON object.")
@as_json
@in_vhost
@with_broker
def route_test(target: Target, name: str, routing_key: str, headers: str, as_json: bool, vhost: str) -> None:
    """List the queues that a message to exchange NAME with ROUTING_KEY would reach ('': default exchange)."""
    try:
        values = msgspec.json.decode(headers, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise click.ClickException(f"the headers are not a JSON object: {error}") from None
    body = {"vhost": vhost, "exchange": name, "routing_key": routing_key, "headers": values}
    api = target.api()
    raw = api.send("POST", "v1", "dashboard", "route-test", body=body)
    answer = api.decoded(RouteAnswer, raw)
    if as_json:
        click.echo(msgspec.json.format(raw).decode())
    elif answer.queues or answer.delayed_by:
        for queue in answer.queues:
            click.echo(printable(queue))
        for delaying in answer.delayed_by:
            click.echo(f"(delayed by exchange {printable(delaying)}; routed when the delay ends)")
    else:
        click.echo("to no queue: it would be dropped, or returned if mandatory")
        raise SystemExit(1)

"""``holt shovel``: list, set, delete and restart shovels.

Owns: arguments and texts. Must not touch: what a definition may contain; the broker checks that.
"""

import sys

import click
import msgspec

from holtmq.cli.target import Target, as_json, in_vhost, show, with_broker


class ShovelRow(msgspec.Struct, frozen=True):
    """One shovel."""

    vhost: str
    name: str
    state: str
    src_uri: str = ""
    src_queue: str | None = None
    src_exchange: str | None = None
    dest_uri: str = ""
    dest_queue: str | None = None
    dest_exchange: str | None = None
    forwarded: int = 0
    pending: int = 0
    redelivered: int = 0
    refused: int = 0
    last_error: str | None = None


class ShownRow(msgspec.Struct, frozen=True):
    """One line of the table."""

    vhost: str
    name: str
    state: str
    source: str
    destination: str
    forwarded: int
    pending: int
    refused: int
    last_error: str | None


@click.group()
def shovel() -> None:
    """List, set, delete and restart shovels, which move messages between brokers."""


@shovel.command("list")
@as_json
@with_broker
def list_shovels(target: Target, as_json: bool) -> None:
    """List shovels with their state, what they have moved and their last error."""
    rows = target.api().get(list[ShovelRow], "shovels")
    if as_json:
        show(rows, ShovelRow.__struct_fields__, as_json)
        return
    shown = [
        ShownRow(
            row.vhost,
            row.name,
            row.state,
            f"{row.src_uri} {row.src_queue or row.src_exchange or ''}".strip(),
            f"{row.dest_uri} {row.dest_queue or row.dest_exchange or ''}".strip(),
            row.forwarded,
            row.pending,
            row.refused,
            row.last_error,
        )
        for row in rows
    ]
    show(shown, ShownRow.__struct_fields__, as_json)


@shovel.command("set")
@click.argument("name")
@click.argument("definition")
@in_vhost
@with_broker
def set_shovel(target: Target, name: str, definition: str, vhost: str) -> None:
    """Set shovel NAME to a JSON DEFINITION with RabbitMQ's keys; '-' reads it from standard input.

    For example '{"src-uri": "amqp://user:password@old", "src-queue": "orders", "dest-uri": "amqp://",
    "dest-queue": "orders"}'. The address amqp:// is this broker. Other users of this machine can see
    arguments: use '-' for addresses with passwords.
    """
    text = sys.stdin.read() if definition == "-" else definition
    try:
        value = msgspec.json.decode(text, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise click.ClickException(f"the definition is not a JSON object: {error}") from None
    target.api().send("PUT", "parameters", "shovel", vhost, name, body={"value": value})
    click.echo(f"Shovel '{name}' in vhost '{vhost}' set.")


@shovel.command("delete")
@click.argument("name")
@in_vhost
@with_broker
def delete_shovel(target: Target, name: str, vhost: str) -> None:
    """Delete shovel NAME. What it has not moved stays at the source."""
    target.api().send("DELETE", "shovels", "vhost", vhost, name)
    click.echo(f"Shovel '{name}' in vhost '{vhost}' deleted.")


@shovel.command("restart")
@click.argument("name")
@in_vhost
@with_broker
def restart_shovel(target: Target, name: str, vhost: str) -> None:
    """Disconnect shovel NAME and connect it again."""
    target.api().send("DELETE", "shovels", "vhost", vhost, name, "restart")
    click.echo(f"Shovel '{name}' in vhost '{vhost}' restarted.")

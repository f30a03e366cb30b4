"""``holt policy`` and ``holt queue``: policies and queues of a running broker.

Owns: arguments and texts. Must not touch: the API paths of other verbs; rules.
"""

from typing import Final

import click
import msgspec

from holtmq.cli.jobs import run_job, to_target, which_messages
from holtmq.cli.target import Target, as_json, in_vhost, printable, show, with_broker

_operator = click.option("--operator", is_flag=True, help="Operator policies: limits that users cannot lift.")
_KEPT_IN_BODIES: Final = "\n\t"


class PolicyRow(msgspec.Struct, frozen=True):
    """One policy."""

    vhost: str
    name: str
    pattern: str
    apply_to: str = msgspec.field(name="apply-to")
    definition: dict[str, object] = {}
    priority: int = 0


class QueueRow(msgspec.Struct, frozen=True):
    """One queue."""

    vhost: str
    name: str
    type: str
    messages_ready: int
    messages_unacknowledged: int
    consumers: int
    state: str = "running"
    policy: str | None = None


class PauseAnswer(msgspec.Struct, frozen=True):
    by: str
    reason: str = ""


class PeekAnswer(msgspec.Struct, frozen=True):
    messages: list[dict[str, object]]
    total: int
    truncated: bool = False


@click.group()
def policy() -> None:
    """Set options of queues and exchanges whose names match a pattern."""


@policy.command("set")
@click.argument("name")
@click.argument("pattern")
@click.argument("definition")
@click.option("--priority", default=0, show_default=True, help="Of several that match, the highest wins.")
@click.option("--apply-to", default="all", show_default=True, help="all, queues, exchanges, ...")
@_operator
@in_vhost
@with_broker
def set_policy(
    target: Target,
    name: str,
    pattern: str,
    definition: str,
    priority: int,
    apply_to: str,
    operator: bool,
    vhost: str,
) -> None:
    """Set policy NAME for names that match PATTERN, to a JSON DEFINITION such as '{"max-length": 1000}'."""
    try:
        values = msgspec.json.decode(definition, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise click.ClickException(f"the definition is not a JSON object: {error}") from None
    body = {"pattern": pattern, "definition": values, "priority": priority, "apply-to": apply_to}
    target.api().send("PUT", _book(operator), vhost, name, body=body)
    click.echo(f"Policy '{name}' in vhost '{vhost}' set.")


@policy.command("list")
@_operator
@as_json
@with_broker
def list_policies(target: Target, operator: bool, as_json: bool) -> None:
    """List policies, the highest priority of each vhost first."""
    rows = target.api().get(list[PolicyRow], _book(operator))
    show(rows, ("vhost", "name", "pattern", "apply-to", "definition", "priority"), as_json)


@policy.command("clear")
@click.argument("name")
@_operator
@in_vhost
@with_broker
def clear_policy(target: Target, name: str, operator: bool, vhost: str) -> None:
    """Remove policy NAME; queues go back to their own arguments."""
    target.api().send("DELETE", _book(operator), vhost, name)
    click.echo(f"Policy '{name}' in vhost '{vhost}' cleared.")


@click.group()
def queue() -> None:
    """List, pause, empty and delete queues, look at their messages and move them."""


@queue.command("list")
@click.option("-p", "--vhost", help="Only in this vhost.")
@as_json
@with_broker
def list_queues(target: Target, vhost: str | None, as_json: bool) -> None:
    """List queues with their message counts and consumers."""
    where = ("queues",) if vhost is None else ("queues", vhost)
    rows = target.api().get(list[QueueRow], *where)
    show(rows, QueueRow.__struct_fields__, as_json)


@queue.command("peek")
@click.argument("name")
@click.option(
    "--count", default=10, show_default=True, type=click.IntRange(1, 200), help="How many messages."
)
@click.option("--skip", default=0, show_default=True, type=click.IntRange(0, 10_000), help="Skip this many.")
@as_json
@in_vhost
@with_broker
def peek_queue(target: Target, name: str, count: int, skip: int, as_json: bool, vhost: str) -> None:
    """Show messages that wait in queue NAME; none is removed or marked as redelivered."""
    query = f"limit={count}&offset={skip}"
    where = ("v1", "dashboard", "queues", vhost, name, "messages")
    answer = target.api().get(PeekAnswer, *where, query=query)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(answer.messages)).decode())
        return
    for at, message in enumerate(answer.messages, skip):
        properties = msgspec.json.encode(message["properties"]).decode()
        route = printable(f"{message['exchange'] or '(default)'} / {message['routing_key']}")
        is_text = message["payload_encoding"] == "string"
        click.echo(f"#{at}  {route}  {properties}{'' if is_text else '  (body in base64)'}")
        click.echo(f"    {printable(str(message['payload']), keep=_KEPT_IN_BODIES)}")
    click.echo(f"{len(answer.messages)} of {answer.total} messages{', cut off' if answer.truncated else ''}.")


@queue.command("pause")
@click.argument("name")
@click.option("--reason", default="", help="Why, for those who find it paused.")
@in_vhost
@with_broker
def pause_queue(target: Target, name: str, reason: str, vhost: str) -> None:
    """Pause queue NAME: it takes messages and hands out none, also after a restart of the broker."""
    api = target.api()
    raw = api.send("PUT", "v1", "operator", "queues", vhost, name, "pause", body={"reason": reason})
    answer = api.decoded(PauseAnswer, raw)
    why = f" ({answer.reason})" if answer.reason else ""
    click.echo(f"Queue '{name}' in vhost '{vhost}' is paused by {answer.by}{why}.")


@queue.command("resume")
@click.argument("name")
@in_vhost
@with_broker
def resume_queue(target: Target, name: str, vhost: str) -> None:
    """Resume the paused queue NAME."""
    target.api().send("DELETE", "v1", "operator", "queues", vhost, name, "pause")
    click.echo(f"Queue '{name}' in vhost '{vhost}' is resumed: it delivers again.")


@queue.command("move")
@click.argument("name")
@to_target
@which_messages
@as_json
@in_vhost
@with_broker
def move_messages(target: Target, name: str, vhost: str, as_json: bool, **options: object) -> None:
    """Move messages that wait in queue NAME to another queue or an exchange, unchanged."""
    run_job(target.api(), ("queues", vhost, name, "move"), options, as_json)


@queue.command("copy")
@click.argument("name")
@to_target
@which_messages
@as_json
@in_vhost
@with_broker
def copy_messages(target: Target, name: str, vhost: str, as_json: bool, **options: object) -> None:
    """Copy messages that wait in queue NAME to another queue or an exchange, unchanged."""
    run_job(target.api(), ("queues", vhost, name, "copy"), options, as_json)


@queue.command("purge")
@click.argument("name")
@which_messages
@as_json
@in_vhost
@with_broker
def purge_queue(target: Target, name: str, vhost: str, as_json: bool, **options: object) -> None:
    """Delete messages that wait in queue NAME: all of them, or those that --filter and --count mean."""
    if any(options.values()) or as_json:
        run_job(target.api(), ("queues", vhost, name, "purge"), options, as_json)
        return
    target.api().send("DELETE", "queues", vhost, name, "contents")
    click.echo(f"Queue '{name}' in vhost '{vhost}' purged.")


@queue.command("delete")
@click.argument("name")
@click.option("--if-empty", is_flag=True, help="Only if it is empty.")
@click.option("--if-unused", is_flag=True, help="Only if it has no consumers.")
@in_vhost
@with_broker
def delete_queue(target: Target, name: str, if_empty: bool, if_unused: bool, vhost: str) -> None:
    """Delete queue NAME with all its messages."""
    wanted = [("if-empty", if_empty), ("if-unused", if_unused)]
    query = "&".join(f"{key}=true" for key, asked in wanted if asked)
    target.api().send("DELETE", "queues", vhost, name, query=query)
    click.echo(f"Queue '{name}' in vhost '{vhost}' deleted.")


def _book(operator: bool) -> str:
    return "operator-policies" if operator else "policies"

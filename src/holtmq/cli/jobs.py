"""``holt job``, and the options and texts of every verb that starts a job in the broker.

Owns: following a job to its end. Must not touch: what jobs do.
"""

from collections.abc import Callable, Mapping
from typing import Final

import click
import msgspec

from holtmq.cli.broker_api import BrokerApi
from holtmq.cli.ranges import Finite
from holtmq.cli.target import Target, Verb, as_json, show, with_broker

_WAIT: Final = "wait=10"
_DONE: Final = {
    "move": "moved",
    "copy": "copied",
    "purge": "deleted",
    "redrive": "redriven",
    "discard": "discarded",
}


class JobRow(msgspec.Struct, frozen=True):
    """One job."""

    id: str
    verb: str
    queue: str | None
    vhost: str | None
    state: str
    total: int
    scanned: int
    matched: int
    done: int
    unrouted: int
    by: str
    dry_run: bool = False
    rate: float | None = None
    error: str | None = None


class JobsAnswer(msgspec.Struct, frozen=True):
    jobs: list[JobRow]


def _with_options(verb: Verb, options: tuple[Callable[[Verb], Verb], ...]) -> Verb:
    for option in reversed(options):
        verb = option(verb)
    return verb


def which_messages(verb: Verb) -> Verb:
    """The options that say which messages, how fast, and whether to wait."""
    options: tuple[Callable[[Verb], Verb], ...] = (
        click.option(
            "--filter",
            "filter",
            multiple=True,
            metavar="EXPRESSION",
            help="Only messages like header.tenant=acme, json.order.id=17, body~text, age>3600; repeatable.",
        ),
        click.option("--count", type=click.IntRange(1), help="At most this many messages."),
        click.option("--rate", type=Finite(0.1, 1e6), help="At most this many messages a second."),
        click.option("--dry-run", is_flag=True, help="Count only."),
        click.option("--detach", is_flag=True, help="Do not wait: print the job and end."),
    )
    return _with_options(verb, options)


def to_target(verb: Verb) -> Verb:
    """The options that say where messages go."""
    options: tuple[Callable[[Verb], Verb], ...] = (
        click.option("--to-queue", help="To this queue."),
        click.option("--to-exchange", help="To this exchange, which routes them."),
        click.option("--routing-key", help="With this routing key, instead of each message's own."),
        click.option("--to-vhost", help="In this vhost, if it is another one."),
    )
    return _with_options(verb, options)


def run_job(
    api: BrokerApi,
    path: tuple[str, ...],
    options: Mapping[str, object],
    as_json: bool,
    body: Mapping[str, object] | None = None,
) -> None:
    """Start a job and follow it to its end; ``body``: what the verb itself adds to the request."""
    asked = {name: options[name] for name in ("filter", "count", "rate", "dry_run") if options.get(name)}
    to = _target(options)
    if to:
        asked["to"] = to
    detach = bool(options.get("detach"))
    query = "wait=0" if detach else _WAIT
    raw = api.send("POST", "v1", "operator", *path, body={**(body or {}), **asked}, query=query)
    follow(api, raw, as_json, detach=detach)


def _target(options: Mapping[str, object]) -> dict[str, object]:
    if "to_queue" not in options:
        return {}
    queue, exchange = options["to_queue"], options["to_exchange"]
    if queue is not None and exchange is not None:
        raise click.UsageError("name --to-queue or --to-exchange, not both")
    if queue is None and exchange is None:
        if options.get("to_is_optional"):
            return {}
        raise click.UsageError("name --to-queue or --to-exchange")
    if queue is not None and options["routing_key"] is not None:
        raise click.UsageError("--routing-key belongs to --to-exchange")
    named = {
        "queue": queue,
        "exchange": exchange,
        "routing_key": options["routing_key"],
        "vhost": options["to_vhost"],
    }
    return {name: value for name, value in named.items() if value is not None}


def follow(api: BrokerApi, raw: bytes, as_json: bool, *, detach: bool = False) -> None:
    """Wait for the end of a job and say what came of it; exit status 1 if it failed."""
    row = api.decoded(JobRow, raw)
    try:
        while row.state == "running" and not detach:
            click.echo(
                f"job {row.id}: {row.scanned:,} of {row.total:,} looked at, {row.done:,} done", err=True
            )
            raw = api.send("GET", "v1", "operator", "jobs", row.id, query=_WAIT)
            row = api.decoded(JobRow, raw)
    except KeyboardInterrupt:
        click.echo(f"job {row.id} goes on in the broker; `holt job cancel {row.id}` stops it", err=True)
        raise SystemExit(130) from None
    if as_json:
        click.echo(msgspec.json.format(raw).decode())
    else:
        click.echo(_sentence(row))
    if row.state not in ("done", "running"):
        raise SystemExit(1)


def _sentence(row: JobRow) -> str:
    if row.state == "running":
        return f"Job {row.id} runs in the broker; `holt job show {row.id}` tells how far it is."
    if row.dry_run:
        text = f"{row.matched:,} of {row.scanned:,} messages would be {_DONE[row.verb]}."
    else:
        text = f"{row.done:,} of {row.scanned:,} messages {_DONE[row.verb]}."
    if row.unrouted:
        text += f" {row.unrouted:,} stay, because there is no queue for them."
    if row.state != "done":
        why = f": {row.error}" if row.error else ""
        text += f" Job {row.id} {row.state}{why}. `holt job resume {row.id}` goes on where it stopped."
    return text


@click.group()
def job() -> None:
    """Watch, cancel and resume jobs: moves, copies, purges and redrives in the broker."""


@job.command("list")
@as_json
@with_broker
def list_jobs(target: Target, as_json: bool) -> None:
    """List jobs, newest first."""
    rows = target.api().get(JobsAnswer, "v1", "operator", "jobs").jobs
    columns = ("id", "verb", "vhost", "queue", "state", "total", "scanned", "matched", "done", "by", "error")
    show(rows, columns, as_json)


@job.command("show")
@click.argument("number")
@as_json
@with_broker
def show_job(target: Target, number: str, as_json: bool) -> None:
    """Show job NUMBER."""
    api = target.api()
    follow(api, api.send("GET", "v1", "operator", "jobs", number), as_json, detach=True)


@job.command("cancel")
@click.argument("number")
@with_broker
def cancel_job(target: Target, number: str) -> None:
    """Stop job NUMBER after the batch at hand; an ended job is removed from the list."""
    api = target.api()
    row = api.decoded(JobRow, api.send("DELETE", "v1", "operator", "jobs", number))
    if row.state == "cancelled":
        click.echo(f"Job {number} cancelled.")
    else:
        click.echo(f"Job {number} had ended ({row.state}): removed from the list.")


@job.command("resume")
@click.argument("number")
@as_json
@with_broker
def resume_job(target: Target, number: str, as_json: bool) -> None:
    """Go on with job NUMBER exactly where it stopped."""
    api = target.api()
    follow(api, api.send("POST", "v1", "operator", "jobs", number, "resume", query=_WAIT), as_json)

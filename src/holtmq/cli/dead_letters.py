"""``holt dead-letters``: what failed and why, and bringing it back.

Owns: arguments and texts. Must not touch: the API paths of other verbs; rules.
"""

import functools
import time
from collections.abc import Callable, Mapping
from typing import BinaryIO
from urllib.parse import urlencode

import click
import msgspec

from holtmq.cli.jobs import run_job, to_target, which_messages
from holtmq.cli.target import Target, Verb, as_json, show, with_broker


class SignatureRow(msgspec.Struct, frozen=True):
    """Dead letters that failed in the same way."""

    signature: str
    count: int
    kind: str
    vhost: str
    queue: str
    lies_in: str = msgspec.field(name="in")
    group: str | None
    reason: str
    text: str
    first: int | None
    last: int | None


class SignaturesAnswer(msgspec.Struct, frozen=True):
    signatures: list[SignatureRow]
    total: int
    scanned: int
    truncated: bool


_REASONS = ("rejected", "expired", "maxlen", "delivery_limit", "failed")


def chosen(verb: Verb) -> Verb:
    """The options that say which dead letters; the verb gets them as ``which``."""

    @functools.wraps(verb)
    def run(*arguments: object, **options: object) -> None:
        which = {name: options.pop(name) for name in _NAMES}
        verb(*arguments, which={_NAMES[name]: value for name, value in which.items() if value}, **options)

    options: tuple[Callable[[Verb], Verb], ...] = (
        click.option(
            "--kind", type=click.Choice(["work", "partitioned"]), help="Only of this kind of queue."
        ),
        click.option("-p", "--vhost", help="Only in this vhost."),
        click.option("--queue", help="Only those that died in this queue."),
        click.option("--in", "lies_in", help="Only those that lie in this work queue."),
        click.option("--group", help="Only of this consumer group."),
        click.option("--reason", type=click.Choice(_REASONS), help="Only with this reason."),
        click.option("--signature", help="Only with this error signature, as listed."),
        click.option("--id", "ids", multiple=True, help="Only this one; repeatable."),
    )
    made: Verb = run
    for option in reversed(options):
        made = option(made)
    return made


_NAMES = {
    "kind": "kind",
    "vhost": "vhost",
    "queue": "queue",
    "lies_in": "in",
    "group": "group",
    "reason": "reason",
    "signature": "signature",
    "ids": "ids",
}


@click.group("dead-letters")
def dead_letters() -> None:
    """List dead letters of both kinds of queue by what went wrong; redrive, discard or export them."""


@dead_letters.command("list")
@chosen
@click.option("--filter", "filters", multiple=True, help="Only messages like header.tenant=acme; repeatable.")
@as_json
@with_broker
def list_letters(
    target: Target, which: Mapping[str, object], filters: tuple[str, ...], as_json: bool
) -> None:
    """List dead letters, grouped by error signature, the most frequent first."""
    query = _query(which, filters)
    answer = target.api().get(SignaturesAnswer, "v1", "operator", "dead-letters", query=query)
    columns = ("count", "signature", "kind", "vhost", "queue", "in", "group", "reason", "text")
    if as_json:
        show(answer.signatures, (*columns, "first", "last"), as_json)
        return
    show(answer.signatures, columns, as_json)
    newest = max((row.last for row in answer.signatures if row.last is not None), default=None)
    since = (
        "" if newest is None else f", the newest of {time.strftime('%F %T', time.localtime(newest / 1000))}"
    )
    click.echo(f"{answer.total:,} dead letters{since}.")
    if answer.truncated:
        click.echo(f"There are more: only {answer.scanned:,} messages were read. Choose by --queue or --in.")


@dead_letters.command("redrive")
@chosen
@to_target
@which_messages
@click.option("--all", "everything", is_flag=True, help="All of them, if nothing else chooses.")
@as_json
@with_broker
def redrive(
    target: Target, which: Mapping[str, object], everything: bool, as_json: bool, **options: object
) -> None:
    """Bring dead letters back to the queues in which they died, or to another place."""
    _refuse_unless_chosen(which, options, everything)
    api = target.api()
    run_job(api, ("dead-letters", "redrive"), {**options, "to_is_optional": True}, as_json, which)


@dead_letters.command("discard")
@chosen
@which_messages
@click.option("--all", "everything", is_flag=True, help="All of them, if nothing else chooses.")
@as_json
@with_broker
def discard(
    target: Target, which: Mapping[str, object], everything: bool, as_json: bool, **options: object
) -> None:
    """Delete dead letters."""
    _refuse_unless_chosen(which, options, everything)
    run_job(target.api(), ("dead-letters", "discard"), options, as_json, which)


@dead_letters.command("export")
@chosen
@click.option("--filter", "filters", multiple=True, help="Only messages like header.tenant=acme; repeatable.")
@click.option("-o", "--output", type=click.File("wb"), default="-", help="Write to this file.")
@with_broker
def export(target: Target, which: Mapping[str, object], filters: tuple[str, ...], output: BinaryIO) -> None:
    """Write dead letters as JSON lines; they stay where they are."""
    query = _query(which, filters)
    pieces = target.api().pieces("v1", "operator", "dead-letters", "export", query=query)
    output.write(next(pieces, b""))  # creates the file, now that the broker has answered
    for piece in pieces:
        output.write(piece)


def _refuse_unless_chosen(
    which: Mapping[str, object], options: Mapping[str, object], everything: bool
) -> None:
    if not (which or options.get("filter") or everything):
        raise click.UsageError("say which dead letters: --queue, --signature, --id, --filter, ..., or --all")


def _query(which: Mapping[str, object], filters: tuple[str, ...]) -> str:
    pairs: list[tuple[str, object]] = []
    for name, value in which.items():
        if isinstance(value, tuple):
            pairs += [("id", one) for one in value]
        else:
            pairs.append((name, value))
    return urlencode([*pairs, *(("filter", one) for one in filters)])

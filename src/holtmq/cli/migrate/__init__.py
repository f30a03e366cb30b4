"""``holt migrate``: from RabbitMQ, or another broker with AMQP 0-9-1, to this one.

Owns: arguments, texts and the order: plan, definitions, messages, account. Must not touch: how each is done.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from holtmq.cli.migrate.moving import Begun, Line, Moving
from holtmq.cli.migrate.old_broker import OldBroker
from holtmq.cli.migrate.plan import Definitions, Note, Plan, make_plan
from holtmq.cli.target import Target, show, with_broker
from holtmq.cli.wording import counted
from holtmq.name_patterns import BadPattern, compile_pattern


class ExchangeType(msgspec.Struct):
    name: str


class Overview(msgspec.Struct):
    exchange_types: list[ExchangeType]


class Report(msgspec.Struct):
    without_meaning: list[Note]


class Result(msgspec.Struct):
    """What --json prints at the end."""

    queues: list[Line]
    other_consumers: int


@click.command()
@click.argument("source")
@click.option("--management", help="The old broker's management API, such as http://old:15672.")
@click.option(
    "--definitions",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the old broker's definitions, instead of --management.",
)
@click.option("--vhost", "vhosts", multiple=True, help="Only this vhost; may be repeated.")
@click.option("--queues", "pattern", default="", help="Move messages only of queues that match this pattern.")
@click.option("--dry-run", is_flag=True, help="Print the plan and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask whether the plan is right.")
@click.option("--skip-unsupported", is_flag=True, help="Go on without what cannot be taken.")
@click.option("--no-messages", is_flag=True, help="Take the definitions only.")
@click.option(
    "--finish", is_flag=True, help="Wait until the old queues are empty and unused, then delete the shovels."
)
@click.option(
    "--patience", default=600.0, show_default=True, help="Seconds to wait for a broker that is down."
)
@click.option("--json", "as_json", is_flag=True, help="Print the account as JSON.")
@with_broker
def migrate(
    target: Target,
    source: str,
    management: str | None,
    file: Path | None,
    vhosts: tuple[str, ...],
    pattern: str,
    dry_run: bool,
    yes: bool,
    skip_unsupported: bool,
    no_messages: bool,
    finish: bool,
    patience: float,
    as_json: bool,
) -> None:
    """Move from the broker at SOURCE, such as amqp://user:password@old, to this one, while both run.

    Takes over users, permissions, policies, exchanges, queues and bindings, or nothing if one of them is
    refused. Then a shovel for each queue moves its messages, those that arrive later, too: switch consumers
    and producers one by one, and then run the command again with --finish. It can be ended and started
    again at any time.
    """
    old = OldBroker(source)
    moving = Moving(target, old, patience)
    begun = moving.begun()
    if begun is not None and begun.source != old.shown:
        raise click.ClickException(
            f"a migration from {begun.source} is under way: finish it first with `holt migrate --finish`"
        )
    if begun is None:
        if finish:
            raise click.ClickException("no migration is under way: start one without --finish")
        plan = _plan(target, _definitions(old, management, file, target.tls_ca), vhosts)
        _print_plan(plan)
        if plan.left_out and not skip_unsupported:
            raise click.ClickException("some parts cannot be taken; --skip-unsupported goes on without them")
        if dry_run:
            return
        if not yes:
            click.confirm("Apply this plan?", abort=True)
        _apply(target, plan)
        if no_messages:
            return
        chosen = [
            [ref for ref in refs if _matches(pattern, ref.name)] for refs in (plan.queues, plan.streams)
        ]
        begun = moving.begin(*chosen)
    else:
        click.echo(f"Going on with the migration from {begun.source}.", err=True)
        if dry_run:
            raise click.ClickException("the plan was applied already; --dry-run has nothing to show")
        moving.start(begun)
    _move(moving, begun, finish, as_json)


def _definitions(
    old: OldBroker, management: str | None, file: Path | None, tls_ca: Path | None
) -> Definitions:
    if (management is None) == (file is None):
        raise click.UsageError("name either --management or --definitions")
    if management is not None:
        return old.definitions(management, tls_ca)
    assert file is not None
    try:
        return msgspec.json.decode(file.read_bytes(), type=Definitions)
    except msgspec.MsgspecError as error:
        raise click.ClickException(f"{file} does not contain definitions: {error}") from None


def _plan(target: Target, definitions: Definitions, vhosts: tuple[str, ...]) -> Plan:
    api = target.api()
    types = [kind.name for kind in api.get(Overview, "overview").exchange_types]
    plan = make_plan(definitions, target.user, types, vhosts)
    answer = api.send("POST", "definitions", body=plan.definitions, query="dry_run=true&report=true")
    plan.no_meaning = api.decoded(Report, answer).without_meaning
    return plan


def _apply(target: Target, plan: Plan) -> None:
    target.api().send("POST", "definitions", body=plan.definitions)
    click.echo("The definitions are applied.", err=True)


def _print_plan(plan: Plan) -> None:
    click.echo("Taken as it is:")
    for section, count in plan.counts().items():
        if count:
            click.echo(f"  {counted(count, section.replace('_', ' '))}")
    _print_notes("Translated:", plan.translated)
    _print_notes("Kept and exported, without effect here:", plan.no_meaning)
    _print_notes("Cannot be taken:", plan.left_out)
    _print_notes("Stays where it is:", plan.not_moved)
    moved, copied = counted(len(plan.queues), "queues"), counted(len(plan.streams), "streams")
    click.echo(f"Messages of {moved} are moved, those of {copied} copied.")


def _print_notes(title: str, notes: Iterable[Note]) -> None:
    lines = [
        f"  {note.what} '{note.name}'"
        + (f" in vhost '{note.vhost}'" if note.vhost else "")
        + (f", {note.key}" if note.key else "")
        + f": {note.reason}"
        for note in notes
    ]
    if lines:
        click.echo("\n".join([title, *lines]))


def _matches(pattern: str, name: str) -> bool:
    try:
        return not pattern or compile_pattern(pattern).found_in(name)
    except BadPattern as error:
        raise click.BadParameter(f"--queues: {error}") from None


def _move(moving: Moving, begun: Begun, finish: bool, as_json: bool) -> None:
    progress = _Progress()
    try:
        lines = moving.wait(begun, alone=finish, on_progress=progress)
    except KeyboardInterrupt:
        click.echo("\nThe shovels go on. Start the command again to see them.", err=True)
        sys.exit(130)
    progress.end()
    others = progress.others
    if finish:
        depths = moving.finish(begun)
        late = {queue: depth.ready for queue, depth in depths.items() if depth is not None and depth.ready}
        for queue, count in late.items():
            where = f"queue '{queue.name}' in vhost '{queue.vhost}'"
            click.echo(
                f"{counted(count, 'messages')} came to {where} of the old broker at the end.", err=True
            )
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(Result(lines, others))).decode())
    else:
        show(lines, Line.__struct_fields__, as_json=False)
        twice = sum(line.maybe_twice for line in lines)
        moved = counted(sum(line.moved for line in lines), "messages")
        click.echo(f"Moved {moved}, of which {twice} perhaps twice.")
    if finish and late:
        raise click.ClickException("the old broker is still in use: start the migration again")
    if not finish:
        click.echo(
            "The old queues are empty. The shovels go on moving what arrives there: switch consumers first, "
            "then producers, then run this command with --finish.",
            err=True,
        )


class _Progress:
    """A line that changes on a terminal; elsewhere a line when the figures change much."""

    def __init__(self) -> None:
        self._shown = ""
        self._errors: set[str] = set()
        self.others = 0

    def __call__(self, lines: list[Line], others: int) -> None:
        self.others = others
        moved, left = sum(line.moved for line in lines), sum(line.left or 0 for line in lines)
        busy = sum(1 for line in lines if line.left)
        text = f"moved {moved}, left {left} in {busy} of {counted(len(lines), 'queues')}"
        if others and not left:
            text += f"; consumers that still read from the old broker: {others}"
        for line in lines:
            if line.last_error and line.state == "terminated" and line.last_error not in self._errors:
                self._errors.add(line.last_error)
                click.echo(f"{'' if not self._shown else chr(10)}{line.queue}: {line.last_error}", err=True)
        if text != self._shown:
            self._shown = text
            click.echo(
                f"\r\x1b[K{text}" if sys.stderr.isatty() else text, nl=not sys.stderr.isatty(), err=True
            )

    def end(self) -> None:
        if sys.stderr.isatty():
            click.echo(err=True)

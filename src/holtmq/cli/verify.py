"""``holt verify``: test the broker's durability on this disk.

Owns: the options, the progress bar, the exit status. Must not touch: the verification, which is in
``holtmq.verify``.
"""

from pathlib import Path
from typing import NoReturn

import click

from holtmq.cli.ranges import Finite


@click.command()
@click.option("--rounds", default=50, show_default=True, type=click.IntRange(1), help="Number of kills.")
@click.option("--seed", default=None, type=int, help="Repeat the plan of an earlier run.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="A folder on the disk to verify; the current one if not given. A temporary folder is made in it.",
)
@click.option(
    "--round-seconds",
    default=0.5,
    show_default=True,
    type=Finite(0.01, 60),
    help="Mean time between a recovery and the next kill.",
)
@click.option(
    "--journal-sync",
    type=click.Choice(["always", "never"]),
    default="always",
    show_default=True,
    help="As the setting of the same name; never must fail at a power cut.",
)
@click.option(
    "--observe/--no-observe",
    default=True,
    show_default=True,
    help="Watch the broker's fdatasync calls from outside with strace, if it is installed and allowed.",
)
@click.option(
    "--replica",
    metavar="URL",
    default="",
    help="Verify failover instead: two nodes that share a log in this PostgreSQL, removed afterwards.",
)
@click.option("--stop-at-failure", is_flag=True, help="Stop at the first violation.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON on standard output.")
def verify(
    rounds: int,
    seed: int | None,
    folder: Path | None,
    round_seconds: float,
    journal_sync: str,
    observe: bool,
    replica: str,
    stop_at_failure: bool,
    as_json: bool,
) -> None:
    """Prove durability on your own disk.

    Starts a broker in a temporary folder, publishes with confirms, acknowledges and runs transactions
    against it. In each round the broker is killed (the operating system keeps running), or its power is cut
    (simulated: what was not synced is undone). After each recovery everything it holds is compared with a
    record kept outside. Exit status 0: every promise was kept.
    """
    import asyncio
    import secrets

    if replica:
        _verify_replica(replica, rounds, seed, folder, stop_at_failure, as_json)

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from holtmq.verify.judge import Judge, Options
    from holtmq.verify.report import Report, show

    seed = secrets.randbelow(1_000_000) if seed is None else seed
    console = Console(stderr=as_json)
    progress = Progress(
        TextColumn("verifying"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[found]}"),
        console=console,
        transient=True,
    )
    task = progress.add_task("rounds", total=rounds, found="")

    def after_round(report: Report) -> None:
        broken = "" if report.passed else "  [red]broken promises[/]"
        found = f"{report.confirmed:,} confirmed, {report.lost} lost{broken}"
        progress.update(task, completed=report.rounds, found=found)

    options = Options(
        rounds,
        seed,
        folder,
        round_seconds,
        sync=journal_sync,
        observe=observe,
        stop_at_failure=stop_at_failure,
    )
    with progress:
        report = asyncio.run(Judge(options, after_round).run())
    if as_json:
        click.echo(report.as_json().decode())
    else:
        show(report, console)
    raise SystemExit(0 if report.passed else 1)


def _verify_replica(
    url: str, rounds: int, seed: int | None, folder: Path | None, stop_at_failure: bool, as_json: bool
) -> NoReturn:
    """Run two nodes on a log of their own in the user's PostgreSQL, and inject one fault per round."""
    import asyncio
    import secrets

    from rich.console import Console

    from holtmq.journal import JournalError

    try:
        from holtmq.journal.replica.errors import Unreachable
        from holtmq.journal.replica.session import Session
        from holtmq.journal.replica.store import LogStore
    except ImportError as missing:
        raise click.ClickException(f"{missing}: pip install 'holtmq[postgres]'") from None
    from holtmq.verify.replica.judge import Options, ReplicaJudge
    from holtmq.verify.replica.proxy import address_of
    from holtmq.verify.replica.report import ReplicaReport, show

    console = Console(stderr=True)

    def after_round(report: ReplicaReport) -> None:
        console.print(
            f"{report.rounds}/{rounds}  {report.last_fault}: {report.confirmed:,} confirmed, "
            f"{report.broken} broken promises",
            highlight=False,
        )

    seed = secrets.randbelow(1_000_000) if seed is None else seed
    session = Session(url, 10.0, "verify")
    try:
        with session.connection() as connection:
            exact = address_of(connection, url)
        options = Options(exact, rounds, seed, folder, stop_at_failure=stop_at_failure)
        judge = ReplicaJudge(options, after_round)
        store = LogStore(session, judge.log_name)
        store.open()
        try:
            report = asyncio.run(judge.run())
        finally:
            store.remove()
    except (JournalError, Unreachable) as exc:
        raise click.ClickException(str(exc)) from None
    finally:
        session.close()
    if as_json:
        click.echo(report.as_json().decode())
    else:
        show(report, Console())
    raise SystemExit(0 if report.passed else 1)

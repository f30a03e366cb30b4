"""``holt bench``: the load tool, for one broker or two side by side.

Owns: the command line and the printed comparison. Must not touch: how load is made and measured.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

import click

from holtmq.cli.ranges import Finite
from holtmq.cli.target import tls_ca_option
from holtmq.load.http_workloads import HTTP_WORKLOADS, HttpWorkload
from holtmq.load.workloads import WORKLOADS, Workload

if TYPE_CHECKING:
    from holtmq.load.comparison import ComparedRun, Target
    from holtmq.load.http_stage import HttpTarget

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T", "Target", "HttpTarget")
W = TypeVar("W", Workload, HttpWorkload)


class Options(TypedDict):
    """The options that both kinds of load share; ``_measuring`` declares them."""

    url: str
    against: str | None
    names: tuple[str, ...]
    seconds: float
    warm_up: float
    rounds: int
    messages: int | None
    pid: int | None
    against_pid: int | None
    json_file: Path | None
    html_file: Path | None


@click.group()
def bench() -> None:
    """Measure brokers: rates, CPU time per message, latencies, memory."""


@bench.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_workloads(as_json: bool) -> None:
    """Print the workloads and what each one does."""
    rows = [(one.name, "amqp", one.about) for one in WORKLOADS.values()]
    rows += [(one.name, "http", one.about) for one in HTTP_WORKLOADS.values()]
    if as_json:
        names = ("name", "protocol", "about")
        click.echo(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2))
        return
    width = max(len(name) for name, _, _ in rows)
    for name, protocol, about in rows:
        click.echo(f"{name:<{width}}  {protocol}  {about}")


_file = click.Path(path_type=Path, dir_okay=False)


def _measuring(url: str, workloads: Iterable[str], backlog: str) -> Callable[[F], F]:
    """Declare the options that both kinds of load share."""
    options = (
        click.option("--url", default=url, show_default=True, help="The broker to measure."),
        click.option(
            "--against", metavar="URL", help="A second broker: the same work on both, in turn, with ratios."
        ),
        click.option(
            "--workload",
            "names",
            multiple=True,
            type=click.Choice(list(workloads)),
            metavar="NAME",
            help="A workload of `holt bench list`; may be repeated.  [default: all]",
        ),
        click.option(
            "--seconds",
            default=5.0,
            show_default=True,
            type=Finite(0.1),
            help="Measured time of a round.",
        ),
        click.option("--warm-up", default=1.0, show_default=True, type=Finite(0), help="Warm-up time."),
        click.option(
            "--rounds", default=3, show_default=True, type=click.IntRange(1), help="Rounds on each broker."
        ),
        click.option("--messages", type=click.IntRange(1), help=backlog),
        click.option(
            "--pid", type=int, help="The broker's process.  [default: found when it is on this machine]"
        ),
        click.option("--against-pid", type=int, help="The second broker's process."),
        click.option("--json", "json_file", type=_file, help="Write all figures here."),
        click.option("--html", "html_file", type=_file, help="Write a page with a plot here."),
    )

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@bench.command()
@_measuring(
    "amqp://guest:guest@127.0.0.1:5672/", WORKLOADS, "Backlog of the workload deep.  [default: 1000000]"
)
@tls_ca_option
def amqp(tls_ca: Path | None, **options: Unpack[Options]) -> None:
    """Put load on an AMQP 0-9-1 broker and print the results.

    With TLS: amqps://user:password@host:5671.

    The tool declares queues named holt-load-… and deletes them again. Messages without confirms are
    published as fast as they are consumed. CPU time and memory are those of the broker's process and its
    children, if it runs on this machine.
    """
    from holtmq.load.comparison import Target, compare

    _measure("amqp", options, WORKLOADS, partial(Target.at, tls_ca=str(tls_ca or "")), compare)


@bench.command()
@_measuring("http://127.0.0.1:6632", HTTP_WORKLOADS, "Backlog of the workloads that start with one.")
@click.option(
    "--token", default="", envvar="HOLT_TOKEN", help="A token with the right to read and write, for both."
)
@tls_ca_option
def http(token: str, tls_ca: Path | None, **options: Unpack[Options]) -> None:
    """Put load on a broker's partitioned queues over HTTP and print the results.

    A user goes into the address: https://user:password@host:6633.

    The tool works on a queue named holt-load and deletes it again. Rates count messages: messages stored if
    the workload only pushes, else messages popped and acked. Times are those of a push if the workload only
    pushes, of waking a pop in `wake`, else of an ack.
    """
    from holtmq.load.http_comparison import compare_http
    from holtmq.load.http_stage import HttpTarget

    _measure(
        "http",
        options,
        HTTP_WORKLOADS,
        partial(HttpTarget.at, token=token, tls_ca=str(tls_ca or "")),
        compare_http,
    )


@contextmanager
def _terminated_in_order() -> Iterator[None]:
    """Let SIGTERM unwind the round, as SIGINT does, so that the queues of the tool are deleted."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _measure(
    kind: str,
    options: Options,
    workloads: Mapping[str, W],
    target_at: Callable[[str, int | None], T],
    compare: Callable[..., ComparedRun],
) -> None:
    """Run the chosen workloads on one target or two, and print the comparison."""
    from rich.console import Console

    from holtmq.load.comparison import distinct
    from holtmq.load.errors import LoadError

    names = options["names"]
    brokers = [(options["url"], options["pid"])]
    if options["against"] is not None:
        brokers.append((options["against"], options["against_pid"]))
    try:
        targets = distinct([target_at(url, pid) for url, pid in brokers])
    except LoadError as error:
        raise click.ClickException(str(error)) from None
    chosen = [workloads[name] for name in names or workloads]
    if options["messages"] is not None:
        chosen = [replace(one, messages=options["messages"]) if one.messages else one for one in chosen]
    with _terminated_in_order(), Console(stderr=True).status("") as status:
        outcomes = [
            compare(
                targets,
                workload,
                rounds=options["rounds"],
                seconds=options["seconds"],
                warm_up=options["warm_up"],
                on_round=lambda target, workload: status.update(f"{workload.name} on {target.label}"),
            )
            for workload in chosen
        ]
    command = f"holt bench {kind} " + " ".join(f"--workload {name}" for name in names)
    _show([target.label for target in targets], outcomes, options, command)


def _show(labels: list[str], outcomes: list[ComparedRun], options: Options, command: str) -> None:
    """Print the table, write the requested files, and exit with status 1 if a round failed."""
    from rich.console import Console

    from holtmq.load.report import as_html, as_json, as_table, new_report

    # Rich assumes 80 columns for a pipe, which would cut off the ratios.
    Console(width=None if sys.stdout.isatty() else 170).print(as_table(outcomes))
    report = new_report(
        labels,
        outcomes,
        rounds=options["rounds"],
        seconds=options["seconds"],
        warm_up=options["warm_up"],
        command=command,
    )
    if options["json_file"] is not None:
        options["json_file"].write_bytes(as_json(report))
    if options["html_file"] is not None:
        options["html_file"].write_text(as_html(report), encoding="utf-8")
    if any(outcome.failures for outcome in outcomes):
        raise SystemExit(1)

"""``make bench``: everything we claim about speed, measured anew and written to ``bench/results``.

Owns: the choice of what runs. Must not touch: how it is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
from bench import amqp, http, http_scale, micro
from rich.console import Console

from holtmq.load.http_workloads import HTTP_WORKLOADS
from holtmq.load.report import Report, as_html, as_json, as_markdown
from holtmq.load.workloads import WORKLOADS

_RESULTS = Path(__file__).parent / "results"


@click.command()
@click.argument("part", required=False, type=click.Choice(["amqp", "http", "micro"]))
@click.option("--quick", is_flag=True, help="One short round of each: shows that it runs, proves nothing.")
@click.option(
    "--workload",
    "names",
    multiple=True,
    type=click.Choice([*WORKLOADS, *HTTP_WORKLOADS]),
    metavar="NAME",
    help="Only this one, of `holt bench list`; may be repeated.",
)
@click.option("--seconds", default=3.0, show_default=True, help="Measured time of a round.")
@click.option("--rounds", default=3, show_default=True, help="Rounds on each broker, in turn.")
@click.option(
    "--repeated-rounds", default=1, show_default=True, help="Rounds of AMQP workloads whose messages repeat."
)
@click.option(
    "--client-messages", default=30_000, show_default=True, help="Messages of each real client; 0: none."
)
@click.option("--amqp/--no-amqp", "with_amqp", default=True, help="Work queues beside RabbitMQ.")
@click.option("--http/--no-http", "with_http", default=True, help="Partitioned queues over HTTP.")
@click.option("--peers/--no-peers", default=True, help="PostgreSQL and Redis beside the partitioned queues.")
@click.option("--micro/--no-micro", "with_micro", default=True, help="Also the figures of single operations.")
@click.option(
    "--results", type=click.Path(path_type=Path, file_okay=False), default=_RESULTS, help="Where to write."
)
def main(
    part: str | None,
    quick: bool,
    names: tuple[str, ...],
    seconds: float,
    rounds: int,
    repeated_rounds: int,
    client_messages: int,
    with_amqp: bool,
    with_http: bool,
    peers: bool,
    with_micro: bool,
    results: Path,
) -> None:
    """HoltMQ and its peers side by side, on this machine, now.

    PART is one of amqp, http and micro; by default all of them. `amqp` alone takes about ten minutes.
    """
    console = Console(width=170)
    warm_up = 1.0
    if part is not None:
        with_amqp, with_http, with_micro = part == "amqp", part == "http", part == "micro"
    if quick:
        seconds, rounds, warm_up, client_messages = 1.0, 1, 0.3, min(client_messages, 5_000)
    # By the time of day too: a second run stands beside the first and does not replace it.
    now = datetime.now(UTC)
    run = _Run(
        quick,
        names,
        seconds,
        rounds,
        repeated_rounds,
        client_messages,
        warm_up,
        console,
        results / now.strftime("%Y-%m-%d"),
    )
    run.folder.mkdir(parents=True, exist_ok=True)
    at = now.strftime("%H%M%S")
    failed = False
    if with_amqp:
        failed = run.amqp(at) or failed
    if with_http:
        failed = run.http(at, peers) or failed
    if with_micro and not names:
        if with_amqp or part == "micro":
            figures = micro.run(quick=quick, console=console)
            (run.folder / f"micro-{at}.json").write_bytes(micro.as_json(figures))
        if with_http:
            scale = http_scale.run(quick=quick, console=console)
            (run.folder / f"http-scale-{at}.json").write_bytes(msgspec.json.encode(scale))
    console.print(f"written to {run.folder}")
    if failed:
        raise SystemExit(1)


@dataclass(frozen=True, slots=True)
class _Run:
    """What one call of the tool measures with."""

    quick: bool
    names: tuple[str, ...]
    seconds: float
    rounds: int
    repeated: int
    client_messages: int
    warm_up: float
    console: Console
    folder: Path

    def amqp(self, at: str) -> bool:
        """Work queues; whether a round failed."""
        chosen = [WORKLOADS[name] for name in self.names or WORKLOADS if name in WORKLOADS]
        if not chosen:
            return False
        if self.quick:
            chosen = [replace(one, messages=min(one.messages, 100_000)) for one in chosen]
        report = amqp.run(
            chosen,
            rounds=self.rounds,
            repeated=self.rounds if self.names else self.repeated,
            seconds=self.seconds,
            warm_up=self.warm_up,
            client_messages=0 if self.names else self.client_messages,
            console=self.console,
            command=self._command(),
        )
        return self._write(report, f"amqp-{at}", as_markdown(report.outcomes))

    def http(self, at: str, peers: bool) -> bool:
        """Partitioned queues; whether a round failed."""
        chosen = [HTTP_WORKLOADS[name] for name in self.names or HTTP_WORKLOADS if name in HTTP_WORKLOADS]
        if not chosen:
            return False
        if self.quick:
            chosen = [http.shortened(one) for one in chosen]
        report = http.run(
            chosen,
            rounds=self.rounds,
            seconds=self.seconds,
            warm_up=self.warm_up,
            peers=peers,
            console=self.console,
            command=self._command(),
        )
        return self._write(report, f"http-{at}", http.as_markdown(report))

    def _command(self) -> str:
        words = "--quick" if self.quick else f"--seconds {self.seconds:g} --rounds {self.rounds}"
        return " ".join(["python -m bench", *(f"--workload {name}" for name in self.names), words])

    def _write(self, report: Report, name: str, table: str) -> bool:
        (self.folder / f"{name}.json").write_bytes(as_json(report))
        (self.folder / f"{name}.html").write_text(as_html(report), encoding="utf-8")
        (self.folder / f"{name}.md").write_text(table, encoding="utf-8")
        return any(outcome.failures for outcome in report.outcomes)


if __name__ == "__main__":
    main()

"""The report of a verification: what was promised, what was kept, and how fast.

Owns: the numbers and how they are shown. Must not touch: how they came about.
"""

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table


class Percentiles(msgspec.Struct, frozen=True):
    """Of one measured quantity; all zero when nothing was measured."""

    p50: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> "Percentiles":
        """From what was measured."""
        if not values:
            return cls()
        ordered = sorted(values)
        return cls(ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1])


class Report(msgspec.Struct, kw_only=True):
    """What ``holt verify`` found out."""

    seed: int
    folder: str
    file_system: str
    rounds: int = 0
    kills: int = 0  # rounds that ended in SIGKILL: the page cache survives
    power_cuts: int = 0  # rounds after which everything not synced was taken back
    deaths_in_recovery: int = 0
    bytes_cut: int = 0
    confirmed: int = 0
    transactions: int = 0
    acks: int = 0
    lost: int = 0
    undone_acks: int = 0
    order_violations: int = 0
    torn_transactions: int = 0
    damaged: int = 0
    duplicates: int = 0
    refused_starts: int = 0
    examples: list[str] = msgspec.field(default_factory=list)  # of what went wrong
    fsyncs_per_second: float = 0.0
    confirms_per_fsync: float = 0.0
    batch_bytes: Percentiles = Percentiles()
    confirm_ms: Percentiles = Percentiles()
    recovery_ms: Percentiles = Percentiles()
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        return not (
            self.lost
            or self.undone_acks
            or self.order_violations
            or self.torn_transactions
            or self.damaged
            or self.refused_starts
        )

    def as_json(self) -> bytes:
        """Everything, and the verdict."""
        return msgspec.json.format(
            msgspec.json.encode({"passed": self.passed, **msgspec.structs.asdict(self)}), indent=2
        )


def show(report: Report, console: Console) -> None:
    """For people."""
    table = Table(title=f"holt verify, seed {report.seed}", title_justify="left", show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_row("folder", f"{report.folder} ({report.file_system})")
    table.add_row(
        "rounds",
        f"{report.rounds} ({report.kills} kills, {report.power_cuts} power cuts, "
        f"{report.deaths_in_recovery} of them in recovery)",
    )
    table.add_row("bytes taken back by power cuts", f"{report.bytes_cut:,}")
    table.add_row("confirmed messages", f"{report.confirmed:,}")
    table.add_row("committed transactions", f"{report.transactions:,}")
    table.add_row("durable acks", f"{report.acks:,}", end_section=True)
    for label, count in (
        ("lost", report.lost),
        ("undone acks", report.undone_acks),
        ("order violations", report.order_violations),
        ("torn transactions", report.torn_transactions),
        ("damaged or invented messages", report.damaged),
        ("refused to start", report.refused_starts),
    ):
        table.add_row(label, f"[green]{count}[/]" if not count else f"[bold red]{count:,}[/]")
    table.add_row(
        "duplicates (redelivered after a crash: allowed)", f"{report.duplicates:,}", end_section=True
    )
    table.add_row("fsyncs per second", f"{report.fsyncs_per_second:,.0f}")
    table.add_row("confirms per fsync", f"{report.confirms_per_fsync:,.1f}")
    table.add_row(
        "bytes per write, p50 / p99", f"{report.batch_bytes.p50:,.0f} / {report.batch_bytes.p99:,.0f}"
    )
    table.add_row(
        "confirm latency, p50 / p99", f"{report.confirm_ms.p50:.2f} / {report.confirm_ms.p99:.2f} ms"
    )
    table.add_row("recovery, p50 / max", f"{report.recovery_ms.p50:.1f} / {report.recovery_ms.max:.1f} ms")
    console.print(table)
    for example in report.examples:
        console.print(f"  [red]{example}[/]", highlight=False)
    verdict = "[bold green]PASSED[/]" if report.passed else "[bold red]FAILED[/]"
    console.print(f"{verdict} in {report.seconds:.1f} s", highlight=False)

"""The report of a verification: what was promised, what was kept, and how fast.

Owns: the numbers and how they are shown. Must not touch: how they are measured.
"""

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of one measured quantity; all zero when nothing was measured."""

    p50: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> "Percentiles":
        """Compute from measured values."""
        if not values:
            return cls()
        ordered = sorted(values)
        return cls(ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1])


class WorkloadReport(msgspec.Struct, kw_only=True):
    """What was promised to one workload, and kept."""

    confirmed: int = 0  # confirms and answered pushes
    transactions: int = 0
    acks: int = 0
    lost: int = 0
    undone_acks: int = 0
    order_violations: int = 0
    torn_transactions: int = 0
    damaged: int = 0
    refused: int = 0
    duplicates: int = 0
    confirm_ms: Percentiles = Percentiles()

    @property
    def broken(self) -> int:
        """How many promises were broken."""
        return (
            self.lost
            + self.undone_acks
            + self.order_violations
            + self.torn_transactions
            + self.damaged
            + self.refused
        )


class Report(msgspec.Struct, kw_only=True):
    """The result of ``holt verify``."""

    seed: int
    folder: str
    file_system: str
    rounds: int = 0
    kills: int = 0  # rounds that ended with SIGKILL: the page cache survives
    power_cuts: int = 0  # rounds after which everything not synced was discarded
    deaths_in_recovery: int = 0
    bytes_cut: int = 0
    checkpoints: int = 0
    compactions: int = 0
    removed_segments: int = 0
    refused_starts: int = 0
    syncs: int = 0  # reported by the broker's disk
    unseen_syncs: int = 0  # of these, calls that the kernel never received
    not_observed: str = ""  # why the calls could not be traced; empty: they were
    amqp: WorkloadReport = msgspec.field(default_factory=WorkloadReport)
    http: WorkloadReport = msgspec.field(default_factory=WorkloadReport)
    intake: WorkloadReport = msgspec.field(
        default_factory=WorkloadReport
    )  # staging, spool, timers, replayed letters
    stages: bool = True  # pyarrow is installed; without it nothing is staged
    examples: list[str] = msgspec.field(default_factory=list)  # of what went wrong
    fsyncs_per_second: float = 0.0
    confirms_per_fsync: float = 0.0
    batch_bytes: Percentiles = Percentiles()
    recovery_ms: Percentiles = Percentiles()
    seconds: float = 0.0

    @property
    def confirmed(self) -> int:
        """Confirms of all workloads."""
        return self.amqp.confirmed + self.http.confirmed + self.intake.confirmed

    @property
    def lost(self) -> int:
        """Losses of all workloads."""
        return self.amqp.lost + self.http.lost + self.intake.lost

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        broken = self.amqp.broken + self.http.broken + self.intake.broken
        return not (broken or self.refused_starts or self.unseen_syncs)

    @property
    def proved(self) -> list[str]:
        """What the run proves, as sentences."""
        seen = f"{self.rounds} deaths ({self.kills} kills, {self.power_cuts} simulated power cuts) and"
        sentences = [f"After {seen} {self.deaths_in_recovery} in recovery everything held was compared."]
        if self.unseen_syncs:
            sentences.append(
                f"{self.unseen_syncs:,} of {self.syncs:,} syncs that the broker reported were never asked of "
                "the kernel: what it confirms is not on the disk."
            )
        elif not self.not_observed:
            sentences.append(
                f"All {self.syncs:,} syncs were seen from outside the broker (strace): each call of "
                "fdatasync or fsync had returned before it was believed."
            )
        return sentences

    @property
    def not_seen(self) -> list[str]:
        """What this run could not check."""
        sentences = []
        if self.not_observed:
            sentences.append(
                f"The sync calls themselves ({self.not_observed}): {self.syncs:,} syncs were believed "
                "because the broker's disk layer reported them. A broker whose fdatasync does nothing "
                "would pass."
            )
        if not self.stages:
            sentences.append("Batches that are staged, as Spark does: pyarrow is not installed.")
        if self.file_system in ("tmpfs", "ramfs"):
            sentences.append("A disk: this folder is in memory, and its syncs do nothing.")
        sentences.append("Whether the disk keeps what it has said is synced: for that, pull the plug.")
        return sentences

    def as_json(self) -> bytes:
        """All figures and the verdict."""
        totals = {
            "passed": self.passed,
            "confirmed": self.confirmed,
            "lost": self.lost,
            "proved": self.proved,
            "not_seen": self.not_seen,
        }
        return msgspec.json.format(msgspec.json.encode({**totals, **msgspec.structs.asdict(self)}), indent=2)


def show(report: Report, console: Console) -> None:
    """Print it as a table."""
    console.print(_rounds(report))
    console.print(_workloads(report))
    for example in report.examples:
        console.print(f"  [red]{example}[/]", highlight=False)
    console.print("Proved:", *report.proved, sep="\n  ", highlight=False, markup=False)
    console.print("Not seen:", *report.not_seen, sep="\n  ", highlight=False, markup=False)
    verdict = "[bold green]PASSED[/]" if report.passed else "[bold red]FAILED[/]"
    console.print(f"{verdict} in {report.seconds:.1f} s", highlight=False)


def _rounds(report: Report) -> Table:
    table = Table(title=f"holt verify, seed {report.seed}", title_justify="left", show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_row("folder", f"{report.folder} ({report.file_system})")
    table.add_row(
        "rounds",
        f"{report.rounds} ({report.kills} kills, {report.power_cuts} power cuts), "
        f"{report.deaths_in_recovery} more deaths in recovery",
    )
    table.add_row("bytes taken back by power cuts", f"{report.bytes_cut:,}")
    table.add_row(
        "checkpoints / compactions / segments removed",
        f"{report.checkpoints:,} / {report.compactions:,} / {report.removed_segments:,}",
    )
    table.add_row("refused to start", _judged(report.refused_starts))
    seen = "not observed" if report.not_observed else _judged(report.unseen_syncs)
    table.add_row(
        "syncs reported / that the kernel never got", f"{report.syncs:,} / {seen}", end_section=True
    )
    table.add_row("fsyncs per second", f"{report.fsyncs_per_second:,.0f}")
    table.add_row("confirms per fsync", f"{report.confirms_per_fsync:,.1f}")
    table.add_row(
        "bytes per write, p50 / p99", f"{report.batch_bytes.p50:,.0f} / {report.batch_bytes.p99:,.0f}"
    )
    table.add_row("recovery, p50 / max", f"{report.recovery_ms.p50:.1f} / {report.recovery_ms.max:.1f} ms")
    return table


def _workloads(report: Report) -> Table:
    table = Table()
    table.add_column(style="dim")
    workloads = report.amqp, report.http, report.intake
    for name in ("AMQP", "HTTP", "other ways in"):
        table.add_column(name, justify="right")
    table.add_row("confirmed or answered messages", *[f"{workload.confirmed:,}" for workload in workloads])
    table.add_row("committed transactions", *[f"{workload.transactions:,}" for workload in workloads])
    table.add_row("durable acks", *[f"{workload.acks:,}" for workload in workloads], end_section=True)
    for label, counts in (
        ("lost", [workload.lost for workload in workloads]),
        ("undone acks", [workload.undone_acks for workload in workloads]),
        ("order violations", [workload.order_violations for workload in workloads]),
        ("torn transactions", [workload.torn_transactions for workload in workloads]),
        ("damaged or invented messages", [workload.damaged for workload in workloads]),
        ("requests refused", [workload.refused for workload in workloads]),
    ):
        table.add_row(label, *[_judged(count) for count in counts])
    table.add_row(
        "duplicates (allowed)", *[f"{workload.duplicates:,}" for workload in workloads], end_section=True
    )
    table.add_row(
        "confirm or answer, p50 / p99",
        *[f"{workload.confirm_ms.p50:.2f} / {workload.confirm_ms.p99:.2f} ms" for workload in workloads],
    )
    return table


def _judged(count: int) -> str:
    return f"[green]{count}[/]" if not count else f"[bold red]{count:,}[/]"

"""The report of a verification of failover.

Owns: the numbers and how they are shown. Must not touch: how they came about.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from holtmq.verify.record import Findings
from holtmq.verify.replica.ends import ENDS, End
from holtmq.verify.report import Percentiles
from holtmq.verify.workload import Workload

_EXAMPLES: Final = 5
_SLOWEST: Final = 3  # kinds of faults


class ReplicaReport(msgspec.Struct, kw_only=True):
    """What ``holt verify --replica`` found out, for both workloads together."""

    seed: int
    rounds: int = 0
    last_fault: str = ""
    faults: dict[str, int] = msgspec.field(default_factory=dict)
    confirmed: int = 0
    transactions: int = 0
    acks: int = 0
    lost: int = 0
    undone_acks: int = 0
    order_violations: int = 0
    two_owners: int = 0  # confirmed by a node after another one was ready
    torn_transactions: int = 0
    damaged: int = 0
    troubles: int = 0  # a node that hung, or lived on after it was replaced
    needless_ends: dict[str, int] = msgspec.field(default_factory=dict)  # by the fault before them
    replaced: dict[str, int] = msgspec.field(default_factory=dict)  # after a fault that leaves the owner
    commits: int = 0
    polled_commits: int = 0  # sent and awaited by the event loop of a node
    duplicates: int = 0
    examples: list[str] = msgspec.field(default_factory=list)
    takeover_seconds: list[float] = msgspec.field(default_factory=list)
    longest_takeovers: dict[str, float] = msgspec.field(default_factory=dict)  # by the fault before them
    seconds: float = 0.0

    @property
    def broken(self) -> int:
        """How many promises were not kept."""
        return (
            self.lost
            + self.undone_acks
            + self.order_violations
            + self.two_owners
            + self.torn_transactions
            + self.damaged
            + self.troubles
            + sum(self.needless_ends.values())
        )

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        return not self.broken

    def add_commits(self, commits: int, polled: int) -> None:
        """One owner has made these, up to its last fault."""
        self.commits += commits
        self.polled_commits += polled

    def add_takeover(self, fault: str, seconds: float) -> None:
        """Another node was ready so long after the fault."""
        self.takeover_seconds.append(seconds)
        self.longest_takeovers[fault] = max(self.longest_takeovers.get(fault, 0.0), seconds)

    def add_end(self, fault: str, end: End, *, is_expected: bool) -> None:
        """One owner is gone."""
        if end is End.NEEDLESS:
            self.needless_ends[fault] = self.needless_ends.get(fault, 0) + 1
        elif end is End.REPLACED and not is_expected:
            self.replaced[fault] = self.replaced.get(fault, 0) + 1

    def fill(self, findings: Findings, workloads: Sequence[Workload]) -> None:
        """Take over what was promised to the workloads, and what was found broken."""
        records = [workload.record for workload in workloads]
        watches = [workload.watch for workload in workloads]
        self.confirmed = sum(record.confirmed for record in records)
        self.acks = sum(record.acked for record in records)
        self.transactions = sum(record.committed for record in records)
        twice = [name for record in records for name in record.confirmed_behind_fence]
        disordered = findings.disordered + [name for watch in watches for name in watch.disordered]
        self.lost, self.undone_acks = len(findings.lost), len(findings.undone)
        self.order_violations, self.two_owners = len(disordered), len(twice)
        self.torn_transactions, self.damaged = len(findings.torn), len(findings.damaged)
        self.duplicates = sum(watch.duplicates for watch in watches)
        kinds = (
            ("lost", findings.lost),
            ("undone ack", findings.undone),
            ("out of order", disordered),
            ("confirmed by a node that was replaced", twice),
            ("torn transaction", findings.torn),
            ("damaged", findings.damaged),
        )
        known = set(self.examples)
        for kind, names in kinds:
            self.examples += [text for name in names[:_EXAMPLES] if (text := f"{kind}: {name}") not in known]

    def add(self, other: "ReplicaReport") -> None:
        """Add what another part of the same verification has found."""
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if name == "longest_takeovers":
                self.longest_takeovers = {
                    key: max(mine.get(key, 0), theirs.get(key, 0)) for key in mine | theirs
                }
            elif isinstance(mine, dict):
                for key, count in theirs.items():
                    mine[key] = mine.get(key, 0) + count
            elif name not in ("seed", "last_fault"):
                setattr(self, name, mine + theirs)

    def as_json(self) -> bytes:
        """Everything, and the verdict."""
        whole = {"passed": self.passed, **msgspec.structs.asdict(self)}
        return msgspec.json.format(msgspec.json.encode(whole), indent=2)


def show(report: ReplicaReport, console: Console) -> None:
    """For people."""
    table = Table(title=f"holt verify --replica, seed {report.seed}", title_justify="left", show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    for fault, count in sorted(report.faults.items()):
        table.add_row(fault, str(count))
    table.add_section()
    table.add_row("confirmed or answered messages", f"{report.confirmed:,}")
    table.add_row("committed transactions", f"{report.transactions:,}")
    table.add_row("durable acks", f"{report.acks:,}")
    table.add_section()
    for label, count in (
        ("lost", report.lost),
        ("undone acks", report.undone_acks),
        ("order violations", report.order_violations),
        ("confirmed by a node that was replaced", report.two_owners),
        ("torn transactions", report.torn_transactions),
        ("damaged or invented messages", report.damaged),
        ("nodes that hung", report.troubles),
        ("owners that ended without need", sum(report.needless_ends.values())),
        *((f"  after: {fault}", count) for fault, count in sorted(report.needless_ends.items())),
    ):
        table.add_row(label, f"[green]{count}[/]" if not count else f"[bold red]{count:,}[/]")
    table.add_section()
    times = Percentiles.of(report.takeover_seconds)
    table.add_row("duplicates (allowed)", f"{report.duplicates:,}")
    table.add_row("fault until the other node is ready, p50 / max", f"{times.p50:.1f} / {times.max:.1f} s")
    slowest = sorted(report.longest_takeovers.items(), key=lambda item: item[1], reverse=True)
    for fault, seconds in slowest[:_SLOWEST]:
        table.add_row(f"  longest after: {fault}", f"{seconds:.1f} s")
    share = report.polled_commits / report.commits if report.commits else 0.0
    table.add_row("commits, of these sent by the event loop", f"{report.commits:,}, {share:.0%}")
    table.add_row("owners replaced after a fault that they could bear", str(sum(report.replaced.values())))
    for fault, count in sorted(report.replaced.items()):
        table.add_row(f"  after: {fault}", str(count))
    console.print(table)
    for end in (End.KILLED, End.ASKED, End.REPLACED):
        faults = "; ".join(fault for fault, its_end in ENDS.items() if its_end is end)
        console.print(f"An owner may end {end} after: {faults}.", style="dim", highlight=False)
    for example in report.examples:
        console.print(f"  [red]{example}[/]", highlight=False)
    verdict = "[bold green]PASSED[/]" if report.passed else "[bold red]FAILED[/]"
    console.print(f"{verdict} in {report.seconds:.1f} s", highlight=False)

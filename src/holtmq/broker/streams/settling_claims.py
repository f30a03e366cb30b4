"""Verdicts of consumer groups' members take effect: at once, or in steps if they file many dead letters.

Owns: how many take effect in one turn, and the line of claims that have more. Must not touch: the order of
the verdicts of a claim, clocks.

A claim in line is settled from there alone, so that order holds. What waits in line is lost in a crash: these
messages are delivered again, as if the client had not settled them yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holtmq.broker.partitioned.commands.settled_runs import SettledRuns, settle_runs
from holtmq.broker.partitioned.requests import HeldPartition, SettledRun
from holtmq.broker.streams.claims import Claim, Verdicts, add
from holtmq.broker.topology.long_changes import LongChanges
from holtmq.journal.interface import JournalFailed

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow
    from holtmq.broker.partitioned.service import PartitionedService


class SettlingClaims:
    """The claims of a node that are being settled. One per node."""

    def __init__(self, service: PartitionedService, flow: Flow, changes: LongChanges) -> None:
        self._service = service
        self._flow = flow
        self._changes = changes
        self._line: deque[Claim] = deque()
        self._is_planned = False
        self._left = 0  # verdicts and partitions that may still take effect in this millisecond
        self._since_ms = -1
        self._gathered: Verdicts | None = None

    def __enter__(self) -> None:
        """What is settled before the exit is settled there, with one record for all streams."""
        if self._gathered is None:
            self._gathered = {}

    def __exit__(self, *_: object) -> None:
        gathered, self._gathered = self._gathered, None
        if gathered:
            self.settle(gathered)

    def settle(self, verdicts: Verdicts) -> None:
        """Note these verdicts; settle what can be settled now, with a record of its own."""
        if self._gathered is not None:
            add(self._gathered, verdicts)
            return
        flow = self._flow
        if flow.now_ms != self._since_ms:
            self._since_ms, self._left = flow.now_ms, flow.per_turn.verdicts
        runs: list[SettledRun] = []
        for claim, said in verdicts.items():
            claim.settle(said)
            if not claim.in_line:
                self._left -= self._take(claim, 0 if self._line else self._left, runs)
                if claim.has_rest:
                    self._enlist(claim)
        settle_runs(self._service, runs, flow.now_ms / 1000)

    def settled(self, verdicts: Verdicts) -> SettledRuns:
        """Note these verdicts of one transaction; decide those that can be settled now.

        Others, which waited for these, may take effect later.
        """
        runs: list[SettledRun] = []
        for claim, said in verdicts.items():
            claim.settle(said)
            run = claim.take_settled(0, max(said) if claim.files else 0)
            if run is not None:
                runs.append(run)
            if claim.has_rest and not claim.in_line:
                self._enlist(claim)
        return SettledRuns(self._service, runs, self._flow.now_ms / 1000)

    def _take(self, claim: Claim, most: int, runs: list[SettledRun]) -> int:
        """Take at most so many verdicts; return how much they count."""
        files = claim.files
        run = claim.take_settled(max(most, 0))
        if run is None:
            return 0
        runs.append(run)
        return len(run.verdicts) + 1 if files else 0

    def _enlist(self, claim: Claim) -> None:
        claim.in_line = True
        self._line.append(claim)
        if not self._is_planned:
            self._is_planned = True
            self._changes.add(self._steps(), step=1)

    def _steps(self) -> Iterator[None]:
        try:
            while self._line:
                yield  # first of all: this turn has done enough
                self._step()
        except JournalFailed:
            pass  # nothing more can be settled
        finally:
            self._is_planned = False
            for claim in self._line:  # after an error: nobody must wait for them
                claim.in_line = False
            self._line.clear()

    def _step(self) -> None:
        left = self._flow.per_turn.verdicts
        runs: list[SettledRun] = []
        returned: list[HeldPartition] = []
        while self._line and left > 0:
            claim = self._line.popleft()
            left -= max(1, self._take(claim, left, runs))
            if claim.has_rest:  # behind the others; then nothing is left, so no claim has two runs here
                self._line.append(claim)
                continue
            claim.in_line = False
            if claim.is_left and not claim.is_awaited and not claim.over:
                claim.over = True
                returned.append(claim.held)
        settle_runs(self._service, runs, self._flow.now_ms / 1000)
        self._service.end_held(returned)

"""Staged batches against a model: staged, repeated, aborted, through crashes; each batch counts once.

Segments are tiny and checkpoints frequent, and after each step all that was committed is read: what is given
back around it must not take it along.
"""

import io

import httpx
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holtmq.broker.partitioned.commands import staging
from holtmq.config import Config, Journal
from holtmq.testing import TestBroker

pytestmark = pytest.mark.model


class StagingMachine(RuleBasedStateMachine):
    """Two writers; the model is a list of published rows and, for each writer, the next batch's attempts."""

    def __init__(self) -> None:
        super().__init__()
        # Smaller than a user may set them.
        self.broker = TestBroker(
            config=Config(journal=Journal(segment_bytes=1024, checkpoint_bytes=1))
        ).start()
        self.http = httpx.Client(base_url=self.broker.http_url, timeout=60)
        self.published: list[str] = []
        self.batch = {"a": 0, "b": 0}
        self.staged: dict[tuple[str, int, int], dict[int, list[str]]] = {}
        self.serial = 0
        self.aborts = 0

    def teardown(self) -> None:
        self.http.close()
        self.broker.stop()

    @invariant()
    def all_that_was_committed_is_there(self) -> None:
        assert self.rows() == self.published

    def rows(self) -> list[str]:
        answer = self.http.get("/api/v1/ranges/out/rows", params={"columns": "payload"})
        if answer.status_code == 404:
            return []
        return [row.decode() for row in pa.ipc.open_stream(answer.content).read_all()["payload"].to_pylist()]

    @rule(
        writer=st.sampled_from("ab"),
        task=st.integers(0, 1),
        attempt=st.integers(0, 1),
        part=st.integers(0, 1),
    )
    def stage(self, writer: str, task: int, attempt: int, part: int) -> None:
        # An abort is not journalled: after a crash its rows may be there again, under an unused number.
        attempt += 2 * self.aborts
        self.serial += 1
        rows = [str(self.serial * 10 + n) + " " * 90 for n in range(self.serial % 3 + 1)]
        sink = io.BytesIO()
        table = pa.table({"payload": rows})
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        where = f"/api/v1/staging/{writer}/{self.batch[writer]}/{task}/{attempt}"
        answer = self.http.put(where, content=sink.getvalue(), params={"part": part, "queue": "out"})
        assert answer.status_code == 200, answer.text
        self.staged.setdefault((writer, task, attempt), {})[part] = rows

    @rule(writer=st.sampled_from("ab"), order=st.permutations([(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]))
    def several_tasks_stage_in_turn(self, writer: str, order: list[tuple[int, int]]) -> None:
        for task, part in order:
            self.stage(writer, task, 0, part)

    @rule(writer=st.sampled_from("ab"), chosen=st.sampled_from([0, 0, 0, 1, 2, 3]))
    def commit(self, writer: str, chosen: int) -> None:
        winners = {
            task: (attempt, [row for _, rows in sorted(parts.items()) for row in rows])
            for (name, task, attempt), parts in sorted(self.staged.items())
            if name == writer and attempt % 2 == chosen >> task & 1
        }
        tasks = [{"task": t, "attempt": a, "rows": len(rows)} for t, (a, rows) in winners.items()]
        number = self.batch[writer]
        for repeat in range(2):
            answer = self.http.post(f"/api/v1/staging/{writer}/{number}/commit", json={"tasks": tasks})
            assert answer.status_code == 200, answer.text
            assert answer.json()["repeated"] == bool(repeat)
        self.published += [row for _, rows in winners.values() for row in rows]
        self.batch[writer] += 1
        self._forget(writer)

    @precondition(lambda self: any(number for number in self.batch.values()))
    @rule(writer=st.sampled_from("ab"))
    def an_old_commit_comes_again(self, writer: str) -> None:
        if self.batch[writer]:
            body = {"tasks": [{"task": 0, "attempt": 0, "rows": 99}]}
            answer = self.http.post(f"/api/v1/staging/{writer}/{self.batch[writer] - 1}/commit", json=body)
            assert answer.json()["repeated"]

    @rule(writer=st.sampled_from("ab"))
    def abort(self, writer: str) -> None:
        self.http.delete(f"/api/v1/staging/{writer}/{self.batch[writer]}")
        self.aborts += 1
        self._forget(writer)

    @rule()
    def a_checkpoint(self) -> None:
        self.broker.call(lambda node: node.checkpoint_if_due())

    @rule(power_cut=st.booleans())
    def the_broker_restarts(self, power_cut: bool) -> None:
        if power_cut:
            self.broker.crash_and_restart()
        else:
            self.broker.restart()

    def _forget(self, writer: str) -> None:
        self.staged = {key: parts for key, parts in self.staged.items() if key[0] != writer}


class SmallPieces(StagingMachine):
    """The same, with batches so large that they are published in pieces."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(staging, "ATOMIC_ROWS", 2)
        self.patch.setattr(staging, "PIECE_ROWS", 2)
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        self.patch.undo()


TestStaging = StagingMachine.TestCase
TestStaging.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestStagingInPieces = SmallPieces.TestCase
TestStagingInPieces.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)

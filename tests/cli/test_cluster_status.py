"""``holt cluster status`` for people: who is behind, and by how much."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from holtmq.cli import cluster, main
from holtmq.journal.replica.store import NodeRow

NODES = [
    NodeRow("a", "owner", "amqp://a", 900, 0.0, 0.5),
    NodeRow("b", "standby", "amqp://b", 1000, 0.0, 0.1),
    NodeRow("c", "standby", "amqp://c", 300, 0.5, 60.0),
]


def test_the_owner_is_not_behind_and_a_silent_node_falls_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(owner="a", released=False, epoch=3)

    @contextmanager
    def opened(*_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(name="holtmq", state=lambda: state, end=lambda: 1000, nodes=lambda: NODES)

    monkeypatch.setattr(cluster, "_opened", opened)

    said = CliRunner().invoke(main, ["cluster", "status"])

    head, owner, standby, silent = said.output.splitlines()
    assert said.exit_code == 0
    assert head == "log holtmq: epoch 3, 1,000 bytes, owner a"
    assert "behind" not in owner
    assert "0 bytes, 0.1 s behind" in standby
    assert "700 bytes, 60.5 s behind" in silent


def test_a_promotion_that_is_interrupted_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    states = iter([SimpleNamespace(owner="a", released=False)])

    @contextmanager
    def opened(*_: object) -> Iterator[SimpleNamespace]:
        def state() -> SimpleNamespace:
            for found in states:
                return found
            raise KeyboardInterrupt

        yield SimpleNamespace(state=state, nodes=lambda: NODES, promote=asked.append)

    monkeypatch.setattr(cluster, "_opened", opened)

    said = CliRunner().invoke(main, ["cluster", "promote", "b"])

    assert said.exit_code == 130  # as after any Ctrl-C
    assert asked == ["b", ""]

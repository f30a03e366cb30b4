"""How much memory there is: a container's limit counts, not only the machine's memory."""

from pathlib import Path

import pytest

from holtmq.http.operator import system


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which a control group has its limit."""
    file = tmp_path / "memory.max"
    monkeypatch.setattr(system, "_MEMORY_LIMITS", (file,))
    return file


def test_a_containers_limit_counts_if_it_is_less_than_the_machine_has(limit: Path) -> None:
    machine = system.total_memory()

    limit.write_text("268435456\n")
    assert system.total_memory() == 256 << 20

    limit.write_text(f"{machine * 2}\n")
    assert system.total_memory() == machine


def test_a_container_without_a_limit_has_the_machines_memory(limit: Path) -> None:
    machine = system.total_memory()

    limit.write_text("max\n")

    assert system.total_memory() == machine

"""How many sockets the process can afford."""

import resource
import sys

import pytest

from holtmq.descriptors import affordable_sockets, raise_limit


@pytest.mark.parametrize(
    ("limit", "sockets"), [(1024, 960), (64, 4), (0, 4), (resource.RLIM_INFINITY, sys.maxsize)]
)
def test_some_files_are_kept_back_for_the_journal(
    monkeypatch: pytest.MonkeyPatch, limit: int, sockets: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))

    assert affordable_sockets() == sockets


def test_the_limit_is_raised_to_what_the_system_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))

    raise_limit()

    assert asked == [(4096, 4096)]

"""Which groups the loop's thread begins itself, and in which order the writer thread gets the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from holtmq.journal.polled_commits import PolledCommits
from holtmq.journal.writer import BegunCommit, Commit, Group, LogWriter


class Begun:
    def poll(self) -> Commit | None:
        return None

    def finish(self) -> Commit:
        raise AssertionError("not in this thread")


class Writer:
    """Begins what it is told to begin."""

    poll_seconds = 1.0

    def __init__(self, *, begins: bool) -> None:
        self.begun: Begun | None = Begun() if begins else None
        self.asked = 0

    def begin(self, groups: Sequence[Group]) -> BegunCommit | None:
        self.asked += 1
        return self.begun


class World:
    def __init__(self, *, begins: bool = True) -> None:
        self.writer = Writer(begins=begins)
        self.turn = threading.Lock()
        self.later: list[Callable[[], None]] = []
        self.handed: list[BegunCommit | Group] = []
        self.polled = PolledCommits(
            cast(LogWriter, self.writer),
            self.turn,
            lambda _, action: self.later.append(action),
            lambda _: None,
            lambda: None,
            lambda: None,
            self.handed.append,
        )


def group(start: int) -> Group:
    return Group(0, 100, start, start + 1, ())


def test_the_writer_thread_gets_what_was_begun_before_what_came_meanwhile() -> None:
    world = World()
    later = [group(1), group(2)]
    assert world.polled.take(group(0), True, 0.0)
    for one in later:
        assert world.polled.take(one, False, 0.0)

    world.polled.leave_to_thread()

    assert world.handed == [world.writer.begun, *later]
    assert world.turn.locked()  # the thread releases it when it has ended what was begun


def test_a_group_that_cannot_be_begun_leaves_the_writer_free() -> None:
    world = World(begins=False)

    assert not world.polled.take(group(0), True, 0.0)

    assert not world.turn.locked()
    assert world.later == []


@pytest.mark.parametrize(("is_alone", "last_seconds"), [(False, 0.0), (True, 2.0)])
def test_nothing_is_begun_behind_other_groups_or_on_a_slow_server(
    is_alone: bool, last_seconds: float
) -> None:
    world = World()

    assert not world.polled.take(group(0), is_alone, last_seconds)

    assert world.writer.asked == 0


def test_nothing_is_begun_while_the_thread_uses_the_writer() -> None:
    world = World()

    with world.turn:
        assert not world.polled.take(group(0), True, 0.0)

    assert world.writer.asked == 0

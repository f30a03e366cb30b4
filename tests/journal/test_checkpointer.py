"""A checkpoint that is being made while the journal is closed in another thread."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holtmq.journal import checkpointer as checkpointer_module
from holtmq.journal.checkpointer import Checkpointer, CheckpointOutcome
from holtmq.journal.disk import OsDisk
from holtmq.journal.dropped import Dropped

PATIENCE = 120.0


def test_a_close_waits_for_the_step_that_the_loop_is_about_to_start(tmp_path: Path) -> None:
    done: list[CheckpointOutcome] = []
    done_at_the_end: list[int] = []
    handling, closing = threading.Event(), threading.Event()

    def in_the_loop(callback: Callable[[], None]) -> None:
        threading.Thread(target=callback, name="loop").start()

    checkpointer = Checkpointer(OsDisk(tmp_path), in_the_loop, done.append, Dropped())

    def written() -> None:
        handling.set()
        closing.wait(PATIENCE)
        checkpointer.proceed([], 0.25, None)

    def close() -> None:
        checkpointer.stop()
        checkpointer.stop()
        done_at_the_end.append(len(done))

    checkpointer.reserve(0, 1, [0])
    checkpointer.begin([], [], written)
    assert handling.wait(PATIENCE)
    closer = threading.Thread(target=close, name="close")
    closer.start()
    closer.join(0.2)  # time enough to return too early
    closing.set()
    closer.join(PATIENCE)

    assert done_at_the_end == [1]
    assert done[0].published


def test_whoever_starts_a_checkpoint_goes_on_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer_module, "_PAUSE", 0.5)
    goes_on, written = threading.Event(), threading.Event()
    went_on: list[bool] = []

    def records() -> Iterator[tuple[int, bytes]]:
        end = time.monotonic() + 0.3
        while time.monotonic() < end:  # it holds the interpreter
            pass
        went_on.append(goes_on.is_set())
        yield from ()

    checkpointer = Checkpointer(OsDisk(tmp_path), lambda collect: collect(), lambda _: None, Dropped())
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1.0)
    try:
        checkpointer.reserve(0, 1, [0])
        checkpointer.begin(records(), [], written.set)
        goes_on.set()
        assert written.wait(PATIENCE)
    finally:
        sys.setswitchinterval(interval)

    checkpointer.stop()
    assert went_on == [True]

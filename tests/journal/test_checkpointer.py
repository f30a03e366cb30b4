"""A checkpoint that is being made while the journal is closed in another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

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

    assert checkpointer.begin(0, 1, [0], [], [], written)
    assert handling.wait(PATIENCE)
    closer = threading.Thread(target=close, name="close")
    closer.start()
    closer.join(0.2)  # time enough to return too early
    closing.set()
    closer.join(PATIENCE)

    assert done_at_the_end == [1]
    assert done[0].published

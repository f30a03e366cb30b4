"""The process whose instructions are counted: for each stream it forks a child for a small and a large number
of messages. Both children have done the same until then, so the difference is what the messages cost.

Owns: the children. Must not touch: valgrind, which counts each child by itself.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path

import msgspec
from bench.figures_cost.stripping import StrippingFinder


class Child(msgspec.Struct):
    """One child, as a line of the output."""

    pid: int
    stream: str
    messages: int
    digest: int  # of what the clients received
    counted: int  # by the figures


def main(sizes: tuple[int, int], only: str, stripped: Path | None) -> None:
    """Run the streams whose name contains ``only``; one line of JSON for each child. ``stripped``: without
    figures; a folder for the compiled modules."""
    finder = None if stripped is None else StrippingFinder(stripped)
    if finder is not None:
        finder.install()
    from bench.figures_cost import amqp_replay, http_replay
    from bench.figures_cost.scene import SteadyLoop

    if finder is not None:
        finder.check()
    gc.disable()  # when it runs depends on what ran before

    def run(replay: amqp_replay.Replay | http_replay.Replay, name: str) -> None:
        for messages in sizes:
            if os.fork() == 0:
                digest = SteadyLoop().run_until_complete(replay.run(messages))
                _end(Child(os.getpid(), name, messages, digest, replay.counted()))
            os.wait()

    for name, stream in amqp_replay.STREAMS.items():
        if only in name:
            recording = amqp_replay.Recording(stream, max(sizes))
            run(amqp_replay.Replay(recording, sampled=stripped is None), name)
    for name in http_replay.STREAMS:
        if only in name:
            run(http_replay.Replay(name, sampled=stripped is None), name)


def _end(child: Child) -> None:
    assert threading.active_count() == 1, threading.enumerate()  # another thread's instructions vary
    sys.stdout.write(msgspec.json.encode(child).decode() + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    small, large, wanted, *folder = sys.argv[1:]
    main((int(small), int(large)), wanted, Path(folder[0]) if folder else None)

"""A node in which two runs do the same: no sockets, no thread, and a time that moves when a replay says so.

Owns: the node, its loop, and what stands in the place of a socket. Must not touch: what clients send. The
journal is in memory, since the writer's thread would make runs differ: a message costs less than with files,
and the figures a larger share of it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from holtmq.amqp import protocol
from holtmq.config import Config, Data, Limits
from holtmq.config.listener_settings import Amqp, Http
from holtmq.http.engine import stepwise
from holtmq.node import Node

_HOST: Final = ("127.0.0.1",)
_START: Final = 1_700_000_000.0


class SteadyLoop(asyncio.SelectorEventLoop):
    """A loop whose time stands still: no timer ends, and none depends on how fast the machine is."""

    def time(self) -> float:
        """Always the same."""
        return 1000.0


class Socket:
    """Stands where a socket's transport stands."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def take(self) -> bytes:
        """What was written since the last call."""
        data = b"".join(self.written)
        self.written.clear()
        return data

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.written += parts

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 50_000) if name == "peername" else default

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...


class Scene:
    """A running node and its time."""

    node: Node

    def __init__(self, *, sampled: bool) -> None:
        self._now = _START
        self._sampled = sampled

    async def start(self) -> None:
        """Start the node. Nothing is divided by time: under valgrind all takes 50 times as long."""
        protocol.monotonic = self._standing  # type: ignore[attr-defined]
        stepwise.STEP = 3600.0
        self.node = Node(
            Config(
                data=Data(memory=True),
                amqp=Amqp(host=_HOST, port=0),
                http=Http(host=_HOST, port=0),
                limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
            ),
            clock=lambda: self._now,
        )
        await self.node.start()

    @staticmethod
    def _standing() -> float:
        return 0.0

    def second(self) -> None:
        """A second passes."""
        self._now += 1
        if self._sampled:
            self.node.sample_figures()

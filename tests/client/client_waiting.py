"""Waiting for what a test needs to have happened, for as long as the slowest machine takes."""

import asyncio
from collections.abc import Callable
from typing import Final

from holtmq.testing import TestBroker

PATIENCE: Final = 60.0  # seconds; reached only by a test that would fail anyhow


async def until(what: Callable[[], object]) -> None:
    """Wait until a function says yes."""
    async with asyncio.timeout(PATIENCE):
        while not what():
            await asyncio.sleep(0.005)


def somebody_waits(broker: TestBroker, queue: str) -> bool:
    """Whether a pop of this queue waits at the broker."""
    return broker.call(lambda node: node.partitioned.line.waiting_on(queue)) > 0

"""Who is next: addresses take turns, names of one address take turns, and the line has an end."""

import asyncio
from contextlib import suppress

import pytest

from holtmq.auth.login_queue import LoginQueue, TooManyLogins


class Line:
    """Logins that wait for one another; ``served`` in the order of their turns."""

    def __init__(self, login_queue: LoginQueue) -> None:
        self._queue = login_queue
        self.served: list[str] = []
        self.refused: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def come(self, address: str, name: str, label: str = "") -> asyncio.Task[None]:
        task = asyncio.create_task(self._login(address, name, label or name))
        self._tasks.append(task)
        await asyncio.sleep(0)
        return task

    async def _login(self, address: str, name: str, label: str) -> None:
        try:
            async with self._queue.turn(address, name):
                self.served.append(label)
                await asyncio.sleep(0)
        except TooManyLogins:
            self.refused.append(label)

    async def finish(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
def line() -> Line:
    return Line(LoginQueue(at_a_time=1, most_of_address=5))


async def test_another_address_does_not_wait_for_a_flood(line: Line) -> None:
    async with line._queue.turn("held", "held"):
        for number in range(5):
            await line.come("198.51.100.1", f"bad{number}")
        await line.come("198.51.100.2", "good")
    await line.finish()

    assert line.served.index("good") <= 1


async def test_a_new_name_of_the_same_address_is_next(line: Line) -> None:
    async with line._queue.turn("held", "held"):
        for number in range(4):
            await line.come("198.51.100.1", "bad", f"bad{number}")
        await line.come("198.51.100.1", "good")
    await line.finish()

    assert line.served[0] == "good"
    assert line.served[1] == "bad3"  # the newest of a name first


async def test_the_oldest_of_an_address_gives_way(line: Line) -> None:
    async with line._queue.turn("held", "held"):
        await line.come("198.51.100.2", "elsewhere")
        for number in range(7):
            await line.come("198.51.100.1", f"bad{number}")
    await line.finish()

    assert line.refused == ["bad0", "bad1"]
    assert "elsewhere" in line.served
    assert len(line._queue) == 0


async def test_one_ipv6_network_is_one_address_and_a_mapped_ipv4_is_itself(line: Line) -> None:
    async with line._queue.turn("held", "held"):
        for number in range(7):
            await line.come(f"2001:db8::{number + 1:x}", f"bad{number}")
        await line.come("::ffff:198.51.100.2", "good")
        await line.come("198.51.100.2", "same")
    await line.finish()

    assert line.refused == ["bad0", "bad1"]
    assert {"good", "same"} <= set(line.served)


async def test_who_gives_up_takes_no_turn_along(line: Line) -> None:
    async with line._queue.turn("held", "held"):
        gone = await line.come("198.51.100.1", "gone")
        await line.come("198.51.100.1", "good")
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone
    await line.finish()
    late = await line.come("198.51.100.1", "late")
    await late

    assert line.served == ["good", "late"]


async def test_a_turn_that_comes_as_its_owner_gives_up_goes_to_the_next(line: Line) -> None:
    async with line._queue.turn("held", "held"):
        gone = await line.come("198.51.100.1", "gone")
        await line.come("198.51.100.2", "next")
    gone.cancel()
    await line.finish()

    assert line.served == ["next"]
    assert len(line._queue) == 0

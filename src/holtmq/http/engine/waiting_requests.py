"""Requests that take more than one step of the event loop.

Owns: running them as tasks, and waiting until a change is durable. Must not touch: what they do.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator

from holtmq.http.engine.request import HttpRequest
from holtmq.http.engine.stepwise import Stepwise
from holtmq.journal.interface import Journal, JournalFailed


def as_task(name: str, run: Callable[[HttpRequest], Awaitable[None]]) -> Callable[[HttpRequest], None]:
    """A route's handler that runs each request as a task; an error becomes the answer."""

    async def attempt(request: HttpRequest) -> None:
        try:
            await run(request)
        except Exception as error:
            request.fail(error)

    def handle(request: HttpRequest) -> None:
        request.connection.engine.run(attempt(request), name)

    return handle


def in_turn_or_as_task(request: HttpRequest, name: str, steps: Generator[None, None, None]) -> None:
    """Run steps that answer a request, at once if they are short; the rest of long ones as a task."""
    stepwise = Stepwise()
    for _ in steps:
        if stepwise.is_due:
            as_task(name, lambda _: stepwise.run(steps))(request)
            return


async def until_durable(journal: Journal) -> None:
    """Wait until everything appended so far is on disk; raises when it never will be."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def told(failed: JournalFailed | None) -> None:
        if done.done():  # the request was cancelled
            return
        if failed is None:
            done.set_result(None)
        else:
            done.set_exception(failed)

    journal.on_durable(told)
    await done

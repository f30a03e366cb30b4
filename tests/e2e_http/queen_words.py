"""What the scenarios of Queen's Python client share: the list of them, and a few short words.

A scenario gets a client, the broker's address and a unique name. Must not touch: the broker.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import queen as module
from queen import Queen

OLD = module.__version__.startswith("0.")
Scenario = Callable[[Queen, str, str], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(run: Scenario) -> Scenario:
    SCENARIOS[run.__name__] = run
    return run


async def popped(builder: Any) -> list[dict[str, Any]]:
    """What is there now."""
    return list(await builder.wait(False).pop())


def ns(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["data"]["n"] for message in messages]


def items(*numbers: int) -> list[dict[str, Any]]:
    return [{"data": {"n": n}, "transactionId": f"t{n}"} for n in numbers]

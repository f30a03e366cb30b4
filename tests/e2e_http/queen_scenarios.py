"""What Queen's Python client offers on queues, admin pages and streams, as scenarios for any release of it.

Runs in a process of its own, because two releases share a module name: ``python queen_scenarios.py URL WORD``
prints a line of JSON for each scenario. Must not touch: the broker other than through the client.
"""

import asyncio
import json
import sys
import traceback
from asyncio import Semaphore

import queen_scenarios_admin  # noqa: F401  # each adds its scenarios to the list
import queen_scenarios_queues  # noqa: F401
import queen_scenarios_streams  # noqa: F401
import queen_scenarios_work  # noqa: F401
from queen import Queen
from queen_scenarios_streams import with_a_token
from queen_words import SCENARIOS

SECONDS = 120  # for a scenario on a busy machine; none takes more than a few


AT_ONCE = 6
ALONE = "maintenance_spools_and_pauses"  # it holds up all the others


async def run_one(name: str, url: str, word: str, turn: Semaphore) -> None:
    async with turn:
        queen = Queen(url)
        problem = None
        try:
            async with asyncio.timeout(SECONDS):
                await SCENARIOS[name](queen, url, f"{word}-{name}")
        except Exception:
            problem = traceback.format_exc()
        finally:
            await queen.close()
        print("RESULT " + json.dumps({"scenario": name, "problem": problem}), flush=True)


async def run_all(url: str, word: str) -> None:
    turn = Semaphore(AT_ONCE)
    await run_one(ALONE, url, word, turn)
    await asyncio.gather(*(run_one(name, url, word, turn) for name in SCENARIOS if name != ALONE))


async def run_guarded(url: str, word: str, token: str) -> None:
    """On a broker that wants tokens: with one all is as ever, without one nothing goes."""
    SCENARIOS["with_a_token"] = with_a_token(token)
    await run_one("with_a_token", url, word, Semaphore())


if __name__ == "__main__":
    match sys.argv[1:]:
        case [url, word]:
            asyncio.run(run_all(url, word))
        case [url, word, token]:
            asyncio.run(run_guarded(url, word, token))

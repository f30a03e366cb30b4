"""No turn of a page grows with the number of queues and partitions: other clients would wait for it.

Counted in calls, not in time. The pages are those of the bench, which measures them on a large broker.
"""

import sys
from collections.abc import Coroutine, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import httpx
import pytest
from bench.dashboard.site import IDLE, Page, requests

from holtmq.http.dashboard import ordering
from holtmq.http.engine import stepwise
from holtmq.http.engine.engine import Engine
from holtmq.node import Node
from holtmq.testing import TestBroker

FEW, MANY = 500, 1_500
with httpx.Client() as _nobody:
    PAGES = [name for name in requests(_nobody, FEW) if name != IDLE and "first" not in name]
# The columns that are left out take the same way.
PAGES = [name for name in PAGES if not name.endswith("in the middle") or "oldest" in name or "group" in name]


class CountedSteps(Coroutine[Any, Any, None]):
    """A coroutine that notes the most calls, of C functions too, that one of its steps made."""

    most = 0

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = work

    def send(self, value: Any) -> Any:
        calls = 0

        def count(_: FrameType, event: str, __: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            return self._work.send(value)
        finally:
            sys.setprofile(None)
            CountedSteps.most = max(CountedSteps.most, calls)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work.__await__()


@pytest.fixture(scope="module")
def patched() -> Iterator[None]:
    run = Engine.run

    def counted(self: Engine, work: Coroutine[Any, Any, None], name: str) -> None:
        run(self, CountedSteps(work), name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stepwise, "STEP", -1.0)  # every look at the clock ends a step
        patch.setattr(ordering, "_SORTED_AT_ONCE", 50)
        patch.setattr(ordering, "_NEAR", 100)
        patch.setattr(Engine, "run", counted)
        yield


@dataclass(frozen=True)
class Site:
    broker: TestBroker
    http: httpx.Client

    def most_calls(self, page: Page) -> int:
        """The most calls that a turn of this page makes."""
        page.before()
        self.broker.call(lambda _: setattr(CountedSteps, "most", 0))
        page.ask()
        most: int = self.broker.call(lambda _: CountedSteps.most)  # after the turn that wrote the answer
        page.after()
        return most


@pytest.fixture(scope="module")
def sites(patched: None) -> Iterator[dict[int, Site]]:
    with ExitStack() as stack:
        made = {}
        for size in (FEW, MANY):
            broker = stack.enter_context(TestBroker())
            broker.call(partial(fill, size=size))
            http = stack.enter_context(httpx.Client(base_url=broker.http_url, timeout=60))
            items = [{"queue": "stream-0", "partition": f"p{part}", "payload": 1} for part in range(size)]
            http.post("/api/v1/push", json={"items": items}).raise_for_status()
            http.get("/api/v1/pop/queue/stream-0", params={"consumerGroup": "g"}).raise_for_status()
            made[size] = Site(broker, http)
        yield made


def fill(node: Node, size: int) -> None:
    vhost = node.broker.vhost("/")
    node.broker.exchanges.declare(vhost, "exchange-0", "topic")
    for number in range(size):
        node.broker.declare_queue(vhost, f"queue-{number}", durable=True)
    node.sample_figures()


@pytest.mark.parametrize("page", PAGES)
def test_no_turn_of_a_page_grows_with_the_broker(sites: dict[int, Site], page: str) -> None:
    few, many = (site.most_calls(requests(site.http, size)[page]) for size, site in sites.items())

    assert 0 < many < 1.3 * few + 200

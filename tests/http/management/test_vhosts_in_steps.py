"""Each vhost of a list has the figures of its queues and clients: of very many vhosts, some at a time."""

import httpx
import pytest

from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.management import users
from holtmq.testing import TestBroker

VHOSTS = ["/", *(f"v{number}" for number in range(9))]


def test_vhosts_are_listed_in_the_steps_of_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with TestBroker() as broker, httpx.Client(base_url=broker.http_url, auth=("guest", "guest")) as http:
        for name in VHOSTS[1:]:
            http.put(f"/api/vhosts/{name}").raise_for_status()
        removals = broker.call(lambda node: node.broker.removals)
        made: list[Stepwise] = []

        class Counted(Stepwise):
            looks = 0

            def __init__(self) -> None:
                super().__init__()
                made.append(self)

            async def between(self) -> None:
                self.looks += 1
                if self.looks == 4:
                    removals.delete_vhost("v8")
                await super().between()

        monkeypatch.setattr(users, "Stepwise", Counted)
        found = http.get("/api/vhosts").raise_for_status().json()

    assert [row["name"] for row in found] == VHOSTS[:-1]
    (stepwise,) = made
    assert isinstance(stepwise, Counted)
    assert stepwise.looks >= len(VHOSTS) - 1

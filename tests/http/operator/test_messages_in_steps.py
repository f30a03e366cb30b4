"""Lists of messages with their state over all groups go message by message, with other work between."""

import httpx
import pytest

from holtmq.broker.partitioned.commands.admin import delete_message
from holtmq.http.engine import paging
from holtmq.http.engine.stepwise import Stepwise
from holtmq.testing import TestBroker

COUNT = 20


@pytest.mark.parametrize("path", ["/api/v1/status/queues/log/messages?limit=15", "/api/v1/messages?limit=15"])
def test_each_message_is_a_step_and_one_that_is_deleted_meanwhile_is_left_out(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    with TestBroker() as broker, httpx.Client(base_url=broker.http_url) as http:
        items = [
            {"queue": "log", "transactionId": f"t{number}", "payload": number} for number in range(COUNT)
        ]
        http.post("/api/v1/push", json={"items": items}).raise_for_status()
        service = broker.call(lambda node: node.partitioned)

        class MessageByMessage(Stepwise):
            async def between(self) -> None:
                steps.append(1)
                if len(steps) == 1:
                    assert delete_message(service, service.store.queues["log"], 0, "t10", None)
                await super().between()

        monkeypatch.setattr(paging, "Stepwise", MessageByMessage)
        found = http.get(path).raise_for_status().json()

    rows = found if isinstance(found, list) else found["messages"]
    wanted = [f"t{number}" for number in range(COUNT - 1, COUNT - 16, -1) if number != 10]
    assert [row["transactionId"] for row in rows] == wanted
    assert len(steps) >= 14

"""Names from AMQP that are not UTF-8, in the answers of /api/v1."""

from __future__ import annotations

import httpx
import msgspec
import pytest

from holtmq.http.engine.wire import encode
from holtmq.load.link import Address, Link
from holtmq.testing import TestBroker

LATIN = "caf\udce9"  # the bytes of "café" in Latin-1
SHOWN = "caf�"


class Row(msgspec.Struct):
    name: str
    count: int


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ({"name": LATIN}, {"name": SHOWN}),
        ({LATIN: [1, LATIN]}, {SHOWN: [1, SHOWN]}),
        ([Row(LATIN, 2)], [{"name": SHOWN, "count": 2}]),
        ({"name": "café", "n": None}, {"name": "café", "n": None}),
    ],
)
def test_bytes_that_are_no_text_become_replacement_characters(value: object, answer: object) -> None:
    assert msgspec.json.decode(encode(value)) == answer


def test_tags_and_arguments_that_are_no_text_are_listed() -> None:
    with TestBroker() as broker, httpx.Client(base_url=broker.http_url, timeout=60) as http:
        link = Link(Address.parse(broker.amqp_url))
        link.declare_queue("q", durable=False, arguments={"x-note": LATIN})
        link.consume("q", LATIN, no_ack=False)

        queue = http.get("/api/v1/dashboard/queues/%2F/q")
        link.close()

        (consumer,) = queue.json()["consumers"]
        assert SHOWN in consumer.values()
        assert queue.text.count(SHOWN) == 2  # the tag and the argument

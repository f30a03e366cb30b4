"""Messages that are not durable yet are invisible: no route shows what a crash can lose."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import httpx
import pytest
from http_support import Api, ids

from holtmq.testing import TestBroker

SOON = 60.0  # seconds; reached only by a test that would fail anyhow
FLYING = "flying"


class Flight:
    """Queue "q" with a durable message "old", and a push of another one that the disk has not taken yet."""

    def __init__(self, broker: TestBroker, api: Api, connect: Callable[..., Api]) -> None:
        self.broker, self.api, self._connect = broker, api, connect
        self._threads = ThreadPoolExecutor(16)
        (row,) = api.push("q", "old")
        self.partition_id = str(row["partition_id"])
        api.pop("q", "nowhere")  # the group's first pop writes: the next ones do not wait for the disk
        broker.disk.stall()
        body = {"items": [{"queue": "q", "payload": "secret", "transactionId": FLYING}]}
        self.push = self.begin(lambda own: own.post("/api/v1/push", body))
        log = broker.node.partitioned.store.queues["q"].log
        deadline = time.monotonic() + SOON
        while log.next_offset < 2:  # the broker has it in memory, and its disk hangs
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def begin(self, ask: Callable[[Api], httpx.Response]) -> "Future[httpx.Response]":
        """Ask on a connection of its own, without waiting for the answer."""
        own = self._connect()
        return self._threads.submit(lambda: ask(own))

    def crash(self) -> None:
        self.broker.crash_and_restart()
        self._threads.shutdown()


@pytest.fixture
def flight(broker: TestBroker, api: Api, connect: Callable[..., Api]) -> Iterator[Flight]:
    flight = Flight(broker, api, connect)
    yield flight
    broker.disk.resume()
    flight._threads.shutdown()


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/messages?queue=q",
        "/api/v1/messages?queue=q&partition=Default",
        "/api/v1/messages?queue=q&to=2999-01-01T00:00:00Z",
        "/api/v1/messages/{partition}/flying",
        "/api/v1/status/queues/q/messages",
        "/api/v1/traces/{partition}/flying",
        "/api/v1/dlq?queue=q",
        "/api/v1/pop/queue/q?batch=9&partitions=9",
        "/api/v1/pop/queue/q/partition/Default?batch=9",
        "/api/v1/pop?batch=9&partitions=9",
    ],
)
def test_no_view_shows_a_message_that_is_not_durable(flight: Flight, path: str) -> None:
    answer = flight.api.get(path.format(partition=flight.partition_id))

    assert answer.status_code in (200, 204, 404)
    assert FLYING not in answer.text
    assert "secret" not in answer.text
    assert not flight.push.done()


def test_a_fetch_ends_before_what_is_not_durable(flight: Flight) -> None:
    entries = [{"queue": "q", "offset": 0}]

    (row,) = flight.api.post("/api/v1/fetch", {"entries": entries}).json()["entries"]

    assert (ids(row["records"]), row["highWatermark"]) == (["old"], 1)


def test_nobody_can_name_a_message_that_is_not_durable(flight: Flight) -> None:
    address = {"transactionId": FLYING, "partitionId": flight.partition_id}
    place = f"/api/v1/messages/{flight.partition_id}/{FLYING}"

    trace = flight.api.post("/api/v1/traces", {**address, "data": 1, "traceNames": ["n"]})
    moved = flight.api.post(f"{place}/dlq")
    deleted = flight.api.delete(place)
    flight.broker.disk.resume()

    assert [trace.status_code, moved.status_code, deleted.status_code] == [404, 404, 404]
    assert flight.push.result(SOON).status_code == 201
    assert ids(flight.api.pop("q")) == ["old", FLYING]


def test_what_a_reader_or_writer_relies_on_is_answered_when_it_is_durable(flight: Flight) -> None:
    asked: list[Callable[[Api], httpx.Response]] = [
        lambda own: own.post("/api/v1/partitions/changed", {"entries": [{"queue": "q"}]}),
        lambda own: own.get("/api/v1/ranges", names="q"),
        lambda own: own.get("/api/v1/ranges/offsets", names="q", at="2999-01-01T00:00:00Z"),
        lambda own: own.post("/api/v1/ranges/q/counts", {"bounds": [0, 9]}),
        lambda own: own.get("/api/v1/ranges/q/fit", maxBytes=1 << 30),
        lambda own: own.get("/api/v1/ranges/q/rows"),
        lambda own: own.get("/api/v1/staging/writer"),
    ]
    answers = [flight.begin(ask) for ask in asked]

    told, _ = wait(answers, 0.5)  # none can come, however long this waits
    flight.crash()

    assert not told
    for answer in answers:
        assert answer.exception() is not None or answer.result().status_code == 503
    assert ids(flight.api.pop("q")) == ["old"]

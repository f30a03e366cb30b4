"""A request that waits ends when its sender may not make it any more, and gets nothing."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import jwt
import pytest
from http_support import Api

from holtmq.auth.permissions import FULL_ACCESS, Permissions
from holtmq.auth.users import User
from holtmq.config import Auth, Config, Http, Limits, Secret
from holtmq.first_start import GUEST_HASH
from holtmq.http.dashboard import events
from holtmq.http.engine import lasting_requests
from holtmq.testing import TestBroker
from holtmq.testing.faulty_node import FaultyNode

SECRET = "a secret of more than thirty-two bytes"
SOON = 60.0  # seconds; reached only by a test that would fail anyhow
POP = "/api/v1/pop/queue/q?wait=true&timeout=60000&autoAck=true"
WIDE = "/api/v1/pop?namespace=n&wait=true&timeout=60000&autoAck=true"
WORK = "/api/v1/pop/queue/jobs?wait=true&timeout=60000&autoAck=true"
Change = Callable[[FaultyNode], None]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestBroker]:
    monkeypatch.setattr(lasting_requests, "EVERY_SECONDS", 0.01)
    monkeypatch.setattr(events, "EVERY_SECONDS", 0.01)
    auth = Auth(jwt_enabled=True, jwt_secret=Secret(SECRET), jwt_clock_skew=0)
    config = Config(limits=Limits(disk_free_min_bytes=0), auth=auth, http=Http(anonymous="guest"))
    with TestBroker(config=config) as one:
        one.call(_prepare)
        yield one


@pytest.fixture
def api(broker: TestBroker) -> Iterator[Api]:
    one = Api(broker.http_url)
    one.configure("q")
    assert one.post("/api/v1/configure", {"queue": "nq", "namespace": "n"}).status_code == 200
    assert one.http.put("/api/queues/%2F/jobs", json={"durable": True}).status_code == 201
    yield one
    one.http.close()


def _prepare(node: FaultyNode) -> None:
    node.broker.access.put_user(User("me", GUEST_HASH, ("monitoring",)))
    node.amqp.authenticator.remember("me", "me", GUEST_HASH)
    node.broker.access.set_permissions("me", "/", FULL_ACCESS)


def _may_read_others(node: FaultyNode) -> None:
    node.broker.access.set_permissions("me", "/", Permissions("", "", "^other$"))


def _deleted(node: FaultyNode) -> None:
    node.broker.access.delete_user("me")


def _unrelated(node: FaultyNode) -> None:
    node.broker.access.put_user(User("somebody", GUEST_HASH))


@pytest.fixture
def waiting(broker: TestBroker, api: Api) -> Iterator[Callable[..., Future[httpx.Response]]]:
    """Send a request and return when it waits."""
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=broker.http_url, timeout=SOON) as http:

        def begin(path: str, **options: object) -> Future[httpx.Response]:
            answer = pool.submit(http.get, path, **options)  # type: ignore[arg-type]
            until = time.monotonic() + SOON
            while not (waits := broker.call(_lasting)) and not answer.done() and time.monotonic() < until:
                time.sleep(0.005)
            assert waits, answer
            return answer

        yield begin


def _lasting(node: FaultyNode) -> int:
    return len(node.http.engine.lasting)


@pytest.mark.parametrize("path", [POP, WORK], ids=["stream", "work queue"])
@pytest.mark.parametrize(
    ("change", "status"), [(_may_read_others, 403), (_deleted, 401)], ids=["permission", "user"]
)
def test_a_pop_ends_with_the_right_to_make_it(
    path: str,
    change: Change,
    status: int,
    broker: TestBroker,
    api: Api,
    waiting: Callable[..., Future[httpx.Response]],
) -> None:
    answer = waiting(path, auth=("me", "me"))

    broker.call(change)

    assert answer.result(SOON).status_code == status
    queue = "q" if path == POP else "jobs"
    api.push(queue, "a")
    assert [message["transactionId"] for message in api.pop(queue)] == ["a"]


def test_a_pop_of_a_namespace_asks_again_for_each_queue(
    broker: TestBroker, api: Api, waiting: Callable[..., Future[httpx.Response]]
) -> None:
    answer = waiting(WIDE, auth=("me", "me"))

    broker.call(_may_read_others)

    assert answer.result(SOON).status_code == 204


def test_a_pop_ends_with_its_token(
    broker: TestBroker, api: Api, waiting: Callable[..., Future[httpx.Response]]
) -> None:
    token = jwt.encode({"role": "read-write", "exp": broker.clock() + 10}, SECRET, "HS256")
    answer = waiting(POP, headers={"authorization": f"Bearer {token}"})

    broker.clock.advance(seconds=11)

    assert (answer.result(SOON).status_code, answer.result().json()["error"]) == (401, "Token has expired")


def test_a_change_that_concerns_somebody_else_ends_nothing(
    broker: TestBroker, api: Api, waiting: Callable[..., Future[httpx.Response]]
) -> None:
    answer = waiting(POP, auth=("me", "me"))

    broker.call(_unrelated)
    time.sleep(0.1)
    api.push("q", "a")

    assert [message["transactionId"] for message in answer.result(SOON).json()["messages"]] == ["a"]
    assert broker.call(_lasting) == 0


@pytest.mark.parametrize("change", [_may_read_others, _deleted])
def test_a_fetch_and_an_ephemeral_pop_get_nothing_that_came_later(
    change: Change, broker: TestBroker, api: Api
) -> None:
    entries = {"entries": [{"queue": "q"}], "maxWaitMs": 60_000}
    assert api.post("/api/v1/ephemeral/push", {"queue": "e", "messages": []}).status_code in (200, 201)
    with (
        ThreadPoolExecutor(2) as pool,
        httpx.Client(base_url=broker.http_url, timeout=SOON, auth=("me", "me")) as http,
    ):
        answers = [
            pool.submit(http.post, "/api/v1/fetch", json=entries),
            pool.submit(http.get, "/api/v1/ephemeral/pop?queue=e&wait=true&timeout=60000"),
        ]
        time.sleep(0.2)

        broker.call(change)
        api.push("q", "a")
        api.post("/api/v1/ephemeral/push", {"queue": "e", "messages": [{"payload": 1}]})

        assert {answer.result(SOON).status_code for answer in answers} <= {401, 403}


def test_an_event_stream_ends_with_its_user(broker: TestBroker, api: Api) -> None:
    seen = 0
    with httpx.stream(
        "GET", broker.http_url + "/api/v1/dashboard/events", auth=("me", "me"), timeout=SOON
    ) as answer:
        for _ in answer.iter_raw():
            seen += 1
            if seen == 3:
                broker.call(_deleted)

    assert seen >= 3

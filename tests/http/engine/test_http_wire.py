"""HTTP itself: framing, pipelining, limits, CORS, tokens, the goodbye."""

import asyncio
import gzip
import re
import socket
import time
from collections.abc import Iterator

import httpx
import jwt
import pytest
from http_support import Api, ids, raw_exchange

from holtmq.config import Auth, Config, Http, Limits
from holtmq.config.values import Secret
from holtmq.http.engine.errors import Refusal
from holtmq.testing import TestBroker

PUSH = b'{"items":[{"queue":"q","payload":1,"transactionId":"%s"}]}'


def request(method: bytes, path: bytes, body: bytes = b"", *headers: bytes) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (method, path), b"host: 127.0.0.1", *headers]
    if body:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def statuses(answer: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


def test_a_request_may_come_byte_by_byte(broker: TestBroker, api: Api) -> None:
    whole = request(b"POST", b"/api/v1/push", PUSH % b"a")

    answer = raw_exchange(broker.http_port, *(whole[n : n + 1] for n in range(len(whole))))

    assert statuses(answer) == [201]
    assert ids(api.pop("q")) == ["a"]


def test_pipelined_requests_of_all_kinds_are_answered_in_order(broker: TestBroker) -> None:
    whole = b"".join(
        [
            request(b"POST", b"/api/v1/push", PUSH % b"a"),
            request(b"GET", b"/health"),
            request(b"GET", b"/api/v1/pop/queue/q"),
            request(b"GET", b"/nowhere"),
            request(b"GET", b"/api/v1/pop/queue/q"),
            request(b"POST", b"/api/v1/push", b"{"),
            request(b"GET", b"/api/v1/resources/queues"),
        ]
    )

    answer = raw_exchange(broker.http_port, whole, answers=7)

    assert statuses(answer) == [201, 200, 200, 404, 204, 400, 200]


def test_a_chunked_body_and_a_polite_client_are_served(broker: TestBroker, api: Api) -> None:
    body = PUSH % b"a"
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:7], body[7:])) + b"0\r\n\r\n"
    chunked = request(b"POST", b"/api/v1/push", b"", b"transfer-encoding: chunked") + chunks
    polite = request(b"POST", b"/api/v1/push", PUSH % b"b", b"expect: 100-continue")

    assert statuses(raw_exchange(broker.http_port, chunked)) == [201]
    assert statuses(raw_exchange(broker.http_port, polite, answers=2)) == [100, 201]
    assert ids(api.pop("q")) == ["a", "b"]


def test_a_client_that_asks_to_close_is_closed(broker: TestBroker) -> None:
    asked = raw_exchange(broker.http_port, request(b"GET", b"/api/v1/pop/queue/q", b"", b"connection: close"))
    old = raw_exchange(broker.http_port, b"GET /api/v1/pop/queue/q HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n")

    assert b"connection: close" in asked
    assert statuses(old) == [204]
    assert b"connection: close" in old


def test_garbage_is_answered_400_and_closed(broker: TestBroker) -> None:
    assert statuses(raw_exchange(broker.http_port, b"\x00\x01garbage\r\n\r\n")) == [400]


@pytest.mark.parametrize("start", [b"GET /health HTTP/1.1\r\nX: ", b"GET /", b"POST /api/v1/push?"])
def test_a_head_without_end_is_refused(broker: TestBroker, start: bytes) -> None:
    answer = b""
    with socket.create_connection(("127.0.0.1", broker.http_port), timeout=60) as peer:
        peer.sendall(start)
        try:
            for _ in range(20):
                peer.sendall(b"a" * 50_000)
            answer = peer.recv(65536)
        except ConnectionError:  # closed before all of it was read, and with it went the answer
            answer = b"HTTP/1.1 431 "

    assert answer.startswith(b"HTTP/1.1 431 ")
    assert httpx.get(f"{broker.http_url}/health", timeout=60).status_code == 200


def after(broker: TestBroker, seconds: float) -> None:
    """Let the server look at its clients as if so much time had passed without a byte."""
    broker.call(lambda node: node.http.engine.sweep(asyncio.get_running_loop().time() + seconds))


def ended(peer: socket.socket) -> bytes:
    """What the server still says before it hangs up."""
    said = b""
    try:
        while more := peer.recv(65536):
            said += more
    except ConnectionError:
        pass
    return said


@pytest.mark.parametrize("start", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nX: "])
def test_a_client_that_never_finishes_a_head_is_hung_up_on(broker: TestBroker, start: bytes) -> None:
    with socket.create_connection(("127.0.0.1", broker.http_port), timeout=120) as peer:
        peer.sendall(start)

        after(broker, 59)
        peer.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.recv(1)
        peer.settimeout(120)
        after(broker, 61)

        assert ended(peer) == b""


def test_a_body_that_stalls_is_told_and_hung_up_on(broker: TestBroker, api: Api) -> None:
    head = b"POST /api/v1/push HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", broker.http_port), timeout=120) as peer:
        peer.sendall(head + b"{")

        after(broker, 31)

        assert statuses(ended(peer)) == [408]
    assert api.get("/health").status_code == 200


def test_a_long_poll_and_a_slow_but_steady_body_are_left_alone(broker: TestBroker, api: Api) -> None:
    body = b'{"items":[{"queue":"steady","payload":"' + b"x" * 100_000 + b'"}]}'
    head = b"POST /api/v1/push HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(body)
    address = ("127.0.0.1", broker.http_port)
    with socket.create_connection(address, timeout=120) as slow, socket.create_connection(address) as waiting:
        waiting.sendall(request(b"GET", b"/api/v1/pop/queue/steady?wait=true&timeout=60000"))
        slow.sendall(head)
        for at in range(0, len(body), 20_000):
            slow.sendall(body[at : at + 20_000])
            wait_until(broker, min(at + 20_000, len(body)))
            after(broker, 31)

        assert statuses(slow.recv(65536)) == [201]
        assert statuses(waiting.recv(300_000)) == [200]


def wait_until(broker: TestBroker, size: int) -> None:
    """Until so much of the one body that is being sent has arrived, or all of it."""

    def sizes(node: object) -> list[int]:
        connections = node.http.engine.connections  # type: ignore[attr-defined]
        return [c.intake.reading.size for c in connections if c.intake.reading is not None]

    deadline = time.monotonic() + 60
    while (found := broker.call(sizes)) and found[0] < size:
        assert time.monotonic() < deadline


def test_clients_cannot_take_the_last_open_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.node.affordable_sockets", lambda: 8)
    with TestBroker() as broker:
        address = ("127.0.0.1", broker.http_port)
        peers = [socket.create_connection(address, timeout=120) for _ in range(3)]
        refused = peers[2].recv(65536)
        for peer in peers:
            peer.close()

    assert statuses(refused) == [503]
    assert b"too_many_connections" in refused


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/api/v1/push", "POST"),
        ("POST", "/api/v1/pop/queue/q", "GET"),
        ("GET", "/api/v1/ack", "POST"),
        ("PUT", "/health", "GET, HEAD"),
        ("DELETE", "/api/v1/system/maintenance", "GET, HEAD, POST"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(api: Api, method: str, path: str, allowed: str) -> None:
    answer = api.http.request(method, path)

    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert answer.json() == {
        "error": f"{method} is not a method of this path; {allowed} would be",
        "code": "method_not_allowed",
        "path": path,
    }


def test_head_is_served_where_get_has_no_effect(api: Api) -> None:
    assert api.http.head("/health").status_code == 200

    pop = api.http.head("/api/v1/pop/queue/q")  # would take messages
    assert (pop.status_code, pop.headers["allow"]) == (405, "GET")


def test_an_unknown_path_says_so(api: Api) -> None:
    answer = api.get("/api/v1/nothing")

    assert answer.status_code == 404
    assert answer.json() == {"error": "not found", "code": "no_such_route", "path": "/api/v1/nothing"}


def test_names_are_decoded_after_the_path_was_split(api: Api) -> None:
    api.push("a/b", "x")

    assert api.http.get("/api/v1/resources/queues/a%2Fb").json()["name"] == "a/b"
    assert len(api.http.get("/api/v1/pop/queue/a%2Fb").json()["messages"]) == 1


def test_a_body_over_the_limit_is_refused_on_hot_and_cold_routes() -> None:
    config = Config(
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0), http=Http(max_body_bytes=2048)
    )
    with TestBroker(config=config) as broker:
        big = b"x" * 4096
        chunked = request(b"POST", b"/api/v1/push", b"", b"transfer-encoding: chunked")

        hot = raw_exchange(broker.http_port, request(b"POST", b"/api/v1/push", big))
        cold = raw_exchange(broker.http_port, request(b"POST", b"/api/v1/configure", big))
        streamed = raw_exchange(broker.http_port, chunked + b"1000\r\n" + big + b"\r\n0\r\n\r\n")

        assert statuses(hot) == statuses(cold) == statuses(streamed) == [413]
        assert b"payload_too_large" in hot


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("method", "path"), [(b"POST", b"/api/definitions"), (b"PUT", b"/api/v1/staging/w/b/0/0")]
)
def test_what_goes_in_steps_may_have_a_longer_body(method: bytes, path: bytes, packed: bool) -> None:
    http = Http(max_body_bytes=2048, max_long_body_bytes=8192)
    config = Config(limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0), http=http)

    def status(port: int, size: int) -> int:
        body, head = b"[" + b" " * size, b"content-type: application/json"
        if packed:
            body, head = gzip.compress(body), head + b"\r\ncontent-encoding: gzip"
        (found,) = statuses(raw_exchange(port, request(method, path, body, head)))
        return found

    with TestBroker(config=config) as broker:
        assert status(broker.http_port, 4096) == 400  # it is read
        assert status(broker.http_port, 10_000) == 413


def test_a_limit_above_that_of_longer_bodies_holds_for_these_too() -> None:
    http = Http(max_body_bytes=8192, max_long_body_bytes=2048)
    config = Config(limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0), http=http)
    with TestBroker(config=config) as broker:
        asked = request(b"PUT", b"/api/v1/staging/w/b/0/0", b"[" * 4096)

        assert statuses(raw_exchange(broker.http_port, asked)) == [400]


def test_waiting_pops_are_answered_when_the_node_stops() -> None:
    import threading

    broker = TestBroker().start()
    found: list[int] = []

    def wait() -> None:
        api = Api(broker.http_url)
        found.append(api.get("/api/v1/pop/queue/q", wait="true").status_code)
        api.http.close()

    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + 60
    while not broker.call(lambda node: len(node.partitioned.line)):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    broker.stop()
    thread.join(60)

    assert found == [204]


SECRET = "a secret that is long enough for HS256"


@pytest.fixture
def guarded() -> Iterator[TestBroker]:
    config = Config(
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
        auth=Auth(jwt_enabled=True, jwt_secret=Secret(SECRET)),
    )
    with TestBroker(config=config) as one:
        yield one


def bearer(role: str | None = None, scheme: str = "Bearer ", **claims: object) -> dict[str, str]:
    token = jwt.encode({**({"role": role} if role else {}), **claims}, SECRET, "HS256")
    return {"authorization": f"{scheme}{token}"}


@pytest.mark.parametrize(
    ("method", "path", "needs"),
    [
        ("GET", "/health", None),
        ("GET", "/metrics", None),
        ("GET", "/metrics/prometheus", None),
        ("OPTIONS", "/api/v1/push", None),
        ("GET", "/api/v1/resources/queues", "read-only"),
        ("GET", "/api/v1/dlq", "read-only"),
        ("GET", "/api/v1/consumer-groups", "read-only"),
        ("GET", "/api/v1/traces/names", "read-only"),
        ("POST", "/streams/v1/state/get", "read-only"),
        ("POST", "/api/v1/push", "read-write"),
        ("GET", "/api/v1/pop/queue/q", "read-write"),
        ("POST", "/api/v1/ack", "read-write"),
        ("POST", "/api/v1/transaction", "read-write"),
        ("POST", "/api/v1/configure", "read-write"),
        ("POST", "/streams/v1/cycle", "read-write"),
        ("POST", "/api/v1/kv", "read-write"),
        ("DELETE", "/api/v1/resources/queues/q", "admin"),
        ("DELETE", "/api/v1/consumer-groups/g", "admin"),
        ("GET", "/api/v1/system/maintenance", "admin"),
        ("POST", "/api/v1/stats/refresh", "admin"),
    ],
)
def test_each_route_asks_for_its_role(guarded: TestBroker, method: str, path: str, needs: str | None) -> None:
    levels = ["none", "read-only", "read-write", "admin"]
    api = Api(guarded.http_url)

    bare = api.http.request(method, path)
    by_role = {role: api.http.request(method, path, headers=bearer(role)).status_code for role in levels}
    api.http.close()

    if needs is None:
        assert bare.status_code < 400
        return
    assert (bare.status_code, bare.json()["error"]) == (401, "Authentication required")
    for level, role in enumerate(levels):
        if level < levels.index(needs):
            assert by_role[role] == 403, role
        else:
            assert by_role[role] not in (401, 403), role


@pytest.mark.parametrize("path", ["/api/v1/pop/queue/q", "/api/v1/resources/queues"])
def test_bad_tokens_are_told_why(guarded: TestBroker, path: str) -> None:
    api = Api(guarded.http_url)
    now = guarded.clock.now
    forged = jwt.encode({"role": "admin"}, "another secret that is long enough", "HS256")

    def error(headers: dict[str, str]) -> tuple[int, str]:
        answer = api.http.get(path, headers=headers)
        return answer.status_code, answer.json()["error"]

    assert error({"authorization": f"Bearer {forged}"}) == (401, "Invalid token signature")
    assert error(bearer("admin", exp=now - 31)) == (401, "Token has expired")
    assert error(bearer()) == (403, "Insufficient permissions")
    assert api.http.get(path, headers=bearer("admin", exp=now - 29)).status_code in (200, 204)
    assert api.http.get(path, headers=bearer("admin", scheme="bEaReR ")).status_code in (200, 204)
    assert api.http.get(path, headers=bearer("admin", scheme="")).status_code in (200, 204)
    api.http.close()


def test_the_server_stamps_the_producer_in_all_three_ways_to_push(guarded: TestBroker) -> None:
    api = Api(guarded.http_url, headers=bearer("admin", sub="alice"))
    item = {"queue": "q", "payload": 1, "producerSub": "mallory"}
    query = {"name": "s", "source_queue": "q", "config_hash": "h"}

    api.post("/api/v1/push", {"items": [item]})
    api.post("/api/v1/transaction", {"operations": [{"type": "push", "items": [item]}]})
    query_id = api.post("/streams/v1/queries", query).json()["query_id"]
    messages = api.pop("q", consumerGroup="look")
    cycle = {"query_id": query_id, "partition_id": messages[0]["partitionId"], "push_items": [item]}
    api.post("/streams/v1/cycle", cycle)
    nobody = Api(guarded.http_url, headers=bearer("admin", sub=""))
    nobody.post("/api/v1/push", {"items": [item]})

    assert [m["producerSub"] for m in api.pop("q")] == ["alice", "alice", "alice", None]
    api.http.close()
    nobody.http.close()


def test_requests_with_the_same_head_are_taken_apart_by_their_lengths(broker: TestBroker, api: Api) -> None:
    sent = [request(b"POST", b"/api/v1/push", PUSH % (b"x" * size)) for size in (1, 1, 2, 100, 5, 0, 1200)]

    answer = _one_after_the_other(broker.http_port, sent)

    assert statuses(answer) == [201] * 7
    found = ids(api.pop("q", batch=10))
    assert [len(name) for name in found[:4]] == [1, 2, 100, 5]  # the second was a duplicate
    assert len(found) == 6


def test_a_known_head_with_another_body_than_announced_is_parsed_as_usual(
    broker: TestBroker, api: Api
) -> None:
    one = request(b"POST", b"/api/v1/push", PUSH % b"a")
    two = request(b"POST", b"/api/v1/push", PUSH % b"b")
    three = request(b"POST", b"/api/v1/push", PUSH % b"c")
    with socket.create_connection(("127.0.0.1", broker.http_port)) as sock:
        sock.settimeout(120)
        for part, answers in ((one, 1), (one, 1), (two[:-4], 0), (two[-4:] + three, 2)):
            sock.sendall(part)
            answer = b""
            while len(statuses(answer)) < answers or not answer.endswith(b"]"):
                if not answers:
                    break
                answer += sock.recv(65536)

    assert ids(api.pop("q", batch=10)) == ["a", "b", "c"]


@pytest.mark.parametrize("length", [b"+%d", b"%d 1", b"0x%x", b"-%d"])
def test_a_known_head_with_a_bad_length_is_refused(broker: TestBroker, length: bytes) -> None:
    body = PUSH % b"a"
    good = request(b"POST", b"/api/v1/push", body)
    bad = good.replace(b"content-length: %d" % len(body), b"content-length: " + length % len(body))

    answer = _one_after_the_other(broker.http_port, [good, good, bad])

    assert statuses(answer)[:2] == [201, 201]
    fresh = _one_after_the_other(broker.http_port, [bad])
    assert statuses(answer)[2:] == statuses(fresh)


def test_what_may_change_between_requests_is_checked_for_each_with_a_known_head() -> None:
    one = request(b"POST", b"/api/v1/push", PUSH % b"a")
    too_large = request(b"POST", b"/api/v1/push", PUSH % (b"x" * 5000))
    limits = Limits(memory_high_watermark=1.0, disk_free_min_bytes=0)
    with (
        TestBroker(config=Config(limits=limits, http=Http(max_body_bytes=4096))) as broker,
        socket.create_connection(("127.0.0.1", broker.http_port), timeout=60) as wire,
    ):

        def status(sent: bytes = one) -> int:
            wire.sendall(sent)
            answer = b""
            while not answer.endswith((b"]", b"}")):
                answer += wire.recv(65536)
            return statuses(answer)[0]

        def set_engine(name: str, value: object) -> None:
            broker.call(lambda node: setattr(node.http.engine, name, value))

        assert [status() for _ in range(3)] == [201] * 3
        set_engine("is_congested", True)
        assert status() == 503
        set_engine("is_congested", False)
        assert status() == 201
        set_engine("refusal", Refusal(503, "not now"))
        assert status() == 503
        set_engine("refusal", None)
        assert [status(), status(too_large)] == [201, 413]


def _one_after_the_other(port: int, requests: list[bytes]) -> bytes:
    """The answers on one connection, each awaited before the next request."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.settimeout(120)
        for number, one in enumerate(requests, 1):
            sock.sendall(one)
            while len(statuses(answer)) < number or not answer.endswith((b"]", b"}")):
                got = sock.recv(65536)
                if not got:
                    return answer
                answer += got
    return answer

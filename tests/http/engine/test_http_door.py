"""The door itself: web pages of others, bodies before rights, memory, floods of logins, sessions."""

import asyncio
import base64
import gzip
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pika
import pytest
from http_support import Api

from holtmq.amqp.codec import encode_method
from holtmq.amqp.frames import FRAME_METHOD, encode_frame
from holtmq.amqp.methods import ConnectionStartOk
from holtmq.auth import passwords
from holtmq.auth.login import Authenticator
from holtmq.auth.passwords import hash_password
from holtmq.auth.permissions import FULL_ACCESS
from holtmq.auth.users import User
from holtmq.config import Config, Http, Limits
from holtmq.http.engine import protocol
from holtmq.http.engine.request import HttpRequest
from holtmq.testing import TestBroker
from holtmq.testing.faulty_node import FaultyNode

LIMITS = Limits(memory_high_watermark=1.0, disk_free_min_bytes=0)
EVIL = "http://evil.example"
OPS = "https://ops.example:8443"


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    http = Http(
        cors_origins=(OPS,),
        names=("mq.example",),
        body_memory_bytes=1 << 20,
        max_body_bytes=1 << 20,
        max_long_body_bytes=1 << 20,
    )
    with TestBroker(config=Config(limits=LIMITS, http=http)) as one:
        yield one


def wire(broker: TestBroker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.http_port), timeout=60)


def status_of(peer: socket.socket) -> int:
    """Of the next answer; 0 when the broker hangs up."""
    answer = peer.recv(65536)
    found = re.match(rb"HTTP/1\.1 (\d{3})", answer)
    return int(found[1]) if found else 0


@pytest.mark.parametrize(
    "path", ["/api/v1/pop/queue/q", "/api/v1/resources/queues", "/api/overview", "/metrics"]
)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": EVIL},
        {"origin": "null"},
        {"origin": EVIL, "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"origin": EVIL, "authorization": "Basic " + base64.b64encode(b"guest:guest").decode()},
    ],
    ids=str,
)
def test_a_page_of_another_site_is_refused(api: Api, path: str, headers: dict[str, str]) -> None:
    answer = api.http.get(path, headers=headers)

    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("host", [b"", b"Host: \r\n"], ids=["no host", "an empty host"])
@pytest.mark.parametrize("origin", [b"null", b"file://", b"localhost"])
def test_an_origin_without_a_place_is_no_origin_of_a_request_without_host(
    broker: TestBroker, origin: bytes, host: bytes
) -> None:
    with wire(broker) as peer:
        peer.sendall(b"GET /api/v1/resources/queues HTTP/1.1\r\nOrigin: " + origin + b"\r\n" + host + b"\r\n")

        assert status_of(peer) == 403


def test_a_form_of_another_site_does_nothing(api: Api) -> None:
    body = b'{"items":[{"queue":"q","payload":1}]}'
    form = {"origin": EVIL, "content-type": "text/plain"}

    assert api.http.post("/api/v1/push", content=body, headers=form).status_code == 403
    assert api.pop("q") == []


@pytest.mark.parametrize(
    "headers", [{}, {"sec-fetch-site": "none"}, {"sec-fetch-site": "same-origin"}], ids=str
)
def test_curl_and_our_own_pages_go_on_working(api: Api, headers: dict[str, str]) -> None:
    assert api.http.get("/api/v1/resources/queues", headers=headers).status_code == 200
    own = {**headers, "origin": str(api.http.base_url).rstrip("/")}
    assert api.http.get("/api/v1/resources/queues", headers=own).status_code == 200


def test_a_link_from_another_site_opens_a_page_and_nothing_else(api: Api) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}

    assert api.http.get("/docs", headers=link).status_code == 200
    assert api.http.get("/api/v1/pop/queue/q?autoAck=true", headers=link).status_code == 403


def test_an_origin_that_is_named_may_use_the_api_and_is_told_so(api: Api) -> None:
    preflight = api.http.options("/api/v1/push", headers={"origin": OPS})
    answers = [
        preflight,
        api.http.get("/api/v1/pop/queue/q", headers={"origin": OPS, "sec-fetch-site": "cross-site"}),
        api.http.post("/api/v1/push", json={"items": []}, headers={"origin": OPS}),
        api.http.get("/nowhere", headers={"origin": OPS}),
    ]

    assert [answer.status_code for answer in answers] == [204, 204, 201, 404]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == OPS
        assert answer.headers["access-control-allow-headers"] == "Content-Type, Authorization"
        assert answer.headers["vary"] == "origin"
    assert preflight.headers["access-control-max-age"] == "86400"
    assert api.http.options("/api/v1/push", headers={"origin": EVIL}).status_code == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 204),
        ("[::1]:6632", 204),
        ("localhost:80", 204),
        ("app.localhost", 204),
        ("mq.example", 204),
        ("evil.example", 403),
        ("evil.example:6632", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("notlocalhost", 403),
    ],
)
def test_a_name_that_is_not_the_broker_s_is_refused_without_credentials(
    api: Api, host: str, status: int
) -> None:
    headers = {"host": host, "origin": f"http://{host}"}  # DNS rebinding: to the browser it is all one site

    assert api.http.get("/api/v1/pop/queue/q", headers=headers).status_code == status
    assert api.http.get("/api/v1/pop/queue/q", headers=headers, auth=("guest", "guest")).status_code == 204
    assert api.http.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("path", [b"/api/v1/push", b"/api/v1/configure", b"/api/definitions", b"/nowhere"])
def test_a_stranger_is_refused_before_any_of_the_body_came(broker: TestBroker, path: bytes) -> None:
    head = (
        b"POST %b HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 203.0.113.9\r\ncontent-length: 1000000\r\n\r\n"
        % path
    )
    with wire(broker) as peer:
        peer.sendall(head)

        assert status_of(peer) == (404 if path == b"/nowhere" else 401)


@pytest.mark.parametrize("path", [b"/api/v1/push", b"/api/v1/configure"])
def test_no_hundred_continue_is_said_to_who_may_not(broker: TestBroker, path: bytes) -> None:
    head = b"POST %b HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 10\r\n" % path
    with wire(broker) as refused, wire(broker) as taken:
        refused.sendall(head + b"x-forwarded-for: 203.0.113.9\r\n\r\n")
        taken.sendall(head.replace(b"host: x", b"host: localhost") + b"\r\n")

        assert status_of(refused) == 401
        assert status_of(taken) == 100


def test_bodies_of_strangers_are_not_kept(broker: TestBroker) -> None:
    head = b"POST /api/v1/push HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 203.0.113.9\r\n"
    head += b"transfer-encoding: chunked\r\n\r\n"
    with wire(broker) as peer:
        peer.sendall(head)
        assert status_of(peer) == 401
        for _ in range(20):
            try:
                peer.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            except ConnectionError:  # it has seen enough
                break

        held = broker.call(kept_bytes)

    assert held == 0


def kept_bytes(node: FaultyNode) -> int:
    """Of bodies, over all connections."""
    exchanges = [
        one for c in node.http.engine.connections for one in (c.intake.reading, c._active) if one is not None
    ]
    return sum(len(chunk) for exchange in {id(e): e for e in exchanges}.values() for chunk in exchange.chunks)


def test_large_bodies_wait_for_room_and_get_it_in_turn(broker: TestBroker) -> None:
    body = b'{"items":[{"queue":"q","payload":"' + b"x" * 700_000 + b'"}]}'
    head = b"POST /api/v1/push HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    with wire(broker) as first, wire(broker) as second:
        first.sendall(head + body[:100_000])
        wait_for(broker, lambda node: kept_bytes(node) == 100_000)
        sender = threading.Thread(target=lambda: second.sendall(head + body))
        sender.start()
        wait_for(broker, lambda node: len(node.http.engine.room) == 1)
        # There is room for 1 MiB: the second one's body stays in its socket, but for one read.
        assert broker.call(kept_bytes) <= 100_000 + (1 << 18)

        first.sendall(body[100_000:])
        assert status_of(first) == 201
        sender.join(60)
        assert status_of(second) == 201
    assert broker.call(lambda node: node.http.engine.room.free) == 1 << 20


def test_who_waits_too_long_for_room_is_told(broker: TestBroker) -> None:
    head = b"POST /api/v1/push HTTP/1.1\r\nhost: localhost\r\ncontent-length: 700000\r\n\r\n"
    with wire(broker) as first, wire(broker) as second:
        first.sendall(head + b"{" + b" " * 100_000)
        wait_for(broker, lambda node: kept_bytes(node) > 100_000)
        second.sendall(head)
        wait_for(broker, lambda node: len(node.http.engine.room) == 1)

        broker.call(lambda node: node.http.engine.sweep(asyncio.get_running_loop().time() + 31))

        assert status_of(second) == 503
        first.close()
    wait_for(broker, lambda node: node.http.engine.room.free == 1 << 20)


LARGE = b'{"items":[{"queue":"q","payload":"' + b"x" * 700_000 + b'"}]}'
CHUNKED = b"POST /api/v1/push HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"


def sized(path: bytes, body: bytes, *more: bytes, method: bytes = b"POST") -> bytes:
    head = b"%s %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n" % (method, path, len(body))
    return head + b"".join(line + b"\r\n" for line in more) + b"\r\n" + body


def in_chunks(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


def room(broker: TestBroker) -> int:
    free: int = broker.call(lambda node: node.http.engine.room.free)
    return free


def take_room(broker: TestBroker, peer: socket.socket) -> bytes:
    """Begin a request that leaves too little room for another large one; the rest of it."""
    whole = sized(b"/api/v1/push", LARGE)
    peer.sendall(whole[:100_000])
    wait_for(broker, lambda node: node.http.engine.room.free == (1 << 20) - len(LARGE))
    return whole[100_000:]


@pytest.mark.parametrize("at_once", [0, 4096], ids=["in a thread", "at once"])
def test_what_a_packed_body_has_become_takes_room_too(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(protocol, "_UNPACKED_AT_ONCE", at_once)

    def packed(body: bytes) -> bytes:
        return sized(b"/api/v1/push", gzip.compress(body), b"content-encoding: gzip")

    with wire(broker) as first, wire(broker) as second, wire(broker) as third:
        take_room(broker, first)

        second.sendall(packed(LARGE))
        third.sendall(packed(b'{"items":[{"queue":"q","payload":1}]}'))

        assert status_of(second) == 503
        assert status_of(third) == 201
    wait_for(broker, lambda node: node.http.engine.room.free == 1 << 20)


SPACES = b" " * 700_000
WAITING = {
    "fetch": sized(b"/api/v1/fetch", b'{"entries":[{"queue":"q"}],"maxWaitMs":60000%s}' % SPACES),
    "pop": sized(b"/api/v1/pop/queue/q?wait=true&timeout=60000", SPACES, method=b"GET"),
    "pop of a work queue": sized(b"/api/v1/pop/queue/w?wait=true&timeout=60000", SPACES, method=b"GET"),
    "ephemeral pop": sized(b"/api/v1/ephemeral/pop?queue=e&wait=true&timeout=60000", SPACES, method=b"GET"),
}


def is_waiting(node: FaultyNode) -> bool:
    """Whether a complete request runs that has no answer."""
    running = [one._active for one in node.http.engine.connections]
    return any(one is not None and one.complete and one.is_running for one in running)


@pytest.mark.parametrize("what", WAITING)
def test_a_request_that_waits_for_messages_keeps_no_body(broker: TestBroker, api: Api, what: str) -> None:
    broker.call(lambda node: node.broker.declare_queue(node.broker.vhost("/"), "w"))
    api.push("q", "a", partition="other")
    api.pop("q")
    with wire(broker) as waiting, wire(broker) as other:
        waiting.sendall(WAITING[what])
        wait_for(broker, is_waiting)

        wait_for(broker, lambda node: node.http.engine.room.free == 1 << 20)
        other.sendall(sized(b"/api/v1/push", LARGE))

        assert status_of(other) == 201
        assert broker.call(kept_bytes) == 0


def test_a_fetch_with_a_name_that_no_queue_can_have_is_refused(api: Api) -> None:
    """It would be kept while the request waits."""
    answer = api.post("/api/v1/fetch", {"entries": [{"queue": "q", "partition": "x" * 5_000}]})

    assert answer.status_code == 400


def test_a_large_body_in_chunks_waits_for_room(broker: TestBroker, api: Api) -> None:
    body = LARGE[:300_000] + b'"}]}'
    with wire(broker) as first, wire(broker) as second:
        rest = take_room(broker, first)
        sender = threading.Thread(target=lambda: second.sendall(CHUNKED + in_chunks(body)))
        sender.start()
        wait_for(broker, lambda node: len(node.http.engine.room) == 1)
        # What it has sent by now lies in its socket, but for one read.
        assert broker.call(kept_bytes) <= 100_000 + (1 << 18)

        first.sendall(rest)
        assert status_of(first) == 201
        sender.join(60)
        assert status_of(second) == 201
        second.sendall(sized(b"/api/v1/push", b'{"items":[]}'))
        assert status_of(second) in (200, 201), "the connection goes on"
    assert room(broker) == 1 << 20


def test_a_body_in_chunks_that_is_complete_when_it_becomes_large_need_not_wait(broker: TestBroker) -> None:
    body = LARGE[: 65_536 - 3] + b'"}]}'
    with wire(broker) as first, wire(broker) as second:
        take_room(broker, first)

        second.sendall(CHUNKED + in_chunks(body))

        assert status_of(second) == 201
        assert broker.call(lambda node: len(node.http.engine.room)) == 0
    wait_for(broker, lambda node: node.http.engine.room.free == 1 << 20)


def test_a_body_in_chunks_that_waits_too_long_for_room_is_refused(broker: TestBroker) -> None:
    with wire(broker) as first, wire(broker) as second:
        take_room(broker, first)
        second.sendall(CHUNKED + b"%x\r\n" % len(LARGE) + LARGE[:100_000])
        wait_for(broker, lambda node: len(node.http.engine.room) == 1)

        broker.call(lambda node: node.http.engine.sweep(asyncio.get_running_loop().time() + 31))

        assert status_of(second) == 503
    wait_for(broker, lambda node: node.http.engine.room.free == 1 << 20)


def test_a_body_in_chunks_keeps_as_much_room_as_it_has_bytes(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = LARGE[:300_000] + b'"}]}'
    free: list[int] = []
    run = protocol.HttpConnection._run

    def look(connection: protocol.HttpConnection, request: HttpRequest) -> None:
        free.append(connection.engine.room.free)
        run(connection, request)

    monkeypatch.setattr(protocol.HttpConnection, "_run", look)
    with wire(broker) as peer:
        peer.sendall(CHUNKED + in_chunks(body))
        assert status_of(peer) == 201

    assert free == [(1 << 20) - len(body)]
    assert room(broker) == 1 << 20


def test_a_client_that_does_not_read_is_cut_off(broker: TestBroker) -> None:
    api = Api(broker.http_url)
    items = [{"queue": "q", "payload": "x" * 900_000} for _ in range(1)]
    for _ in range(20):
        assert api.post("/api/v1/push", {"items": items}).status_code == 201
    api.http.close()
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(("127.0.0.1", broker.http_port))
        peer.sendall(b"GET /api/v1/pop/queue/q?batch=20 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        # 18 MB in all of which the client reads nothing, where 1 MiB may lie unread on the node.
        wait_for(broker, lambda node: node.http.engine.is_congested)
        with wire(broker) as other:
            other.sendall(b"GET /api/v1/pop/queue/none HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert status_of(other) == 503

        broker.call(lambda node: node.http.engine.sweep(asyncio.get_running_loop().time() + 6))

        wait_for(broker, lambda node: not node.http.engine.is_congested)
    with wire(broker) as other:
        other.sendall(b"GET /api/v1/pop/queue/none HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert status_of(other) == 204


@pytest.mark.parametrize("ended_by", ["the last request", "the client", "the time-out"])
def test_a_connection_that_ends_does_not_wait_for_ever_for_its_client_to_read(
    broker: TestBroker, ended_by: str
) -> None:
    def sweep(seconds: float) -> None:
        broker.call(lambda node: node.http.engine.sweep(asyncio.get_running_loop().time() + seconds))

    def narrow(node: FaultyNode) -> None:
        (connection,) = node.http.engine.connections
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    asked = b"GET /docs HTTP/1.1\r\nhost: localhost\r\n"
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(("127.0.0.1", broker.http_port))
        wait_for(broker, lambda node: len(node.http.engine.connections) == 1)
        broker.call(narrow)
        # Too little lies unread on the node for it to stop writing.
        last = asked + b"connection: close\r\n\r\n" if ended_by == "the last request" else b""
        peer.sendall((asked + b"\r\n") * 9 + last)
        wait_for(broker, lambda node: any(one.unsent_bytes > 16_384 for one in node.http.engine.connections))
        if ended_by == "the time-out":
            sweep(76)
        elif ended_by == "the client":
            peer.shutdown(socket.SHUT_WR)
        wait_for(broker, lambda node: all(one.transport.is_closing() for one in node.http.engine.connections))

        sweep(76 + 61)

        wait_for(broker, lambda node: not node.http.engine.connections)


def wait_for(broker: TestBroker, condition: object) -> None:
    import time

    deadline = time.monotonic() + 60
    while not broker.call(condition):  # type: ignore[arg-type]
        assert time.monotonic() < deadline  # type: ignore[unreachable]


def test_thousands_of_pipelined_requests_behind_one_that_waits_are_answered(broker: TestBroker) -> None:
    one = b"GET /api/v1/pop/queue/none HTTP/1.1\r\nhost: localhost\r\n\r\n"
    waiting = one.replace(b"none", b"none?wait=true&timeout=200")
    with wire(broker) as peer:
        sender = threading.Thread(target=lambda: peer.sendall(waiting + one * 4999))
        sender.start()
        got = b""
        while got.count(b"204 No Content") < 5000:
            more = peer.recv(1 << 16)
            assert more
            got += more
        sender.join(60)


def test_a_header_that_must_be_single_is_refused_twice(broker: TestBroker) -> None:
    for name in (b"host", b"authorization", b"origin"):
        with wire(broker) as peer:
            double = b"%b: localhost\r\n%b: evil.example\r\n" % (name, name)
            peer.sendall(b"GET /api/v1/pop/queue/q HTTP/1.1\r\n" + double + b"\r\n")
            assert status_of(peer) == 400


@pytest.fixture
def with_user(broker: TestBroker) -> TestBroker:
    hashed = hash_password("right")

    def add(node: FaultyNode) -> None:
        node.broker.access.put_user(User("good", hashed, ("administrator",)))
        node.broker.access.set_permissions("good", "/", FULL_ACCESS)

    broker.call(add)
    return broker


@pytest.mark.parametrize("name", ["good", "bad"])
def test_three_hundred_bad_logins_in_flight_do_not_lock_a_good_user_out(
    with_user: TestBroker, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Half of them over HTTP, half over AMQP, all from one address; no check ends before all have arrived."""
    all_here = threading.Event()
    asked: list[str] = []
    checked: list[str] = []
    authenticate = Authenticator.authenticate

    def verify(_: str, password: str) -> bool:
        all_here.wait(60)
        checked.append(password)
        return password == "right"

    async def ask(self: Authenticator, name: str, password: str, **rest: Any) -> User:
        asked.append(password)
        return await authenticate(self, name, password, **rest)

    monkeypatch.setattr(passwords, "verify_password", verify)
    monkeypatch.setattr(Authenticator, "authenticate", ask)
    basic = base64.b64encode(f"{name}:wrong".encode())
    request = b"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic %b\r\n\r\n" % basic
    start_ok = ConnectionStartOk({}, "PLAIN", f"\0{name}\0wrong".encode(), "en_US")
    opening = b"AMQP\0\0\x09\x01" + encode_frame(FRAME_METHOD, 0, encode_method(start_ok))
    flood: list[socket.socket] = []
    good: list[object] = []

    def over_http() -> None:
        good.append(httpx.get(f"{with_user.http_url}/api/whoami", auth=("good", "right"), timeout=60))

    def over_amqp() -> None:
        good.append(
            pika.BlockingConnection(
                pika.URLParameters(with_user.amqp_url.replace("guest:guest", "good:right"))
            )
        )

    workers = [threading.Thread(target=door) for door in (over_http, over_amqp)]
    try:
        for _ in range(150):
            flood += [
                wire(with_user),
                socket.create_connection(("127.0.0.1", with_user.amqp_port), timeout=60),
            ]
            flood[-2].sendall(request)
            flood[-1].sendall(opening)
        wait_for(with_user, lambda _: len(asked) == 300)
        for worker in workers:
            worker.start()
        wait_for(with_user, lambda _: asked.count("right") == 2)
        with_user.call(lambda _: None)  # both wait for their turn now
    finally:
        all_here.set()
    for worker in workers:
        worker.join(60)
    for peer in flood:
        peer.close()

    answer = next(one for one in good if isinstance(one, httpx.Response))
    connection = next(one for one in good if isinstance(one, pika.BlockingConnection))
    assert (answer.status_code, connection.is_open) == (200, True)
    assert [place for place, password in enumerate(checked) if password == "right"][-1] < 8
    connection.close()


def test_a_browser_logs_in_and_out_with_a_cookie(with_user: TestBroker) -> None:
    with httpx.Client(base_url=with_user.http_url, timeout=60) as http:
        wrong = http.post("/api/v1/session", json={"user": "good", "password": "wrong"})
        login = http.post("/api/v1/session", json={"user": "good", "password": "right"})
        cookie = login.headers["set-cookie"]
        shown = http.get("/api/v1/session")
        managed = http.get("/api/whoami")
        http.post("/api/v1/push", json={"items": [{"queue": "q", "payload": 1}]})
        pushed = http.get("/api/v1/pop/queue/q").json()["messages"]
        saved = dict(http.cookies)
        out = http.delete("/api/v1/session")
        after = httpx.get(f"{with_user.http_url}/api/v1/session", cookies=saved, timeout=60)

    assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
    assert login.json() == {"user": "good", "tags": ["administrator"]}
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert shown.json() == {
        "user": "good",
        "tags": ["administrator"],
        "anonymous": False,
        "may": {"configure": True, "write": True, "read": True},
    }
    assert managed.json()["name"] == "good"
    assert pushed[0]["producerSub"] == "good"
    assert out.json() == {"ended": True}
    assert after.status_code == 401


def test_a_session_ends_with_its_user_s_password_and_with_time(with_user: TestBroker) -> None:
    def cookies() -> dict[str, str]:
        body = {"user": "good", "password": "right"}
        return dict(httpx.post(f"{with_user.http_url}/api/v1/session", json=body, timeout=60).cookies)

    def status(given: dict[str, str]) -> int:
        return httpx.get(f"{with_user.http_url}/api/v1/session", cookies=given, timeout=60).status_code

    first, second = cookies(), cookies()
    assert status(first) == 200
    with_user.clock.advance(7 * 3600)
    assert status(first) == 200
    with_user.clock.advance(2 * 3600)
    assert (status(first), status(second)) == (200, 401)  # an hour's use is eight hours more
    with_user.call(lambda node: node.broker.access.put_user(User("good", hash_password("new"))))
    assert status(first) == 401


def test_a_stranger_s_cookie_is_no_guest(broker: TestBroker) -> None:
    answer = httpx.get(f"{broker.http_url}/api/v1/session", cookies={"holt_session": "made-up"}, timeout=60)

    assert answer.status_code == 401

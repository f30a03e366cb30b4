"""Answers of many megabytes are handed to the socket in portions; clients see one whole answer."""

import asyncio
import json
import random
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from holtmq.config import Config, Http, Limits
from holtmq.http.engine import stepwise
from holtmq.http.engine.pieces import PORTION, Pieces
from holtmq.http.engine.stepwise import in_order
from holtmq.node import Node
from holtmq.testing import TestBroker
from holtmq.testing.faulty_node import FaultyNode

BINDINGS = 200
TEXT = "x" * 65_536  # of each binding: more in all than the kernel keeps for a client that does not read
PATH = b"/api/bindings"
HEAD = b" HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    limits = Limits(memory_high_watermark=1.0, disk_free_min_bytes=0)
    http = Http(body_memory_bytes=1 << 20, max_body_bytes=1 << 20, max_long_body_bytes=1 << 20)
    with TestBroker(config=Config(limits=limits, http=http)) as one:

        def bind(node: Node) -> None:
            vhost = node.broker.vhost("/")
            node.broker.declare_queue(vhost, "q")
            for number in range(BINDINGS):
                node.broker.bind(vhost, "amq.topic", "q", f"key.{number}", {"text": TEXT})

        one.call(bind)
        yield one


def wire(broker: TestBroker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.http_port), timeout=60)


def head_of(peer: socket.socket) -> tuple[bytes, dict[bytes, bytes], bytes]:
    """Status line and headers of the next answer, and what was read of its body."""
    read = b""
    while b"\r\n\r\n" not in read:
        more = peer.recv(65_536)
        assert more, read
        read += more
    head, _, rest = read.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    return status, dict(line.lower().split(b": ", 1) for line in lines), rest


def answer_of(peer: socket.socket) -> tuple[bytes, dict[bytes, bytes], bytes]:
    """The next answer, and nothing of the one after it."""
    status, headers, body = head_of(peer)
    size = int(headers[b"content-length"])
    parts, left = [body], size - len(body)
    while left > 0:
        parts.append(peer.recv(min(left, 1 << 20)))
        assert parts[-1]
        left -= len(parts[-1])
    assert left == 0
    return status, headers, b"".join(parts)


def check(body: bytes) -> None:
    rows = json.loads(body)
    assert len(rows) == BINDINGS + 1  # with that of the default exchange
    assert {row["arguments"].get("text") for row in rows} == {None, TEXT}


def test_one_connection_gets_one_long_answer_after_another(broker: TestBroker) -> None:
    with wire(broker) as peer:
        for _ in range(2):
            peer.sendall(b"GET " + PATH + HEAD)
            status, headers, body = answer_of(peer)
            assert status == b"HTTP/1.1 200 OK"
            assert headers[b"content-type"] == b"application/json"
            assert b"transfer-encoding" not in headers
            assert len(body) > 10 * PORTION
            check(body)


def test_head_has_the_length_and_no_body(broker: TestBroker) -> None:
    with wire(broker) as peer:
        peer.sendall(b"GET " + PATH + HEAD)
        size = len(answer_of(peer)[2])
        peer.sendall(b"HEAD " + PATH + HEAD + b"GET /api/whoami" + HEAD)
        _, headers, rest = head_of(peer)
        assert int(headers[b"content-length"]) == size
        while b"guest" not in rest:
            rest += peer.recv(65_536)
        assert rest.startswith(b"HTTP/1.1 200 OK\r\n")  # the next answer follows at once


@pytest.mark.parametrize(
    "request_",
    [b"GET %b HTTP/1.0\r\n\r\n", b"GET %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"],
)
def test_the_connection_is_closed_after_it_when_the_client_wants_that(
    request_: bytes, broker: TestBroker
) -> None:
    with wire(broker) as peer:
        peer.sendall(request_ % PATH)
        _, headers, body = answer_of(peer)
        check(body)
        assert headers[b"connection"] == b"close"
        assert b"transfer-encoding" not in headers
        assert peer.recv(1) == b""


def wait_for(broker: TestBroker, condition: Callable[[FaultyNode], bool]) -> None:
    deadline = time.monotonic() + 60
    while not broker.call(condition):
        assert time.monotonic() < deadline


def slow_reader(broker: TestBroker) -> socket.socket:
    """A client that asked, and does not read."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.settimeout(60)
    peer.connect(("127.0.0.1", broker.http_port))
    peer.sendall(b"GET " + PATH + HEAD)
    return peer


def test_what_a_slow_client_has_not_read_counts_although_the_socket_does_not_have_it(
    broker: TestBroker,
) -> None:
    with slow_reader(broker) as peer:
        wait_for(broker, lambda node: node.http.engine.is_congested)

        def unsent(node: FaultyNode) -> tuple[int, int]:
            (connection,) = node.http.engine.slow
            return connection.transport.get_write_buffer_size(), connection.unsent_bytes

        in_socket, in_all = broker.call(unsent)
        assert in_socket < 2 * PORTION
        assert in_all > 4 << 20
        with wire(broker) as other:
            other.sendall(b"GET /api/whoami" + HEAD)
            assert head_of(other)[0] == b"HTTP/1.1 503 Service Unavailable"

        check(answer_of(peer)[2])  # now it reads, and nothing is missing

    wait_for(broker, lambda node: not node.http.engine.is_congested)


def test_a_client_that_never_reads_is_cut_off(broker: TestBroker) -> None:
    with slow_reader(broker):
        wait_for(broker, lambda node: node.http.engine.is_congested)

        broker.call(lambda node: node.http.engine.sweep(asyncio.get_running_loop().time() + 6))

        wait_for(broker, lambda node: not node.http.engine.slow and not node.http.engine.tasks)


def test_a_client_that_leaves_in_between_leaves_nothing_behind(broker: TestBroker) -> None:
    with slow_reader(broker):
        wait_for(broker, lambda node: bool(node.http.engine.slow))
    wait_for(broker, lambda node: not node.http.engine.connections and not node.http.engine.tasks)


async def test_other_work_runs_between_two_portions() -> None:
    pieces = Pieces([b"a" * (PORTION // 2)] * 9)
    turns = 0

    async def beside() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(beside())
    left = []
    sizes = []
    async for portion in pieces.portions():
        sizes.append(len(portion))
        left.append(pieces.size)
    task.cancel()

    assert sizes == [PORTION] * 4 + [PORTION // 2]
    assert left == [PORTION * 7 // 2, PORTION * 5 // 2, PORTION * 3 // 2, PORTION // 2, 0]
    assert turns >= 4


@pytest.mark.parametrize("size", [0, 1, PORTION, PORTION + 1, 5 * PORTION + 17])
async def test_a_joined_body_is_cut_and_comes_out_the_same(size: int) -> None:
    body = random.Random(size).randbytes(size)

    assert b"".join([portion async for portion in Pieces.of(body).portions()]) == body


@pytest.mark.parametrize("count", [0, 1, 2_000, 2_001, 30_000])
async def test_names_are_sorted_in_parts(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise, "STEP", 0.0)
    names = [f"{'even' if number % 2 else 'odd'}-{number}" for number in range(count)]
    random.Random(count).shuffle(names)

    parts = [part async for part in in_order(names)]

    assert [name for part in parts for name in part] == sorted(names)
    assert max(map(len, parts)) <= max(2_000, count // 3)

"""Answers cut anywhere, templates that patch, acks made of what was popped."""

import json
import socket
from collections.abc import Callable

import pytest

from holtmq.load.errors import LoadError
from holtmq.load.http_dialect import HttpDialect
from holtmq.load.http_wire import HttpAddress, HttpAnswer, HttpWire, read_head
from holtmq.load.http_workers import Flow, Pace
from holtmq.load.http_workloads import HTTP_WORKLOADS, PAYLOAD, HttpWorkload

ADDRESS = HttpAddress("127.0.0.1", 1)
ANSWER = b"HTTP/1.1 201 Created\r\nserver: x\r\ncontent-length: 11\r\n\r\nhello\r\n\r\nyo"


@pytest.fixture
def wired() -> tuple[HttpWire, socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        wire = HttpWire(HttpAddress("127.0.0.1", listener.getsockname()[1]))
        return wire, listener.accept()[0]


def body_of(request: bytes) -> bytes:
    head, _, body = request.partition(b"\r\n\r\n")
    assert read_head(b"HTTP/1.1 200 OK\r\n" + head)[1] == len(body)
    return body


@pytest.mark.parametrize("cut", range(1, len(ANSWER)))
def test_an_answer_cut_anywhere_is_read_whole(wired: tuple[HttpWire, socket.socket], cut: int) -> None:
    wire, peer = wired
    try:
        peer.sendall(ANSWER[:cut])
        assert wire.receive() is None
        peer.sendall(ANSWER[cut:])
        answer = wire.receive()

        assert answer is not None
        assert (answer.status, answer.body) == (201, b"hello\r\n\r\nyo")
    finally:
        wire.close()
        peer.close()


def test_more_than_the_answer_and_an_end_in_the_middle_are_errors(
    wired: tuple[HttpWire, socket.socket],
) -> None:
    wire, peer = wired
    peer.sendall(ANSWER + b"H")
    with pytest.raises(LoadError, match="more than the answer"):
        wire.receive()
    peer.close()
    with pytest.raises(LoadError, match="closed"):
        wire.receive()
    wire.close()


def test_heads_in_any_case_and_without_content() -> None:
    assert read_head(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nx: y") == (200, 7)
    assert read_head(b"HTTP/1.1 204 No Content\r\nx: y") == (204, 0)
    with pytest.raises(LoadError, match="without content-length"):
        read_head(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked")
    with pytest.raises(LoadError, match="not an HTTP answer"):
        read_head(b"SSH-2.0-x")


def test_every_message_of_every_push_has_an_id_of_its_own() -> None:
    workload = HttpWorkload("x", "", push_batch=3, pushers=2, partitions=5)
    dialect = HttpDialect(ADDRESS, workload)

    items = [
        item
        for _ in range(4)
        for number in range(2)
        for item in json.loads(body_of(dialect.push(number)))["items"]
    ]

    assert len({item["transactionId"] for item in items}) == len(items) == 24
    assert {item["partition"] for item in items} == {"p0", "p1", "p2", "p3", "p4"}
    assert all(item["payload"] == json.loads(PAYLOAD) for item in items)


def test_connections_share_no_partition_while_there_are_enough() -> None:
    workload = HttpWorkload("x", "", push_batch=1, pushers=3, partitions=7)
    dialect = HttpDialect(ADDRESS, workload)
    seen = [
        {json.loads(body_of(dialect.push(number)))["items"][0]["partition"] for _ in range(9)}
        for number in range(3)
    ]

    assert set.union(*seen) == {f"p{number}" for number in range(7)}
    assert sum(map(len, seen)) == 7


def test_pushes_without_ids_are_the_same_bytes_again() -> None:
    dialect = HttpDialect(ADDRESS, HTTP_WORKLOADS["push-10-minted"])

    first = dialect.push(0)

    assert "transactionId" not in json.loads(body_of(first))["items"][0]


def popped(count: int) -> HttpAnswer:
    messages = [
        {"id": "i", "transactionId": f"t{n}", "data": json.loads(PAYLOAD), "partitionId": "7", "leaseId": "l"}
        for n in range(count)
    ]
    return HttpAnswer(200, json.dumps({"success": True, "messages": messages}).encode())


def test_an_ack_names_what_was_popped_and_under_which_lease() -> None:
    workload = HttpWorkload("x", "", groups=2)
    dialect = HttpDialect(ADDRESS, workload)

    held = dialect.popped(popped(3), 0, 1)
    assert held is not None
    sent = json.loads(body_of(dialect.ack(held, 1, 2, 1)))

    assert sent["consumerGroup"] == "g1"
    assert sent["acknowledgments"] == [
        {"transactionId": f"t{n}", "partitionId": "7", "leaseId": "l", "status": "completed"} for n in (1, 2)
    ]


def test_a_single_ack_has_its_own_path() -> None:
    dialect = HttpDialect(ADDRESS, HTTP_WORKLOADS["ack-one"])
    held = dialect.popped(popped(2), 0, 0)
    assert held is not None

    request = dialect.ack(held, 1, 1, 0)

    assert request.startswith(b"POST /api/v1/ack HTTP/1.1\r\n")
    assert json.loads(body_of(request))["transactionId"] == "t1"


def test_refusals_and_damage_are_noticed() -> None:
    dialect = HttpDialect(ADDRESS, HttpWorkload("x", "", push_batch=2))

    with pytest.raises(LoadError, match="a push gave 503"):
        dialect.pushed(HttpAnswer(503, b"{}"))
    with pytest.raises(LoadError, match="1 of 2 messages stored"):
        answer_often(lambda: dialect.pushed(HttpAnswer(201, b'[{"status":"queued"},{"status":"duplicate"}]')))
    with pytest.raises(LoadError, match="an ack of 2"):
        dialect.acked(HttpAnswer(200, b'[{"success":true},{"success":false}]'), 2)
    with pytest.raises(LoadError, match="changed"):
        answer_often(lambda: dialect.popped(popped(1), 0, 0))  # json.dumps spaces the payload


def answer_often(look: Callable[[], object]) -> None:
    """Contents are looked at on a sample of the answers."""
    for _ in range(8):
        look()


def test_a_lost_or_doubled_message_fails_the_round() -> None:
    flow = Flow(HttpWorkload("x", "", groups=2))
    flow.pushed = 5
    flow.settled = [5, 4]

    with pytest.raises(LoadError, match="5 pushed, 4 settled by group 1"):
        flow.check()


def test_the_backlog_counts_the_slowest_group() -> None:
    flow = Flow(HttpWorkload("x", "", groups=2, backlog=10))
    flow.bounded = True
    flow.offered, flow.settled = 10, [9, 0]
    assert not flow.may_push()

    flow.settled = [9, 1]
    assert flow.may_push()


def test_a_pace_is_not_made_up_for_in_a_burst() -> None:
    pace = Pace(1000.0)
    pace._began -= 60.0

    taken = sum(pace.take() for _ in range(10_000))

    assert taken < 100

"""Retries, failover, connections and hanging up, against a server that fails on command."""

import asyncio
import json
import ssl
import time
from pathlib import Path

import pytest
from client_waiting import PATIENCE, until
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from stub_broker import PUSHED, Asked, Say, StubBroker

from holtmq.client import (
    Backoff,
    BadAnswer,
    BadRequest,
    Client,
    ClientClosed,
    Conflict,
    ConnectionFailed,
    Forbidden,
    Item,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    PushFailed,
    QueueFull,
    Refused,
    TooLarge,
    TransactionFailed,
    Unauthorized,
    Unavailable,
    http1,
)
from holtmq.client.records import MessageKey

QUICK = Backoff(tries=4, first=0.005, longest=0.01)
STORED = Say(201, PUSHED)


def quick_client(*urls: str, **options: object) -> Client:
    return Client(urls, backoff=QUICK, timeout=PATIENCE, **options)  # type: ignore[arg-type]


def ids(asked: Asked) -> list[str]:
    return [item["transactionId"] for item in json.loads(asked.body)["items"]]


@pytest.mark.parametrize(
    "fault",
    [
        Say(503, {"error": "no disk", "code": "unavailable"}),
        Say(500, {"error": "oops"}),
        Say(502, raw=b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\n<p/>"),
        Say(408, {"error": "idle"}),
        Say(429, {"error": "slow down"}),
        Say(drop=True),
        Say(201, PUSHED, cut=5),
        Say(201, PUSHED, cut=60),
    ],
    ids=["503", "500", "502", "408", "429", "dropped", "cut in the status", "cut in the body"],
)
async def test_a_push_survives_a_fault_and_is_sent_again_with_the_same_ids(fault: Say) -> None:
    async with StubBroker(fault, fault, STORED) as stub, quick_client(stub.url) as client:
        results = await client.queue("q").push([{"n": 1}, Item(2, transaction_id="mine")])

        assert results[0].status == "queued"
        assert len(stub.asked) == 3
        assert len({tuple(ids(asked)) for asked in stub.asked}) == 1
        assert ids(stub.asked[0])[1] == "mine"


async def test_a_slow_answer_is_given_up_and_asked_for_again() -> None:
    slow = Say(201, PUSHED, after=asyncio.Event())
    patient = Backoff(tries=1000, first=0.005, longest=0.01)
    async with StubBroker(slow, STORED) as stub, Client(stub.url, timeout=0.3, backoff=patient) as client:
        await client.queue("q").push(1)

        assert len(stub.asked) >= 2  # more when this machine is too slow for the second answer
        assert len({tuple(ids(asked)) for asked in stub.asked}) == 1


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "bad_request", BadRequest),
        (401, "unauthorized", Unauthorized),
        (403, "forbidden", Forbidden),
        (404, "not_found", NotFound),
        (409, "conflict", Conflict),
        (413, "batch_too_large", TooLarge),
        (418, "teapot", BadRequest),
    ],
)
async def test_a_refusal_is_raised_at_once_with_the_brokers_words(
    status: int, code: str, kind: type[Refused]
) -> None:
    async with StubBroker(Say(status, {"error": "as it is", "code": code})) as stub:
        async with quick_client(stub.url) as client:
            with pytest.raises(kind, match=r"^as it is$") as caught:
                await client.queue("q").push(1)

        assert (caught.value.status, caught.value.code) == (status, code)
        assert len(stub.asked) == 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Say(503, {"error": "down"}), Unavailable),
        (Say(429, {"error": "busy"}), Overloaded),
        (Say(429, {"error": "full", "code": "queue_full"}), QueueFull),
        (Say(drop=True), ConnectionFailed),
    ],
    ids=["503", "429", "full", "dropped"],
)
async def test_after_all_tries_the_last_fault_is_raised(fault: Say, kind: type[Exception]) -> None:
    async with StubBroker(fault) as stub, quick_client(stub.url) as client:
        with pytest.raises(kind):
            await client.queue("q").push(1)

        assert len(stub.asked) == QUICK.tries


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_waited_for(status: int) -> None:
    busy = Say(status, {"error": "busy"}, {"Retry-After": "1"})
    async with StubBroker(busy, STORED) as stub, quick_client(stub.url) as client:
        began = time.monotonic()

        await client.queue("q").push(1)

        assert time.monotonic() - began >= 1.0


async def test_nobody_listening_is_a_failed_connection() -> None:
    async with StubBroker() as stub:
        url = stub.url
    async with quick_client(url) as client:
        with pytest.raises(ConnectionFailed, match=r"no connection to 127\.0\.0\.1"):
            await client.queue("q").push(1)


async def test_an_answer_that_is_not_a_brokers_is_told_as_such() -> None:
    async with StubBroker(Say(200, {"hello": "world"})) as stub, quick_client(stub.url) as client:
        with pytest.raises(BadAnswer):
            await client.queue("q").push(1)
    async with StubBroker(Say(raw=b"SSH-2.0-OpenSSH\r\n")) as stub, quick_client(stub.url) as client:
        with pytest.raises(BadAnswer):
            await client.queue("q").push(1)


async def test_items_the_broker_could_not_store_are_an_error_with_their_results() -> None:
    half = [*PUSHED, {"index": 1, "status": "failed", "transaction_id": "u", "error": "disk"}]
    async with StubBroker(Say(201, half)) as stub, quick_client(stub.url) as client:
        with pytest.raises(PushFailed, match="1 of 2 items failed: disk") as caught:
            await client.queue("q").push([1, 2])

        assert [result.status for result in caught.value.results] == ["queued", "failed"]


REFUSED = Say(200, {"success": False, "error": "ACK operation failed: Message not found", "results": []})


async def test_a_refused_transaction_says_that_nothing_was_done() -> None:
    async with StubBroker(REFUSED) as stub, quick_client(stub.url) as client:
        message = MessageKey("t", "1", "lease")
        with pytest.raises(TransactionFailed, match="Message not found"):
            await client.transaction().ack(message).queue("b").push(1).commit()

        assert message.settled is None


async def test_a_commit_refused_after_a_broken_connection_is_of_unknown_outcome() -> None:
    async with StubBroker(Say(drop=True), REFUSED) as stub, quick_client(stub.url) as client:
        with pytest.raises(OutcomeUnknown):
            await client.transaction().ack(MessageKey("t", "1", "lease")).commit()


async def test_a_connection_known_to_be_closed_leaves_no_doubt_about_a_commit() -> None:
    async with StubBroker(STORED, REFUSED) as stub, quick_client(stub.url) as client:
        await client.queue("q").push(1)
        stub.close_idle()
        (pool,) = client.api.transport._pools
        await until(lambda: not any(connection.usable for connection in pool._idle))

        with pytest.raises(TransactionFailed):
            await client.transaction().ack(MessageKey("t", "1", "lease")).commit()


async def test_another_broker_takes_over_at_once_and_is_kept() -> None:
    async with StubBroker(Say(503, {"error": "down"})) as bad, StubBroker(STORED) as good:
        slow_backoff = Backoff(tries=2, first=60, longest=60)
        async with Client([bad.url, good.url], backoff=slow_backoff) as client:
            for _ in range(5):
                await client.queue("q").push(1)

        assert len(bad.asked) == 1
        assert len(good.asked) == 5


async def test_a_dead_broker_is_left_for_a_living_one_with_the_same_ids() -> None:
    async with StubBroker(STORED) as first, StubBroker(STORED) as second:
        async with quick_client(first.url, second.url) as client:
            await client.queue("q").push(1)
            first.script = [Say(drop=True)]

            await client.queue("q").push(2)

        assert ids(first.asked[-1]) == ids(second.asked[0])


async def test_a_refusal_does_not_lead_to_another_broker() -> None:
    async with StubBroker(Say(400, {"error": "no"})) as first, StubBroker(STORED) as second:
        async with quick_client(first.url, second.url) as client:
            with pytest.raises(BadRequest):
                await client.queue("q").push(1)

        assert second.asked == []


async def test_when_all_brokers_fail_each_is_tried_again() -> None:
    bad = Say(503, {"error": "down"})
    async with StubBroker(bad) as first, StubBroker(bad, bad, STORED) as second:
        async with quick_client(first.url, second.url) as client:
            await client.queue("q").push(1)

        assert len(first.asked) >= 2
        assert len(second.asked) == 3


async def test_calls_one_after_the_other_share_a_connection() -> None:
    async with StubBroker(STORED) as stub, quick_client(stub.url) as client:
        for _ in range(10):
            await client.queue("q").push(1)

        assert stub.connections == 1


async def test_calls_at_once_have_connections_of_their_own_up_to_the_limit() -> None:
    async with StubBroker(Say(201, PUSHED, delay=0.02)) as stub:
        async with quick_client(stub.url, max_connections=3) as client:
            await asyncio.gather(*(client.queue("q").push(1) for _ in range(12)))

        assert len(stub.asked) == 12
        assert stub.connections == 3


async def test_waiting_pops_leave_room_for_acks() -> None:
    over = asyncio.Event()
    async with StubBroker(Say(204, after=over)) as stub, quick_client(stub.url, max_connections=1) as client:
        polls = [asyncio.create_task(client.queue("q").pop(wait=PATIENCE)) for _ in range(5)]
        await until(lambda: len(stub.asked) == 5)
        stub.script = [STORED]

        await client.queue("q").push(1)

        assert not any(poll.done() for poll in polls)
        over.set()
        assert await asyncio.gather(*polls) == [[]] * 5


async def test_a_connection_the_broker_closed_while_it_idled_costs_no_try() -> None:
    async with StubBroker(STORED) as stub:
        async with Client(stub.url, backoff=Backoff(tries=1)) as client:
            await asyncio.gather(*(client.queue("q").push(1) for _ in range(3)))
            stub.close_idle()

            await client.queue("q").push(2)

        assert len(stub.asked) == 4


async def test_a_broker_that_closes_after_its_answer_is_connected_to_again() -> None:
    async with StubBroker(Say(201, PUSHED, close=True)) as stub:
        async with Client(stub.url, backoff=Backoff(tries=1)) as client:
            for _ in range(3):
                await client.queue("q").push(1)

        assert stub.connections == 3


async def test_a_cancelled_call_does_not_leave_its_answer_to_the_next_one() -> None:
    first = Say(201, [{**PUSHED[0], "message_id": "first"}], delay=0.05)
    second = Say(201, [{**PUSHED[0], "message_id": "second"}])
    async with StubBroker(first, second) as stub, quick_client(stub.url) as client:
        cancelled = asyncio.create_task(client.queue("q").push(1))
        await until(lambda: stub.asked)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

        results = await client.queue("q").push(2)

        assert results[0].message_id == "second"


async def test_a_closed_client_refuses_calls() -> None:
    async with StubBroker(STORED) as stub:
        client = quick_client(stub.url)
        await client.close()

        with pytest.raises(ClientClosed):
            await client.queue("q").push(1)


async def test_the_token_is_sent_and_may_change() -> None:
    tokens = iter(["first", "second"])
    async with StubBroker(STORED) as stub:
        async with quick_client(stub.url, token=lambda: next(tokens)) as client:
            await client.queue("q").push(1)
            await client.queue("q").push(1)
        async with quick_client(stub.url, token="fixed") as client:
            await client.queue("q").push(1)
        async with quick_client(stub.url) as client:
            await client.queue("q").push(1)

        sent = [asked.headers.get("authorization") for asked in stub.asked]
        assert sent == ["Bearer first", "Bearer second", "Bearer fixed", None]


async def test_a_token_cannot_smuggle_headers() -> None:
    async with StubBroker(STORED) as stub, quick_client(stub.url, token="a\r\nX-Evil: 1") as client:
        with pytest.raises(ValueError, match="token"):
            await client.queue("q").push(1)

        assert stub.asked == []


async def test_names_travel_escaped_and_below_the_urls_path() -> None:
    async with StubBroker(Say(204)) as stub, quick_client(f"{stub.url}/mq/") as client:
        await client.queue("a/b ?ü").partition("100%").group("g&h").batch(7).pop()

        path, _, query = stub.asked[0].path.partition("?")
        assert path == "/mq/api/v1/pop/queue/a%2Fb%20%3F%C3%BC/partition/100%25"
        assert query.split("&") == ["batch=7", "wait=false", "consumerGroup=g%26h"]


async def test_a_pop_without_a_queue_asks_by_namespace_and_task() -> None:
    async with StubBroker(Say(204)) as stub, quick_client(stub.url) as client:
        queue = client.queue().namespace("ns").task("t").partitions(3).lease(9).auto_ack()
        await queue.subscription_mode("new").subscription_from("now").pop(wait=1.5)

        path, _, query = stub.asked[0].path.partition("?")
        assert path == "/api/v1/pop"
        assert set(query.split("&")) == {
            "batch=1",
            "wait=true",
            "timeout=1500",
            "partitions=3",
            "autoAck=true",
            "leaseSeconds=9",
            "subscriptionMode=new",
            "subscriptionFrom=now",
            "namespace=ns",
            "task=t",
        }


POPPED = {
    "messages": [
        {"transactionId": "t1", "partitionId": "1", "leaseId": "L", "consumerGroup": "g", "data": 1},
        {"transactionId": "t2", "partitionId": "1", "leaseId": "L", "consumerGroup": "g", "data": 2},
    ]
}


async def test_a_stop_takes_waiting_pops_back_without_waiting_for_them() -> None:
    async with StubBroker(Say(204, after=asyncio.Event())) as stub, quick_client(stub.url) as client:
        consuming = client.queue("q").concurrency(3).consume(_never).start()
        await until(lambda: len(stub.asked) == 3)
        stub.script = [Say(drop=True)]

        stop = asyncio.create_task(consuming.stop())
        await asyncio.sleep(0.05)
        stub.close_idle()  # what a broker does with a connection that was closed from the other side
        await stop

        assert (await consuming.wait()).handled == 0


async def test_messages_that_were_under_way_when_the_pop_was_taken_back_are_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http1, "_HANG_UP_SECONDS", PATIENCE)  # however late the answer comes
    async with (
        StubBroker(Say(200, POPPED, delay=0.2), Say(200, [{"success": True}])) as stub,
        quick_client(stub.url) as client,
    ):
        consuming = client.queue("q").group("g").batch(2).each().consume(_never).start()
        await until(lambda: stub.asked)

        await consuming.stop()

        given_back = json.loads(stub.asked[-1].body)["acknowledgments"]
        assert [(ack["transactionId"], ack["status"]) for ack in given_back] == [("t1", "retry")]


async def test_a_stop_also_ends_the_waiting_between_two_tries() -> None:
    async with (
        StubBroker(Say(503, {"error": "down"})) as stub,
        Client(stub.url, backoff=Backoff(first=2 * PATIENCE, longest=2 * PATIENCE)) as client,
    ):
        consuming = client.queue("q").consume(_never).start()
        await until(lambda: stub.asked)
        await asyncio.sleep(0.02)

        async with asyncio.timeout(PATIENCE):
            await consuming.stop()


async def _never(_: object) -> None:
    raise AssertionError("no message was expected")


async def test_tls_is_spoken_and_certificates_are_checked(tmp_path: Path) -> None:
    cert, key = _self_signed(tmp_path)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(cert, key)
    async with StubBroker(STORED, tls=serving) as stub:
        async with quick_client(stub.url, tls=ssl.create_default_context(cafile=str(cert))) as client:
            await client.queue("q").push(1)
        async with quick_client(stub.url) as stranger:
            with pytest.raises(ConnectionFailed, match="certificate"):
                await stranger.queue("q").push(1)

        assert len(stub.asked) == 1


async def test_a_stop_ends_a_waiting_pop_over_tls_too(tmp_path: Path) -> None:
    cert, key = _self_signed(tmp_path)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(cert, key)
    async with (
        StubBroker(Say(204, after=asyncio.Event()), tls=serving) as stub,
        quick_client(stub.url, tls=ssl.create_default_context(cafile=str(cert))) as client,
    ):
        consuming = client.queue("q").consume(_never).start()
        await until(lambda: stub.asked)

        await consuming.stop()


def _self_signed(folder: Path) -> tuple[Path, Path]:
    from datetime import UTC, datetime, timedelta
    from ipaddress import IPv4Address

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_file, key_file

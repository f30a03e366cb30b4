"""Tokens, roles and limits of a real broker, as the client tells them."""

import time
from collections.abc import Iterator

import jwt
import pytest

from holtmq.auth.permissions import Permissions
from holtmq.auth.users import User
from holtmq.client import Backoff, Client, Forbidden, Message, TooLarge, Unauthorized
from holtmq.config import Auth, Config, Http, Limits
from holtmq.config.values import Secret
from holtmq.first_start import GUEST_HASH
from holtmq.testing import TestBroker
from holtmq.testing.faulty_node import FaultyNode

SECRET = "a secret of more than thirty-two bytes, as it should be"


@pytest.fixture(scope="module")
def guarded() -> Iterator[TestBroker]:
    config = Config(
        auth=Auth(jwt_enabled=True, jwt_secret=Secret(SECRET)),
        http=Http(max_body_bytes=200_000, max_batch=50),
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
    )
    with TestBroker(clock="real", config=config) as broker:
        yield broker


def token(role: str, subject: str = "", age: float = 0) -> str:
    claims = {"role": role, "sub": subject, "exp": int(time.time() - age) + 60}
    return jwt.encode(claims, SECRET, algorithm="HS256")


def client_for(broker: TestBroker, token: str | None = None) -> Client:
    return Client(broker.http_url, token=token, backoff=Backoff(tries=2, first=0.01))


async def test_the_broker_says_who_pushed(guarded: TestBroker) -> None:
    async with client_for(guarded, token("read-write", "alice")) as client:
        await client.queue("stamped").push(1)

        (message,) = await client.queue("stamped").pop()

        assert message.producer == "alice"


async def test_a_user_of_the_broker_logs_in_with_a_password(guarded: TestBroker) -> None:
    def add(node: FaultyNode) -> None:
        node.broker.access.put_user(User("carol", GUEST_HASH))
        node.broker.access.set_permissions("carol", "/", Permissions("", "^hers$", "^hers$"))
        node.amqp.authenticator.remember("carol", "secret: ü", GUEST_HASH)

    guarded.call(add)
    async with Client(guarded.http_url, user="carol", password="secret: ü") as client:
        await client.queue("hers").push(1)
        (message,) = await client.queue("hers").pop()
        with pytest.raises(Forbidden, match="write access to 'others'"):
            await client.queue("others").push(1)
    async with Client(guarded.http_url, user="carol", password="wrong") as client:
        with pytest.raises(Unauthorized):
            await client.queue("hers").push(1)

    assert message.producer == "carol"
    with pytest.raises(ValueError, match="not both"):
        Client(guarded.http_url, user="carol", token="x")


async def test_without_a_token_or_with_an_old_one_nothing_is_allowed(guarded: TestBroker) -> None:
    for wrong in (None, token("admin", age=3600), "not a token"):
        async with client_for(guarded, wrong) as client:
            with pytest.raises(Unauthorized):
                await client.queue("q").push(1)


async def test_a_role_that_is_too_low_is_told_and_ends_a_consume(guarded: TestBroker) -> None:
    async def handler(_: list[Message]) -> None:
        raise AssertionError("nothing may arrive")

    async with client_for(guarded, token("read-only")) as client:
        assert await client.groups() is not None
        with pytest.raises(Forbidden) as caught:
            await client.queue("q").push(1)
        with pytest.raises(Forbidden):
            await client.queue("q").concurrency(3).consume(handler)

    assert caught.value.status == 403


async def test_a_token_is_asked_for_before_every_request(guarded: TestBroker) -> None:
    tokens = iter([token("read-write"), token("read-write", age=3600)])
    async with Client(guarded.http_url, token=lambda: next(tokens)) as client:
        await client.queue("q").push(1)
        with pytest.raises(Unauthorized):
            await client.queue("q").push(1)


@pytest.mark.parametrize("size", [250_000, 5_000_000])
async def test_a_request_that_is_too_large_is_told_as_such(guarded: TestBroker, size: int) -> None:
    async with client_for(guarded, token("read-write")) as client:
        with pytest.raises(TooLarge):
            await client.queue("q").push("x" * size)

        await client.queue("q").push("small")  # on a new connection


async def test_too_many_messages_in_one_push_are_told_as_such(guarded: TestBroker) -> None:
    async with client_for(guarded, token("read-write")) as client:
        with pytest.raises(TooLarge) as caught:
            await client.queue("q").push(list(range(51)))

    assert caught.value.code == "batch_too_large"

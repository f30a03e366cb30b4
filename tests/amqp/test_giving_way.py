"""Frames that were read together do not hold the event loop for long: the rest waits for other clients."""

import pytest
from amqp_support import Client, frame, new_broker, publish

from holtmq.amqp import publish_run
from holtmq.amqp.methods import (
    ConfirmSelect,
    ConnectionClose,
    ExchangeDeclare,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
)

NAMES = ["a", "b", "c"]
DECLARES = b"".join(frame(QueueDeclare(name)) for name in NAMES)


def declared(found: list[Method]) -> list[str]:
    return [method.queue for method in found if isinstance(method, QueueDeclareOk)]


def test_when_time_is_up_the_rest_waits_its_turn() -> None:
    client = Client(new_broker())
    client.time_is_up = True

    assert declared(client.feed(DECLARES)) == ["a"]
    assert client.unstalls == 1
    client.connection.unstall()

    assert declared(client.told()) == ["b"]
    assert client.unstalls == 2
    client.time_is_up = False
    client.connection.unstall()
    assert declared(client.told()) == ["c"]
    assert client.unstalls == 2


def test_what_arrives_meanwhile_comes_after_the_rest() -> None:
    client = Client(new_broker())
    client.time_is_up = True
    client.feed(DECLARES)

    client.time_is_up = False
    assert client.feed(frame(QueueDeclare("d"))) == []
    client.connection.unstall()

    assert declared(client.told()) == ["b", "c", "d"]


def test_a_single_frame_does_not_wait() -> None:
    client = Client(new_broker())
    client.time_is_up = True

    client.feed(frame(QueueDeclare("a")))

    assert client.unstalls == 0


def test_after_a_commit_that_took_long_the_rest_waits_its_turn() -> None:
    client = Client(new_broker())
    client.feed(frame(QueueDeclare("lasting", durable=True)) + frame(QueueDeclare("a")))
    client.time_is_up = True

    client.broker.journal.flush()

    assert declared(client.told()) == ["lasting"]
    assert client.unstalls == 1
    client.connection.unstall()
    assert declared(client.told()) == ["a"]


def test_a_connection_that_ends_meanwhile_stays_ended() -> None:
    client = Client(new_broker())
    client.time_is_up = True
    client.feed(frame(QueueDeclare("a")) + frame(ConnectionClose(200, "", 0, 0), 0))

    client.connection.end("the socket is gone")
    client.connection.unstall()

    assert client.connection.has_stopped


@pytest.mark.parametrize("exchange", ["wide", "headed"])
def test_publishes_give_way_and_all_are_placed_in_order(
    exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_run, "_COPIES_MAX", 2)
    client = Client(new_broker())
    client.call(ConfirmSelect(), ExchangeDeclare("wide", "fanout"), ExchangeDeclare("headed", "headers"))
    for name in NAMES:
        client.call(QueueDeclare(name), QueueBind(name, exchange))
    client.time_is_up = True
    bodies = [b"%d" % number for number in range(9)]

    client.feed(b"".join(publish(body, "k", exchange=exchange) for body in bodies))
    assert 0 < len(client.queue("a")) < len(bodies)
    while client.connection.is_stalled:
        client.connection.unstall()

    assert client.unstalls > 1
    for name in NAMES:
        assert client.bodies(name) == bodies

"""What RabbitMQ 3.10.8 answered to random sequences of methods, HoltMQ answers with RabbitMQ's profile.

``make differential`` plays new sequences on both brokers side by side.
"""

import json
from collections.abc import Iterator

import pika
import pika.exceptions
import pytest

from differential import Step, sequence
from differential.__main__ import ABOUT, Play, first_difference, on_holt, recorded_file, shortened
from holtmq.config import load
from holtmq.testing import TestBroker

SEQUENCES = [
    pytest.param(one, id=f"{about}-{one['seed']}")
    for about in ABOUT
    for one in json.loads(recorded_file(about).read_text(encoding="utf-8"))
]


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    with TestBroker(config=load({"HOLT_PROFILE": "rabbitmq"}).config) as broker:
        yield on_holt(broker)


@pytest.mark.parametrize("recorded", SEQUENCES)
def test_every_step_has_the_outcome_it_has_in_rabbitmq(play: Play, recorded: dict[str, list[Step]]) -> None:
    steps, seen = recorded["steps"], recorded["seen"]

    ours = play(steps)

    at = first_difference(seen, ours)
    assert at is None, f"step {at}: {steps[at]}\nRabbitMQ: {seen[at]}\nHoltMQ:   {ours[at]}"


def test_a_sequence_is_shortened_to_the_steps_that_show_a_difference() -> None:
    steps = sequence(1)
    needed = [steps[3], steps[12], steps[-1]]

    assert shortened(steps, lambda some: all(step in some for step in needed)) == needed


def test_the_same_seed_is_the_same_sequence() -> None:
    assert sequence(7) == sequence(7)
    assert sequence(7) != sequence(8)


def test_a_message_without_time_to_live_expires_behind_another_one() -> None:
    with TestBroker() as broker, pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"stays")
        channel.basic_publish("", "q", b"expires", pika.BasicProperties(expiration="0"))
        channel.queue_declare("q", passive=True)
        broker.clock.advance(milliseconds=1)
        got: list[bytes] = []
        channel.basic_consume("q", lambda *delivery: got.append(delivery[3]))
        channel.basic_qos(prefetch_count=5)  # its answer comes behind all deliveries
        connection.process_data_events(0)

        assert got == [b"stays"]


def test_the_count_in_get_ok_leaves_out_what_has_expired_behind_the_message() -> None:
    with TestBroker() as broker, pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"stays")
        channel.basic_publish("", "q", b"expires", pika.BasicProperties(expiration="0"))
        assert channel.queue_declare("q", passive=True).method.message_count == 2  # not at the head
        broker.clock.advance(milliseconds=1)

        method, _, body = channel.basic_get("q")

        assert (body, method.message_count) == (b"stays", 0)


def test_a_wrong_user_id_is_named_before_a_wrong_header() -> None:
    with TestBroker() as broker, pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        sent = pika.BasicProperties(user_id="other", headers={"BCC": "a"})
        channel.basic_publish("amq.topic", "a", b"", sent)

        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="user_id property"):
            channel.queue_declare("q")


@pytest.mark.parametrize("ends", [("", "amq.direct"), ("amq.direct", "")])
def test_the_default_exchange_cannot_be_unbound_on_either_side(ends: tuple[str, str]) -> None:
    with TestBroker() as broker, pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()

        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            channel.exchange_unbind(*ends, "key")

        assert closed.value.reply_code == 403

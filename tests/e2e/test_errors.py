"""Refusals: RabbitMQ's codes, and texts that say what RabbitMQ's say, since people grep for them.

The texts were compared with RabbitMQ 3.10, reply by reply; docs/amqp.md lists where ours differ.
"""

from collections.abc import Callable

import pytest
from e2e_support import RawPeer

from holtmq.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicRecover,
    BasicRecoverAsync,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionClose,
    ConnectionTuneOk,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueueUnbind,
    QueueUnbindOk,
    TxCommit,
    TxRollback,
    TxSelect,
    TxSelectOk,
)
from holtmq.testing import TestBroker
from holtmq.wire.properties import Properties

pytestmark = pytest.mark.e2e
Raw = Callable[..., RawPeer]
LOCKED = "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{0}' in vhost '/'. It could"
DEFAULT_EXCHANGE = "ACCESS_REFUSED - operation not permitted on the default exchange"


def own(queue: str, **arguments: object) -> QueueDeclare:
    """A queue that goes with the connection."""
    table = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    return QueueDeclare(queue, exclusive=True, arguments=table)  # type: ignore[arg-type]


# What to send on a fresh channel (Q becomes a name of the test's own), the code, how the text begins.
CHANNEL_ERRORS: dict[str, tuple[list[Method], int, str]] = {
    "passive declare of an unknown queue": (
        [QueueDeclare("Q", passive=True)],
        404,
        "NOT_FOUND - no queue 'Q' in vhost '/'",
    ),
    "passive declare without a name": (
        [QueueDeclare("", passive=True)],
        404,
        "NOT_FOUND - no queue '' in vhost '/'",
    ),
    "passive declare of an unknown exchange": (
        [ExchangeDeclare("Q", passive=True)],
        404,
        "NOT_FOUND - no exchange 'Q' in vhost '/'",
    ),
    "consume from an unknown queue": ([BasicConsume("Q")], 404, "NOT_FOUND - no queue 'Q' in vhost '/'"),
    "get from an unknown queue": ([BasicGet("Q")], 404, "NOT_FOUND - no queue 'Q' in vhost '/'"),
    "purge of an unknown queue": ([QueuePurge("Q")], 404, "NOT_FOUND - no queue 'Q' in vhost '/'"),
    "bind of an unknown queue": (
        [QueueBind("Q", "amq.direct", "k")],
        404,
        "NOT_FOUND - no queue 'Q' in vhost '/'",
    ),
    "bind to an unknown exchange": (
        [own("Q"), QueueBind("Q", "nope", "k")],
        404,
        "NOT_FOUND - no exchange 'nope' in vhost '/'",
    ),
    "exchange bind of an unknown destination": (
        [ExchangeBind("Q", "amq.direct", "k")],
        404,
        "NOT_FOUND - no exchange 'Q' in vhost '/'",
    ),
    "exchange bind of an unknown source": (
        [ExchangeBind("amq.direct", "Q", "k")],
        404,
        "NOT_FOUND - no exchange 'Q' in vhost '/'",
    ),
    "publish to an unknown exchange": (
        [BasicPublish("Q", "k")],
        404,
        "NOT_FOUND - no exchange 'Q' in vhost '/'",
    ),
    "no queue declared before": ([BasicGet("")], 404, "NOT_FOUND - no previously declared queue"),
    "declare of a reserved queue name": (
        [QueueDeclare("amq.Q")],
        403,
        "ACCESS_REFUSED - queue name 'amq.Q' contains reserved prefix 'amq.*'",
    ),
    "declare of a reserved exchange name": (
        [ExchangeDeclare("amq.Q")],
        403,
        "ACCESS_REFUSED - exchange name 'amq.Q' contains reserved prefix 'amq.*'",
    ),
    "delete of a predeclared exchange": (
        [ExchangeDelete("amq.direct")],
        403,
        "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed",
    ),
    "declare of the default exchange": ([ExchangeDeclare("")], 403, DEFAULT_EXCHANGE),
    "passive declare of the default exchange": ([ExchangeDeclare("", passive=True)], 403, DEFAULT_EXCHANGE),
    "delete of the default exchange": ([ExchangeDelete("")], 403, DEFAULT_EXCHANGE),
    "bind to the default exchange": ([own("Q"), QueueBind("Q", "", "k")], 403, DEFAULT_EXCHANGE),
    "unbind from the default exchange": ([own("Q"), QueueUnbind("Q", "", "k")], 403, DEFAULT_EXCHANGE),
    "exchange bind from the default exchange": ([ExchangeBind("amq.direct", "", "k")], 403, DEFAULT_EXCHANGE),
    "exchange bind to the default exchange": ([ExchangeBind("", "amq.direct", "k")], 403, DEFAULT_EXCHANGE),
    "publish to an internal exchange": (
        [ExchangeDeclare("Q", "fanout", internal=True), BasicPublish("Q", "")],
        403,
        "ACCESS_REFUSED - cannot publish to internal exchange 'Q' in vhost '/'",
    ),
    "unknown exchange type": (
        [ExchangeDeclare("Q", "nonsense")],
        406,
        "PRECONDITION_FAILED - unknown exchange type 'nonsense'",
    ),
    "exchange of another type": (
        [ExchangeDeclare("Q", "direct", auto_delete=True), ExchangeDeclare("Q", "topic", auto_delete=True)],
        406,
        "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'Q' in vhost '/': "
        "received 'topic' but current is 'direct'",
    ),
    "exchange with other durability": (
        [ExchangeDeclare("Q", auto_delete=True), ExchangeDeclare("Q", durable=True, auto_delete=True)],
        406,
        "PRECONDITION_FAILED - inequivalent arg 'durable' for exchange 'Q' in vhost '/': "
        "received 'true' but current is 'false'",
    ),
    "exchange that is internal or not": (
        [ExchangeDeclare("Q", auto_delete=True), ExchangeDeclare("Q", internal=True, auto_delete=True)],
        406,
        "PRECONDITION_FAILED - inequivalent arg 'internal' for exchange 'Q' in vhost '/': "
        "received 'true' but current is 'false'",
    ),
    "exchange with another alternate": (
        [ExchangeDeclare("Q", arguments={"alternate-exchange": "a"}), ExchangeDeclare("Q")],
        406,
        "PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange 'Q' in vhost '/': "
        "received none but current is the value 'a' of type 'longstr'",
    ),
    "predeclared exchange of another type": (
        [ExchangeDeclare("amq.direct", "fanout", durable=True)],
        406,
        "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': "
        "received 'fanout' but current is 'direct'",
    ),
    "queue with other durability": (
        [QueueDeclare("Q"), QueueDeclare("Q", durable=True)],
        406,
        "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'Q' in vhost '/': "
        "received 'true' but current is 'false'",
    ),
    "queue with other auto-delete": (
        [QueueDeclare("Q"), QueueDeclare("Q", auto_delete=True)],
        406,
        "PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue 'Q' in vhost '/': "
        "received 'true' but current is 'false'",
    ),
    "queue with another TTL": (
        [own("Q", message_ttl=1000), own("Q", message_ttl=2000)],
        406,
        "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'Q' in vhost '/': "
        "received '2000' but current is '1000'",
    ),
    "queue with a TTL it had not": (
        [own("Q"), own("Q", message_ttl=1000)],
        406,
        "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'Q' in vhost '/': "
        "received the value '1000' of type 'signedint' but current is none",
    ),
    "queue without the TTL it had": (
        [own("Q", message_ttl=1000), own("Q")],
        406,
        "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'Q' in vhost '/': "
        "received none but current is the value '1000' of type 'signedint'",
    ),
    "queue that becomes exclusive": ([QueueDeclare("Q"), own("Q")], 405, LOCKED.format("Q")),
    "TTL that is text": (
        [own("Q", message_ttl="abc")],
        406,
        "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue 'Q' in vhost '/': expected integer, got",
    ),
    "TTL below zero": (
        [own("Q", message_ttl=-1)],
        406,
        "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue 'Q' in vhost '/': -1 is not",
    ),
    "expiry of zero": (
        [own("Q", expires=0)],
        406,
        "PRECONDITION_FAILED - invalid arg 'x-expires' for queue 'Q' in vhost '/': 0 is not",
    ),
    "length below zero": (
        [own("Q", max_length=-1)],
        406,
        "PRECONDITION_FAILED - invalid arg 'x-max-length' for queue 'Q' in vhost '/': -1 is not",
    ),
    "bytes that are text": (
        [own("Q", max_length_bytes="z")],
        406,
        "PRECONDITION_FAILED - invalid arg 'x-max-length-bytes' for queue 'Q' in vhost '/': expected integer",
    ),
    "priority beyond 255": (
        [own("Q", max_priority=256)],
        406,
        "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'Q' in vhost '/': 256 is not",
    ),
    "dead-letter key without exchange": (
        [own("Q", dead_letter_routing_key="k")],
        406,
        "PRECONDITION_FAILED - invalid arg 'x-dead-letter-routing-key' for queue 'Q' in vhost '/': "
        "routing_key_but_no_dlx_defined",
    ),
    "dead-letter key that no message can carry": (
        [own("Q", dead_letter_exchange="", dead_letter_routing_key="k" * 256)],
        406,
        "PRECONDITION_FAILED - invalid arg 'x-dead-letter-routing-key' for queue 'Q' in vhost '/': a",
    ),
    "queue name that is no text": (
        [QueueDeclare("\udcff")],
        406,
        r"PRECONDITION_FAILED - queue name '\xff' is not UTF-8",
    ),
    "exchange name that is no text": (
        [ExchangeDeclare("\udcff")],
        406,
        r"PRECONDITION_FAILED - exchange name '\xff' is not UTF-8",
    ),
    "binding key that is no text": (
        [own("Q"), QueueBind("Q", "amq.direct", "\udcff")],
        406,
        r"PRECONDITION_FAILED - routing key '\xff' is not UTF-8",
    ),
    "exclusive consumer of a single-active-consumer queue": (
        [own("Q", single_active_consumer=True), BasicConsume("Q", "t", exclusive=True)],
        403,
        "ACCESS_REFUSED - queue 'Q' in vhost '/' in exclusive use",
    ),
    "dead-letter exchange that is a number": (
        [own("Q", dead_letter_exchange=1)],
        406,
        "PRECONDITION_FAILED - invalid arg 'x-dead-letter-exchange' for queue 'Q' in vhost '/'",
    ),
    "unknown overflow": (
        [own("Q", overflow="bogus")],
        406,
        "PRECONDITION_FAILED - invalid arg 'x-overflow' for queue 'Q' in vhost '/'",
    ),
    "unknown queue type": (
        [own("Q", queue_type="bogus")],
        406,
        "PRECONDITION_FAILED - invalid arg 'x-queue-type' for queue 'Q' in vhost '/'",
    ),
    "unknown queue mode": (
        [own("Q", queue_mode="bogus")],
        406,
        "PRECONDITION_FAILED - invalid arg 'x-queue-mode' for queue 'Q' in vhost '/'",
    ),
    "single active consumer that is text": (
        [own("Q", single_active_consumer="yes")],
        406,
        "PRECONDITION_FAILED - invalid arg 'x-single-active-consumer' for queue 'Q' in vhost '/'",
    ),
    "quorum queue that does not last": (
        [QueueDeclare("Q", arguments={"x-queue-type": "quorum"})],
        406,
        "PRECONDITION_FAILED - invalid property 'non-durable' for queue 'Q' in vhost '/'",
    ),
    "quorum queue with more priorities than it can have": (
        [QueueDeclare("Q", durable=True, arguments={"x-queue-type": "quorum", "x-max-priority": 40})],
        406,
        "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'Q' in vhost '/'",
    ),
    "delete of a queue in use": (
        [own("Q"), BasicConsume("Q", "t"), QueueDelete("Q", if_unused=True)],
        406,
        "PRECONDITION_FAILED - queue 'Q' in vhost '/' in use",
    ),
    "delete of an exchange in use": (
        [
            own("Q"),
            ExchangeDeclare("Q", auto_delete=True),
            QueueBind("Q", "Q", "k"),
            ExchangeDelete("Q", if_unused=True),
        ],
        406,
        "PRECONDITION_FAILED - exchange 'Q' in vhost '/' in use",
    ),
    "ack of an unknown tag": ([BasicAck(99)], 406, "PRECONDITION_FAILED - unknown delivery tag 99"),
    "ack of everything up to an unknown tag": (
        [BasicAck(99, True)],
        406,
        "PRECONDITION_FAILED - unknown delivery tag 99",
    ),
    "ack of tag zero": ([BasicAck(0)], 406, "PRECONDITION_FAILED - unknown delivery tag 0"),
    "nack of an unknown tag": ([BasicNack(99)], 406, "PRECONDITION_FAILED - unknown delivery tag 99"),
    "reject of an unknown tag": ([BasicReject(99)], 406, "PRECONDITION_FAILED - unknown delivery tag 99"),
    "consumer beside an exclusive one": (
        [own("Q"), BasicConsume("Q", "t", exclusive=True), BasicConsume("Q", "u")],
        403,
        "ACCESS_REFUSED - queue 'Q' in vhost '/' in exclusive use",
    ),
    "exclusive consumer beside another": (
        [own("Q"), BasicConsume("Q", "t"), BasicConsume("Q", "u", exclusive=True)],
        403,
        "ACCESS_REFUSED - queue 'Q' in vhost '/' in exclusive use",
    ),
    "consumer priority that is text": (
        [own("Q"), BasicConsume("Q", "t", arguments={"x-priority": "a"})],
        406,
        "PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'Q' in vhost '/': "
        '"expected integer, got longstr"',
    ),
    "commit without a transaction": (
        [TxCommit()],
        406,
        "PRECONDITION_FAILED - channel is not transactional",
    ),
    "rollback without a transaction": (
        [TxRollback()],
        406,
        "PRECONDITION_FAILED - channel is not transactional",
    ),
    "from confirms to transactions": (
        [ConfirmSelect(), TxSelect()],
        406,
        "PRECONDITION_FAILED - cannot switch from confirm to tx mode",
    ),
    "from transactions to confirms": (
        [TxSelect(), ConfirmSelect()],
        406,
        "PRECONDITION_FAILED - cannot switch from tx to confirm mode",
    ),
    "direct reply-to with acks": (
        [BasicConsume("amq.rabbitmq.reply-to")],
        406,
        "PRECONDITION_FAILED - reply consumer cannot acknowledge",
    ),
    "direct reply-to twice": (
        [
            BasicConsume("amq.rabbitmq.reply-to", "a", no_ack=True),
            BasicConsume("amq.rabbitmq.reply-to", "b", no_ack=True),
        ],
        406,
        "PRECONDITION_FAILED - reply consumer already set",
    ),
    "headers binding with an unknown x-match": (
        [own("Q"), QueueBind("Q", "amq.headers", "", arguments={"x-match": "foo"})],
        406,
        "PRECONDITION_FAILED - Invalid x-match field value",
    ),
    "consistent hash with a weight that is no number": (
        [
            own("Q"),
            ExchangeDeclare("Q", "x-consistent-hash", auto_delete=True),
            QueueBind("Q", "Q", "heavy"),
        ],
        406,
        "PRECONDITION_FAILED - The binding key must be an integer",
    ),
    "delayed exchange that does not say its type": (
        [ExchangeDeclare("Q", "x-delayed-message")],
        406,
        "PRECONDITION_FAILED - Invalid argument, 'x-delayed-type' must be an existing exchange type",
    ),
}

CONNECTION_ERRORS: dict[str, tuple[int, Method, int, str]] = {
    "consumer tag used twice": (
        1,
        BasicConsume("Q", "t"),
        530,
        "NOT_ALLOWED - attempt to reuse consumer tag 't'",
    ),
    "immediate": (1, BasicPublish("", "k", immediate=True), 540, "NOT_IMPLEMENTED - immediate=true"),
    "prefetch size": (1, BasicQos(prefetch_size=10), 540, "NOT_IMPLEMENTED - prefetch_size!=0 (10)"),
    "recover without requeue": (1, BasicRecover(False), 540, "NOT_IMPLEMENTED - requeue=false"),
    "recover-async without requeue": (1, BasicRecoverAsync(False), 540, "NOT_IMPLEMENTED - requeue=false"),
    "second channel.open": (1, ChannelOpen(), 504, "CHANNEL_ERROR - second 'channel.open' seen"),
    "channel that is not open": (9, BasicQos(), 504, "CHANNEL_ERROR - expected 'channel.open'"),
    "close of a channel that is not open": (
        9,
        ChannelClose(200, ""),
        504,
        "CHANNEL_ERROR - expected 'channel.open'",
    ),
    "queue method on channel 0": (
        0,
        QueueDeclare("Q"),
        504,
        "CHANNEL_ERROR - unexpected method in connection state running",
    ),
    "tune-ok in the middle": (
        0,
        ConnectionTuneOk(0, 0, 0),
        504,
        "CHANNEL_ERROR - unexpected method in connection state running",
    ),
    "a method only servers send": (
        1,
        QueueDeclareOk("Q", 0, 0),
        503,
        "COMMAND_INVALID - unimplemented method",
    ),
    "connection method on a channel": (
        1,
        ConnectionClose(200, ""),
        503,
        "COMMAND_INVALID - unimplemented method",
    ),
}


@pytest.mark.parametrize("what", CHANNEL_ERRORS)
def test_a_refusal_closes_the_channel_with_rabbitmqs_code_and_text(raw: Raw, name: str, what: str) -> None:
    methods, code, text = CHANNEL_ERRORS[what]
    peer = raw()

    sent = [named(method, name) for method in methods]
    for method in sent:
        peer.send(1, method)

    close = until(peer, ChannelClose)
    assert close.reply_code == code
    assert close.reply_text.startswith(text.replace("Q", name))
    assert (close.failing_class_id, close.failing_method_id) == (sent[-1].class_id, sent[-1].method_id)
    peer.send(1, ChannelCloseOk())
    peer.send(1, ChannelOpen())
    peer.expect(ChannelOpenOk)  # the connection lives, and the number is free again
    peer.send(1, QueueDelete(name))
    peer.expect(QueueDeleteOk)
    peer.send(1, ExchangeDelete(name))
    peer.expect(ExchangeDeleteOk)


@pytest.mark.parametrize("what", CONNECTION_ERRORS)
def test_a_grave_error_closes_the_connection_with_rabbitmqs_code_and_text(
    raw: Raw, name: str, what: str
) -> None:
    channel, method, code, text = CONNECTION_ERRORS[what]
    peer = raw()
    peer.send(1, own(name))
    peer.expect(QueueDeclareOk)
    peer.send(1, BasicConsume(name, "t"))
    peer.expect(BasicConsumeOk)

    peer.send(channel, named(method, name))

    close = peer.expect_close()
    assert close.reply_code == code
    assert close.reply_text.startswith(text)
    assert (close.failing_class_id, close.failing_method_id) == (method.class_id, method.method_id)
    assert peer.read() is None


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        (
            Properties(user_id="bob"),
            "PRECONDITION_FAILED - user_id property set to 'bob' but authenticated user was 'guest'",
        ),
        (Properties(expiration="abc"), "PRECONDITION_FAILED - invalid expiration 'abc': "),
        (Properties(expiration="-1"), "PRECONDITION_FAILED - invalid expiration '-1': "),
        (
            Properties(expiration="1000000000000000"),
            "PRECONDITION_FAILED - invalid expiration '1000000000000000'",
        ),
        (
            Properties(reply_to="amq.rabbitmq.reply-to"),
            "PRECONDITION_FAILED - fast reply consumer does not exist",
        ),
        (
            Properties(headers={"CC": "foo"}),
            'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}',
        ),
        (
            Properties(headers={"BCC": "foo"}),
            'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"BCC",longstr}',
        ),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_a_message_that_cannot_be_closes_the_channel(raw: Raw, properties: Properties, text: str) -> None:
    peer = raw()

    peer.publish("nowhere", b"x", properties=properties)

    close = peer.expect(ChannelClose)
    assert close.reply_code == 406
    assert close.reply_text.startswith(text)
    assert (close.failing_class_id, close.failing_method_id) == (60, 40)


@pytest.mark.parametrize(
    "method",
    [
        own("Q"),
        QueueDeclare("Q", passive=True),
        BasicConsume("Q"),
        BasicGet("Q"),
        QueueDelete("Q"),
        QueuePurge("Q"),
        QueueBind("Q", "amq.direct", "k"),
    ],
    ids=lambda method: method.name,
)
def test_an_exclusive_queue_is_locked_to_other_connections(raw: Raw, name: str, method: Method) -> None:
    owner, stranger = raw(), raw()
    owner.send(1, own(name))
    owner.expect(QueueDeclareOk)

    stranger.send(1, named(method, name))

    close = stranger.expect(ChannelClose)
    assert close.reply_code == 405
    assert close.reply_text.startswith(LOCKED.format(name))


def test_deleting_a_queue_that_is_not_empty_is_refused(raw: Raw, name: str) -> None:
    peer = raw()
    peer.send(1, own(name))
    peer.expect(QueueDeclareOk)
    peer.publish(name, b"x")

    peer.send(1, QueueDelete(name, if_empty=True))

    close = peer.expect(ChannelClose)
    assert (close.reply_code, close.reply_text) == (
        406,
        f"PRECONDITION_FAILED - queue '{name}' in vhost '/' not empty",
    )


@pytest.mark.parametrize("multiple", [False, True])
def test_a_second_ack_of_one_delivery_is_an_unknown_tag(raw: Raw, name: str, multiple: bool) -> None:
    peer = raw()
    peer.send(1, own(name))
    peer.publish(name, b"1")
    peer.publish(name, b"2")
    peer.send(1, BasicGet(name))
    peer.send(1, BasicGet(name))
    until(peer, BasicGetOk)
    peer.send(1, BasicAck(1))

    peer.send(1, BasicAck(1, multiple))

    assert until(peer, ChannelClose).reply_text == "PRECONDITION_FAILED - unknown delivery tag 1"


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        ([QueueDelete("Q")], QueueDeleteOk),
        ([ExchangeDelete("Q")], ExchangeDeleteOk),
        ([QueueUnbind("Q", "amq.direct", "k")], QueueUnbindOk),
        ([own("Q"), QueueUnbind("Q", "nope", "k")], QueueUnbindOk),
        ([own("Q"), QueueUnbind("Q", "amq.direct", "k")], QueueUnbindOk),
        ([ExchangeUnbind("amq.direct", "amq.topic", "k")], ExchangeUnbindOk),
        ([BasicCancel("Q")], BasicCancelOk),
        ([ExchangeDeclare("amq.direct", "direct", durable=True)], ExchangeDeclareOk),
        ([own("Q", foo=1), own("Q", foo=2)], QueueDeclareOk),  # unknown arguments are not compared
        ([own("Q"), QueueBind("", "amq.direct", "")], QueueBindOk),  # the last queue, under its own name
        ([TxSelect(), TxSelect()], TxSelectOk),
        ([ConfirmSelect(), ConfirmSelect()], ConfirmSelectOk),
    ],
    ids=lambda value: value[-1].name if isinstance(value, list) else "",
)
def test_what_is_done_already_is_no_error(
    raw: Raw, name: str, sent: list[Method], answer: type[Method]
) -> None:
    peer = raw()

    for method in sent:
        peer.send(1, named(method, name))
    for _ in sent[:-1]:
        peer.read()

    assert isinstance(peer.read(), answer)


def test_an_ack_of_everything_when_there_is_nothing_is_fine(raw: Raw, name: str) -> None:
    peer = raw()

    peer.send(1, BasicAck(0, multiple=True))

    peer.send(1, own(name))
    peer.expect(QueueDeclareOk)


def test_after_a_channel_error_what_was_in_flight_is_discarded(raw: Raw, name: str) -> None:
    peer = raw()
    peer.send(1, BasicAck(99))
    peer.publish(name, b"lost")
    peer.send(1, QueueDeclare(name))
    peer.expect(ChannelClose)

    peer.send(1, ChannelCloseOk())
    peer.send(1, ChannelOpen())

    peer.expect(ChannelOpenOk)
    peer.send(1, QueueDeclare(name, passive=True))
    assert peer.expect(ChannelClose).reply_code == 404


HEADER = b"\0\x3c\0\0" + bytes(7) + b"\x05\0\0"
PUBLISH = b"\0\x3c\0\x28\0\0\0\0\0"


@pytest.mark.parametrize(
    ("frames", "code", "text"),
    [
        ([(1, 1, b"x" * 131073)], 501, "FRAME_ERROR - type 1: {frame_too_large,131073,131064}"),
        ([(5, 1, b"abc")], 501, "FRAME_ERROR - unknown frame type 5"),
        ([(1, 1, b"\0\x3c\x03\xe8")], 503, "COMMAND_INVALID - unknown method 1000 of class 60"),
        ([(1, 0, b"\x03\xe8\0\x0a")], 503, "COMMAND_INVALID - unknown method 10 of class 1000"),
        ([(1, 1, b"\0\x3c\0\x0a\0")], 502, "SYNTAX_ERROR - basic.qos"),
        ([(2, 1, HEADER)], 505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead"),
        ([(3, 1, b"x")], 505, "UNEXPECTED_FRAME - expected method frame, got non method frame instead"),
        ([(1, 1, PUBLISH), (3, 1, b"x")], 505, "UNEXPECTED_FRAME - expected content header for class 60"),
        (
            [(1, 1, PUBLISH), (2, 1, HEADER), (2, 1, HEADER)],
            505,
            "UNEXPECTED_FRAME - expected content body, got non content body frame instead",
        ),
        ([(1, 1, PUBLISH), (2, 1, HEADER), (3, 1, b"123456")], 501, "FRAME_ERROR - more body bytes"),
        ([(1, 1, PUBLISH), (2, 1, b"\0\x32" + HEADER[2:])], 502, "SYNTAX_ERROR - content header of class 50"),
        ([(8, 1, b"")], 503, "COMMAND_INVALID - heartbeat on a channel"),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_a_broken_frame_ends_the_connection(
    raw: Raw, frames: list[tuple[int, int, bytes]], code: int, text: str
) -> None:
    peer = raw()

    for frame in frames:
        peer.send_frame(*frame)

    close = peer.expect(ConnectionClose)
    assert close.reply_code == code
    assert close.reply_text.startswith(text)


def test_a_frame_without_its_end_octet_ends_the_connection(raw: Raw) -> None:
    peer = raw()

    peer.socket.sendall(b"\x01\0\x01\0\0\0\x04abcdX")

    close = peer.expect(ConnectionClose)
    assert (close.reply_code, close.reply_text) == (
        501,
        "FRAME_ERROR - type 1: {invalid_frame_end_marker,88}",
    )


def test_a_message_beyond_the_largest_size_is_refused_by_its_header(
    start_broker: Callable[..., TestBroker], raw: Raw
) -> None:
    peer = raw(port=start_broker(max_message_bytes=1000).amqp_port)

    peer.publish("q", b"x" * 1001)

    close = peer.expect(ChannelClose)
    assert (close.reply_code, close.reply_text) == (
        406,
        "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000",
    )


def test_more_channels_than_negotiated_are_refused(raw: Raw) -> None:
    peer = raw(channel_max=2)
    peer.send(40, ChannelOpen())  # their number matters, not how they are numbered
    peer.expect(ChannelOpenOk)

    peer.send(3, ChannelOpen())

    close = peer.expect_close()
    assert (close.reply_code, close.reply_text) == (
        530,
        "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)",
    )


def named(method: Method, name: str) -> Method:
    """The method with the test's own name where it says Q."""
    values = {field: getattr(method, field) for field in method.__match_args__}
    renamed = {k: v.replace("Q", name) if isinstance(v, str) else v for k, v in values.items()}
    return type(method)(**renamed)


def until(peer: RawPeer, kind: type[Method]) -> "ChannelClose":
    """Skip replies until this one."""
    while not isinstance(got := peer.read(), kind):
        assert got is not None, f"closed before {kind.__name__}"
    return got  # type: ignore[return-value]

"""Connections: handshake, logins, vhosts, permissions, heartbeats, alarms, TLS, goodbyes."""

import asyncio
import math
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
import pytest
from e2e_support import (
    PROTOCOL_HEADER,
    Consuming,
    RawPeer,
    drain,
    eventually,
    get_soon,
    publish,
    pump,
)

from certificates import Certificates
from holtmq import __version__
from holtmq.amqp.codec import encode_method
from holtmq.amqp.frames import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, encode_frame
from holtmq.amqp.methods import (
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicPublish,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    QueueDeclare,
    QueueDeclareOk,
)
from holtmq.amqp.protocol import AmqpProtocol
from holtmq.auth.passwords import hash_password
from holtmq.auth.permissions import Permissions
from holtmq.auth.topic_permissions import TopicPermission
from holtmq.auth.users import User
from holtmq.node import Node
from holtmq.testing import TestBroker
from holtmq.wire.properties import Properties, encode_header, encode_properties

pytestmark = pytest.mark.e2e
Connect = Callable[..., pika.BlockingConnection]
Raw = Callable[..., RawPeer]
Start = Callable[..., TestBroker]
POLITE = {"capabilities": {"authentication_failure_close": True}}
AMQPLAIN = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05guest"


def test_the_server_says_what_it_is_and_what_it_can(raw: Raw) -> None:
    peer = raw(bare=True)
    peer.socket.sendall(PROTOCOL_HEADER)

    start = peer.expect(ConnectionStart)

    assert (start.version_major, start.version_minor) == (0, 9)
    assert set(start.mechanisms.split()) == {b"PLAIN", b"AMQPLAIN"}
    assert start.locales == b"en_US"
    properties = start.server_properties
    assert (properties["product"], properties["version"]) == ("HoltMQ", __version__)
    assert properties["capabilities"] == {
        "publisher_confirms": True,
        "exchange_exchange_bindings": True,
        "basic.nack": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
        "consumer_priorities": True,
        "authentication_failure_close": True,
        "per_consumer_qos": True,
        "direct_reply_to": True,
    }


def test_the_product_name_can_be_set_for_programs_that_look_at_it(start_broker: Start, raw: Raw) -> None:
    broker = start_broker(product="RabbitMQ", product_version="4.0.1")
    peer = raw(bare=True, port=broker.amqp_port)
    peer.socket.sendall(PROTOCOL_HEADER)

    properties = peer.expect(ConnectionStart).server_properties

    assert (properties["product"], properties["version"]) == ("RabbitMQ", "4.0.1")


def test_tuning_offers_rabbitmqs_limits(raw: Raw) -> None:
    peer = raw(bare=True)
    peer.socket.sendall(PROTOCOL_HEADER)
    peer.expect(ConnectionStart)

    peer.send(0, ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"))

    assert peer.expect(ConnectionTune) == ConnectionTune(2047, 131072, 60)


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\0\0\x08\0",
        b"AMQP\0\x01\0\0",
        b"AMQP\x03\x01\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\0\0\0\0\0",
    ],
    ids=["0-8", "1.0", "1.0 sasl", "http", "tls"],
)
def test_another_protocol_is_answered_with_ours(raw: Raw, header: bytes) -> None:
    peer = raw(bare=True)

    peer.socket.sendall(header)

    answer = b""
    while data := peer.socket.recv(100):
        answer += data
    assert answer == PROTOCOL_HEADER


@pytest.mark.parametrize(
    "header", [PROTOCOL_HEADER, b"AMQP\x01\x01\0\x09"], ids=["0-9-1", "0-9, meaning 0-9-1"]
)
def test_a_handshake_sent_byte_by_byte_works(raw: Raw, header: bytes) -> None:
    peer = raw(bare=True)
    for at in range(8):
        peer.socket.sendall(header[at : at + 1])

    peer.expect(ConnectionStart)


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"\0guest\0guest"),
        ("AMQPLAIN", AMQPLAIN),
    ],
)
def test_both_password_mechanisms_log_in(raw: Raw, mechanism: str, response: bytes) -> None:
    raw(mechanism=mechanism, response=response)


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"\0guest\0wrong"),
        ("PLAIN", b"\0nobody\0guest"),
        ("AMQPLAIN", AMQPLAIN.replace(b"guest\x08", b"guesT\x08")),
        ("EXTERNAL", b""),
    ],
)
def test_a_refused_login_says_so_to_clients_that_understand(
    raw: Raw, mechanism: str, response: bytes
) -> None:
    peer = raw(bare=True)
    peer.socket.sendall(PROTOCOL_HEADER)
    peer.expect(ConnectionStart)

    peer.send(0, ConnectionStartOk(POLITE, mechanism, response))  # type: ignore[arg-type]

    close = peer.expect_close()
    assert (close.reply_code, close.reply_text) == (
        403,
        f"ACCESS_REFUSED - Login was refused using authentication mechanism {mechanism}. "
        "For details see the broker logfile.",
    )
    assert peer.read() is None


def test_a_refused_login_just_ends_for_clients_that_do_not(raw: Raw) -> None:
    peer = raw(bare=True)
    peer.socket.sendall(PROTOCOL_HEADER)
    peer.expect(ConnectionStart)

    peer.send(0, ConnectionStartOk({}, "PLAIN", b"\0guest\0wrong"))

    assert peer.read() is None


def test_pika_sees_a_wrong_password_as_an_authentication_error(connect: Connect) -> None:
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="ACCESS_REFUSED"):
        connect(password="wrong")


@pytest.mark.parametrize(
    ("tune", "text"),
    [
        (ConnectionTuneOk(2047, 131073, 0), "negotiated frame_max = 131073 is higher than the maximum"),
        (ConnectionTuneOk(2047, 100, 0), "negotiated frame_max = 100 is lower than the minimum"),
        (ConnectionTuneOk(2048, 131072, 0), "negotiated channel_max = 2048 is higher than the maximum"),
    ],
)
def test_tuning_beyond_the_offer_is_refused(raw: Raw, tune: ConnectionTuneOk, text: str) -> None:
    peer = raw(bare=True)
    peer.socket.sendall(PROTOCOL_HEADER)
    peer.expect(ConnectionStart)
    peer.send(0, ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"))
    peer.expect(ConnectionTune)

    peer.send(0, tune)

    close = peer.expect_close()
    assert close.reply_code == 530
    assert text in close.reply_text


def test_a_client_that_never_finishes_its_handshake_is_cut_off(start_broker: Start, raw: Raw) -> None:
    peer = raw(bare=True, port=start_broker(handshake_timeout=0.1).amqp_port)
    with suppress(ConnectionError):  # it may be over already
        peer.socket.sendall(PROTOCOL_HEADER)

    while peer.read() is not None:
        continue  # its half of the handshake

    assert peer.closed


def test_connections_beyond_the_limit_are_refused(start_broker: Start, raw: Raw) -> None:
    port = start_broker(max_connections=2).amqp_port
    first = raw(port=port)
    raw(port=port)

    third = raw(bare=True, port=port)
    assert third.read() is None

    first.socket.close()

    def there_is_room() -> bool:
        peer = raw(bare=True, port=port)
        with suppress(ConnectionError):  # it may be over already
            peer.socket.sendall(PROTOCOL_HEADER)
        return peer.read() is not None

    eventually(there_is_room)


def test_a_secret_can_be_updated(raw: Raw) -> None:
    peer = raw()

    peer.send(0, ConnectionUpdateSecret(b"guest", "rotation"))

    peer.expect(ConnectionUpdateSecretOk)


def test_a_client_that_says_goodbye_gets_its_answer(raw: Raw) -> None:
    peer = raw()

    peer.send(0, ConnectionClose(200, "bye"))

    peer.expect(ConnectionCloseOk)


def test_after_its_goodbye_a_client_closes_the_socket_and_may_still_send(raw: Raw) -> None:
    peer = raw()
    peer.send(0, ConnectionClose(200, "bye"))
    peer.expect(ConnectionCloseOk)

    for _ in range(3):  # a reset would be seen by the second
        peer.send(0, ConnectionClose(200, "bye, says another thread"))

    assert peer.is_silent()


def test_a_client_that_never_closes_its_socket_is_cut_off(raw: Raw) -> None:
    peer = raw()
    peer.socket.settimeout(60)

    peer.send(0, ConnectionClose(200, "bye"))

    peer.expect(ConnectionCloseOk)
    assert peer.read() is None


def test_a_stopping_broker_says_goodbye_with_320(start_broker: Start, raw: Raw) -> None:
    broker = start_broker()
    peer = raw(port=broker.amqp_port)

    broker.stop()

    close = peer.expect(ConnectionClose)
    assert close.reply_code == 320
    assert close.reply_text.startswith("CONNECTION_FORCED - broker forced connection closure")


def user(
    broker: TestBroker, name: str, vhost: str = "/", patterns: tuple[str, str, str] | None = None
) -> None:
    """A user whose password is "secret"."""

    def add(node: Any) -> None:
        if vhost not in node.broker.vhosts:
            node.broker.put_vhost(vhost)
        node.broker.access.put_user(User(name, hash_password("secret")))
        if patterns is not None:
            node.broker.access.set_permissions(name, vhost, Permissions(*patterns))

    broker.call(add)


def test_an_unknown_vhost_is_refused(raw: Raw) -> None:
    peer = raw(bare=True)
    peer.socket.sendall(PROTOCOL_HEADER)
    peer.expect(ConnectionStart)
    peer.send(0, ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"))
    peer.expect(ConnectionTune)
    peer.send(0, ConnectionTuneOk(0, 0, 0))

    peer.send(0, ConnectionOpen("nope"))

    close = peer.expect_close()
    assert close == ConnectionClose(530, "NOT_ALLOWED - vhost nope not found", 10, 40)


def test_a_client_in_its_handshake_is_sent_away_when_clients_are_refused(
    broker: TestBroker, raw: Raw, connect: Connect
) -> None:
    peer = raw(bare=True)
    peer.socket.sendall(PROTOCOL_HEADER)
    peer.expect(ConnectionStart)
    peer.send(0, ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"))
    peer.expect(ConnectionTune)
    broker.call(lambda node: node.amqp.refuse("the owner is elsewhere"))
    try:
        peer.send(0, ConnectionTuneOk(0, 0, 0))
        peer.send(0, ConnectionOpen("/"))

        peer.expect(ConnectionOpenOk)
        assert "the owner is elsewhere" in peer.expect_close().reply_text
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connect()
    finally:
        broker.call(lambda node: node.amqp.refuse(""))
    connect().channel().close()


def test_a_vhost_without_permissions_is_refused(broker: TestBroker, connect: Connect, name: str) -> None:
    user(broker, name, vhost=name)

    with pytest.raises(
        pika.exceptions.ProbableAccessDeniedError, match=f"access to vhost '{name}' refused for user"
    ):
        connect(user=name, password="secret", virtual_host=name)


def test_vhosts_are_apart(broker: TestBroker, connect: Connect, name: str) -> None:
    user(broker, name, name, (".*", ".*", ".*"))
    inside = connect(user=name, password="secret", virtual_host=name).channel()
    outside = connect().channel()
    for channel in (inside, outside):
        channel.queue_declare(name, exclusive=True)

    publish(inside, name, "inside")

    assert drain(outside, name) == []
    assert drain(inside, name) == [b"inside"]
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=f"no queue 'nope' in vhost '{name}'"):
        inside.queue_declare("nope", passive=True)


@pytest.mark.parametrize(
    ("action", "what", "which"),
    [
        (lambda c: c.queue_declare("other"), "configure", "other"),
        (lambda c: c.queue_delete("other"), "configure", "other"),
        (lambda c: c.exchange_declare("other"), "configure", "other"),
        (lambda c: c.exchange_delete("other"), "configure", "other"),
        (lambda c: c.basic_get("other"), "read", "other"),
        (lambda c: c.basic_consume("other", print), "read", "other"),
        (lambda c: c.queue_purge("other"), "read", "other"),
        (lambda c: c.queue_bind("other", "mine.x"), "write", "other"),
        (lambda c: c.queue_bind("mine.q", "amq.topic"), "read", "amq.topic"),
        (lambda c: (c.confirm_delivery(), c.basic_publish("amq.topic", "k", b"")), "write", "amq.topic"),
        (lambda c: (c.confirm_delivery(), c.basic_publish("", "other", b"")), "write", "amq.default"),
        (lambda c: c.exchange_bind("mine.x", "amq.topic"), "read", "amq.topic"),
        (lambda c: c.exchange_bind("amq.topic", "mine.x"), "write", "amq.topic"),
        (
            lambda c: c.queue_declare("mine.d", arguments={"x-dead-letter-exchange": "other"}),
            "write",
            "other",
        ),
        (
            lambda c: c.exchange_declare("mine.a", arguments={"alternate-exchange": "other"}),
            "write",
            "other",
        ),
    ],
)
def test_what_is_not_permitted_is_refused(
    broker: TestBroker, connect: Connect, name: str, action: Callable[[Any], object], what: str, which: str
) -> None:
    user(broker, name, name, ("^mine", "^mine", "^mine"))
    channel = connect(user=name, password="secret", virtual_host=name).channel()
    channel.exchange_declare("mine.x")
    channel.queue_declare("mine.q")
    broker.call(lambda node: node.broker.declare_queue(node.broker.vhosts[name], "other"))

    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refusal:
        action(channel)

    assert refusal.value.reply_code == 403
    assert refusal.value.reply_text == (
        f"ACCESS_REFUSED - {what} access to '{which}' in vhost '{name}' refused for user '{name}'"
    )


def test_a_queue_that_the_broker_names_needs_the_rights_on_that_name(
    broker: TestBroker, connect: Connect, name: str
) -> None:
    """Without them, its dead letters reached exchanges to which the user may not write."""
    user(broker, name, name, ("^mine", "^amq.default$", "^mine"))
    user(broker, name + ".2", name, (r"^amq\.gen", "^amq.default$", r"^amq\.gen"))
    broker.call(lambda node: node.broker.exchanges.declare(node.broker.vhosts[name], "other", "fanout"))
    connections = [connect(user=who, password="secret", virtual_host=name) for who in (name, name + ".2")]
    letters = {"x-dead-letter-exchange": "other", "x-message-ttl": 0}

    def refused(connection: Any, **arguments: object) -> str:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refusal:
            connection.channel().queue_declare("", exclusive=True, arguments=arguments)
        return str(refusal.value.reply_text)

    assert refused(connections[0]).startswith("ACCESS_REFUSED - configure access to 'amq.gen-")
    assert refused(connections[1], **letters) == (
        f"ACCESS_REFUSED - write access to 'other' in vhost '{name}' refused for user '{name}.2'"
    )
    made = (
        connections[1].channel().queue_declare("", exclusive=True, arguments={"x-dead-letter-exchange": ""})
    )
    assert made.method.queue.startswith("amq.gen-")


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_a_topic_permission_holds_for_every_key_of_a_message(
    broker: TestBroker, connect: Connect, name: str, header: str
) -> None:
    user(broker, name, name, (".*", ".*", ".*"))
    topics = TopicPermission(name, name, "amq.topic", r"^ok\.", ".*")
    broker.call(lambda node: node.broker.access.put_topic_permission(topics))
    channel = connect(user=name, password="secret", virtual_host=name).channel()
    channel.confirm_delivery()

    def publish_to(*keys: str) -> None:
        headers: dict[str, Any] = {header: list(keys[1:])}
        channel.basic_publish("amq.topic", keys[0], b"", pika.BasicProperties(headers=headers))

    publish_to("ok.a", "ok.b")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"access to topic 'bad\.b' in exchange"):
        publish_to("ok.a", "ok.b", "bad.b")


def test_who_may_not_read_learns_no_names_of_queues(broker: TestBroker, connect: Connect, name: str) -> None:
    user(broker, name, name, ("^mine", "^mine", "^mine"))
    connection = connect(user=name, password="secret", virtual_host=name)

    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="read access to 'missing'"):
        connection.channel().basic_get("missing")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="read access to 'missing'"):
        connection.channel().basic_consume("missing", print)


def test_deleting_a_vhost_or_a_user_ends_their_connections(broker: TestBroker, raw: Raw, name: str) -> None:
    for who in (name, name + ".2"):
        user(broker, who, name, (".*", ".*", ".*"))
    second = raw(response=f"\0{name}.2\0secret".encode(), vhost=name)
    first = raw(response=f"\0{name}\0secret".encode(), vhost=name)
    bystander = raw()

    broker.call(lambda node: node.broker.access.delete_user(name + ".2"))
    close = second.expect_close()
    assert (close.reply_code, close.reply_text) == (320, f"CONNECTION_FORCED - user '{name}.2' is deleted")
    broker.call(lambda node: node.broker.delete_vhost(name))
    close = first.expect_close()
    assert (close.reply_code, close.reply_text) == (320, f"CONNECTION_FORCED - vhost '{name}' is deleted")

    bystander.send(1, QueueDeclare("", exclusive=True))
    bystander.expect(QueueDeclareOk)


def test_permissions_taken_away_stop_a_publisher_at_once(
    broker: TestBroker, connect: Connect, name: str
) -> None:
    user(broker, name, name, (".*", ".*", ".*"))
    channel = connect(user=name, password="secret", virtual_host=name).channel()
    channel.queue_declare("q", exclusive=True)
    channel.confirm_delivery()
    publish(channel, "q", "allowed")

    broker.call(lambda node: node.broker.access.set_permissions(name, name, Permissions(".*", "^$", ".*")))

    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"write access to 'amq\.default'"):
        publish(channel, "q", "refused")


def test_the_broker_sends_heartbeats_and_ends_a_silent_connection(raw: Raw) -> None:
    began = time.monotonic()
    peer = raw(heartbeat=1)
    received = b""

    while data := peer.socket.recv(100):
        received += data

    assert received.startswith(b"\x08\0\0\0\0\0\0\xce")
    assert time.monotonic() - began > 2  # twice the interval


def test_a_client_that_sends_heartbeats_stays(start_broker: Start, connect: Connect, name: str) -> None:
    broker = start_broker()
    channel = connect(broker.amqp_port, heartbeat=4).channel()
    channel.queue_declare(name, exclusive=True)
    heard = broker.call(last_heard)

    pump(channel, lambda: broker.call(last_heard) > heard, "a heartbeat counts as life")

    publish(channel, name, "alive")
    assert get_soon(channel, name).body == b"alive"


def last_heard(node: Any) -> float:
    """When the only client last sent something."""
    (protocol,) = node.amqp.connections
    heard: float = protocol._received_at
    return heard


@pytest.mark.parametrize("stood_still", [False, True])
def test_a_broker_that_stood_still_does_not_blame_its_clients_for_the_silence(
    start_broker: Start, connect: Connect, stood_still: bool
) -> None:
    broker = start_broker()
    connect(broker.amqp_port, heartbeat=60)

    def sweep_after_a_long_silence(node: Any) -> bool:
        (protocol,) = node.amqp.connections
        protocol._received_at -= 1000
        if stood_still:
            node.amqp._swept_at -= 1000  # no sweep ran in that time
        node.amqp.sweep(asyncio.get_running_loop().time())
        ended: bool = protocol.transport.is_closing()
        return ended

    assert broker.call(sweep_after_a_long_silence) is not stood_still


def alarm(broker: TestBroker, reason: str) -> None:
    """Memory or disk run short, or no more."""

    def change(node: Any) -> None:
        node.alarms.reason = lambda: reason
        node.alarms.check()

    broker.call(change)


def test_an_alarm_blocks_publishers_only_and_lifts_again(start_broker: Start, raw: Raw, name: str) -> None:
    broker = start_broker()
    understands = {"connection.blocked": True}
    publisher = raw(port=broker.amqp_port, capabilities=understands)
    consumer = raw(port=broker.amqp_port, capabilities=understands)
    consumer.send(1, QueueDeclare(name, auto_delete=True))
    consumer.expect(QueueDeclareOk)
    consumer.send(1, BasicConsume(name, "t"))
    consumer.expect(BasicConsumeOk)
    publisher.publish(name, b"before")
    consumer.expect(BasicDeliver)
    consumer.read()
    consumer.read()

    alarm(broker, "low on memory")
    assert publisher.expect(ConnectionBlocked) == ConnectionBlocked("low on memory")
    publisher.publish(name, b"waits")
    consumer.send(1, QueueDeclare(name, passive=True))
    consumer.expect(QueueDeclareOk)  # not told, and still served
    assert consumer.is_silent()

    alarm(broker, "")
    publisher.expect(ConnectionUnblocked)
    consumer.expect(BasicDeliver)


def test_settled_messages_give_their_disk_back_while_publishers_are_blocked(
    start_broker: Start, connect: Connect, name: str
) -> None:
    broker = start_broker()
    channel = connect(broker.amqp_port).channel()
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    for _ in range(40):
        publish(channel, name, "x" * 100_000, delivery_mode=2)
    consumer = connect(broker.amqp_port).channel()
    for _ in range(40):
        get_soon(consumer, name)
    before = broker.call(lambda node: node.journal.stats().bytes_on_disk)

    def relieved(node: Node) -> bool:
        """As housekeeping does; what the older of two checkpoints needs is given back by the next one."""
        node.checkpoints._relieved_at = -math.inf
        node.checkpoint_if_due()
        return node.journal.stats().bytes_on_disk < before / 2

    alarm(broker, "low on disk")
    eventually(lambda: broker.call(relieved))
    alarm(broker, "")  # a blocked connection could not be closed


def test_a_connection_that_starts_to_publish_during_an_alarm_is_blocked(
    start_broker: Start, connect: Connect, name: str
) -> None:
    broker = start_broker()
    connection = connect(broker.amqp_port)
    blocked: list[str] = []
    unblocked: list[object] = []
    connection.add_on_connection_blocked_callback(lambda _, frame: blocked.append(frame.method.reason))
    connection.add_on_connection_unblocked_callback(lambda _, frame: unblocked.append(frame))
    channel = connection.channel()
    channel.queue_declare(name)
    alarm(broker, "low on disk")

    publish(channel, name, "x")

    pump(channel, lambda: blocked)
    assert blocked == ["low on disk"]
    alarm(broker, "")
    pump(channel, lambda: unblocked)
    assert get_soon(channel, name).body == b"x"


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture
def tls_broker(start_broker: Start, certificates: Certificates) -> TestBroker:
    cert, key = certificates.issue("broker")
    return start_broker(tls_cert=cert, tls_key=key, tls_ca=certificates.authority, tls_verify="optional")


def tls(broker: TestBroker, certificates: Certificates, client: str | None = None) -> dict[str, Any]:
    """Parameters for pika."""
    context = ssl.create_default_context(cafile=str(certificates.authority))
    if client is not None:
        context.load_cert_chain(*certificates.issue(client))
    port = broker.call(lambda node: node.amqp_tls_port)
    return {"port": port, "ssl_options": pika.SSLOptions(context, "127.0.0.1")}


def test_clients_can_come_over_tls(
    tls_broker: TestBroker, certificates: Certificates, connect: Connect, name: str
) -> None:
    channel = connect(**tls(tls_broker, certificates)).channel()
    channel.queue_declare(name, exclusive=True)
    body = b"x" * 500_000
    consumer = Consuming(channel, name, auto_ack=True)

    publish(channel, name, body)

    assert consumer.wait(1)[0].body == body


def test_a_certificate_logs_its_user_in(tls_broker: TestBroker, certificates: Certificates) -> None:
    user(tls_broker, "alice", patterns=(".*", ".*", ".*"))
    parameters = pika.ConnectionParameters(
        "127.0.0.1",
        credentials=pika.credentials.ExternalCredentials(),
        **tls(tls_broker, certificates, "alice"),
    )

    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare("q", exclusive=True)
        channel.basic_publish("", "q", b"x", pika.BasicProperties(user_id="alice"))
        assert get_soon(channel, "q").body == b"x"


@pytest.mark.parametrize("client", ["mallory", None])
def test_a_certificate_without_a_user_logs_nobody_in(
    tls_broker: TestBroker, certificates: Certificates, client: str | None
) -> None:
    parameters = pika.ConnectionParameters(
        "127.0.0.1",
        credentials=pika.credentials.ExternalCredentials(),
        **tls(tls_broker, certificates, client),
    )

    with pytest.raises((pika.exceptions.ProbableAuthenticationError, pika.exceptions.AuthenticationError)):
        pika.BlockingConnection(parameters)


def test_a_plain_connection_still_opens_beside_tls(tls_broker: TestBroker, raw: Raw) -> None:
    peer = raw(bare=True, port=tls_broker.amqp_port)

    peer.open()

    peer.send(0, ConnectionClose(200, ""))
    peer.expect(ConnectionCloseOk)


def test_an_open_connection_needs_nothing_but_the_handshake(raw: Raw) -> None:
    peer = raw(bare=True)
    peer.socket.sendall(PROTOCOL_HEADER)
    peer.expect(ConnectionStart)
    peer.send(0, ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"))
    peer.send(0, ConnectionTuneOk(0, 0, 0))  # all at once, without waiting
    peer.send(0, ConnectionOpen("/"))

    peer.expect(ConnectionTune)
    peer.expect(ConnectionOpenOk)


def test_of_very_many_connections_some_are_written_to_in_a_turn_and_the_others_after_it(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holtmq.amqp.server._FLUSHED_AT_ONCE", 2)
    written: list[int] = []

    class Client:
        def __init__(self, number: int) -> None:
            self.number = number

        def flush(self) -> None:
            written.append(self.number)

    def flush(node: Node) -> list[int]:
        node.amqp.with_output += [Client(number) for number in range(5)]  # type: ignore[misc]
        node.amqp.flush()
        return list(written)

    assert broker.call(flush) == [0, 1]
    eventually(lambda: written == [0, 1, 2, 3, 4])


def test_when_the_time_of_a_round_is_over_the_other_clients_wait_and_lose_nothing(
    broker: TestBroker, connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holtmq.amqp.server._ROUND", 0.0)  # one client in each round
    of_other_tests = broker.call(lambda node: set(node.amqp.connections))
    channels = [connect().channel() for _ in range(5)]
    channels[0].queue_declare(name)
    mine = broker.call(lambda node: [one for one in node.amqp.connections if one not in of_other_tests])
    frames = [
        (FRAME_METHOD, encode_method(BasicPublish("", name, False, False))),
        (FRAME_HEADER, encode_header(1, encode_properties(Properties()))),
        (FRAME_BODY, b"x"),
    ]
    publish_one = b"".join(encode_frame(kind, 1, payload) for kind, payload in frames)

    def receive(_: Node) -> list[bool]:
        for protocol in mine:
            protocol.data_received(publish_one * 2)
        for protocol in mine:
            if protocol.connection.is_stalled:
                protocol.data_received(publish_one)
        return sorted(protocol.connection.is_stalled for protocol in mine)

    assert broker.call(receive) == [False, True, True, True, True]
    eventually(lambda: channels[0].queue_declare(name, passive=True).method.message_count == 14)
    assert not any(broker.call(lambda _: [protocol.connection.is_stalled for protocol in mine]))


def test_a_client_with_much_to_do_goes_on_after_those_who_have_waited_longer(
    broker: TestBroker, connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holtmq.amqp.server._ROUND", 0.0)  # one client in each round
    monkeypatch.setattr("holtmq.amqp.protocol._TIME_SLICE", -1.0)  # and one frame of it
    of_other_tests = broker.call(lambda node: set(node.amqp.connections))
    channels = [connect().channel() for _ in range(3)]
    channels[0].queue_declare(name)
    mine = broker.call(lambda node: [one for one in node.amqp.connections if one not in of_other_tests])
    asked = encode_frame(FRAME_METHOD, 1, encode_method(QueueDeclare(name, passive=True, no_wait=True)))
    served: list[int] = []

    def receive(_: Node) -> None:
        for number, protocol in enumerate(mine):

            def unstall(number: int = number, then: Callable[[], None] = protocol.connection.unstall) -> None:
                served.append(number)
                then()

            monkeypatch.setattr(protocol.connection, "unstall", unstall)
            protocol.data_received(asked * 4)

    broker.call(receive)

    eventually(lambda: not any(protocol.connection.is_stalled for protocol in mine))
    assert served == [0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2]


def _close_its_side(protocol: AmqpProtocol) -> None:
    if not protocol.eof_received():
        protocol.transport.close()


@pytest.mark.parametrize("leave", [_close_its_side, AmqpProtocol.abort])
def test_what_a_client_sent_before_it_closed_its_socket_is_not_lost_when_others_have_the_round(
    broker: TestBroker,
    connect: Connect,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    leave: Callable[[AmqpProtocol], None],
) -> None:
    monkeypatch.setattr("holtmq.amqp.server._ROUND", 0.0)  # one client in each round
    of_other_tests = broker.call(lambda node: set(node.amqp.connections))
    channels = [connect().channel() for _ in range(4)]
    channels[0].queue_declare(name)
    others = broker.call(lambda node: node.amqp.connections - of_other_tests)
    connect().channel()
    (last,) = broker.call(lambda node: node.amqp.connections - of_other_tests - others)
    publish_one = b"".join(
        encode_frame(kind, 1, payload)
        for kind, payload in [
            (FRAME_METHOD, encode_method(BasicPublish("", name, False, False))),
            (FRAME_HEADER, encode_header(1, encode_properties(Properties()))),
            (FRAME_BODY, b"x"),
        ]
    )

    def receive(_: Node) -> bool:
        for protocol in (*others, last):
            protocol.data_received(publish_one * 3)
        was_stalled = last.connection.is_stalled
        leave(last)
        return was_stalled

    assert broker.call(receive)
    eventually(lambda: channels[0].queue_declare(name, passive=True).method.message_count == 15)
    eventually(lambda: last not in broker.call(lambda node: set(node.amqp.connections)))


def test_a_client_that_closed_its_side_is_answered_even_if_others_have_the_round(
    broker: TestBroker, connect: Connect, raw: Raw, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holtmq.amqp.server._ROUND", 0.0)  # one client in each round
    of_other_tests = broker.call(lambda node: set(node.amqp.connections))
    connect().channel().queue_declare(name)
    (other,) = broker.call(lambda node: node.amqp.connections - of_other_tests)
    peer = raw()
    (last,) = broker.call(lambda node: node.amqp.connections - of_other_tests - {other})
    asked_quietly, asked = (
        encode_frame(FRAME_METHOD, 1, encode_method(QueueDeclare(name, passive=True, no_wait=no_wait)))
        for no_wait in (True, False)
    )
    goodbye = encode_frame(FRAME_METHOD, 0, encode_method(ConnectionClose(200, "")))

    def receive(_: Node) -> bool:
        other.data_received(asked_quietly)
        last.data_received(asked + goodbye)
        was_stalled = last.connection.is_stalled
        _close_its_side(last)
        return was_stalled

    assert broker.call(receive)
    peer.expect(QueueDeclareOk)
    peer.expect(ConnectionCloseOk)

"""The handshake without a socket: its order, its refusals, what it agrees on."""

import struct

import pytest
from amqp_support import new_broker

from holtmq.amqp.codec import decode_method, encode_method
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.connection import Connection
from holtmq.amqp.errors import AmqpError
from holtmq.amqp.frames import FRAME_METHOD, FrameReader, encode_frame
from holtmq.amqp.handshake import PROTOCOL_HEADER, Settings
from holtmq.amqp.methods import (
    ChannelOpen,
    ConnectionClose,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
)
from holtmq.wire.tables import FieldTable, encode_table

POLITE: FieldTable = {"capabilities": {"authentication_failure_close": True}}
LOGIN = b"\0guest\0guest"


class Newcomer:
    """A client that has sent nothing yet; implements the connection's ``Hooks``."""

    def __init__(self, settings: Settings | None = None, certified: str | None = None) -> None:
        self.asked: tuple[str, str] | None = None
        self.failure: AmqpError | None = None
        self.is_open = self.has_ended = False
        self._certified = certified
        self._frames = FrameReader(0)
        settings = settings or Settings("HoltMQ", "1")
        self.connection = Connection(new_broker(), settings, self, from_loopback=True)

    def send(self, *methods: Method) -> list[Method]:
        return self.feed(b"".join(encode_frame(FRAME_METHOD, 0, encode_method(one)) for one in methods))

    def feed(self, data: bytes) -> list[Method]:
        self.connection.receive(data)
        return self.heard()

    def heard(self) -> list[Method]:
        answer = self.connection.outbox.take()
        return [decode_method(data) for kind, _, data in self._frames.feed(answer) if kind == FRAME_METHOD]

    def log_in(self) -> list[Method]:
        """Up to connection.tune."""
        self.feed(PROTOCOL_HEADER)
        self.send(ConnectionStartOk(POLITE, "PLAIN", LOGIN, "en_US"))
        self.connection.handshake.checked("guest")
        return self.heard()

    def has_output(self) -> None: ...
    def check_secret(self, secret: str) -> None:
        raise AssertionError("no client here has a token")

    def check_password(self, name: str, password: str) -> None:
        self.asked = name, password

    def certified_name(self) -> str | None:
        return self._certified

    def certified_user(self) -> str | None:
        return self._certified

    def opened(self) -> None:
        self.is_open = True

    def channel_failed(self, number: int, error: AmqpError) -> None: ...
    def failed(self, error: AmqpError) -> None:
        self.failure = error

    def ended(self) -> None:
        self.has_ended = True

    def is_time_up(self) -> bool:
        return False

    def unstall_soon(self) -> None: ...


def test_six_steps_open_a_connection() -> None:
    client = Newcomer()

    (start,) = client.feed(PROTOCOL_HEADER)
    waiting = client.send(ConnectionStartOk(POLITE, "PLAIN", LOGIN, "en_US"))
    client.connection.handshake.checked("guest")
    (tune,) = client.heard()
    (done,) = client.send(ConnectionTuneOk(0, 0, 30), ConnectionOpen("/"))

    assert isinstance(start, ConnectionStart)
    assert start.mechanisms == b"PLAIN AMQPLAIN"
    assert (waiting, client.asked) == ([], ("guest", "guest"))
    assert isinstance(tune, ConnectionTune)
    assert isinstance(done, ConnectionOpenOk)
    assert client.is_open
    assert (client.connection.heartbeat, client.connection.channel_max) == (30, tune.channel_max)


def test_every_split_of_the_bytes_gives_the_same_answers() -> None:
    tail = b"".join(
        encode_frame(FRAME_METHOD, 0, encode_method(one))
        for one in (ConnectionTuneOk(0, 0, 0), ConnectionOpen("/"))
    )
    for size in range(1, len(tail)):
        client = Newcomer()
        client.log_in()
        told = [said for at in range(0, len(tail), size) for said in client.feed(tail[at : at + size])]

        assert [type(said) for said in told] == [ConnectionOpenOk]


@pytest.mark.parametrize("header", [b"GET / HTTP/1.1\r\n", b"AMQP\x00\x01\x00\x00", b"AMQP\x02\x01\x00\x00"])
def test_another_protocol_is_answered_with_ours(header: bytes) -> None:
    client = Newcomer()

    client.connection.receive(header)

    assert client.connection.outbox.take() == PROTOCOL_HEADER
    assert client.has_ended


def test_what_arrives_while_the_password_is_checked_waits() -> None:
    client = Newcomer()
    client.feed(PROTOCOL_HEADER)

    early = client.send(
        ConnectionStartOk(POLITE, "PLAIN", LOGIN, "en_US"), ConnectionTuneOk(0, 0, 0), ConnectionOpen("/")
    )
    client.connection.handshake.checked("guest")

    assert early == []
    assert [type(said) for said in client.heard()] == [ConnectionTune, ConnectionOpenOk]


@pytest.mark.parametrize(("properties", "says_why"), [(POLITE, True), ({}, False)])
def test_a_wrong_password_is_refused_without_details(properties: FieldTable, says_why: bool) -> None:
    client = Newcomer()
    client.feed(PROTOCOL_HEADER)
    client.send(ConnectionStartOk(properties, "PLAIN", b"\0guest\0wrong", "en_US"))

    client.connection.handshake.checked(None)

    told = client.heard()
    assert "guest" not in client.connection.closed_because
    if says_why:
        (close,) = told
        assert isinstance(close, ConnectionClose)
        assert close.reply_code == ReplyCode.ACCESS_REFUSED
    else:  # an older client takes the closed socket as the answer
        assert (told, client.has_ended) == ([], True)


def test_amqplain_carries_a_table() -> None:
    client = Newcomer()
    client.feed(PROTOCOL_HEADER)
    response = encode_table({"LOGIN": "ann", "PASSWORD": "pass"})[4:]

    client.send(ConnectionStartOk({}, "AMQPLAIN", response, "en_US"))

    assert client.asked == ("ann", "pass")


def test_a_certificate_logs_in_without_a_password() -> None:
    client = Newcomer(certified="guest")

    (start,) = client.feed(PROTOCOL_HEADER)
    told = client.send(ConnectionStartOk({}, "EXTERNAL", b"", "en_US"))

    assert isinstance(start, ConnectionStart)
    assert start.mechanisms.startswith(b"EXTERNAL ")
    assert client.asked is None
    assert [type(said) for said in told] == [ConnectionTune]


def test_external_without_a_certificate_is_refused() -> None:
    client = Newcomer()
    client.feed(PROTOCOL_HEADER)

    told = client.send(ConnectionStartOk(POLITE, "EXTERNAL", b"", "en_US"))

    assert [type(said) for said in told] == [ConnectionClose]


@pytest.mark.parametrize(
    ("mechanism", "response", "code"),
    [
        ("PLAIN", b"guest", ReplyCode.SYNTAX_ERROR),
        ("AMQPLAIN", b"\x05LOGIN", ReplyCode.SYNTAX_ERROR),
        ("AMQPLAIN", encode_table({"LOGIN": "ann"})[4:], ReplyCode.SYNTAX_ERROR),
        ("GSSAPI", b"", ReplyCode.COMMAND_INVALID),
    ],
)
def test_a_login_that_cannot_be_read_names_what_is_wrong(
    mechanism: str, response: bytes, code: ReplyCode
) -> None:
    client = Newcomer()
    client.feed(PROTOCOL_HEADER)

    (close,) = client.send(ConnectionStartOk({}, mechanism, response, "en_US"))

    assert isinstance(close, ConnectionClose)
    assert close.reply_code == code
    assert mechanism in close.reply_text
    assert client.asked is None


@pytest.mark.parametrize(
    ("tune", "text"),
    [
        (ConnectionTuneOk(0, 131_073, 0), "frame_max = 131073 is higher"),
        (ConnectionTuneOk(0, 4_095, 0), "frame_max = 4095 is lower"),
        (ConnectionTuneOk(2_048, 0, 0), "channel_max = 2048 is higher"),
    ],
)
def test_limits_beyond_ours_are_refused(tune: ConnectionTuneOk, text: str) -> None:
    client = Newcomer()
    client.log_in()

    (close,) = client.send(tune)

    assert isinstance(close, ConnectionClose)
    assert close.reply_code == ReplyCode.NOT_ALLOWED
    assert text in close.reply_text


def test_a_large_frame_before_the_login_is_refused_before_it_has_arrived() -> None:
    """Its table may be decoded to ten times as much, and anyone may send it."""
    large, token = Newcomer(), Newcomer()
    large.feed(PROTOCOL_HEADER)
    token.feed(PROTOCOL_HEADER)

    (close,) = large.feed(struct.pack(">BHI", FRAME_METHOD, 0, 20_480) + b"x" * 100)
    token.send(ConnectionStartOk(POLITE, "PLAIN", b"\0\0" + b"x" * 16_384, "en_US"))

    assert isinstance(close, ConnectionClose)
    assert (close.reply_code, large.asked) == (ReplyCode.FRAME_ERROR, None)
    assert large.connection.waiting_bytes == 0
    assert token.asked == ("", "x" * 16_384)


def test_the_frames_of_a_client_that_has_logged_in_are_as_large_as_offered() -> None:
    client = Newcomer()
    client.log_in()

    client.send(ConnectionTuneOk(0, 0, 0), ConnectionOpen("/"))

    assert client.connection.max_payload == 131_072 - 8


def test_smaller_limits_of_the_client_count() -> None:
    client = Newcomer()
    client.log_in()

    client.send(ConnectionTuneOk(7, 4_096, 5), ConnectionOpen("/"))

    connection = client.connection
    assert (connection.channel_max, connection.max_payload, connection.heartbeat) == (7, 4_088, 5)


@pytest.mark.parametrize(
    "method", [ConnectionOpen("/"), ConnectionTuneOk(0, 0, 0), ConnectionClose(200, "", 0, 0)]
)
def test_a_step_out_of_turn_ends_the_connection(method: Method) -> None:
    client = Newcomer()
    client.feed(PROTOCOL_HEADER)

    client.send(method)

    assert not client.is_open
    assert client.has_ended or client.failure is not None


def test_a_channel_cannot_be_opened_before_the_connection() -> None:
    client = Newcomer()
    client.log_in()

    client.feed(encode_frame(FRAME_METHOD, 1, encode_method(ChannelOpen())))

    assert client.failure is not None
    assert client.failure.code is ReplyCode.CHANNEL_ERROR


def test_an_unknown_vhost_is_named() -> None:
    client = Newcomer()
    client.log_in()

    (close,) = client.send(ConnectionTuneOk(0, 0, 0), ConnectionOpen("nowhere"))

    assert isinstance(close, ConnectionClose)
    assert close.reply_code == ReplyCode.NOT_ALLOWED
    assert "vhost nowhere not found" in close.reply_text


def test_a_vhost_without_permissions_is_refused() -> None:
    client = Newcomer()
    client.connection.broker.put_vhost("private")
    client.log_in()

    (close,) = client.send(ConnectionTuneOk(0, 0, 0), ConnectionOpen("private"))

    assert isinstance(close, ConnectionClose)
    assert "access to vhost 'private' refused for user 'guest'" in close.reply_text

"""OAuth 2 tokens as passwords over AMQP and as bearers over HTTP: real keys, a real key server."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import jwt
import pika
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from e2e_support import RawPeer

from holtmq.amqp.methods import (
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    QueueDeclare,
    QueueDeclareOk,
)
from holtmq.auth.tokens import TokenVerifier
from holtmq.config import Auth, Config, JwtAlgorithm, Limits
from holtmq.testing import TestBroker, VirtualClock

pytestmark = pytest.mark.e2e
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
STRANGER = ec.generate_private_key(ec.SECP256R1())
EVERYTHING = "rabbitmq.configure:*/* rabbitmq.write:*/* rabbitmq.read:*/*"


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """The address of a key server."""
    keys = [
        {**jwt.algorithms.RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True), "kid": "rsa", "use": "sig"},
        {**jwt.algorithms.ECAlgorithm.to_jwk(EC.public_key(), as_dict=True), "kid": "ec", "use": "sig"},
    ]

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"keys": keys}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/keys"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def timed_broker(issuer: str) -> Iterator[TestBroker]:
    auth = Auth(
        jwt_enabled=True,
        jwt_algorithm=JwtAlgorithm.AUTO,
        jwt_jwks_url=issuer,
        jwt_audience="rabbitmq",
        jwt_issuer="https://id.example",
        jwt_clock_skew=0,
        oauth2_scope_aliases=(f"developer={EVERYTHING}",),
    )
    config = Config(auth=auth, limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0))
    with TestBroker(config=config) as one:
        yield one


Sign = Callable[..., str]


@pytest.fixture
def sign(timed_broker: TestBroker) -> Sign:
    def token(scope: str = EVERYTHING, key: str = "ec", seconds: float = 60, **claims: object) -> str:
        private = RSA if key == "rsa" else EC if key == "ec" else STRANGER
        given = {
            "sub": "app",
            "aud": "rabbitmq",
            "iss": "https://id.example",
            "exp": timed_broker.clock() + seconds,
            "scope": scope,
            **claims,
        }
        headers = {"kid": "ec" if key == "stranger" else key}
        return jwt.encode(given, private, "RS256" if key == "rsa" else "ES256", headers)

    return token


def connect(
    broker: TestBroker, password: str, name: str = "ignored", vhost: str = "/"
) -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(name, password)
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", broker.amqp_port, vhost, credentials)
    )


def opened(broker: TestBroker, token: str, **options: object) -> RawPeer:
    response = b"\0any\0" + token.encode()
    return RawPeer(broker.amqp_port).open(response=response, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["rsa", "ec"])
def test_a_token_is_a_password_and_its_scopes_are_permissions(
    timed_broker: TestBroker, sign: Sign, key: str
) -> None:
    scope = "rabbitmq.configure:%2F/mine.* rabbitmq.write:%2F/* rabbitmq.read:%2F/mine.*"
    with connect(timed_broker, sign(scope, key)) as connection:
        channel = connection.channel()
        channel.queue_declare("mine.q")
        channel.basic_publish("", "mine.q", b"x")
        assert channel.basic_get("mine.q", auto_ack=True)[2] == b"x"
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="refused for user 'app'"):
            channel.queue_declare("yours.q")


def test_passwords_go_on_working(timed_broker: TestBroker) -> None:
    connect(timed_broker, "guest", "guest").close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "stranger"},
        {"seconds": -1},
        {"aud": "other"},
        {"iss": "https://evil.example"},
        {"scope": "openid profile"},
        {"nbf": 9e12},
    ],
)
def test_a_token_that_is_not_valid_is_refused(
    timed_broker: TestBroker, sign: Sign, wrong: dict[str, object]
) -> None:
    token = sign(**wrong)

    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(timed_broker, token)
    answer = httpx.get(f"{timed_broker.http_url}/api/whoami", headers={"authorization": f"Bearer {token}"})
    assert answer.status_code in (401, 403)


def test_scopes_win_over_a_user_of_the_same_name(timed_broker: TestBroker, sign: Sign) -> None:
    token = sign("rabbitmq.read:%2F/nothing", sub="guest")
    with (
        connect(timed_broker, token) as connection,
        pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"),
    ):
        connection.channel().queue_declare("q")
    headers = {"authorization": f"Bearer {token}"}
    assert httpx.get(f"{timed_broker.http_url}/api/users", headers=headers).status_code == 403


def test_a_vhost_without_a_scope_is_refused(timed_broker: TestBroker, sign: Sign) -> None:
    timed_broker.call(lambda node: node.broker.put_vhost("closed"))

    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="access to vhost 'closed' refused"):
        connect(timed_broker, sign("rabbitmq.read:%2F/*"), vhost="closed")


def test_an_alias_stands_for_scopes(timed_broker: TestBroker, sign: Sign) -> None:
    with connect(timed_broker, sign("developer")) as connection:
        connection.channel().queue_declare("by-alias")


def test_routing_keys_of_topic_exchanges_are_checked(timed_broker: TestBroker, sign: Sign) -> None:
    scope = "rabbitmq.write:%2F/amq.topic/orders.* rabbitmq.read:%2F/*"
    with connect(timed_broker, sign(scope)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in range(3):
            channel.basic_publish("amq.topic", "orders.new", b"x")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"access to topic 'users\.new'"):
            channel.basic_publish("amq.topic", "users.new", b"x")


def test_the_connection_closes_when_its_token_expires(timed_broker: TestBroker, sign: Sign) -> None:
    assert isinstance(timed_broker.clock, VirtualClock)
    with opened(timed_broker, sign(seconds=60)) as peer:
        timed_broker.clock.advance(seconds=59)
        peer.send(1, BasicQos(0, 1, False))
        peer.expect(BasicQosOk)

        timed_broker.clock.advance(milliseconds=1001)  # the broker's clock has whole milliseconds

        close = peer.expect_close()
        assert (close.reply_code, "credential expired" in close.reply_text) == (320, True)


def test_a_new_token_keeps_the_connection_and_changes_its_rights(
    timed_broker: TestBroker, sign: Sign
) -> None:
    assert isinstance(timed_broker.clock, VirtualClock)
    capabilities = {"consumer_cancel_notify": True}
    with opened(timed_broker, sign(seconds=60), capabilities=capabilities) as peer:
        for name in ("kept", "lost"):
            peer.send(1, QueueDeclare(name))
            peer.expect(QueueDeclareOk)
            peer.send(1, BasicConsume(name, name))
            peer.expect(BasicConsumeOk)
        scope = "rabbitmq.read:%2F/kept rabbitmq.configure:%2F/kept"
        peer.send(0, ConnectionUpdateSecret(sign(scope, seconds=600).encode(), "renewed"))
        assert peer.expect(BasicCancel).consumer_tag == "lost"
        peer.expect(ConnectionUpdateSecretOk)

        timed_broker.clock.advance(seconds=120)

        peer.send(1, QueueDeclare("kept"))
        peer.expect(QueueDeclareOk)
        timed_broker.clock.advance(seconds=500)
        assert peer.expect_close().reply_code == 320


@pytest.mark.parametrize("key", ["direct", "a.topic"], ids=["short way", "general way"])
def test_a_permission_that_the_new_token_lacks_is_gone_at_once(
    timed_broker: TestBroker, sign: Sign, key: str
) -> None:
    exchange = "amq.direct" if key == "direct" else "amq.headers"
    with opened(timed_broker, sign()) as peer:
        for _ in range(3):
            peer.publish(key, b"x", exchange)
        peer.send(0, ConnectionUpdateSecret(sign("rabbitmq.read:%2F/*").encode(), "renewed"))
        peer.expect(ConnectionUpdateSecretOk)

        peer.publish(key, b"x", exchange)

        assert peer.expect(ChannelClose).reply_code == 403


@pytest.mark.parametrize("wrong", [{"sub": "another"}, {"key": "stranger"}, {"seconds": -1}])
def test_a_new_token_that_is_refused_ends_the_connection(
    timed_broker: TestBroker, sign: Sign, wrong: dict[str, object]
) -> None:
    with opened(timed_broker, sign()) as peer:
        peer.send(0, ConnectionUpdateSecret(sign(**wrong).encode(), "renewed"))

        close = peer.expect_close()

        assert (close.reply_code, "New secret was refused" in close.reply_text) == (530, True)


def test_a_new_token_that_cannot_be_checked_ends_the_connection(
    timed_broker: TestBroker, sign: Sign, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    with opened(timed_broker, sign()) as peer:
        monkeypatch.setattr(TokenVerifier, "authenticate", fail)
        peer.send(0, ConnectionUpdateSecret(sign().encode(), "renewed"))

        assert peer.read_frame() is None


def test_update_secret_of_a_client_with_a_password_changes_nothing(timed_broker: TestBroker) -> None:
    with RawPeer(timed_broker.amqp_port).open() as peer:
        peer.send(0, ConnectionUpdateSecret(b"whatever", ""))
        peer.expect(ConnectionUpdateSecretOk)


def test_http_knows_the_same_scopes_and_tags(timed_broker: TestBroker, sign: Sign) -> None:
    looks = sign("rabbitmq.tag:monitoring rabbitmq.read:%2F/*")
    rules = sign("rabbitmq.tag:administrator")
    for headers, auth, users, overview in (
        ({"authorization": f"Bearer {looks}"}, None, 403, 200),
        ({"authorization": f"Bearer {rules}"}, None, 200, 200),
        ({}, ("any", rules), 200, 200),  # as a password, as RabbitMQ's tools send it
    ):
        with httpx.Client(base_url=timed_broker.http_url, headers=headers, auth=auth) as http:
            assert http.get("/api/users").status_code == users
            assert http.get("/api/overview").status_code == overview
            assert http.get("/api/whoami").json()["name"] == "app"

"""``profile = "rabbitmq"``: each difference from RabbitMQ, seen with the profile and without it.

Owns: one check for each setting that the profile changes; a setting without a check fails a test.
"""

from collections.abc import Callable, Iterator

import httpx
import pytest
from e2e_support import RawPeer
from msgspec.structs import replace

from holtmq.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ChannelFlow,
    ChannelFlowOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
)
from holtmq.config import Limits, load
from holtmq.config.differences import rabbitmq_settings
from holtmq.testing import TestBroker, VirtualClock
from holtmq.wire.properties import Properties
from holtmq.wire.tables import FieldTable

pytestmark = pytest.mark.e2e

Check = Callable[[TestBroker, RawPeer, bool, str], None]
CHECKS: dict[str, Check] = {}


def row(setting: str) -> Callable[[Check], Check]:
    """Register the check of one setting; it is told whether RabbitMQ's behaviour is expected."""

    def register(check: Check) -> Check:
        CHECKS[setting] = check
        return check

    return register


def start(**environment: str) -> TestBroker:
    config = load(environment).config
    limits = Limits(memory_high_watermark=1.0, disk_free_min_bytes=0)
    return TestBroker(config=replace(config, limits=limits, amqp=replace(config.amqp, tls_port=0)))


@pytest.fixture(scope="module")
def brokers() -> Iterator[dict[bool, TestBroker]]:
    with start() as holt, start(HOLT_PROFILE="rabbitmq") as rabbitmq:
        yield {False: holt, True: rabbitmq}


def declare(peer: RawPeer, name: str, *, durable: bool = False, **arguments: object) -> str:
    table: FieldTable = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}  # type: ignore[misc]
    peer.send(1, QueueDeclare(name, durable=durable, arguments=table))
    return peer.expect(QueueDeclareOk).queue


def is_refused(peer: RawPeer, method: Method, answer: type[Method]) -> bool:
    """Whether the channel is closed with 406, rather than the method answered."""
    peer.send(1, method)
    got = peer.read()
    if isinstance(got, ChannelClose):
        assert got.reply_code == 406, got
        return True
    assert isinstance(got, answer), got
    return False


def read_delivery(peer: RawPeer) -> bytes:
    peer.expect(BasicDeliver)
    peer.read()
    body = peer.read()
    assert isinstance(body, bytes)
    return body


def get(peer: RawPeer, name: str) -> bytes | None:
    peer.send(1, BasicGet(name, no_ack=True))
    got = peer.read()
    if isinstance(got, BasicGetEmpty):
        return None
    assert isinstance(got, BasicGetOk), got
    peer.read()
    body = peer.read()
    assert isinstance(body, bytes)
    return body


def confirmed(peer: RawPeer, *names: str, **properties: int) -> None:
    """Publish to queues by name and wait until the broker has taken the messages."""
    peer.send(1, ConfirmSelect())
    peer.expect(ConfirmSelectOk)
    for name in names:
        peer.publish(name, name.encode(), properties=Properties(**properties))  # type: ignore[arg-type]
        peer.expect(BasicAck)


@pytest.mark.parametrize("as_rabbitmq", [False, True], ids=["holt", "rabbitmq"])
@pytest.mark.parametrize("setting", sorted(rabbitmq_settings()))
def test_each_difference_follows_the_profile(
    brokers: dict[bool, TestBroker], setting: str, as_rabbitmq: bool
) -> None:
    assert setting in CHECKS, f"no check for {setting}"
    broker = brokers[as_rabbitmq]
    with RawPeer(broker.amqp_port) as peer:
        CHECKS[setting](broker, peer, as_rabbitmq, f"{setting}-{as_rabbitmq}")


def test_an_explicit_setting_wins_over_the_profile() -> None:
    with (
        start(HOLT_PROFILE="rabbitmq", HOLT_AMQP_CANCEL_REQUEUE="true") as broker,
        RawPeer(broker.amqp_port) as peer,
    ):
        CHECKS["amqp.cancel_requeue"](broker, peer, False, "explicit")


def test_queues_from_before_the_profile_are_recovered_under_it() -> None:
    broker = start()
    with broker, RawPeer(broker.amqp_port) as peer:
        peer.open()
        declare(peer, "limited", durable=True, delivery_limit=3)
        declare(peer, "lazy", durable=True, queue_type="quorum", queue_mode="lazy")
        broker._config = start(HOLT_PROFILE="rabbitmq")._config
        broker.restart()
        with RawPeer(broker.amqp_port) as again:
            again.open()
            for name in ("limited", "lazy"):
                again.send(1, QueueDeclare(name, passive=True))
                again.expect(QueueDeclareOk)


@row("amqp.cancel_requeue")
def _cancelled_consumer(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    peer.open()
    declare(peer, name)
    peer.send(1, BasicConsume(name, "tag"))
    peer.expect(BasicConsumeOk)
    peer.publish(name, b"work")
    read_delivery(peer)
    peer.send(1, BasicCancel("tag"))
    peer.expect(BasicCancelOk)

    assert (get(peer, name) is None) == as_rabbitmq


def _server_properties(peer: RawPeer) -> FieldTable:
    peer.socket.sendall(b"AMQP\x00\x00\x09\x01")
    return peer.expect(ConnectionStart).server_properties


@row("amqp.product")
def _product(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    assert _server_properties(peer)["product"] == ("RabbitMQ" if as_rabbitmq else "HoltMQ")


@row("amqp.product_version")
def _version(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    assert (_server_properties(peer)["version"] == "3.13.7") == as_rabbitmq


@row("compatibility.brief_http_refusals")
def _refusals(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    peer.open()
    with httpx.Client(base_url=broker.http_url + "/api", auth=("guest", "guest"), timeout=60) as http:
        missing = http.get(f"/queues/%2F/{name}")
        http.put("/users/viewer", json={"password": "secret", "tags": "management"})
        refused = http.get("/users", auth=("viewer", "secret"))

    assert missing.json()["error"] == "Object Not Found"
    assert (missing.json()["reason"] == "Not Found") == as_rabbitmq
    assert refused.status_code == (401 if as_rabbitmq else 403)
    assert ("www-authenticate" in refused.headers) == as_rabbitmq


@row("amqp.max_priority")
def _priorities(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    peer.open()
    declare(peer, name, max_priority=255)
    for priority in (100, 200):
        peer.publish(name, b"%d" % priority, properties=Properties(priority=priority))

    assert get(peer, name) == (b"200" if as_rabbitmq else b"100")


@row("compatibility.drop_highest_priority")
def _full_priority_queue(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    peer.open()
    declare(peer, name, max_priority=5, max_length=1)
    for priority in (1, 4):
        peer.publish(name, b"%d" % priority, properties=Properties(priority=priority))

    assert get(peer, name) == (b"1" if as_rabbitmq else b"4")


@row("amqp.channel_flow")
def _channel_flow(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    peer.open()
    peer.send(1, ChannelFlow(False))
    if as_rabbitmq:
        assert peer.expect_close().reply_code == 540
    else:
        assert not peer.expect(ChannelFlowOk).active


@row("compatibility.consumer_timeout_closes_channel")
def _consumer_timeout(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    peer.open()
    declare(peer, name)  # classic: no timeout in 4.3
    peer.send(1, BasicConsume(name, "tag"))
    peer.expect(BasicConsumeOk)
    peer.publish(name, b"work")
    read_delivery(peer)
    assert isinstance(broker.clock, VirtualClock)
    broker.clock.advance(minutes=35)

    peer.send(1, QueueDeclare(name, passive=True))

    if as_rabbitmq:
        assert "timed out" in peer.expect(ChannelClose).reply_text
    else:
        peer.expect(QueueDeclareOk)


@row("compatibility.accept_zero_priority")
def _zero_priority(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    method = QueueDeclare(name, arguments={"x-max-priority": 0})
    assert is_refused(peer.open(), method, QueueDeclareOk) != as_rabbitmq


@row("compatibility.refuse_classic_delivery_limit")
def _classic_delivery_limit(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    method = QueueDeclare(name, arguments={"x-delivery-limit": 3})
    assert is_refused(peer.open(), method, QueueDeclareOk) == as_rabbitmq


@row("compatibility.refuse_queue_mode")
def _queue_mode(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    arguments: FieldTable = {"x-queue-type": "quorum", "x-queue-mode": "lazy"}
    assert (
        is_refused(peer.open(), QueueDeclare(name, durable=True, arguments=arguments), QueueDeclareOk)
        == as_rabbitmq
    )


@row("compatibility.refuse_quorum_priorities")
def _quorum_priorities(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    arguments: FieldTable = {"x-queue-type": "quorum", "x-max-priority": 5}
    assert (
        is_refused(peer.open(), QueueDeclare(name, durable=True, arguments=arguments), QueueDeclareOk)
        == as_rabbitmq
    )


@row("compatibility.ignore_quorum_exclusive_consumers")
def _quorum_exclusive_consumers(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    peer.open()
    declare(peer, name, durable=True, queue_type="quorum")
    peer.send(1, BasicConsume(name, "alone", exclusive=True))
    peer.expect(BasicConsumeOk)
    peer.send(1, BasicConsume(name, "other"))
    if as_rabbitmq:
        peer.expect(BasicConsumeOk)
    else:
        assert peer.expect(ChannelClose).reply_code == 403


@row("compatibility.refuse_conditional_quorum_delete")
def _conditional_quorum_delete(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    peer.open()
    declare(peer, name, durable=True, queue_type="quorum")
    peer.send(1, QueueDelete(name, if_empty=True))
    if as_rabbitmq:
        assert peer.expect_close().reply_code == 540
    else:
        peer.expect(QueueDeleteOk)


@row("compatibility.refuse_single_active_get")
def _single_active_get(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    arguments: FieldTable = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    peer.open().send(1, QueueDeclare(name, durable=True, arguments=arguments))
    peer.expect(QueueDeclareOk)
    peer.send(1, BasicGet(name))
    if as_rabbitmq:
        assert peer.expect(ChannelClose).reply_code == 405
    else:
        peer.expect(BasicGetEmpty)


@row("compatibility.refuse_server_names")
def _server_names(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    method = QueueDeclare("", durable=True, arguments={"x-queue-type": "stream"})
    assert is_refused(peer.open(), method, QueueDeclareOk) == as_rabbitmq


@row("compatibility.refuse_global_prefetch")
def _global_prefetch(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    peer.open()
    declare(peer, name, durable=True, queue_type="quorum")
    peer.send(1, BasicQos(0, 10, True))
    peer.expect(BasicQosOk)
    peer.send(1, BasicConsume(name))
    if as_rabbitmq:
        close = peer.expect_close()
        assert close.reply_code == 540
        assert "does not support global qos" in close.reply_text
    else:
        peer.expect(BasicConsumeOk)


@row("compatibility.stream_misuse_closes_connection")
def _stream_misuse(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    declare(peer.open(), name, durable=True, queue_type="stream")
    for method in (BasicGet(name), QueuePurge(name)):
        with RawPeer(broker.amqp_port) as one:
            one.open().send(1, method)
            if as_rabbitmq:
                assert one.expect_close().reply_code == 540
            else:
                assert one.expect(ChannelClose).reply_code == 406


@row("compatibility.refuse_group_nack")
def _group_nack(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    peer.open()
    declare(peer, name, durable=True, queue_type="stream")
    confirmed(peer, name)
    peer.send(1, BasicQos(0, 1, False))
    peer.expect(BasicQosOk)
    arguments: FieldTable = {"x-consumer-group": "workers", "x-stream-offset": "first"}
    peer.send(1, BasicConsume(name, "tag", arguments=arguments))
    peer.expect(BasicConsumeOk)
    tag = peer.expect(BasicDeliver).delivery_tag
    peer.read()
    peer.read()
    peer.send(1, BasicNack(tag, requeue=True))
    if as_rabbitmq:
        assert peer.expect_close().reply_code == 540
    else:
        assert read_delivery(peer) == name.encode()


@row("compatibility.refuse_unbounded_stream_consumers")
def _unbounded_stream_consumers(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    peer.open()
    declare(peer, name, durable=True, queue_type="stream")
    assert is_refused(peer, BasicConsume(name, "prefetch"), BasicConsumeOk) == as_rabbitmq
    with RawPeer(broker.amqp_port) as other:
        other.open().send(1, BasicConsume(name, no_ack=True))
        if as_rabbitmq:
            assert other.expect_close().reply_code == 540
        else:
            other.expect(BasicConsumeOk)


@row("compatibility.transient_stays_transient")
def _transient_to_both_kinds(_: TestBroker, __: RawPeer, as_rabbitmq: bool, name: str) -> None:
    with start(HOLT_PROFILE="rabbitmq" if as_rabbitmq else "holt") as broker:  # it is restarted
        with RawPeer(broker.amqp_port) as peer:
            peer.open()
            declare(peer, "quorum", durable=True, queue_type="quorum")
            declare(peer, "classic", durable=True)
            for queue in ("quorum", "classic"):
                peer.send(1, QueueBind(queue, "amq.direct", "both"))
                peer.expect(QueueBindOk)
            peer.send(1, ConfirmSelect())
            peer.expect(ConfirmSelectOk)
            for mode in (1, 2):
                properties = Properties(delivery_mode=mode)
                peer.publish("both", b"%d" % mode, "amq.direct", properties)
                peer.expect(BasicAck)
            assert get(peer, "classic") == b"1"  # before the restart both have both
            peer.publish("both", b"3", "amq.direct", Properties(delivery_mode=1))
            peer.expect(BasicAck)
        broker.crash_and_restart()
        with RawPeer(broker.amqp_port) as peer:
            peer.open()
            assert [get(peer, "quorum") for _ in range(4)] == [b"1", b"2", b"3", None]
            kept = [get(peer, "classic") for _ in range(2)]
            # The get of "1" may not be durable at the crash: it is only lost for sure if nothing kept it.
            if as_rabbitmq:
                assert kept == [b"2", None]
            else:
                assert b"3" in (*kept, get(peer, "classic"))


@row("compatibility.silent_handshake_errors")
def _handshake_errors(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    peer.socket.sendall(b"AMQP\x00\x00\x09\x01")
    peer.expect(ConnectionStart)
    peer.send(0, ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"))
    peer.expect(ConnectionTune)
    peer.send(0, ConnectionTuneOk(2047, 100, 0))  # less than the least frame
    if as_rabbitmq:
        assert peer.read() is None
    else:
        assert peer.expect_close().reply_code == 530


@row("compatibility.unreadable_names_close_connection")
def _unreadable_names(broker: TestBroker, peer: RawPeer, as_rabbitmq: bool, name: str) -> None:
    peer.open().send(1, QueueDeclare("\udcff"))
    if as_rabbitmq:
        assert peer.expect_close().reply_code == 501
    else:
        assert peer.expect(ChannelClose).reply_code == 406

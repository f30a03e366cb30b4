"""Brokers to test against, a bare-bones AMQP peer, and how to wait without sleeping blindly.

Owns: starting and stopping nodes on ports of the system's choosing. Must not touch: what is asserted.
"""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.amqp.codec import decode_method, encode_method
from holtmq.amqp.frames import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, FrameReader, encode_frame
from holtmq.amqp.methods import (
    BasicPublish,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
)
from holtmq.wire.properties import Properties, encode_properties
from ports import free_port

T = TypeVar("T")
M = TypeVar("M", bound=Method)
DEADLINE = 120.0  # seconds; reached only by a test that would fail anyhow
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"


def eventually(probe: Callable[[], T | None], what: str = "", deadline: float = DEADLINE) -> T:
    """Ask until the answer is true; fail loudly when it never is."""
    end = time.monotonic() + deadline
    while True:
        answer = probe()
        if answer:
            return answer
        assert time.monotonic() < end, f"never came true: {what or probe}"
        time.sleep(0.005)


class OtherBroker:
    """A broker that runs already (RabbitMQ, for example), to check the tests themselves."""

    def __init__(self, port: int) -> None:
        self.amqp_port = port
        self.amqp_url = f"amqp://guest:guest@127.0.0.1:{port}/%2F"

    def __getattr__(self, name: str) -> Any:
        pytest.skip(f"only our own broker has {name}")

    def stop(self) -> None:
        """It is not ours to stop."""


class ProcessBroker:
    """``holt serve`` in a process of its own, to be killed."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self._folder = folder
        self._environment = environment
        self.amqp_port = (
            free_port()
        )  # kept over kills: one that the kernel chose could be another's meanwhile
        self._process: subprocess.Popen[str]
        self.start()

    def start(self) -> None:
        """Start; returns when it says that it is ready."""
        log = self._folder / "broker.log"
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("HOLT_")},
            "HOLT_DATA_DIR": str(self._folder / "data"),
            "HOLT_AMQP_PORT": str(self.amqp_port),
            "HOLT_AMQP_HOST": "127.0.0.1",
            "HOLT_HTTP_PORT": "0",
            **self._environment,
        }
        with log.open("w") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holtmq", "serve"], env=environment, stdout=out, stderr=out, text=True
            )

        def ready() -> bool:
            assert self._process.poll() is None, log.read_text()
            return re.search(r"ready.*amqp_port=\d+", log.read_text()) is not None

        eventually(ready, "broker process is ready")

    def kill(self) -> None:
        """kill -9."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(DEADLINE)

    def stop(self) -> None:
        """A clean stop."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(DEADLINE)


class RawPeer:
    """A client that says exactly what it is told to, byte by byte if need be."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
        self._reader = FrameReader(0)
        self.frames: list[tuple[int, int, bytes]] = []
        self.closed = False

    def __enter__(self) -> "RawPeer":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def open(
        self,
        *,
        capabilities: dict[str, bool] | None = None,
        vhost: str = "/",
        response: bytes = b"\0guest\0guest",
        mechanism: str = "PLAIN",
        frame_max: int = 131072,
        channel_max: int = 2047,
        heartbeat: int = 0,
        channel: bool = True,
    ) -> "RawPeer":
        """The whole handshake, and channel 1."""
        self.socket.sendall(PROTOCOL_HEADER)
        self.expect(ConnectionStart)
        self.send(0, ConnectionStartOk({"capabilities": dict(capabilities or {})}, mechanism, response))
        self.expect(ConnectionTune)
        self.send(0, ConnectionTuneOk(channel_max, frame_max, heartbeat))
        self.send(0, ConnectionOpen(vhost))
        self.expect(ConnectionOpenOk)
        if channel:
            self.send(1, ChannelOpen())
            self.expect(ChannelOpenOk)
        return self

    def send(self, channel: int, method: Method) -> None:
        """One method."""
        self.send_frame(FRAME_METHOD, channel, encode_method(method))

    def send_frame(self, kind: int, channel: int, payload: bytes) -> None:
        """One frame."""
        self.socket.sendall(encode_frame(kind, channel, payload))

    def publish(
        self,
        routing_key: str,
        body: bytes,
        exchange: str = "",
        properties: Properties | None = None,
        channel: int = 1,
        mandatory: bool = False,
        immediate: bool = False,
    ) -> None:
        """Method, header and body in three frames."""
        self.send(channel, BasicPublish(exchange, routing_key, mandatory, immediate))
        header = b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + encode_properties(properties or Properties())
        self.send_frame(FRAME_HEADER, channel, header)
        if body:
            self.send_frame(FRAME_BODY, channel, body)

    def read_frame(self) -> tuple[int, int, bytes] | None:
        """The next frame but heartbeats; None when the broker closed the socket."""
        while True:
            while self.frames:
                frame = self.frames.pop(0)
                if frame[0] != 8:
                    return frame
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                self.closed = True
                return None
            self.frames += self._reader.feed(data)

    def read(self) -> Method | bytes | None:
        """The next method, or the payload of a content frame."""
        frame = self.read_frame()
        if frame is None:
            return None
        return decode_method(frame[2]) if frame[0] == FRAME_METHOD else frame[2]

    def expect(self, kind: type[M]) -> M:
        """The next frame, which must be this method."""
        got = self.read()
        assert isinstance(got, kind), f"expected {kind.__name__}, got {got!r}"
        return got

    def expect_close(self) -> ConnectionClose:
        """connection.close, answered."""
        close = self.expect(ConnectionClose)
        self.send(0, ConnectionCloseOk())
        return close

    def is_silent(self, seconds: float = 0.05) -> bool:
        """Nothing (more) comes for a moment."""
        return not self.frames and not select.select([self.socket], [], [], seconds)[0]


class Delivery:
    """One message as pika gave it."""

    def __init__(self, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self.method = method
        self.tag: int = method.delivery_tag
        self.redelivered: bool = method.redelivered
        self.properties = properties
        self.headers: dict[str, Any] = properties.headers or {}
        self.body = body

    def __repr__(self) -> str:
        return f"Delivery({self.tag}, {self.body!r}, redelivered={self.redelivered})"


class Consuming:
    """A pika consumer that keeps what it was given."""

    def __init__(self, channel: BlockingChannel, queue: str, **options: Any) -> None:
        self.channel = channel
        self.got: list[Delivery] = []
        self.cancelled = False
        self.tag: str = channel.basic_consume(
            queue,
            lambda _, method, properties, body: self.got.append(Delivery(method, properties, body)),
            **options,
        )

    @property
    def bodies(self) -> list[bytes]:
        """What came, in order."""
        return [delivery.body for delivery in self.got]

    def wait(self, count: int) -> list[Delivery]:
        """Until so many have come."""
        pump(self.channel, lambda: len(self.got) >= count, f"{count} deliveries, have {self.bodies!r}")
        return self.got

    def settle(self) -> list[Delivery]:
        """Everything that is on its way: the answer to a later method comes after it."""
        self.channel.basic_qos(prefetch_count=0)
        return self.got


def pump(channel: BlockingChannel, until: Callable[[], object], what: str = "") -> None:
    """Let pika work until something has come true."""
    end = time.monotonic() + DEADLINE
    while not until():
        channel.connection.process_data_events(0.02)
        assert time.monotonic() < end, f"never came true: {what or until}"


def get(channel: BlockingChannel, queue: str, auto_ack: bool = True) -> Delivery | None:
    """basic.get."""
    method, properties, body = channel.basic_get(queue, auto_ack)
    return None if method is None else Delivery(method, properties, body)


def get_soon(channel: BlockingChannel, queue: str, auto_ack: bool = True) -> Delivery:
    """basic.get until there is something."""
    return eventually(lambda: get(channel, queue, auto_ack), f"a message in {queue}")


def drain(channel: BlockingChannel, queue: str) -> list[bytes]:
    """Every body that waits in a queue."""
    bodies = []
    while (delivery := get(channel, queue)) is not None:
        bodies.append(delivery.body)
    return bodies


def depth(channel: BlockingChannel, queue: str) -> int:
    """How many messages wait."""
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count


def publish(
    channel: BlockingChannel, queue: str, *bodies: bytes | str, exchange: str = "", **properties: Any
) -> None:
    """Publish to a queue by name, or to an exchange by key."""
    for body in bodies:
        channel.basic_publish(exchange, queue, body, pika.BasicProperties(**properties))

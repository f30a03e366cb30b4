"""A broker process to kill, and a small client that speaks to it over a real socket.

Owns: starting and killing ``holt serve``, and the few methods of AMQP a load needs. Must not touch: what the
test concludes from what it saw.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from holtmq.amqp.codec import decode_method, encode_method
from holtmq.amqp.frames import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    PROTOCOL_HEADER,
    FrameReader,
    encode_frame,
)
from holtmq.amqp.methods import (
    BasicAck,
    BasicDeliver,
    BasicNack,
    BasicPublish,
    ChannelClose,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
)
from holtmq.wire.properties import Properties, encode_header, encode_properties

M = TypeVar("M", bound=Method)

READY_SECONDS: Final = 120.0
ANSWER_SECONDS: Final = 120.0
_GUEST: Final = "Basic " + b64encode(b"guest:guest").decode()
_PERSISTENT: Final = encode_properties(Properties(delivery_mode=2))


class BrokerProcess:
    """``holt serve`` on one folder, on a port of its own choice."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.environment = environment
        self.port = 0
        self.http_port = 0
        self.log: list[str] = []
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Until it says that it is ready."""
        keep = {name: value for name, value in os.environ.items() if not name.startswith("HOLT_")}
        settings = {"HOLT_AMQP_PORT": "0", "HOLT_HTTP_PORT": "0", "HOLT_LOG_FORMAT": "json"}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "holtmq",
            "serve",
            "--data-dir",
            str(self.folder),
            env=keep | settings | self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        ready: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read_log(ready), name="broker log")
        self.port, self.http_port = await asyncio.wait_for(ready, READY_SECONDS)

    async def _read_log(self, ready: asyncio.Future[tuple[int, int]]) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        while line := (await process.stdout.readline()).decode():
            self.log.append(line.rstrip())
            if line.startswith("{") and not ready.done():
                entry = json.loads(line)
                if "amqp_port" in entry:
                    ready.set_result((int(entry["amqp_port"]), int(entry["http_port"])))
        if not ready.done():
            ready.set_exception(RuntimeError("the broker ended: " + "\n".join(self.log)))

    async def kill(self) -> None:
        """SIGKILL, without a word of warning."""
        await self._end(lambda process: process.kill())

    async def stop(self) -> int:
        """SIGTERM; the exit status."""
        return await self._end(lambda process: process.terminate())

    async def _end(self, how: Callable[[asyncio.subprocess.Process], None]) -> int:
        process, reader = self._process, self._reader
        if process is None or reader is None:
            return 0
        how(process)
        status = await asyncio.wait_for(process.wait(), READY_SECONDS)
        await reader
        self._process = self._reader = None
        return status


@dataclass(frozen=True)
class Delivery:
    """One message as it arrived."""

    tag: int
    consumer: str
    redelivered: bool
    body: bytes


class Gone(Exception):
    """The broker closed the connection, or died."""


class HttpPeer:
    """One kept-alive HTTP connection. ``Gone``: it broke, and the result of the last call is unknown."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> HttpPeer:
        try:
            return cls(*await asyncio.open_connection("127.0.0.1", port))
        except OSError:
            raise Gone from None

    async def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {_GUEST}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        try:
            self._writer.write(head.encode() + content)
            answer = (await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), ANSWER_SECONDS)).decode()
            size = next(
                (line for line in answer.lower().split("\r\n") if line.startswith("content-length")), ":0"
            )
            payload = await self._reader.readexactly(int(size.partition(":")[2]))
        except (OSError, asyncio.IncompleteReadError):
            raise Gone from None
        return int(answer.split(" ", 2)[1]), json.loads(payload) if payload else None

    def close(self) -> None:
        self._writer.close()


class Peer:
    """One connection with one channel. What arrives is handed to callbacks, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()
        self._waiting: list[tuple[type[Method], asyncio.Future[Method]]] = []
        self._task: asyncio.Task[None] | None = None
        self._delivery: BasicDeliver | None = None
        self._body: list[bytes] = []
        self._missing = 0
        self.gone = asyncio.Event()
        self.published = 0
        self.on_confirm: Callable[[int, bool, bool], None] = lambda tag, multiple, ok: None
        self.on_delivery: Callable[[Delivery], None] = lambda delivery: None

    @classmethod
    async def connect(cls, port: int) -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        peer = cls(reader, writer)
        writer.write(PROTOCOL_HEADER)
        peer._task = asyncio.create_task(peer._read(), name="peer")
        await peer.wait_for(ConnectionStart)
        tune = await peer.ask(ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"), ConnectionTune, channel=0)
        peer.send(ConnectionTuneOk(tune.channel_max, tune.frame_max, 0), channel=0)
        await peer.ask(ConnectionOpen("/"), ConnectionOpenOk, channel=0)
        await peer.ask(ChannelOpen(), ChannelOpenOk)
        return peer

    def send(self, method: Method, channel: int = 1) -> None:
        """One method; nothing is awaited."""
        if not self.gone.is_set():
            self._writer.write(encode_frame(FRAME_METHOD, channel, encode_method(method)))

    async def ask(self, method: Method, answer: type[M], channel: int = 1) -> M:
        """One method and its answer."""
        self.send(method, channel)
        return await self.wait_for(answer)

    async def wait_for(self, kind: type[M]) -> M:
        """The next method of this kind."""
        future: asyncio.Future[Method] = asyncio.get_running_loop().create_future()
        self._waiting.append((kind, future))
        if self.gone.is_set():
            raise Gone
        found = await asyncio.wait_for(future, ANSWER_SECONDS)
        assert isinstance(found, kind)
        return found

    def publish(self, queue: str, body: bytes) -> int:
        """A persistent message; its confirm tag."""
        header = encode_header(len(body), _PERSISTENT)
        if not self.gone.is_set():
            self._writer.write(
                encode_frame(FRAME_METHOD, 1, encode_method(BasicPublish("", queue)))
                + encode_frame(FRAME_HEADER, 1, header)
                + encode_frame(FRAME_BODY, 1, body)
            )
        self.published += 1
        return self.published

    async def drain(self) -> None:
        """Wait until the socket takes more."""
        try:
            await self._writer.drain()
        except ConnectionError:
            self.gone.set()

    async def close(self) -> None:
        """Just hang up: the broker must cope."""
        self._writer.close()
        if self._task is not None:
            await self._task

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(262_144):
                for kind, _, payload in self._frames.feed(data):
                    self._frame(kind, payload)
        except (ConnectionError, Gone):
            pass
        finally:
            self.gone.set()
            for _, future in self._waiting:
                if not future.done():
                    future.set_exception(Gone())

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == FRAME_HEADER:
            self._missing = int.from_bytes(payload[4:12], "big")
            self._body = []
        elif kind == FRAME_BODY:
            self._body.append(payload)
            self._missing -= len(payload)
        elif kind == FRAME_METHOD:
            self._method(decode_method(payload))
            return
        if self._delivery is not None and not self._missing and kind in (FRAME_HEADER, FRAME_BODY):
            found, self._delivery = self._delivery, None
            body = b"".join(self._body)
            self.on_delivery(Delivery(found.delivery_tag, found.consumer_tag, found.redelivered, body))

    def _method(self, method: Method) -> None:
        match method:
            case BasicDeliver():
                self._delivery = method
            case BasicAck(tag, multiple):
                self.on_confirm(tag, multiple, True)
            case BasicNack(tag, multiple):
                self.on_confirm(tag, multiple, False)
            case ConnectionClose() | ChannelClose():
                raise Gone(method)
            case _:
                for at, (kind, future) in enumerate(self._waiting):
                    if isinstance(method, kind):
                        del self._waiting[at]
                        if not future.done():
                            future.set_result(method)
                        return
